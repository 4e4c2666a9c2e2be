"""Stale unrolls are dropped on their way from the store to an update, and the ledger closes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from learner.paths import Context, open_path
from pipeline.stopping import OwnedThread, StopToken
from pipeline.store.backends import Stores
from pipeline.store.embedded import EmbeddedServer
from tests.integration.peers import PATIENCE, pause, until
from tests.integration.test_semantics import Pipeline

pytestmark = pytest.mark.integration

MAX_LAG, STEPS, UNROLL, BATCH = 10, 40, 4, 2


def sections(backend: EmbeddedServer | None, prefix: str) -> dict[str, Any]:
    store = {"backend": "memory"} if backend is None else {"url": backend.url, "prefix": prefix}
    return {"training": {"unroll_length": UNROLL, "batch_size": BATCH, "max_lag": MAX_LAG}, "store": store}


def test_stale_unrolls_are_dropped_and_counted(backend: EmbeddedServer | None, prefix: str) -> None:
    pipeline = Pipeline(3, **sections(backend, prefix))
    pipeline.join()
    for _ in range(STEPS):  # each by another version of the policy
        pipeline.step()
    pipeline.leave(taken=pipeline.ledger.snapshot()["taken"])
    unrolls, fields = pipeline.collected.unrolls, pipeline.fields()
    oldest = [got["version"][:-1][got["valid"].astype(bool)].min() for got in fields]
    stale = [unroll for unroll, version in zip(unrolls, oldest, strict=True) if STEPS - version > MAX_LAG]
    assert 0 < len(stale) < len(unrolls)

    stop, trainer = StopToken(), pipeline.agent.trainer()
    stores = Stores(pipeline.config.store, pipeline.config.replay)
    context = Context(
        pipeline.config,
        stores,
        pipeline.agent,
        trainer,
        pipeline.ledger,
        lambda: pipeline.version,
        np.random.default_rng(5),
        stop,
        stop,
    )
    path = open_path(context)
    path.begin()
    threads = [OwnedThread("writer", path.writer.run, stop), OwnedThread("prefetch", path.feed.run, stop)]
    try:
        path.writer.submit(unrolls)
        for thread in threads:
            thread.start()
        trained = 0
        for _ in range((len(unrolls) - len(stale)) // BATCH):
            batch = path.feed.get(PATIENCE)
            assert batch is not None and stop.error is None
            assert STEPS - batch.versions.values.min() <= MAX_LAG
            path.feed.done(batch, trainer.update(batch.prepared, 0))
            trained += batch.valid
        until(lambda: pipeline.ledger.snapshot()["waiting"]["store"] == 0, pause)
    finally:
        path.writer.close(0.0)
        stop.stop("end")
        for thread in threads:
            thread.join(PATIENCE)
        path.close()
    ledger, dropped = pipeline.ledger.snapshot(), sum(unroll.valid for unroll in stale)
    assert ledger["dropped"] == {"stale": dropped} and ledger["trained"] == trained
    assert ledger["error"] == 0, ledger
    assert ledger["accepted"] == trained + dropped + sum(ledger["waiting"].values())
    assert path.status() == {"stale": {"dropped_by_worker": {"0": dropped}, "skew": 1.0}}
