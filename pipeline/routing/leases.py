"""Leases: who holds which worker index, since when last heard, and how runs that ended did so."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

from pipeline.protocol import Hello
from pipeline.requests import StepRequest
from pipeline.routing.batching import Waiting

FAULT_CHARACTERS = 300
ENDED_RUNS = 8192  # how many ended runs are remembered, so that their late messages are answered rightly


class Lease:
    """One worker's place.

    Attributes:
        worker: Leased index.
        run: The worker's run id.
        peer: Its routing id; empty while only the learner has told of it (after a broker restart).
        hello: Its HELLO; None in the same case.
        learner: Name of the learner that serves it, or None.
        admitted: The learner has admitted this run.
        seed: Of its first environment, as the learner has said when it admitted the run; -1 before.
        heard: When the worker was last heard of.
        asked: When JOIN was last sent.
        report: Its last report as it travels.
        last: Group -> highest sequence number seen.
        open: Group -> sequence number that waits for its answer.
        parked: Group -> request that waits for a learner.
    """

    __slots__ = (
        "admitted", "asked", "environments", "frames", "groups", "heard", "hello", "last", "learner", "open", "parked",
        "peer", "report", "run", "seed", "worker",
    )  # fmt: skip

    def __init__(self, worker: int, run: int, now: float) -> None:
        self.worker = worker
        self.run = run
        self.peer = b""
        self.hello: Hello | None = None
        self.learner: str | None = None
        self.admitted = False
        self.seed = -1
        self.heard = now
        self.asked = float("-inf")
        self.report: dict[str, Any] | None = None
        self.last: dict[int, int] = {}
        self.open: dict[int, int] = {}
        self.parked: dict[int, Waiting] = {}
        self.groups: list[int] = []
        self.environments = 0
        self.frames = 0

    def claim(self, peer: bytes, hello: Hello, now: float) -> None:
        """The worker has said HELLO."""
        self.peer, self.hello, self.heard = peer, hello, now
        self.groups = hello.groups
        self.environments = sum(hello.groups)
        self.frames = 1 + len(hello.spaces["observation"])

    def fits(self, request: StepRequest) -> bool:
        """Whether a step is one that this worker can have taken; buffers of observations are checked by the learner."""
        return (
            0 <= request.group < len(self.groups)
            and 0 <= request.sequence < 2**61
            and request.replies == self.groups[request.group]
            and request.replies <= request.rows <= 2 * request.replies
            and len(request.buffers) == self.frames
            and len(request.buffers[0]) == 32 * request.rows
        )


class Ended(NamedTuple):
    """How a run ended: ``bye``, ``lease``, ``replaced`` or ``refused``, and its last report as it travels.

    ``learner``: who served it, and books what it took; None where nobody did, and for evaluation.
    """

    worker: int
    reason: str
    report: dict[str, Any] | None
    learner: str | None = None


class Leases:
    """All leases: an index, a run and a worker id are held by at most one of them."""

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self.by_run: dict[int, Lease] = {}
        self._by_worker: dict[int, Lease] = {}
        self._by_name: dict[str, Lease] = {}
        self._ended: OrderedDict[int, Ended] = OrderedDict()
        self.last_ended: Ended | None = None

    def __len__(self) -> int:
        return len(self.by_run)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self.by_run.values()))

    def named(self, worker_id: str) -> Lease | None:
        """The lease of a logical worker id."""
        return self._by_name.get(worker_id)

    def free(self, worker: int) -> bool:
        """Whether an index can be leased."""
        return 0 <= worker < self._max_workers and worker not in self._by_worker

    def lease(self, hello: Hello, peer: bytes, now: float, index: int) -> Lease | None:
        """A new lease: ``index`` if it is free, else the lowest free one; None where all are taken."""
        if not self.free(index):
            index = next((i for i in range(self._max_workers) if i not in self._by_worker), -1)
            if index < 0:
                return None
        lease = self.reserve(index, hello.run, now)
        self.claim(lease, peer, hello, now)
        return lease

    def reserve(self, worker: int, run: int, now: float) -> Lease:
        """Holds a free index for a run that a learner serves, until its worker says HELLO again."""
        lease = Lease(worker, run, now)
        self.by_run[run] = self._by_worker[worker] = lease
        self._ended.pop(run, None)
        return lease

    def claim(self, lease: Lease, peer: bytes, hello: Hello, now: float) -> None:
        """A worker takes its lease, for the first time or again."""
        lease.claim(peer, hello, now)
        self._by_name[hello.worker_id] = lease

    def end(self, lease: Lease, reason: str) -> None:
        """Frees a lease and remembers how it ended."""
        del self.by_run[lease.run]
        del self._by_worker[lease.worker]
        if lease.hello is not None and self._by_name.get(lease.hello.worker_id) is lease:
            del self._by_name[lease.hello.worker_id]
        books = lease.learner if lease.hello is None or lease.hello.mode != "eval" else None
        self.last_ended = self._ended[lease.run] = Ended(lease.worker, reason, lease.report, books)
        while len(self._ended) > ENDED_RUNS:
            self._ended.popitem(last=False)

    def end_unknown(self, report: dict[str, Any]) -> None:
        """A run says its last word that holds no lease: it could not begin, or was forgotten."""
        self.last_ended = Ended(-1, "bye", report)

    def last_fault(self) -> str:
        """What the run that ended last said of its environments' last fault; empty: nothing."""
        report = self.last_ended.report if self.last_ended is not None else None
        return str(report["message"])[:FAULT_CHARACTERS] if report is not None else ""

    def ended(self, run: int) -> Ended | None:
        """How a run ended, if it is remembered."""
        return self._ended.get(run)

    def last_word(self, run: int, report: dict[str, Any]) -> None:
        """Of a run that ended without one, or has taken more since."""
        self._ended[run] = self._ended[run]._replace(reason="bye", report=report)

    def last_words(self, learner: str, most: int) -> list[tuple[int, Ended]]:
        """Of the runs of a learner that ended last, in order."""
        words = [
            (run, ended) for run, ended in self._ended.items() if ended.learner == learner and ended.reason == "bye"
        ]
        return words[-most:]

    def expired(self, before: float) -> list[Lease]:
        """Leases not heard of since ``before``."""
        return [lease for lease in self.by_run.values() if lease.heard < before]

    def forgive(self, seconds: float) -> None:
        """The loop itself stood still for so long: that is not the workers' silence."""
        for lease in self.by_run.values():
            lease.heard += seconds
