"""The training loop over the real path and trainer: what it counts, when it stops, and where its schedules stand."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.agent import NETWORK, load_policy
from learner.checkpoint import load_latest
from learner.episodes import Episodes
from learner.inference import InferenceLoop
from learner.lineage import Lineage
from learner.networks.network import named_variables
from learner.paths import LEARNER_ID, Context, is_replay, open_path
from learner.policy import Policy
from learner.recovery import Versions
from learner.reporting import Before
from learner.saving import Saver
from learner.training import Limits, TrainingLoop
from learner.writes import Writes
from pipeline.ledger import Ledger
from pipeline.sources import EmbeddedSource
from pipeline.stopping import OwnedThread, StopToken
from pipeline.store.backends import Stores
from pipeline.streams import Role, Stream
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

    def __init__(self, algorithm: str, rows: int, directory: Path) -> None:
        sections: dict[str, Any] = {
            "environment": {"kwargs": {"length": 10 * rows}},
            "store": {"backend": "memory"},
            "broker": {"bind": f"ipc://{directory}/b"},
        }
        self.pipeline = Pipeline(ENVIRONMENTS, **sections, **SECTIONS[algorithm])
        self.pipeline.join()
        for _ in range(rows):
            self.pipeline.step()
        self.stores = Stores(self.pipeline.config.store, self.pipeline.config.replay)
        self.directory = directory


class Learner:
    """A learner process's training; nobody asks its inference. ``after`` is called after each update."""

    def __init__(self, acted: Acted, ledger: Ledger, max_steps: int | None) -> None:
        pipeline, self.stop, self.threads_stop = acted.pipeline, StopToken(), StopToken()
        self.pipeline, self.ledger, self.trainer, lineage = pipeline, ledger, pipeline.agent.trainer(), Lineage()
        config, self.directory = pipeline.config, acted.directory
        episodes = Episodes(10, config.slots)
        self.path = open_path(
            Context(
                config, acted.stores, pipeline.agent, self.trainer, ledger,
                lambda: self.loop.version, lineage, np.random.default_rng(0), self.stop, self.threads_stop,
            )
        )  # fmt: skip
        self.inference = InferenceLoop(
            lambda: EmbeddedSource(config, None, LEARNER_ID, config.slots),
            batch=8, version=lambda: self.loop.version, status=dict, on_spaces=lambda _: None, stop=self.stop,
        )  # fmt: skip
        versions = Versions(acted.directory / "versions.json")
        self.after: Callable[[], bool] = lambda: False
        self.more: dict[str, Any] = {}
        self.figures: list[dict[str, Any]] = []
        self.loop = TrainingLoop(
            trainer=self.trainer,
            feed=self.path.feed,
            ledger=ledger,
            episodes=Episodes(10, 64),
            limits=Limits(max_steps, PATIENCE, None),
            frame_skip=FRAME_SKIP,
            version=versions.begin(0),
            lineage=lineage,
            versions=versions,
            writes=Writes(acted.directory, lambda: 0.0),
            evaluate=self._look,
            checkpoint=self._checkpoint,
            checkpoint_seconds=0.0,  # at each turn
            stop=self.stop,
        )
        self.saver = Saver(
            directory=acted.directory, keep=2, trainer=self.trainer, path=self.path, ledger=ledger,
            inference=self.inference, roster=pipeline.roster, episodes=episodes, spaces=pipeline.agent.spaces,
            before=Before(), lineage=lineage, stop=self.stop, threads_stop=self.threads_stop,
        )  # fmt: skip

    def resume(self) -> None:
        """From the newest checkpoint that is there."""
        checkpoint = load_latest(self.directory)
        assert checkpoint is not None
        self.trainer.load(checkpoint.arrays)
        self.path.restore(checkpoint, None)

    def run(self) -> str | None:
        """Trains until it stops by itself; says why."""
        threads = [
            OwnedThread("inference", self.inference.run, self.stop),
            OwnedThread("writer", self.path.writer.run, self.stop),
            OwnedThread("feed", self.path.feed.run, self.stop),
        ]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        try:
            self.loop.run(lambda: time.monotonic() - began)
        finally:
            self.inference.dismiss("end", time.monotonic() + PATIENCE)
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
        with self.ledger.gate:
            counts, books = self.path.view().counts, self.ledger.snapshot()
        if not is_replay(self.pipeline.config):
            assert counts.acknowledged_total == books["trained"], "an update is acknowledged and booked"
        self.saver.save(self.loop, self.more)
        return True


def line(start: float, frames: int) -> Any:
    """A scheduled value by hand."""
    return pytest.approx(start * max(0.0, 1 - frames / FRAMES), rel=1e-5)


def test_schedules_go_by_trained_frames_and_go_on_after_a_restart(tmp_path: Path) -> None:
    acted, before, then = Acted("vtrace", 200, tmp_path), 12, 35
    learner = Learner(acted, acted.pipeline.ledger, before * STEPS)
    learner.path.begin()
    learner.path.writer.submit(acted.pipeline.collected.unrolls)
    assert learner.run() == "max_steps"
    assert len(learner.figures) == learner.loop.updates == before, "no update more than it takes"
    successor = Learner(acted, Ledger(), (before + then) * STEPS)
    successor.resume()
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
    acted = Acted("r2d2", rows, tmp_path)
    learner = Learner(acted, acted.pipeline.ledger, ENVIRONMENTS * (rows - 1 + updates * each))

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


def test_an_evaluation_that_solves_the_task_ends_training_and_its_weights_are_saved(tmp_path: Path) -> None:
    acted = Acted("vtrace", 40, tmp_path)
    learner = Learner(acted, acted.pipeline.ledger, None)

    def solved() -> bool:
        """An evaluation keeps the weights that it began with; training has others by the time it is solved."""
        if len(learner.figures) == 2:
            weights = learner.trainer.snapshot()
            learner.more = {name: array + 1 for name, array in weights.items() if name.startswith(NETWORK)}
        return len(learner.figures) == 3

    learner.after = solved
    learner.path.begin()
    learner.path.writer.submit(acted.pipeline.collected.unrolls)
    assert (learner.run(), learner.loop.updates) == ("solved", 3)
    found = load_latest(tmp_path)
    assert found is not None and (found.meta["version"], found.meta["updates"]) == (learner.loop.version, 3)
    assert learner.more and learner.more.keys() <= found.arrays.keys()
    for name, array in learner.more.items():
        np.testing.assert_array_equal(found.arrays[name], array, err_msg=name)
    restored = load_policy(acted.pipeline.config, tmp_path, 4, Stream(0, Role.COMMAND)).policy
    assert isinstance(restored, Policy)
    for name, variable in named_variables(restored._network):
        np.testing.assert_array_equal(variable, learner.more[NETWORK + name], err_msg=name)
