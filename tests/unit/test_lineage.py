"""Learners, stores and workers that die at random moments, one after the other: the books close and tell the truth."""

from __future__ import annotations

import copy
import itertools
import random
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.assembler import Assembler, Unroll
from learner.checkpoint import Checkpoint
from learner.collector import Collector
from learner.episodes import Episodes
from learner.policy import PolicyRows
from learner.recovery import Cut, Recovered, StoreView, by_place, checkpoint_meta, recover
from learner.requests import join, open_request
from learner.roster import Roster
from learner.slots import SlotTable, Verdict
from learner.writer import UnrollWriter
from pipeline.ledger import Ledger
from pipeline.protocol import GroupReport, Hello, Report
from pipeline.requests import Joined, Left, StepRequest
from pipeline.rows import FIRST, ROW, TERMINATED
from pipeline.spaces import Leaf, Spaces
from pipeline.store.interface import StoreCounts
from pipeline.unrolls import UnrollLayout

pytestmark = pytest.mark.unit

SPACES = Spaces((Leaf("observation", "box", "float32", (1,)),), Leaf("action", "discrete", "int64", (), 2))
LAYOUT = UnrollLayout(4, 1, SPACES.observation, (), "int32", 2, ())
LENGTH = 5
ALL = "worker learner store"


class Worker:
    """A run of two environments in one group, whose episodes have ``LENGTH`` steps."""

    def __init__(self, run: int, reports: dict[int, Report]) -> None:
        self.run, self.reports = run, reports
        self.index, self.steps, self.sequence, self.taken = 0, -1, -1, 0
        self.outstanding = True
        self._step()

    def _step(self) -> None:
        self.steps = 0 if self.steps in (-1, LENGTH) else self.steps + 1
        self.last = 2 * (self.steps > 0)
        self.index += self.steps > 0
        self.taken = 2 * self.index
        self.sequence += 1
        self.rows = np.zeros(2, ROW)
        self.rows["environment"] = [0, 1]
        self.rows["flags"] = FIRST if self.steps == 0 else TERMINATED if self.steps == LENGTH else 0
        self.rows["index"] = self.index

    def answered(self) -> None:
        self._step()

    def report(self) -> Report:
        return Report(taken=self.taken, groups=(GroupReport(2, self.taken, self.last),))

    def request(self, worker: int) -> StepRequest:
        buffers = [self.rows.tobytes(), np.zeros((2, 1), np.float32).tobytes()]
        return StepRequest(worker, self.run, 0, self.sequence, 2, 2, buffers)


class Store:
    """The FIFO's books: (environment, run) -> next index, and the valid transitions of each item."""

    epochs = itertools.count()

    def __init__(self) -> None:
        self.epoch = str(next(self.epochs))
        self.stored: dict[tuple[int, int], int] = {}
        self.items: list[int] = []
        self.put_total = self.acknowledged = 0

    def put(self, unroll: Unroll) -> None:
        self.stored[unroll.environment, unroll.run] = unroll.next_index
        self.items.append(unroll.valid)
        self.put_total += unroll.valid

    def view(self) -> StoreView:
        counts = StoreCounts(self.put_total, self.acknowledged, 0, sum(self.items), len(self.items))
        return StoreView(self.epoch, counts, by_place(self.stored))


class Learner:
    """The real roster, assembler, collector and ledger of one process; also its writer."""

    def __init__(self, store: Store, checkpoint: Checkpoint | None) -> None:
        self.store, self.seen_epoch = store, store.epoch
        self._queue: deque[Unroll] = deque()
        self.ledger = Ledger()
        known = recover(checkpoint, store.view(), self.ledger, "oldest") if checkpoint else Recovered()
        assembler = Assembler(LAYOUT, 16)
        self.table = SlotTable(16)
        self.roster = Roster(
            spaces=SPACES,
            config_hash="",
            largest_group=4,
            table=self.table,
            assembler=assembler,
            ledger=self.ledger,
            known=known.known,
            settled=known.settled,
            seeds=lambda _lane, _count: 1,
            restored=known.restored,
        )
        self.collector = Collector(
            assembler=assembler,
            writer=self,  # type: ignore[arg-type]
            ledger=self.ledger,
            episodes=Episodes(9, 16),
            evaluations=Episodes(9, 16),
            inherited=self.table.inherited,
        )
        self.checkpoint = self.save()

    def submit(self, unrolls: list[Unroll]) -> None:
        self._queue += unrolls

    def serve(self, worker: Worker, index: int) -> None:
        if self.table.get(index, worker.run) is None:
            reports = {str(run): report.to_wire() for run, report in worker.reports.items()}
            hello = Hello("w", worker.run, "train", SPACES.to_wire(), [2], "", -1, reports, {})
            assert self.roster.join(Joined(index, worker.run, hello)) is None
        verdict, group = self.table.judge(index, worker.run, 0, worker.sequence)
        assert verdict is Verdict.SERVE and group is not None
        batch = join([open_request(worker.request(index), group, SPACES.observation)])
        acted = PolicyRows(np.zeros(2, np.int32), np.zeros(2, np.int64), np.zeros((2, 2), np.float32), [])
        self.table.answered(group, b"")
        self.collector.collect(batch, acted, 1)

    def leave(self, index: int, run: int, report: Report | None) -> None:
        self.submit(self.roster.leave(Left(index, run, "lease" if report is None else "bye", report)))

    def put(self) -> None:
        if self._queue:
            unroll = self._queue.popleft()
            self.store.put(unroll)
            self.notice()
            self.ledger.moved("assembler", "store", unroll.valid)

    def notice(self) -> None:
        if self.store.epoch != self.seen_epoch:
            self.ledger.lost("store", "store_lost")
            self.seen_epoch = self.store.epoch

    def train(self) -> None:
        if self.store.items and self.store.epoch == self.seen_epoch:
            valid = self.store.items.pop(0)
            self.store.acknowledged += valid
            self.ledger.moved("store", "prefetch", valid)
            self.ledger.trained(valid)

    def save(self) -> Checkpoint:
        view = self.store.view()
        self.notice()
        frontier = self.roster.frontier(UnrollWriter.pending(self))  # type: ignore[arg-type]
        cut = Cut(self.ledger.snapshot(), frontier, self.roster.settled())
        self.checkpoint = Checkpoint(Path("x"), {}, copy.deepcopy(checkpoint_meta(cut, view)))
        return self.checkpoint


class Lineage:
    """Random events on two workers and one learner after the other."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.runs = itertools.count(1)
        self.truth: dict[int, int] = {}  # run -> taken, of runs that ended
        self.store = Store()
        self.learner = Learner(self.store, None)
        self.workers = {0: Worker(next(self.runs), {}), 1: Worker(next(self.runs), {})}

    def step(self) -> None:
        index = self.rng.choice(list(self.workers))
        self.learner.serve(self.workers[index], index)
        self.workers[index].answered()

    def worker_dies(self) -> None:
        """Its supervisor starts another run, whose HELLO says what the dead one took."""
        index = self.rng.choice(list(self.workers))
        dead = self.workers[index]
        self.truth[dead.run] = dead.taken
        if self.learner.table.get(index, dead.run) is not None:
            self.learner.leave(index, dead.run, None)
        unsaid = {} if dead.sequence else dead.reports  # of runs before it, where it was not heard
        self.workers[index] = Worker(next(self.runs), {**unsaid, dead.run: dead.report()})

    def learner_dies(self) -> None:
        """Sometimes with the broker: then workers come back under other indices."""
        if self.rng.random() < 0.3:
            self.workers = {0: self.workers[1], 1: self.workers[0]}
        self.learner = Learner(self.store, self.learner.checkpoint)

    def store_dies(self) -> None:
        self.store = Store()
        self.learner.store = self.store

    def finish(self) -> dict[str, Any]:
        for index, worker in self.workers.items():
            self.learner.serve(worker, index)
            self.learner.leave(index, worker.run, worker.report())
            self.truth[worker.run] = worker.taken
        while self.learner._queue:
            self.learner.put()
        return self.learner.ledger.snapshot()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("mortal", ["worker", "learner", "store", "worker learner", "learner store", ALL])
def test_the_books_close_and_tell_the_truth(seed: int, mortal: str) -> None:
    rng = random.Random(seed)
    lineage = Lineage(rng)
    deaths = [getattr(lineage, f"{who}_dies") for who in mortal.split()]
    for _ in range(400):
        draw = rng.random()
        if draw < 0.6:
            lineage.step()
        elif draw < 0.8:
            lineage.learner.put()
        elif draw < 0.95:
            lineage.learner.train()
        elif draw < 0.97:
            lineage.learner.save()
        else:
            rng.choice(deaths)()
    books = lineage.finish()
    assert books["error"] == 0, books
    assert books["waiting"] == {"assembler": 0, "store": sum(lineage.store.items), "prefetch": 0}
    truth = sum(lineage.truth.values())
    # A learner may take the last words on a dead run with it: what was never delivered is then known to nobody.
    assert books["taken"] == truth or (books["taken"] < truth and "worker learner" in mortal), books
    assert all(number >= 0 for number in books["dropped"].values())
