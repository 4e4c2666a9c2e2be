"""The Redis replay while Redis restarts, loses its data or a reply, runs full, or is too small from the beginning."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from pipeline.errors import StoreError, UnreachableError
from pipeline.store.embedded import EmbeddedServer
from pipeline.store.interface import Insert, StoreFull
from pipeline.store.redis_replay import RedisReplay
from tests.integration.flaky_proxy import FlakyProxy
from tests.integration.servers import kill

pytestmark = pytest.mark.integration

ServerFactory = Callable[..., EmbeddedServer]
ReplayFactory = Callable[..., RedisReplay]


def items(*rows: int, size: int = 0, priority: float = 1.0) -> list[Insert]:
    return [Insert(1, 2, row, row + 1, 1, b"%d " % row + bytes(size), priority) for row in rows]


def admin(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(server.socket_path), decode_responses=True, driver_info=None)


def there(ids: list[int | None]) -> list[int]:
    return [key for key in ids if key is not None]


def test_a_restart_with_persistence_loses_nothing(make_redis: ServerFactory, make_redis_replay: ReplayFactory) -> None:
    server = make_redis(persist=True)
    replay = make_redis_replay(server, capacity=3)
    ids = there(replay.insert(items(0, 1, 2, 3)).ids)
    replay.update_priorities(ids[2:], [0.5, 1 / 3])
    before, epoch = replay.counts(), replay.epoch()
    kill(server)
    server.start()
    assert (replay.counts(), replay.epoch()) == (before, epoch)
    entries = make_redis_replay(server, capacity=3).entries()
    assert entries.ids.tolist() == ids[1:] and entries.priorities.tolist() == [1.0, 0.5, 1 / 3]
    result = replay.insert(items(3, 4))
    assert result.ids == [None, ids[-1] + 1] and result.evicted == ids[1:2]


def test_a_restart_without_persistence_begins_a_new_epoch(
    make_redis: ServerFactory, make_redis_replay: ReplayFactory
) -> None:
    server = make_redis()
    replay = make_redis_replay(server)
    first = replay.insert(items(0, 1, 2))
    kill(server)
    server.start()
    assert replay.fetch(there(first.ids)) == [None] * 3 and len(replay.entries().ids) == 0
    replay.update_priorities(there(first.ids), [1.0] * 3)
    second = replay.insert(items(3))
    assert second.epoch != first.epoch and second.epoch == replay.epoch()
    assert there(second.ids)[0] > there(first.ids)[-1], "old ids stay without meaning"
    assert replay.counts()[:4] == (1, 0, 1, 1)
    kill(server)
    server.start()
    assert replay.epoch() not in (first.epoch, second.epoch)
    assert replay.insert(items(3)).epoch == replay.epoch()


def test_an_insert_whose_reply_is_lost_gives_that_reply(proxy: FlakyProxy, make_redis_replay: ReplayFactory) -> None:
    """Ids and evictions too: index and ledger live on them."""
    replay = make_redis_replay(proxy.url, capacity=3)
    ids = there(replay.insert(items(0, 1)).ids)
    proxy.lose_reply_to(b"precious")
    batch = [*items(1, 2, 3), Insert(1, 2, 5, 6, 1, b"5 precious", 0.5)]
    result = replay.insert(batch)
    assert proxy.lost.is_set()
    assert result == ([None, ids[1] + 1, ids[1] + 2, ids[1] + 3], ids, 2, 1, replay.epoch(), 0)
    assert replay.counts()[:4] == (5, 2, 3, 3)


@pytest.mark.parametrize("word", [b"HMGET", b"EVALSHA"])
def test_other_calls_whose_reply_is_lost_are_made_again(
    proxy: FlakyProxy, make_redis_replay: ReplayFactory, word: bytes
) -> None:
    replay = make_redis_replay(proxy.url)
    ids = there(replay.insert(items(0, 1)).ids)
    proxy.lose_reply_to(word)
    assert replay.fetch(ids) == [b"0 ", b"1 "]
    replay.update_priorities(ids, [2.0, 3.0])
    assert replay.entries().priorities.tolist() == [2.0, 3.0]
    assert proxy.lost.is_set()


def test_a_redis_that_stays_away_is_named(make_redis: ServerFactory, make_redis_replay: ReplayFactory) -> None:
    server = make_redis()
    replay = make_redis_replay(server, unreachable_seconds=0.3)
    replay.insert(items(0))
    kill(server)
    for operation in (lambda: replay.insert(items(1)), lambda: replay.fetch([1]), replay.entries, replay.check):
        with pytest.raises(UnreachableError, match="state connection"):
            operation()


def test_a_long_insert_into_a_full_redis_tells_what_is_there(
    make_redis: ServerFactory, make_redis_replay: ReplayFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.store.redis_replay.INSERT_ITEMS", 2)
    server = make_redis()
    replay, client = make_redis_replay(server), admin(server)
    batch = items(*range(100), size=100_000)
    replay.epoch()
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 2**21)
    front = replay.insert(batch)
    assert 0 < len(front.ids) < 100 and len(front.ids) % 2 == 0
    assert replay.counts().items == len(front.ids)
    client.config_set("maxmemory", 0)
    rest = replay.insert(batch[len(front.ids) :])
    assert replay.entries().ids.tolist() == front.ids + rest.ids and len(front.ids + rest.ids) == 100


def test_a_full_redis_refuses_whole_inserts(make_redis: ServerFactory, make_redis_replay: ReplayFactory) -> None:
    server = make_redis()
    replay, client = make_redis_replay(server), admin(server)
    ids = there(replay.insert(items(0)).ids)
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 2**21)
    row = 0
    with pytest.raises(StoreFull):
        for row in range(1, 1000):
            ids += there(replay.insert(items(row, size=100_000)).ids)
    assert replay.counts()[:4] == (row, 0, row, row), "the insert that was refused left nothing"
    replay.update_priorities(ids[:1], [9.0])
    assert replay.entries().priorities[0] == 9.0 and replay.fetch(ids[:1]) == [b"0 "], "the rest works on"
    client.config_set("maxmemory", 0)
    assert there(replay.insert(items(row, size=100_000)).ids) == [ids[-1] + 1]


def test_a_smaller_capacity_takes_effect_with_the_next_insert(
    make_redis: ServerFactory, make_redis_replay: ReplayFactory
) -> None:
    server = make_redis()
    ids = there(make_redis_replay(server).insert(items(*range(600))).ids)
    smaller = make_redis_replay(server, capacity=5)
    assert len(smaller.entries().ids) == 600
    result = smaller.insert(items(600))
    assert result.evicted == ids[:596] and result.evicted_valid == 596
    assert smaller.counts()[:4] == (601, 596, 5, 5)


def test_what_cannot_fit_is_refused_with_the_arithmetic(
    make_redis: ServerFactory, make_redis_replay: ReplayFactory
) -> None:
    server = make_redis(max_memory_bytes=2**26)
    replay = make_redis_replay(server, capacity=100)
    replay.check(100_000)
    with pytest.raises(
        StoreError,
        match=r"1000000 bytes per unroll before compression, \d+ with all that Redis adds, x 100 unrolls "
        r"\(replay\.capacity\) = \d+\.\d MiB .* maxmemory 64\.0 MiB, at most 80% .* "
        r"set replay\.capacity to 5[13] or less",
    ):
        replay.check(1_000_000)
    make_redis_replay(server, capacity=100, capacity_bytes=40_000_000).check(1_000_000)
    with pytest.raises(StoreError, match=r"set replay\.capacity_bytes to 5[13]00\d\d\d\d or less"):
        make_redis_replay(server, capacity=100, capacity_bytes=90_000_000).check(1_000_000)
    with pytest.raises(StoreError, match=r"1000040 bytes is above replay\.capacity_bytes 1000000"):
        make_redis_replay(server, capacity=100, capacity_bytes=1_000_000).check(1_000_000)
    with pytest.raises(StoreError, match="proto-max-bulk-len"):
        replay.check(2**30)
    admin(server).config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreError, match="noeviction"):
        replay.check()
