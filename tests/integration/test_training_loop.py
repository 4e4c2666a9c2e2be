"""The training loop over the real path and trainer: what it counts, when it stops, and where its schedules stand."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.checkpoint import Checkpoint
from learner.episodes import Episodes
from learner.paths import Context, is_replay, open_path
from learner.recovery import Cut, Versions, checkpoint_meta
from learner.training import Limits, TrainingLoop
from learner.writes import Writes
from pipeline.ledger import Ledger
from pipeline.stopping import OwnedThread, StopToken
from pipeline.store.backends import Stores
from tests.integration.peers import PATIENCE
from tests.integration.test_semantics import Pipeline

pytestmark = pytest.mark.integration

ENVIRONMENTS, UNROLL, BATCH, FRAME_SKIP = 2, 4, 2, 3
STEPS = UNROLL * BATCH
"""Transitions of an update: no episode ends within these tests."""
RATE, COST, FRAMES = 1e-2, 0.5, 1000
SCHEDULE = {"kind": "linear", "final": 0.0, "frames": FRAMES}
TRAINING = {
    "unroll_length": UNROLL,
    "batch_size": BATCH,
    "optimizer": {"learning_rate": RATE, "learning_rate_schedule": SCHEDULE},
}
SECTIONS: dict[str, dict[str, Any]] = {
    "vtrace": {"training": TRAINING, "vtrace": {"entropy_cost": COST, "entropy_cost_schedule": SCHEDULE}},
    "r2d2": {
        "training": {**TRAINING, "algorithm": "r2d2"},
        "r2d2": {"burn_in": 0, "dueling_hidden": 8},
        "replay": {"capacity": 1000, "min_size": 1},
    },
}


class Acted:
    """Environments that have taken ``rows`` steps each; their unrolls, and the store that learners share."""

    def __init__(self, algorithm: str, rows: int) -> None:
        long = {"kwargs": {"length": 10 * rows}}
        self.pipeline = Pipeline(ENVIRONMENTS, store={"backend": "memory"}, environment=long, **SECTIONS[algorithm])
        self.pipeline.join()
        for _ in range(rows):
            self.pipeline.step()
        self.stores = Stores(self.pipeline.config.store, self.pipeline.config.replay)


class Learner:
    """A learner process's training, without inference; ``after`` is called after each update."""

    def __init__(self, acted: Acted, directory: Path, ledger: Ledger, max_steps: int | None) -> None:
        pipeline, self.stop, self.threads_stop = acted.pipeline, StopToken(), StopToken()
        self.pipeline, self.ledger, self.trainer = pipeline, ledger, pipeline.agent.trainer()
        self.path = open_path(
            Context(
                pipeline.config, acted.stores, pipeline.agent, self.trainer, ledger,
                lambda: self.loop.version, np.random.default_rng(0), self.stop, self.threads_stop,
            )
        )  # fmt: skip
        self.versions = Versions(directory / "versions.json")
        self.after: Callable[[], bool] = lambda: False
        self.figures: list[dict[str, Any]] = []
        self.checkpoints: list[Checkpoint] = []
        self.loop = TrainingLoop(
            trainer=self.trainer,
            feed=self.path.feed,
            ledger=ledger,
            episodes=Episodes(10, 64),
            limits=Limits(max_steps, PATIENCE, None),
            frame_skip=FRAME_SKIP,
            version=self.versions.begin(0),
            versions=self.versions,
            writes=Writes(directory, lambda: 0.0),
            evaluate=self._look,
            checkpoint=self._checkpoint,
            checkpoint_seconds=0.0,  # at each turn
            stop=self.stop,
        )

    def run(self) -> str | None:
        """Trains until it stops by itself; says why."""
        threads = [
            OwnedThread("writer", self.path.writer.run, self.stop),
            OwnedThread("feed", self.path.feed.run, self.stop),
        ]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        try:
            self.loop.run(lambda: time.monotonic() - began)
        finally:
            self.path.writer.close(0.0)
            self.threads_stop.stop("end")
            for thread in threads:
                thread.join(PATIENCE)
            self.path.close()
        self.stop.raise_error()
        return self.stop.reason

    def _look(self) -> bool:
        if self.loop.updates == len(self.figures):
            return False
        assert self.loop.metrics is not None
        self.figures.append(self.loop.metrics.fetch())
        return self.after()

    def _checkpoint(self) -> bool:
        """As ``learner.saving`` does it: every update so far is acknowledged, and in the books."""
        with self.ledger.gate:
            view, books = self.path.view(), self.ledger.snapshot()
        if not is_replay(self.pipeline.config):
            assert view.counts.acknowledged_total == books["trained"]
        frontier = self.pipeline.roster.frontier(self.path.writer.pending())
        meta = checkpoint_meta(Cut(books, frontier, {}), view, **self.path.books())
        self.checkpoints = [Checkpoint(Path("x"), self.trainer.snapshot(), meta)]
        return True


def line(start: float, frames: int) -> Any:
    """A scheduled value by hand."""
    return pytest.approx(start * max(0.0, 1 - frames / FRAMES), rel=1e-5)


def test_schedules_go_by_trained_frames_and_go_on_after_a_restart(tmp_path: Path) -> None:
    acted, before, then = Acted("vtrace", rows=200), 12, 35
    learner = Learner(acted, tmp_path, acted.pipeline.ledger, before * STEPS)
    learner.path.begin()
    learner.path.writer.submit(acted.pipeline.collected.unrolls)
    assert learner.run() == "max_steps"
    assert len(learner.figures) == learner.loop.updates == before, "no update more than it takes"
    successor = Learner(acted, tmp_path, Ledger(), (before + then) * STEPS)
    (checkpoint,) = learner.checkpoints
    successor.trainer.load(checkpoint.arrays)
    successor.path.restore(checkpoint)
    assert successor.loop.version >= learner.loop.version
    assert successor.run() == "max_steps"
    figures = learner.figures + successor.figures
    assert len(figures) == before + then
    for updates, found in enumerate(figures):
        frames = updates * STEPS * FRAME_SKIP
        assert (found["learning_rate"], found["entropy_cost"]) == (line(RATE, frames), line(COST, frames)), updates
    assert successor.ledger.snapshot()["error"] == 0


def test_schedules_of_a_replay_go_by_frames_that_came_in(tmp_path: Path) -> None:
    rows, updates, each = 40, 6, 5
    acted = Acted("r2d2", rows)
    learner = Learner(acted, tmp_path, acted.pipeline.ledger, ENVIRONMENTS * (rows - 1 + updates * each))

    def more_comes_in() -> bool:
        for _ in range(each):
            acted.pipeline.step()
        return False

    learner.after = more_comes_in
    learner.path.begin()
    learner.path.writer.submit(acted.pipeline.collected.unrolls)
    assert learner.run() == "max_steps"
    assert len(learner.figures) == updates
    for n, found in enumerate(learner.figures):
        assert found["learning_rate"] == line(RATE, ENVIRONMENTS * (rows - 1 + n * each) * FRAME_SKIP), n


def test_an_evaluation_that_solves_the_task_ends_training_at_once(tmp_path: Path) -> None:
    acted = Acted("vtrace", rows=40)
    learner = Learner(acted, tmp_path, acted.pipeline.ledger, None)
    learner.after = lambda: len(learner.figures) == 3
    learner.path.begin()
    learner.path.writer.submit(acted.pipeline.collected.unrolls)
    assert (learner.run(), learner.loop.updates) == ("solved", 3)
