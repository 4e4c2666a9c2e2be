"""The FIFO's feed where the store loses its data or holds what does not open: each transition is booked once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from learner.feed import Batch
from learner.fifo import FifoFeed
from learner.trainer import Metrics
from pipeline.ledger import Ledger
from pipeline.stopping import StopToken
from pipeline.store.codec import Codec, encode
from pipeline.store.interface import Item, Put
from pipeline.store.memory import FifoState, MemoryFifo
from pipeline.unrolls import UnrollLayout

pytestmark = pytest.mark.unit

LAYOUT = UnrollLayout(10, 1, (), (), "int32", 2, ())


def payload(row: int) -> bytes:
    """An unroll of 10 valid transitions."""
    record = np.zeros(LAYOUT.nbytes, np.uint8)
    fields = LAYOUT.view(record)
    fields["environment"][...], fields["run"][...], fields["row"][...], fields["valid"][...] = 1, 2, row, 1
    return encode(record, LAYOUT, Codec.NONE)


def damaged(row: int) -> bytes:
    return payload(row)[:-1] + b"!"


def put(fifo: MemoryFifo, ledger: Ledger, *rows: int, broken: tuple[int, ...] = ()) -> None:
    """As a sink does: 10 valid transitions a row."""
    items = [Put(1, 2, row, row + 1, 10, damaged(row) if row in broken else payload(row)) for row in rows]
    ledger.arrived(10 * len(rows), 10 * len(rows), 0)
    assert fifo.put(items).stored == len(rows)
    ledger.moved("assembler", "store", 10 * len(rows))


class LosingFifo(MemoryFifo):
    """Loses its data, once, after a take and before that is booked; then something new is put, and taken with it."""

    def __init__(self, state: FifoState, ledger: Ledger) -> None:
        super().__init__(state, "learner")
        self.state, self.ledger, self.lost = state, ledger, False

    def take(self, count: int, timeout_seconds: float) -> list[Item]:
        taken = super().take(count, timeout_seconds)
        if not self.lost:
            self.lost = True
            self.state.clear()
            self.ledger.lost("store", "store_lost")
            put(self, self.ledger, 5, 6, 7)
            taken += super().take(1, timeout_seconds)
        return taken


def feed_of(ledger: Ledger, stop: StopToken, **more: Any) -> FifoFeed:
    settings: dict[str, Any] = dict.fromkeys(("make_store", "training_store", "trainer", "updates", "keep")) | more
    return FifoFeed(
        **settings,
        layout=LAYOUT,
        ledger=ledger,
        batch_size=2,
        depth=1,
        staleness=None,
        space=threading.Event(),
        stop=stop,
    )


def take(feed: FifoFeed, fifo: MemoryFifo) -> tuple[list[Item], list[int]]:
    """A batch, and the rows that its records are of."""
    records = np.zeros((2, LAYOUT.nbytes), np.uint8)
    items = [taken.item for taken in feed._take(fifo, records)]
    return items, LAYOUT.view(records)["row"].tolist()


def test_what_is_taken_while_the_store_loses_its_data_is_booked_once() -> None:
    state, ledger, stop = FifoState(100, "block"), Ledger(), StopToken()
    fifo = LosingFifo(state, ledger)
    put(fifo, ledger, 0, 1, 2)
    items, _ = take(feed_of(ledger, stop), fifo)
    assert [item.payload for item in items] == [payload(6), payload(7)]
    found = ledger.snapshot()
    assert found["error"] == 0 and found["dropped"] == {"store_lost": 40}
    assert found["waiting"] == {"assembler": 0, "store": 0, "prefetch": 20}
    assert fifo.counts().waiting == 20


class LosingLaterFifo(MemoryFifo):
    """Loses its data at the second take, and is given new."""

    def __init__(self, state: FifoState, lose: Callable[[], None]) -> None:
        super().__init__(state, "learner")
        self.lose, self.takes = lose, 0

    def take(self, count: int, timeout_seconds: float) -> list[Item]:
        self.takes += 1
        if self.takes == 2:
            self.lose()
        return super().take(count, timeout_seconds)


@pytest.mark.parametrize(
    ("when", "kept", "acknowledged", "waiting"),
    [
        ("never", 20, 0, 10),
        ("before the update", 0, 0, 30),
        ("after the update", 0, 0, 30),
        ("within the batch", 10, 10, 10),  # 7 is taken before the loss is booked, and ended; 8 is trained, 9 waits
    ],
)
def test_kept_for_a_checkpoint_counts_as_acknowledged_in_the_store_that_has_it(
    when: str, kept: int, acknowledged: int, waiting: int
) -> None:
    state, ledger = FifoState(100, "block"), Ledger()

    def lose() -> None:
        state.clear()
        ledger.lost("store", "store_lost")
        put(fifo, ledger, 7, 8, 9)

    fifo = LosingLaterFifo(state, lose) if when == "within the batch" else MemoryFifo(state, "learner")
    put(fifo, ledger, *([0] if when == "within the batch" else [0, 1, 2]))
    feed = feed_of(ledger, StopToken(), keep=5, training_store=fifo)
    taken = feed._take(fifo, np.zeros((2, LAYOUT.nbytes), np.uint8))
    if when == "before the update":
        lose()
    feed.done(cast("Batch", SimpleNamespace(handles=taken, valid=20)), cast("Metrics", {}))
    if when == "after the update":
        lose()

    assert sum(item.valid for item in feed.kept()) == kept
    found = feed.as_acknowledged(fifo.counts())
    assert (found.acknowledged_total, found.waiting) == (acknowledged + kept, waiting)
    feed.acknowledge_kept()
    assert fifo.counts()._replace(length=0) == found._replace(length=0) and feed.kept() == []


def test_what_does_not_open_is_dropped_and_others_take_its_place(caplog: pytest.LogCaptureFixture) -> None:
    ledger, fifo = Ledger(), MemoryFifo(FifoState(100, "block"), "learner")
    put(fifo, ledger, 0, 1, 2, 3, 4, broken=(0, 2))
    feed = feed_of(ledger, StopToken())
    with caplog.at_level(logging.ERROR):
        items, rows = take(feed, fifo)
    assert rows == [1, 3] and [item.payload for item in items] == [payload(1), payload(3)]
    assert feed.damage.unrolls == 2
    assert [record.getMessage() for record in caplog.records] == [
        "left out what does not open in the store, 1 unrolls so far, and went on; the first of these: "
        "unroll of environment 1, run 2, row 0: damaged payload, its checksum is wrong"
    ]
    found = ledger.snapshot()
    assert found["error"] == 0 and found["dropped"] == {"damaged": 20}
    assert found["waiting"] == {"assembler": 0, "store": 10, "prefetch": 20}
    assert fifo.counts().length == 3, "what is dropped is acknowledged: a successor does not meet it again"


def test_a_record_that_is_not_what_the_store_has_booked_is_damaged() -> None:
    """Else the ledger would not close: it books 10 on the way here, and 0 when they are trained."""
    ledger, fifo = Ledger(), MemoryFifo(FifoState(100, "block"), "learner")
    other = encode(np.zeros(LAYOUT.nbytes, np.uint8), LAYOUT, Codec.NONE)
    fifo.put([Put(1, 2, 9, 10, 10, other)])
    ledger.arrived(10, 10, 0)
    ledger.moved("assembler", "store", 10)
    put(fifo, ledger, 10, 11)
    assert take(feed_of(ledger, StopToken()), fifo)[1] == [10, 11]
    assert ledger.snapshot()["dropped"] == {"damaged": 10}
