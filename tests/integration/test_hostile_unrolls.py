"""Spoilt unrolls in Redis: each is refused and counted, and work goes on.

``FUZZ_MESSAGES`` is how many (``make fuzz``: 100 000); the figures are printed.
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

from learner.assembler import Unroll
from learner.fifo import FifoFeed, FifoSink
from learner.lineage import Lineage
from learner.paths import LEARNER_ID, Context, open_path
from learner.replay import ReplayFeed, ReplaySink
from pipeline.ledger import Ledger
from pipeline.stopping import OwnedThread, StopToken
from pipeline.store.backends import Stores
from pipeline.store.codec import Codec
from pipeline.store.codec import encode as encode_unroll
from pipeline.store.embedded import EmbeddedServer
from tests.fuzz import mutations
from tests.integration.peers import PATIENCE, until
from tests.integration.test_hostile_input import GROWTH_BYTES, MESSAGES, Memory
from tests.integration.test_semantics import Pipeline

pytestmark = pytest.mark.integration


class Reader:
    """The path from the store to an update, and a sink whose encoder spoils what it is told to.

    One unroll in ``WHOLE_EACH`` is whole.
    """

    WHOLE_EACH = 50
    ROUND = 200

    def __init__(self, server: EmbeddedServer, prefix: str, **sections: Any) -> None:
        sections["store"] = {"url": server.url, "prefix": prefix, "capacity": 1000}
        self.pipeline = Pipeline(3, **sections)
        self.pipeline.join()
        for _ in range(40):
            self.pipeline.step()
        self.patterns = [unroll for unroll in self.pipeline.collected.unrolls if unroll.valid]
        self.ledger, self.stop = Ledger(replay="replay" in sections), StopToken()
        stores = Stores(self.pipeline.config.store, self.pipeline.config.replay)
        agent, self.trainer = self.pipeline.agent, self.pipeline.agent.trainer()
        self.path = open_path(
            Context(
                self.pipeline.config,
                stores,
                agent,
                self.trainer,
                self.ledger,
                lambda: 1,
                Lineage(),
                np.random.default_rng(5),
                self.stop,
                self.stop,
            )
        )
        self.path.begin()
        self.rng, self.spoilt, self.whole, self.valid = random.Random(5), 0, 0, [0, 0]
        feed = self.path.feed
        if isinstance(feed, FifoFeed):
            self.sink: Any = FifoSink(stores.fifo(LEARNER_ID, self.stop), self.encode, self.ledger, self.path.epochs)
        else:
            assert isinstance(feed, ReplayFeed)
            self.sink = ReplaySink(
                store=stores.replay(LEARNER_ID, self.stop),
                layout=agent.layout,
                encode=self.encode,
                settings=self.pipeline.config.r2d2,
                ledger=self.ledger,
                epochs=self.path.epochs,
                sampling=feed._sampling,
            )
        self.prefetch = OwnedThread("prefetch", feed.run, self.stop)

    def encode(self, record: Any) -> bytes:
        layout = self.pipeline.agent.layout
        payload = encode_unroll(record, layout, self.rng.choice(list(Codec)))
        valid = int(layout.view(record)["valid"].sum())
        spoilt = payload
        if (self.spoilt + self.whole) % self.WHOLE_EACH:
            spoilt = mutations.payload(self.rng, payload, layout, self.rng.choice(mutations.HOW))
        self.spoilt += spoilt != payload
        self.whole += spoilt == payload
        self.valid[spoilt == payload] += valid
        return spoilt

    def put(self) -> None:
        """A round of unrolls, each under a name of its own."""
        unrolls = []
        for i in range(self.ROUND):
            pattern: Unroll = self.rng.choice(self.patterns)
            unrolls.append(pattern._replace(environment=1, run=3, row=self.spoilt + self.whole + i))
        number = sum(unroll.valid for unroll in unrolls)
        self.ledger.arrived(number, number, 0)
        assert self.sink.put(unrolls) == self.ROUND

    def update(self) -> bool:
        """Trains on a batch where there is one."""
        batch = self.path.feed.get(0.02)
        if batch is not None:
            self.path.feed.done(batch, self.trainer.update(batch.prepared, 0))
        self.stop.raise_error()
        return batch is not None

    def close(self) -> None:
        self.stop.stop("end")
        self.prefetch.join(PATIENCE)
        self.sink.close()
        self.path.close()
        self.stop.raise_error()


SMALL = {"unroll_length": 4, "batch_size": 2}


@pytest.mark.timeout(max(300, MESSAGES // 50))
def test_spoilt_unrolls_in_the_fifo(shared_redis: EmbeddedServer, prefix: str) -> None:
    reader = Reader(shared_redis, prefix, training=SMALL)
    feed = reader.path.feed
    assert isinstance(feed, FifoFeed)
    reader.prefetch.start()
    memory = Memory(os.getpid())
    while reader.spoilt < MESSAGES:
        reader.put()
        until(lambda: reader.ledger.snapshot()["waiting"]["store"] == 0, reader.update)
        memory.look()
    until(lambda: feed.damage.unrolls == reader.spoilt and reader.ledger.snapshot()["trained"] > 0, reader.update)
    while reader.update():
        pass
    reader.close()
    ledger = reader.ledger.snapshot()
    print(f"\nfifo: {reader.spoilt} spoilt, {reader.whole} whole; memory +{memory.growth / 2**20:.1f} MB; {ledger}")
    assert feed.damage.unrolls == reader.spoilt
    assert ledger["dropped"]["damaged"] == reader.valid[False]
    assert ledger["trained"] + ledger["waiting"]["prefetch"] == reader.valid[True] and ledger["error"] == 0
    assert ledger["waiting"]["prefetch"] <= 8 and memory.growth < GROWTH_BYTES


@pytest.mark.timeout(max(300, MESSAGES // 50))
def test_spoilt_unrolls_in_the_replay(shared_redis: EmbeddedServer, prefix: str) -> None:
    replay: dict[str, Any] = {"capacity": 1000, "min_size": 1, "samples_per_insert": 1000.0, "hold_inserts": False}
    replay["priority_exponent"] = 0.0  # each is drawn as often as any other, so that all are drawn soon
    training = {**SMALL, "algorithm": "r2d2"}
    reader = Reader(shared_redis, prefix, training=training, replay=replay, r2d2={"burn_in": 2})
    feed = reader.path.feed
    assert isinstance(feed, ReplayFeed)
    reader.prefetch.start()
    memory = Memory(os.getpid())
    while reader.spoilt < MESSAGES:
        reader.put()
        until(lambda: feed.damage.unrolls == reader.spoilt, reader.update)
        memory.look()
    assert reader.update()
    reader.close()
    ledger = reader.ledger.snapshot()
    print(f"\nreplay: {reader.spoilt} spoilt, {reader.whole} whole; memory +{memory.growth / 2**20:.1f} MB; {ledger}")
    assert feed.damage.unrolls == reader.spoilt, "each is drawn once"
    assert ledger["samples"] > 0 and ledger["error"] == 0 and memory.growth < GROWTH_BYTES
