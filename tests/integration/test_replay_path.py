"""The way through the replay with the real writer, sink, store, feed and trainer: every number against arithmetic.

All unrolls are in the store before sampling begins and batches wait for each other, so that what each was drawn from is
known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.algorithms.r2d2 import IMPORTANCE_WEIGHT, PRIORITY
from learner.assembler import Unroll
from learner.checkpoint import Checkpoint
from learner.feed import Batch
from learner.lineage import Lineage
from learner.paths import Context, open_path
from learner.priorities import initial_priorities
from learner.recovery import Cut, checkpoint_meta
from pipeline.ledger import Ledger
from pipeline.stopping import OwnedThread, StopToken
from pipeline.store import codec
from pipeline.store.backends import Stores
from pipeline.store.embedded import EmbeddedServer
from tests.integration.peers import PATIENCE, pause, until
from tests.integration.test_semantics import Pipeline, randomize

pytestmark = pytest.mark.integration

ALPHA, BETA, K, BATCH, DEPTH = 0.7, 0.5, 2.0, 8, 2
AT_START, MORE = 24, 4
"""Unrolls before sampling begins, and what is inserted for one more batch each time: ``BATCH / K``."""
R2D2 = {"burn_in": 2, "n_steps": 2, "dueling_hidden": 8}


def played(backend: EmbeddedServer | None, prefix: str, bound: str) -> tuple[Pipeline, list[Unroll]]:
    """What was acted with, and more unrolls than a test needs, of many different priorities.

    ``bound`` is what holds only ``AT_START`` of them: ``unrolls`` or ``bytes`` of the store, or nothing.
    """
    store = {"backend": "memory"} if backend is None else {"url": backend.url, "prefix": prefix}
    replay = {
        "capacity": AT_START if bound == "unrolls" else 100,
        "min_size": AT_START,
        "samples_per_insert": K,
        "tolerance": 2.0 * BATCH,
        "priority_exponent": ALPHA,
        "importance_exponent": BETA,
    }
    training = {"algorithm": "r2d2", "unroll_length": 4, "batch_size": BATCH, "prefetch_batches": DEPTH}
    pipeline = Pipeline(3, training=training, r2d2=R2D2, replay=replay, store=store)
    randomize(pipeline.agent)
    pipeline.join()
    while len(pipeline.collected.unrolls) < AT_START + 2 * MORE:
        pipeline.step()
    layout, unrolls = pipeline.agent.layout, pipeline.collected.unrolls
    if bound == "bytes":
        whole = len(codec.encode(unrolls[0].record, layout, codec.choose(pipeline.config.store.compression, layout)))
        settings = pipeline.config.replay.model_copy(update={"capacity_bytes": AT_START * whole})
        pipeline.config = pipeline.config.model_copy(update={"replay": settings})
    return pipeline, unrolls


class Road:
    """The path with its threads; ``table`` has the priority that each item must have by now."""

    def __init__(self, pipeline: Pipeline, stores: Stores) -> None:
        self.pipeline, self.stop, self.ledger = pipeline, StopToken(), Ledger(replay=True)
        self.trainer = pipeline.agent.trainer()
        rest = (lambda: 1, Lineage(), np.random.default_rng(0), self.stop, self.stop)
        context = Context(pipeline.config, stores, pipeline.agent, self.trainer, self.ledger, *rest)
        self.path, self.store = open_path(context), stores.replay("test", self.stop)
        path = self.path
        self.threads = [
            OwnedThread("writer", path.writer.run, self.stop),
            OwnedThread("feed", path.feed.run, self.stop),
        ]
        self.table: dict[int, float] = {}

    def __enter__(self) -> Road:
        return self

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def insert(self, unrolls: list[Unroll]) -> None:
        """Inserts, and expects the priorities of those that acted."""
        number = sum(unroll.valid for unroll in unrolls)
        self.ledger.arrived(number, number, 0)
        records = np.stack([unroll.record for unroll in unrolls])
        fields = self.pipeline.agent.layout.view(records)
        values = initial_priorities(fields, self.pipeline.config.r2d2).astype(np.float64)
        before = self.store.counts().inserted_items
        self.path.writer.submit(unrolls)
        until(lambda: self.store.counts().inserted_items == before + len(unrolls), pause)
        until(lambda: not self.path.writer.backlog, pause)  # the learner's side knows of it, too
        resident = self.store.entries().ids.tolist()
        new = resident[-len(unrolls) :]
        assert not set(new) & set(self.table)
        self.table |= dict(zip(new, values.tolist(), strict=True))
        self.table = {key: self.table[key] for key in resident}

    def check_drawn(self, batch: Batch) -> None:
        """Records and importance weights of a batch that was drawn from ``table``."""
        layout, ids = self.pipeline.agent.layout, batch.handles.tolist()
        payloads = [payload or b"" for payload in self.store.fetch(ids)]
        records = np.zeros((len(ids), layout.nbytes), np.uint8)
        assert codec.decode_whole(payloads, layout, records) == [None] * len(ids)
        shard = {name: np.asarray(tensor) for name, tensor in batch.prepared.shards[0].items()}
        for name in ("reward", "action", "valid"):
            np.testing.assert_array_equal(shard[name], layout.batch(records)[name], err_msg=name)
        share = {key: value**ALPHA for key, value in self.table.items()}
        total, number = sum(share.values()), len(share)
        expected = np.array([(number * share[key] / total) ** -BETA for key in ids])
        assert np.ptp(expected) > 0.05, "the test sees nothing where all weigh the same"
        np.testing.assert_allclose(shard[IMPORTANCE_WEIGHT], expected / expected.max(), rtol=1e-5)

    def train(self, batch: Batch) -> None:
        """One update; then the items' priorities are those that it found."""
        metrics = self.trainer.update(batch.prepared, 0)
        assert metrics.fetch()["valid"] == batch.valid, "what is booked is what was learnt"
        self.path.feed.done(batch, metrics)
        found = metrics.fetch_unrolls()[PRIORITY].astype(np.float64)
        self.table |= dict(zip(batch.handles.tolist(), found.tolist(), strict=True))

    def get(self, number: int) -> list[Batch]:
        """All batches that the limiter allows, which are ``number``, prepared before the first is taken."""
        until(lambda: self.path.feed.waiting == number and self.path.feed.why_no_sample() is not None, pause)
        batches = [self.path.feed.get(PATIENCE) for _ in range(number)]
        assert self.stop.error is None and self.path.feed.waiting == 0
        return [batch for batch in batches if batch is not None]

    def sampled(self) -> int:
        return int(self.path.status()["replay"]["sampled_unrolls"])

    def checkpoint(self) -> Checkpoint:
        cut = Cut(self.ledger.snapshot(), self.pipeline.roster.frontier(self.path.writer.pending()), {})
        return Checkpoint(Path("x"), {}, checkpoint_meta(cut, self.path.view(), **self.path.books()))

    def end(self) -> None:
        self.path.writer.close(0.0)
        self.stop.stop("end")
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(PATIENCE)

    def __exit__(self, *exception: object) -> None:
        self.end()
        self.path.close()
        self.store.close()


def priorities_of(store: Any) -> dict[int, float]:
    entries = store.entries()
    return dict(zip(entries.ids.tolist(), entries.priorities.tolist(), strict=True))


@pytest.mark.parametrize("bound", ["none", "unrolls", "bytes"])
def test_priorities_importance_weights_and_the_limiter_over_a_restart(
    backend: EmbeddedServer | None, prefix: str, bound: str
) -> None:
    pipeline, unrolls = played(backend, prefix, bound)
    stores = Stores(pipeline.config.store, pipeline.config.replay)
    with Road(pipeline, stores) as road:
        road.path.begin()
        road.start()
        road.insert(unrolls[:AT_START])
        assert priorities_of(road.store) == pytest.approx(road.table)
        first = road.get(2)  # as far ahead as the tolerance lets it: 2 x BATCH
        for batch in first:  # both are drawn before either is trained on
            road.check_drawn(batch)
        for batch in first:
            road.train(batch)
        road.insert(unrolls[AT_START : AT_START + MORE])
        (batch,) = road.get(1)
        road.check_drawn(batch)  # from the priorities that the first updates found
        road.train(batch)
        assert road.sampled() == 3 * BATCH
        road.end()
        assert priorities_of(road.store) == pytest.approx(road.table), "the store has the last ones too"
        trained, checkpoint, table = road.ledger.snapshot()["samples"], road.checkpoint(), road.table
        assert trained == sum(batch.valid for batch in (*first, batch))
    with Road(pipeline, stores) as road:
        road.table = table
        road.path.restore(checkpoint, None)
        road.start()
        assert road.sampled() == 3 * BATCH and road.path.feed.why_no_sample() is not None
        road.insert(unrolls[AT_START + MORE : AT_START + 2 * MORE])
        (batch,) = road.get(1)
        road.check_drawn(batch)
        ledger = road.ledger.snapshot()
        evicted = [] if bound == "none" else unrolls[: 2 * MORE]
        number = AT_START + 2 * MORE - len(evicted)
        assert (len(road.table), ledger["error"]) == (number, 0)
        assert ledger["evicted"] == sum(unroll.valid for unroll in evicted)
