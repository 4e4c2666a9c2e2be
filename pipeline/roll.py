"""Which runs a learner knows of, from what a broker tells it: used by both request sources (``pipeline.sources``)."""

from __future__ import annotations

from typing import Any

from pipeline.protocol import Hello, Kind, Message, Report, fields_of
from pipeline.requests import Event, Joined, Left, Reported


class Roll:
    """Which runs the learner knows of: LEFT is delivered once for each that JOIN was delivered for.

    Attributes:
        admitted: Worker -> run.
        seeds: Worker -> seed that was said when its run was admitted.
        largest_request: Rows that one STEP of those it has heard of can have, at most.
    """

    def __init__(self) -> None:
        self.largest_request = 0
        self._known: dict[int, int] = {}  # worker -> run
        self.admitted: dict[int, int] = {}
        self.seeds: dict[int, int] = {}

    def joined(self, worker: int, run: int, hello: Any) -> list[Event]:
        """JOIN, checked; preceded by the LEFT of another run of this index that never came."""
        events: list[Event] = []
        old = self._known.get(worker)
        if old is not None and old != run:
            events += self.left(worker, old, "lease", None)
        self._known[worker] = run
        joined = Joined(worker, run, Hello.from_wire(hello))
        self.largest_request = max(self.largest_request, 2 * max(joined.hello.groups))  # final rows included
        return [*events, joined]

    def left(self, worker: int, run: int, reason: str, report: Any) -> list[Event]:
        """LEFT, checked; of a run that is not here nothing but its last word, which may come later, and twice."""
        left = Left(worker, run, reason, None if report is None else Report.from_wire(report))
        if self._known.get(worker) != run:
            return [left] if reason == "bye" and report is not None else []
        del self._known[worker]
        self.admitted.pop(worker, None)
        self.seeds.pop(worker, None)
        return [left]

    def is_admitted(self, join: Message) -> bool:
        """Whether a JOIN asks for what was admitted already."""
        worker, run, _ = fields_of(join, int, int, dict)
        return bool(self.admitted.get(worker) == run)

    def admit(self, worker: int, run: int, seed: int) -> None:
        if self._known.get(worker) == run:
            self.admitted[worker], self.seeds[worker] = run, seed

    def reject(self, worker: int, run: int) -> None:
        """One that was admitted before is gone when its LEFT comes."""
        if self._known.get(worker) == run and self.admitted.get(worker) != run:
            del self._known[worker]

    def event(self, kind: Kind, fields: list[Any]) -> list[Event]:
        """The events of a JOIN, LEFT or REPORT.

        Raises:
            ProtocolError: malformed.
        """
        message = Message(kind, fields, [])
        if kind == Kind.JOIN:
            return self.joined(*fields_of(message, int, int, dict))
        if kind == Kind.LEFT:
            return self.left(*fields_of(message, int, int, str, (dict, type(None))))
        worker, run, report = fields_of(message, int, int, dict)
        return [Reported(worker, run, Report.from_wire(report))] if self.admitted.get(worker) == run else []
