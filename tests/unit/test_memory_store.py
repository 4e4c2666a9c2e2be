"""What is particular to the stores in memory; what they share with Redis is in the conformance suites."""

from __future__ import annotations

import logging
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from pipeline.config.tree import Config
from pipeline.errors import CapacityError
from pipeline.stopping import StopToken
from pipeline.store.backends import Stores
from pipeline.store.interface import Insert, Item, Put
from pipeline.store.memory import FifoState, MemoryFifo, MemoryReplay, ReplayState
from pipeline.store.redis_replay import RedisReplay
from pipeline.store.redis_store import RedisFifo

pytestmark = pytest.mark.unit

LIMIT_SECONDS = 20.0


def puts(*rows: int, environment: int = 1) -> list[Put]:
    return [Put(environment, 2, row, row + 1, 1, b"%d %d" % (environment, row)) for row in rows]


class Taker:
    """One take in a thread."""

    def __init__(self, fifo: MemoryFifo) -> None:
        self.items: list[Item] = []
        self._thread = threading.Thread(target=self._run, args=(fifo,))
        self._thread.start()

    def _run(self, fifo: MemoryFifo) -> None:
        self.items = fifo.take(10, LIMIT_SECONDS)

    def join(self) -> list[Item]:
        self._thread.join(LIMIT_SECONDS / 2)
        assert not self._thread.is_alive()
        return self.items


def test_a_put_wakes_who_waits() -> None:
    state = FifoState(10, "block")
    taker = Taker(MemoryFifo(state, "learner"))
    MemoryFifo(state, "writer").put(puts(7))
    assert [x.payload for x in taker.join()] == [b"1 7"]


def test_a_stop_wakes_who_waits() -> None:
    stop = StopToken()
    taker = Taker(MemoryFifo(FifoState(10, "block"), "learner", stop))
    stop.stop("test")
    assert taker.join() == []


def test_threads_share_a_fifo() -> None:
    """Two producers that wait for room, two consumers: each item once, in each producer's order."""
    state, taken, count = FifoState(8, "block"), {"a": [], "b": []}, 2000
    deadline = time.monotonic() + LIMIT_SECONDS

    def produce(environment: int) -> None:
        fifo, left = MemoryFifo(state, "writer"), puts(*range(count), environment=environment)
        while left and time.monotonic() < deadline:
            left = left[fifo.put(left[:5]).stored :]

    def consume(name: str) -> None:
        fifo = MemoryFifo(state, name)
        while fifo.counts().acknowledged_total < 2 * count and time.monotonic() < deadline:
            items = fifo.take(3, 0.01)
            taken[name] += [tuple(map(int, x.payload.split())) for x in items]
            fifo.acknowledge(items)

    threads = [threading.Thread(target=produce, args=(x,)) for x in (1, 2)]
    threads += [threading.Thread(target=consume, args=(x,)) for x in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_SECONDS)
    assert sorted(taken["a"] + taken["b"]) == [(e, row) for e in (1, 2) for row in range(count)]
    for items in taken.values():
        assert all([row for e, row in items if e == x] == sorted(row for e, row in items if e == x) for x in (1, 2))
    assert MemoryFifo(state, "a").counts() == (2 * count, 2 * count, 0, 0, 0)


def test_payloads_are_copied() -> None:
    buffer = bytearray(b"before")
    replay = MemoryReplay(ReplayState(4))
    key = replay.insert([Insert(1, 2, 0, 1, 1, buffer, 1.0)]).ids[0]
    fifo = MemoryFifo(FifoState(4, "block"), "learner")
    fifo.put([Put(1, 2, 0, 1, 1, buffer)])
    buffer[:] = b"after."
    assert replay.fetch([key or 0]) == [b"before"] and fifo.take(1, 0.0)[0].payload == b"before"


def test_more_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=100 * 2**20))
    fifo, replay = MemoryFifo(FifoState(1000, "block"), "learner"), MemoryReplay(ReplayState(1000))
    with caplog.at_level(logging.INFO):
        fifo.check(1000)
        replay.check(1000)
        replay.check()
    assert "1000 bytes per unroll x 1000 unrolls (store.capacity) = 1.0 MiB; this host's memory: 100.0" in caplog.text
    with pytest.raises(CapacityError, match=r"100000 bytes .* lower store\.capacity"):
        fifo.check(100_000)
    with pytest.raises(CapacityError, match=r"100040 bytes .* lower replay\.capacity$"):
        replay.check(100_000)
    MemoryReplay(ReplayState(1000, 50 * 2**20)).check(100_000)
    with pytest.raises(CapacityError, match=r"lower replay\.capacity_bytes"):
        MemoryReplay(ReplayState(1000, 90 * 2**20)).check(100_000)
    with pytest.raises(CapacityError, match=r"above replay\.capacity_bytes 1000"):
        MemoryReplay(ReplayState(1000, 1000)).check(1000)


def test_the_backend_is_what_the_configuration_says() -> None:
    stop = StopToken()
    memory = Config.model_validate({"environment": {"id": "x"}, "store": {"backend": "memory"}})
    stores = Stores(memory.store, memory.replay)
    stores.fifo("writer", stop).put(puts(1))
    stores.replay("writer", stop).insert([Insert(1, 2, 0, 1, 1, b"", 1.0)])
    assert stores.fifo("learner", stop).counts().length == 1 and stores.replay("learner", stop).counts().items == 1
    remote = Config.model_validate({"environment": {"id": "x"}, "store": {"url": "redis://localhost:1"}})
    stores = Stores(remote.store, remote.replay)
    assert isinstance(stores.fifo("learner", stop), RedisFifo)
    assert isinstance(stores.replay("learner", stop), RedisReplay)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"store": {"backend": "memory", "url": "redis://localhost"}}, "needs no url"),
        ({"replay": {"capacity": 10, "min_size": 11}}, "min_size = 11 is never there in capacity = 10"),
        ({"replay": {"tolerance": 15.9}, "training": {"batch_size": 32}}, "below half of training.batch_size = 32"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config.model_validate({"environment": {"id": "x"}, **settings})
