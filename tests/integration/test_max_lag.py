"""Stale unrolls are dropped on their way from the store to an update, no update has others, and the ledger closes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.assembler import Unroll
from learner.lineage import Lineage
from learner.paths import Context, open_path
from learner.paths import Path as DataPath
from learner.recovery import Versions
from learner.training import Limits, TrainingLoop
from learner.writes import Writes
from pipeline.stopping import OwnedThread, StopToken
from pipeline.store.backends import Stores
from pipeline.store.embedded import EmbeddedServer
from tests.integration.peers import PATIENCE, pause, until
from tests.integration.test_semantics import Pipeline

pytestmark = pytest.mark.integration

STEPS, UNROLL, BATCH = 40, 4, 2


def played(backend: EmbeddedServer | None, prefix: str, max_lag: int) -> Pipeline:
    """Three environments have taken their steps, each by another version of the policy."""
    store = {"backend": "memory"} if backend is None else {"url": backend.url, "prefix": prefix}
    training = {"unroll_length": UNROLL, "batch_size": BATCH, "max_lag": max_lag, "prefetch_batches": 3}
    pipeline = Pipeline(3, training=training, store=store)
    pipeline.join()
    for _ in range(STEPS):
        pipeline.step()
    pipeline.leave(taken=pipeline.ledger.snapshot()["taken"])
    return pipeline


def expected(pipeline: Pipeline, max_lag: int) -> tuple[list[Unroll], list[Unroll]]:
    """Unrolls that are used and that are dropped, where an update consumes two and those behind them age by it."""
    used: list[Unroll] = []
    stale: list[Unroll] = []
    for unroll, fields in zip(pipeline.collected.unrolls, pipeline.fields(), strict=True):
        oldest = fields["version"][:-1][fields["valid"].astype(bool)].min()
        (used if STEPS + len(used) // BATCH - oldest <= max_lag else stale).append(unroll)
    return used, stale


class Stand:
    """The data path and the training loop behind a pipeline that has played, in their threads."""

    def __init__(self, pipeline: Pipeline, folder: Path) -> None:
        self.stop, trainer, lineage = StopToken(), pipeline.agent.trainer(), Lineage()
        self.loop: TrainingLoop | None = None
        self.path: DataPath = open_path(
            Context(
                config=pipeline.config,
                stores=Stores(pipeline.config.store, pipeline.config.replay),
                agent=pipeline.agent,
                trainer=trainer,
                ledger=pipeline.ledger,
                version=lambda: STEPS if self.loop is None else self.loop.version,
                lineage=lineage,
                draws=np.random.default_rng(5),
                stop=self.stop,
                threads_stop=self.stop,
            )
        )
        self.path.begin()
        versions = Versions(folder / "versions.json")
        versions.reserve(STEPS)
        self.loop = loop = TrainingLoop(
            trainer=trainer,
            feed=self.path.feed,
            ledger=pipeline.ledger,
            episodes=pipeline.episodes,
            limits=Limits(None, None, None),
            frame_skip=1,
            version=STEPS,
            lineage=lineage,
            versions=versions,
            writes=Writes(folder, lambda: 0.0),
            evaluate=lambda: False,
            checkpoint=lambda: True,
            checkpoint_seconds=1e9,
            stop=self.stop,
        )
        bodies = {
            "writer": self.path.writer.run,
            "prefetch": self.path.feed.run,
            "train": lambda: loop.run(lambda: 0.0),
        }
        self.threads = {name: OwnedThread(name, body, self.stop) for name, body in bodies.items()}

    def close(self) -> None:
        self.path.writer.close(0.0)
        self.stop.stop("end")
        for thread in self.threads.values():
            if thread.ident is not None:
                thread.join(PATIENCE)
        self.path.close()
        self.stop.raise_error()


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("max_lag", [10, 20])
def test_stale_unrolls_are_dropped_and_counted(
    backend: EmbeddedServer | None, prefix: str, tmp_path: Path, max_lag: int, ahead: bool
) -> None:
    """Whether training stands still until batches wait for it, or waits for them."""
    pipeline = played(backend, prefix, max_lag)
    used, stale = expected(pipeline, max_lag)
    stand = Stand(pipeline, tmp_path)
    ledger: Any = pipeline.ledger
    try:
        stand.path.writer.submit(pipeline.collected.unrolls)
        names = ["writer", "prefetch", "train"] if ahead else ["train", "prefetch", "writer"]
        for name in names:
            stand.threads[name].start()
            if name == "prefetch" and ahead:
                until(lambda: stand.path.feed.waiting >= min(3, len(used) // BATCH), pause)
        trained = sum(unroll.valid for unroll in used[: len(used) // BATCH * BATCH])
        until(lambda: ledger.snapshot()["trained"] == trained, pause)
        until(lambda: ledger.snapshot()["waiting"]["store"] == 0, pause)
    finally:
        stand.close()
    assert stand.loop is not None and stand.loop.updates == len(used) // BATCH > 0
    assert stand.loop.lag.max <= max_lag
    found, dropped = ledger.snapshot(), sum(unroll.valid for unroll in stale)
    assert found["dropped"] == {"stale": dropped} and found["trained"] == trained
    assert found["error"] == 0, found
    assert found["waiting"]["prefetch"] == sum(unroll.valid for unroll in used) - trained
    assert stand.path.status() == {"stale": {"dropped_by_worker": {"0": dropped}, "skew": 1.0}}
