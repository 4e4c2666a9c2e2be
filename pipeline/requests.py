"""What the inference loop sees of the workers, wherever the broker stands.

``pipeline.sources`` has the two implementations: ``EmbeddedSource`` (the inference thread polls the worker-facing
socket itself) and ``BrokerSource`` (a DEALER to a broker process). A source belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pipeline.protocol import Cause, Hello, Report
from pipeline.stages import Stage

if TYPE_CHECKING:
    from pipeline.routing.reading import Reading


class StepRequest(NamedTuple):
    """One group's observations.

    Attributes:
        worker: Leased worker index.
        run: The worker's run id.
        group: Env group within the worker.
        sequence: Grows by one with each step of the group; a repeat has the same.
        rows: Rows in the message (final-observation rows included).
        replies: Rows that need an action (the last ones): the group's environments.
        buffers: ``pipeline.rows.ROW`` records, then one buffer per observation leaf; lengths are not checked yet.
    """

    worker: int
    run: int
    group: int
    sequence: int
    rows: int
    replies: int
    buffers: list[Any]


class Reply(NamedTuple):
    """A group's actions: ``buffer`` is ``[replies, *shape]`` in the action leaf's dtype."""

    worker: int
    run: int
    group: int
    sequence: int
    buffer: Any


class Joined(NamedTuple):
    """A worker asks to be admitted; repeated until the learner admits or rejects it."""

    worker: int
    run: int
    hello: Hello


class Left(NamedTuple):
    """A worker is gone: ``reason`` is ``bye``, ``lease``, ``replaced`` or ``refused`` (rejected once admitted);
    the report is its last word, if there was one."""

    worker: int
    run: int
    reason: str
    report: Report | None


class Reported(NamedTuple):
    """A living worker's counters."""

    worker: int
    run: int
    report: Report


Event = Joined | Left | Reported


class Standing(NamedTuple):
    """Where a source stands; any thread may read it.

    Attributes:
        away: Why no broker is there; empty: one is.
        broker: What an embedded broker knows and has counted; None where the broker is a process.
        dropped: Messages from and to a broker process that led to nothing, by reason.
        waiting_requests: Requests that a broker process has sent and nobody has asked for yet.
        waiting_rows: Their rows.
        last_fault: What the last run that ended said of its environments' last fault, as far as an embedded broker is
            told; empty: nothing.
    """

    away: str
    broker: Reading | None = None
    dropped: Mapping[str, int] = MappingProxyType({})
    waiting_requests: int = 0
    waiting_rows: int = 0
    last_fault: str = ""


class RequestSource(Protocol):
    """Where the inference loop gets requests from. Used by the thread that made it, and no other.

    Attributes:
        stage: The loop's: ``poll`` says when it waits, for requests or (without credit) for room.
        broker_busy: Busy share of a broker process, as it said last; None where there is none.
        arrived: When the requests that ``poll`` gave last had come (monotonic seconds), in their order.
    """

    stage: Stage
    broker_busy: float | None

    @property
    def arrived(self) -> Sequence[float]: ...

    def poll(self, credit: int, timeout_seconds: float) -> tuple[list[StepRequest], list[Event]]:
        """Requests of together at most ``credit`` rows (0: events only), oldest first, and what happened to workers.

        A single request larger than ``credit`` is given alone when ``credit`` is the loop's full batch. Returns as soon
        as there is something, at the latest after ``timeout_seconds``.
        """

    def reply(self, replies: list[Reply]) -> None:
        """Sends actions; a worker that is gone by now is counted, not an error."""

    def admit(self, worker: int, run: int, seed: int, anew: bool) -> None:
        """Answers ``Joined``: WELCOME.

        Args:
            worker: Leased index.
            run: Its run.
            seed: Of its first environment, where they have not begun; the others follow (``pipeline.streams``).
            anew: Where they have, new episodes begin.
        """

    def reject(self, worker: int, run: int, reason: str, cause: Cause) -> None:
        """Answers ``Joined``: WAIT where it may ask again, else REFUSED."""

    def hold_back(self, reason: str | None) -> None:
        """Says in every ALIVE that workers are held back and why, until called with None."""

    def publish(self, status: dict[str, Any]) -> None:
        """The learner's part of what ``seedmq status`` shows."""

    def dismiss(self, reason: str) -> None:
        """DRAIN to every worker, and to every one that says HELLO from now on."""

    def workers(self) -> int:
        """Workers that hold a lease now."""

    def standing(self, now: float) -> Standing:
        """Where it stands, at a monotonic time in seconds; asked about twice a second."""

    def close(self) -> None:
        """Closes the sockets, lingering shortly for what is under way."""
