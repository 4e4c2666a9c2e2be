"""The store that a run is gone on with: the checkpoint's, or an empty one."""

from __future__ import annotations

from pathlib import Path

import pytest

from learner.checkpoint import Checkpoint
from learner.paths import _find_again
from pipeline.store.interface import Insert, Put
from pipeline.store.memory import FifoState, MemoryFifo, MemoryReplay, ReplayState

pytestmark = pytest.mark.unit


def filled() -> list[MemoryFifo | MemoryReplay]:
    fifo, replay = MemoryFifo(FifoState(8, "block"), "learner"), MemoryReplay(ReplayState(8))
    fifo.put([Put(1, 2, 0, 5, 5, b"unroll")])
    replay.insert([Insert(1, 2, 0, 5, 5, b"unroll", 1.0)])
    return [fifo, replay]


def checkpoint(store: MemoryFifo | MemoryReplay, epoch: str) -> Checkpoint:
    return Checkpoint(Path("x"), {}, {"store": {"epoch": epoch, "mark": store.mark()}})


@pytest.mark.parametrize("place", [0, 1], ids=["fifo", "replay"])
def test_only_what_the_checkpoint_knew_stays(place: int) -> None:
    store = filled()[place]
    epoch = store.epoch()
    _find_again(store, checkpoint(store, epoch))
    assert store.epoch() == epoch and store.stored_index() == {(1, 2): 5}
    _find_again(store, checkpoint(store, "of another store"))
    assert store.epoch() != epoch and store.stored_index() == {}, "nobody knows whose that was"
