"""A router with its messages, fed by hand; and the invariants that hold of everything it is asked and does."""

from __future__ import annotations

from typing import Any

from pipeline.protocol import Hello, Kind, Report, decode, encode
from pipeline.routing.actions import SendLearner, SendWorker, Settings
from pipeline.routing.messages import LearnerMessages, WorkerMessages
from pipeline.routing.router import Router
from pipeline.routing.status import StatusBoard
from pipeline.spaces import Leaf, Spaces

SPACES = Spaces((Leaf("observation", "box", "float32", (4,)),), Leaf("action", "discrete", "int64", (), n=2)).to_wire()
SETTINGS = Settings(heartbeat_seconds=1.0, lease_seconds=10.0, max_workers=8)


def hello(run: int, name: str = "", groups: tuple[int, ...] = (2, 2), worker: int = -1) -> Hello:
    return Hello(name or f"w{run}", run, "train", SPACES, list(groups), "", worker, {}, {"host": "h"})


def ready(name: str = "l", epoch: int = 1, **changes: Any) -> dict[str, Any]:
    default = {"slots": 64, "batch": 32, "held_back": "", "workers": [], "runs": []}
    return {"learner": name, "epoch": epoch, **default, **changes}


def step_frames(run: int, group: int, sequence: int, rows: int = 2, replies: int = 2) -> list[bytes]:
    return [encode(Kind.STEP, run, group, sequence, rows, replies), bytes(32 * rows), bytes(16 * rows)]


class Net:
    """One router, the messages around it, and everything that it has sent."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.router = Router(settings, broker=99)
        self.board = StatusBoard(self.router)
        self._workers = WorkerMessages(self.router, self.board)
        self._learners = LearnerMessages(self.router, self.board)
        self.now = 0.0
        self.to_workers: list[tuple[bytes, Kind, list[Any]]] = []
        self.to_learners: list[SendLearner] = []
        self.router.tick(self.now)

    def worker(self, peer: bytes, frames: list[Any]) -> list[tuple[Kind, list[Any]]]:
        """A worker's message; what this peer is answered."""
        self._workers.take(peer, frames, self.now)
        return self.collect(peer)

    def learner(self, peer: bytes, kind: Kind, *fields: Any, buffers: list[bytes] | None = None) -> None:
        self._learners.take(peer, [encode(kind, *fields), *(buffers or [])], self.now)
        self.collect()

    def learner_raw(self, peer: bytes, frames: list[Any]) -> None:
        self._learners.take(peer, frames, self.now)
        self.collect()

    def advance(self, seconds: float) -> None:
        """Time passes in ticks."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + self.router.tick_seconds)
            self.router.tick(self.now)
        self.collect()

    def flush(self) -> list[list[Any]]:
        """Items of the batches that go out now."""
        start = len(self.to_learners)
        self.router.flush(self.now)
        self.collect()
        return [item for x in self.to_learners[start:] if x.kind == Kind.BATCH for item in x.fields[0]]

    def collect(self, peer: bytes = b"") -> list[tuple[Kind, list[Any]]]:
        answers = []
        for action in self.router.take_actions():
            if isinstance(action, SendWorker):
                message = decode([action.head, *action.buffers])
                self.to_workers.append((action.peer, message.kind, message.fields))
                if action.peer == peer:
                    answers.append((message.kind, message.fields))
            elif isinstance(action, SendLearner):
                self.to_learners.append(action)
        return answers

    # Whole exchanges.

    def serve(self, run: int, name: str = "", groups: tuple[int, ...] = (2, 2), peer: bytes = b"") -> int:
        """HELLO, JOIN, ADMIT, WELCOME; the index."""
        self.worker(peer or b"w%d" % run, [encode(Kind.HELLO, hello(run, name, groups).to_wire())])
        lease = self.router.leases.by_run[run]
        assert lease.learner is not None
        learner = self.router.learners.named(lease.learner)
        assert learner is not None
        self.learner(learner.peer, Kind.ADMIT, lease.worker, run, 1000 + lease.worker, False)
        assert self.to_workers[-1][1] == Kind.WELCOME
        return lease.worker

    def heartbeat(self, run: int, peer: bytes = b"", report: Report | None = None) -> list[tuple[Kind, list[Any]]]:
        return self.worker(peer or b"w%d" % run, [encode(Kind.HEARTBEAT, run, (report or Report()).to_wire())])

    def sent_to_learner(self, kind: Kind) -> list[list[Any]]:
        return [x.fields for x in self.to_learners if x.kind == kind]


def check(router: Router) -> None:
    """Holds after every event."""
    leases = list(router.leases)
    assert len({x.worker for x in leases}) == len(leases)
    assert all(0 <= x.worker < router.settings.max_workers for x in leases)
    names = [x.hello.worker_id for x in leases if x.hello is not None]
    assert len(set(names)) == len(names)
    by_run = {x.run: x for x in leases}
    for learner in router.learners:
        waiting = [x.request for x in learner.batcher._waiting.values()]
        assert learner.batcher.rows == sum(x.rows for x in waiting)
        assert learner.used == sum(x.environments for x in leases if x.learner == learner.name)
        assert 0 <= learner.credit <= learner.batch
        arrivals = [x.arrived for x in learner.batcher._waiting.values()]
        assert arrivals == sorted(arrivals)
        for request in waiting:
            lease = by_run[request.run]
            assert lease.admitted and lease.learner == learner.name
            assert lease.last[request.group] >= request.sequence
    for lease in leases:
        assert not (lease.admitted and lease.parked)
        assert set(lease.parked) <= set(lease.open) <= set(range(len(lease.groups)))
