"""The FIFO's feed while the store loses its data: each transition is booked once."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from learner.fifo import FifoFeed
from pipeline.ledger import Ledger
from pipeline.stopping import StopToken
from pipeline.store.interface import Item, Put
from pipeline.store.memory import FifoState, MemoryFifo

pytestmark = pytest.mark.unit


def put(fifo: MemoryFifo, ledger: Ledger, *rows: int) -> None:
    """As a sink does: 10 valid transitions a row."""
    items = [Put(1, 2, row, row + 1, 10, b"%d" % row) for row in rows]
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


def test_what_is_taken_while_the_store_loses_its_data_is_booked_once() -> None:
    state, ledger, stop = FifoState(100, "block"), Ledger(), StopToken()
    fifo = LosingFifo(state, ledger)
    put(fifo, ledger, 0, 1, 2)
    settings: dict[str, Any] = dict.fromkeys(("make_store", "training_store", "layout", "trainer", "version", "keep"))
    feed = FifoFeed(
        **settings, ledger=ledger, batch_size=2, depth=1, staleness=None, space=threading.Event(), stop=stop
    )
    items = cast("list[Item]", feed._take(fifo))
    assert [item.payload for item in items] == [b"6", b"7"]
    found = ledger.snapshot()
    assert found["error"] == 0 and found["dropped"] == {"store_lost": 40}
    assert found["waiting"] == {"assembler": 0, "store": 0, "prefetch": 20}
    assert fifo.counts().waiting == 20
