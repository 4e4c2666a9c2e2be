"""Redis comes back with older data than it had: nothing is trained twice, and what is gone is counted.

The data goes back by the log: Redis is killed, and its append-only file cut to what it was some time before, as a host
that goes down leaves it within the last second.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.store.embedded import EmbeddedServer
from pipeline.store.interface import Insert, Item, Put
from pipeline.store.ownership import Claim
from pipeline.store.redis_replay import RedisReplay
from pipeline.store.redis_store import RedisFifo
from tests.integration.servers import kill, wait_until_written

pytestmark = pytest.mark.integration

ServerFactory = Callable[..., EmbeddedServer]
FifoFactory = Callable[..., RedisFifo]
ReplayFactory = Callable[..., RedisReplay]


def log_file(server: EmbeddedServer) -> Path:
    (path,) = (Path(server.directory) / "appendonlydir").glob("*.incr.aof")
    return path


def log_bytes(server: EmbeddedServer) -> int:
    wait_until_written(server)
    return log_file(server).stat().st_size


def go_back(server: EmbeddedServer, size: int) -> None:
    """Kills Redis and starts it with the first ``size`` bytes of its log."""
    path = log_file(server)
    kill(server)
    assert path.stat().st_size > size, "there is something to lose"
    os.truncate(path, size)
    server.start()


def puts(*rows: int) -> list[Put]:
    return [Put(1, 2, row, row + 1, 1, b"%d" % row) for row in rows]


def inserts(*rows: int) -> list[Insert]:
    return [Insert(1, 2, row, row + 1, 10 + row, b"%d" % row, 1.0) for row in rows]


def rows(taken: list[Item]) -> list[int]:
    return [int(item.payload) for item in taken]


def closes(replay: RedisReplay) -> bool:
    counts = replay.counts()
    return counts.inserted_total == counts.resident + counts.evicted_total + counts.lost_total


def test_a_fifo_that_went_back_is_emptied(make_redis: ServerFactory, make_redis_fifo: FifoFactory) -> None:
    server, claim = make_redis(persist=True), Claim()
    writer, taker = (make_redis_fifo(server, claim=claim) for _ in range(2))
    epoch = writer.put(puts(0, 1, 2, 3)).epoch
    size = log_bytes(server)
    taken = taker.take(3, 1.0)
    taker.acknowledge(taken[:2])
    go_back(server, size)
    result = writer.put(puts(4))
    assert result.epoch != epoch and result.stored == 1
    assert writer.counts() == (1, 0, 0, 1, 1), "what was there may be trained already"
    taker.acknowledge(taken[2:])
    assert rows(taker.take(9, 1.0)) == [4] and writer.counts().acknowledged_total == 0


def test_a_taker_alone_notices_too(make_redis: ServerFactory, make_redis_fifo: FifoFactory) -> None:
    """The FIFO is full of what was trained: nobody puts any more."""
    server, claim = make_redis(persist=True), Claim()
    writer, taker = (make_redis_fifo(server, claim=claim, capacity=2) for _ in range(2))
    epoch = writer.put(puts(0, 1)).epoch
    size = log_bytes(server)
    taker.acknowledge(taker.take(2, 1.0))
    go_back(server, size)
    assert taker.take(2, 2.0) == []
    assert taker.epoch() != epoch and taker.counts() == (0, 0, 0, 0, 0)
    assert writer.put(puts(2)).stored == 1 and rows(taker.take(2, 2.0)) == [2]


def test_what_was_taken_does_not_come_again(make_redis: ServerFactory, make_redis_fifo: FifoFactory) -> None:
    """Only the taking is lost: the items are whole, and with the learner."""
    server, claim = make_redis(persist=True), Claim()
    writer, taker = (make_redis_fifo(server, claim=claim) for _ in range(2))
    writer.put(puts(0, 1, 2))
    assert taker.take(1, 1.0) and taker.take(9, 0.0)
    writer.put(puts(3))
    size = log_bytes(server)
    taken = taker.take(9, 1.0)
    assert rows(taken) == [3]
    go_back(server, size)
    writer.put(puts(4))
    assert rows(taker.take(9, 2.0) or taker.take(9, 2.0)) == [4]
    taker.acknowledge(taken)
    assert writer.counts() == (5, 1, 0, 4, 4)


def test_a_successor_notices_by_the_mark_of_the_checkpoint(
    make_redis: ServerFactory, make_redis_fifo: FifoFactory
) -> None:
    server = make_redis(persist=True)
    fifo = make_redis_fifo(server)
    fifo.put(puts(0))
    size, early, epoch = log_bytes(server), fifo.mark(), fifo.epoch()
    fifo.put(puts(1))
    late = fifo.mark()
    go_back(server, size)
    kept = make_redis_fifo(server, claim=Claim())
    kept.expect(early)
    assert kept.epoch() == epoch and kept.counts().length == 1
    successor = make_redis_fifo(server, claim=Claim())
    successor.expect(late)
    assert successor.epoch() != epoch and successor.counts().length == 0


@pytest.mark.parametrize("by_epoch", [True, False])
def test_a_replay_that_went_back_counts_what_is_gone(
    make_redis: ServerFactory, make_redis_replay: ReplayFactory, by_epoch: bool
) -> None:
    server, claim = make_redis(persist=True), Claim()
    replay, other = (make_redis_replay(server, claim=claim, capacity=5) for _ in range(2))
    first = replay.insert(inserts(0, 1, 2, 3))
    assert first.lost_total == 0
    size = log_bytes(server)
    second = replay.insert(inserts(4, 5, 6))  # evicts 0 and 1
    replay.update_priorities([first.ids[3] or 0], [7.0])
    go_back(server, size)
    if by_epoch:
        assert other.epoch() == first.epoch
    third = replay.insert(inserts(7))
    assert third.epoch == first.epoch and third.lost_total == 14 + 15 + 16
    assert third.ids[0] == (second.ids[-1] or 0) + 1, "ids of what is lost never come again"
    assert replay.fetch([*first.ids, *second.ids, *third.ids]) == [None] * 2 + [None] + [b"3"] + [None] * 3 + [b"7"]
    assert replay.entries().ids.tolist() == [first.ids[3], third.ids[0]]
    assert third.evicted_valid == 12 and closes(replay)
    assert replay.counts()[:4] == (10 + 11 + 12 + 13 + 14 + 15 + 16 + 17, 10 + 11 + 12, 13 + 17, 2)
    last = replay.insert(inserts(8, 9, 10, 11, 12))
    assert last.evicted_valid == 13 + 17 and last.lost_total == 45 and closes(replay)
    assert replay.counts().items == 5 and replay.counts().inserted_items == 13


def test_a_replay_that_goes_back_twice_counts_once_more(
    make_redis: ServerFactory, make_redis_replay: ReplayFactory
) -> None:
    server = make_redis(persist=True)
    replay = make_redis_replay(server, capacity=100)
    replay.insert(inserts(0))
    size = log_bytes(server)
    replay.insert(inserts(1))
    go_back(server, size)
    assert replay.insert(inserts(2)).lost_total == 11
    go_back(server, size)
    assert replay.insert(inserts(3)).lost_total == 11 + 12 and closes(replay)


def test_all_of_a_replay_that_was_there_then_is_evicted_since(
    make_redis: ServerFactory, make_redis_replay: ReplayFactory
) -> None:
    server = make_redis(persist=True)
    replay = make_redis_replay(server, capacity=2)
    replay.insert(inserts(0, 1))
    size = log_bytes(server)
    replay.insert(inserts(2, 3, 4))
    go_back(server, size)
    assert replay.epoch() and replay.counts()[:4] == (10 + 11 + 12 + 13 + 14, 10 + 11 + 12, 0, 0)
    assert replay.counts().lost_total == 13 + 14 and closes(replay)
    assert len(replay.entries().ids) == 0
    assert replay.insert(inserts(5)).evicted_valid == 0 and closes(replay)
