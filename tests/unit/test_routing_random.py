"""Random walks: workers, learners, losses, restarts in any order; the invariants hold and nothing stays unanswered.

The model keeps what each worker has asked and been answered, and what each learner has been given.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from pipeline.protocol import Kind, Report, encode
from pipeline.routing.actions import SendLearner, Settings
from tests.unit.routing_net import Net, check, hello, ready, step_frames

pytestmark = pytest.mark.unit

SETTINGS = Settings(heartbeat_seconds=1.0, lease_seconds=10.0, max_workers=6, min_rows=3, max_wait_seconds=0.2)
BATCH = 6


class Worker:
    """One run with two groups; a group asks for the next step when it was answered."""

    def __init__(self, run: int, name: str) -> None:
        self.run, self.name = run, name
        self.peer = b"w%d" % run
        self.index = -1
        self.sequence = [0, 0]
        self.asked = [False, False]
        self.welcomed = self.over = False


class Learner:
    """Admits everybody, answers what it was given in any order."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.peer = b"L%d" % epoch
        self.admitted: dict[int, int] = {}
        self.given: list[list[Any]] = []
        self.credit = 0
        self.session = 0


class World:
    """Everything around one router at a time; messages may be lost on either side."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.net = Net(SETTINGS)
        self.learner = Learner(1)
        self.workers: dict[int, Worker] = {}
        self.runs = 0
        self.lossy = True
        self.answered: dict[tuple[int, int, int], int] = {}
        self.seen_workers = self.seen_learners = 0

    def lost(self) -> bool:
        return self.lossy and self.random.random() < 0.1

    def act(self) -> None:
        acts = [
            (self.arrive, 2.0),
            (self.say_hello, 6.0),
            (self.ask, 20.0),
            (self.heartbeat, 4.0),
            (self.leave, 1.0),
            (self.ready, 4.0),
            (self.give_credit, 8.0),
            (self.answer, 12.0),
            (self.pass_time, 6.0),
            (self.replace_learner, 0.2),
            (self.restart_broker, 0.2),
        ]
        self.random.choices([act for act, _ in acts], [weight for _, weight in acts])[0]()
        self.settle()

    def settle(self) -> None:
        """Routes what the router sent, and checks everything."""
        net = self.net
        net.router.flush(net.now)
        net.collect()
        check(net.router)
        for peer, kind, fields in net.to_workers[self.seen_workers :]:
            if not self.lost():
                self.take_as_worker(peer, kind, fields)
        self.seen_workers = len(net.to_workers)
        for message in net.to_learners[self.seen_learners :]:
            if message.kind == Kind.BATCH and self.lost():
                net.router.learner_unreachable(message.peer)
            elif message.peer == self.learner.peer and not (
                self.lost() and message.kind not in (Kind.BATCH, Kind.BROKER)
            ):
                self.take_as_learner(message)
        self.seen_learners = len(net.to_learners)
        if net.router.take_actions():
            raise AssertionError("actions without an event")

    def take_as_worker(self, peer: bytes, kind: Kind, fields: list[Any]) -> None:
        worker = self.workers.get(int(peer[1:]))
        if worker is None or fields[0] != worker.run:
            return
        if kind == Kind.WELCOME:
            worker.welcomed, worker.index = True, fields[1]["worker"]
        elif kind == Kind.UNKNOWN:
            worker.welcomed = False
        elif kind == Kind.REFUSED:
            worker.over = True
        elif kind == Kind.ACTIONS and fields[2] == worker.sequence[fields[1]]:
            key = (worker.run, fields[1], fields[2])
            self.answered[key] = self.answered.get(key, 0) + 1
            assert self.answered[key] == 1 and worker.asked[fields[1]]
            worker.sequence[fields[1]] += 1
            worker.asked[fields[1]] = False

    def take_as_learner(self, message: SendLearner) -> None:
        learner = self.learner
        if message.kind == Kind.BATCH:
            (items,) = message.fields
            keys = [(x[1], x[2]) for x in items]
            assert len(set(keys)) == len(keys)
            learner.credit -= sum(x[4] for x in items)
            assert learner.credit >= 0
            learner.given += items
        elif message.kind == Kind.JOIN:
            worker, run, _ = message.fields
            learner.admitted[worker] = run
            self.to_router(Kind.ADMIT, worker, run, run, False)
        elif message.kind == Kind.LEFT and learner.admitted.get(message.fields[0]) == message.fields[1]:
            del learner.admitted[message.fields[0]]
        elif message.kind == Kind.BROKER and message.fields[0]["session"] != learner.session:
            learner.session, learner.credit = message.fields[0]["session"], 0

    def to_router(self, kind: Kind, *fields: Any, buffers: list[bytes] | None = None) -> None:
        if not self.lost():
            self.net.learner(self.learner.peer, kind, *fields, buffers=buffers)

    # Events.

    def any_worker(self) -> Worker | None:
        living = [x for x in self.workers.values() if not x.over]
        return self.random.choice(living) if living else None

    def arrive(self) -> None:
        if len([x for x in self.workers.values() if not x.over]) < 5:
            self.runs += 1
            self.workers[self.runs] = Worker(self.runs, f"name{self.random.randrange(4)}")

    def say_hello(self) -> None:
        worker = self.any_worker()
        if worker is not None and not worker.welcomed and not self.lost():
            message = hello(worker.run, worker.name, worker=worker.index)
            self.net.worker(worker.peer, [encode(Kind.HELLO, message.to_wire())])

    def ask(self) -> None:
        worker = self.any_worker()
        if worker is not None and worker.welcomed:
            group = self.random.randrange(2)
            worker.asked[group] = True
            if not self.lost():
                rows = self.random.randint(2, 4)
                self.net.worker(worker.peer, step_frames(worker.run, group, worker.sequence[group], rows=rows))

    def heartbeat(self) -> None:
        worker = self.any_worker()
        if worker is not None and worker.welcomed and not self.lost():
            self.net.heartbeat(worker.run, worker.peer, Report(taken=self.random.randrange(9)))

    def leave(self) -> None:
        worker = self.any_worker()
        if worker is not None:
            worker.over = True
            if self.random.random() < 0.5:
                self.net.worker(worker.peer, [encode(Kind.BYE, worker.run, Report().to_wire())])

    def ready(self) -> None:
        learner = self.learner
        workers, runs = list(learner.admitted), list(learner.admitted.values())
        self.to_router(Kind.READY, ready(epoch=learner.epoch, slots=20, batch=BATCH, workers=workers, runs=runs))

    def give_credit(self) -> None:
        rows = self.random.randint(1, BATCH)
        if self.learner.session and self.learner.credit + rows <= BATCH:
            self.learner.credit += rows
            self.net.learner(self.learner.peer, Kind.CREDIT, rows)

    def answer(self) -> None:
        given = self.learner.given
        self.random.shuffle(given)
        items, self.learner.given = given[:3], given[3:]
        self.to_router(Kind.REPLIES, [x[:4] for x in items], buffers=[b"" for _ in items])

    def pass_time(self) -> None:
        self.net.now += self.random.choice([0.05, 0.25, 0.9])
        self.net.router.tick(self.net.now)
        self.net.collect()

    def replace_learner(self) -> None:
        self.learner = Learner(self.learner.epoch + 1)

    def restart_broker(self) -> None:
        now = self.net.now
        self.net = Net(SETTINGS)
        self.net.now = now
        self.net.router.tick(now)
        self.seen_workers = self.seen_learners = 0
        self.learner.session, self.learner.credit = 0, 0


@pytest.mark.parametrize("seed", range(12))
def test_random_walks_keep_the_invariants_and_leave_nothing_unanswered(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.act()
    world.lossy = False
    target = {x.run: [n + 2 for n in x.sequence] for x in world.workers.values() if not x.over}
    for _ in range(400):
        for act in (world.ready, world.give_credit, world.answer, world.pass_time):
            act()
            world.settle()
        for worker in [x for x in world.workers.values() if not x.over]:
            frames = [encode(Kind.HELLO, hello(worker.run, worker.name, worker=worker.index).to_wire())]
            if worker.welcomed:
                frames = step_frames(worker.run, 0, worker.sequence[0])
                worker.asked = [True, True]
                world.net.worker(worker.peer, step_frames(worker.run, 1, worker.sequence[1]))
            world.net.worker(worker.peer, frames)
            world.settle()
    short = {
        run: world.workers[run].sequence
        for run, wanted in target.items()
        if not world.workers[run].over and any(n < m for n, m in zip(world.workers[run].sequence, wanted, strict=True))
    }
    assert short == {}
    assert len(world.net.router.leases) == len(world.learner.admitted)
