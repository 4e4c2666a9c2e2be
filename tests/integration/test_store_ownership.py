"""Whose store it is: taking, refusing, taking over, the lease's end, and that who lost it writes nothing any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from learner.lease import owned
from pipeline.config.tree import Config
from pipeline.errors import ConfigError, StoreError
from pipeline.stopping import StopToken
from pipeline.store.backends import Stores
from pipeline.store.embedded import EmbeddedServer
from pipeline.store.interface import Insert, Put
from pipeline.store.ownership import Claim, Ownership
from pipeline.store.redis_client import RedisServer
from pipeline.store.redis_replay import RedisReplay
from pipeline.store.redis_store import RedisFifo

pytestmark = pytest.mark.integration

LIMIT_SECONDS = 60.0
ServerFactory = Callable[..., EmbeddedServer]
Learner = Callable[..., SimpleNamespace]


@pytest.fixture
def learner(prefix: str) -> Iterator[Learner]:
    """A learner's ends of the store: its lease, a FIFO and a replay that carry its token."""
    opened: list[Any] = []

    def make(server: EmbeddedServer, run: str, lease_seconds: float = 60.0) -> SimpleNamespace:
        claim, where = Claim(), RedisServer(server.url, unreachable_seconds=10.0)
        names = {"prefix": prefix, "claim": claim}
        lease = Ownership(where, run=run, name=f"the run {run}", lease_seconds=lease_seconds, **names)
        fifo = RedisFifo(where, capacity=100, when_full="block", consumer="learner", **names)
        replay = RedisReplay(where, capacity=100, producer="learner", **names)
        opened.extend((lease, fifo, replay))
        return SimpleNamespace(lease=lease, fifo=fifo, replay=replay, claim=claim)

    yield make
    for one in opened:
        one.close()


def write(one: SimpleNamespace, row: int) -> None:
    """A put and an insert."""
    assert one.fifo.put([Put(1, 2, row, row + 1, 1, b"%d" % row)]).stored == 1
    assert one.replay.insert([Insert(1, 2, row, row + 1, 1, b"%d" % row, 1.0)]).repeated == 0


def held(one: SimpleNamespace) -> tuple[int, int]:
    """Items in FIFO and replay."""
    return one.fifo.counts().length, one.replay.counts().items


def test_one_run_has_it_and_another_is_told_who(shared_redis: EmbeddedServer, learner: Learner) -> None:
    first, second = learner(shared_redis, "one"), learner(shared_redis, "two")
    first.lease.take()
    write(first, 0)
    with pytest.raises(
        ConfigError,
        match=r"store\.prefix = test-\w+: the run one writes there since 20\d\d-.* UTC; choose another store\.prefix, "
        r"or end that run, or, if it is dead, wait (5\d|60) s until its lease ends",
    ):
        second.lease.take()
    write(first, 1)
    first.lease.renew()
    first.lease.release()
    second.lease.take()
    write(second, 2)
    assert held(second) == (3, 3)


def test_the_same_run_gets_it_at_once_and_its_predecessor_nothing(
    shared_redis: EmbeddedServer, learner: Learner
) -> None:
    first, successor = learner(shared_redis, "one"), learner(shared_redis, "one")
    first.lease.take()
    write(first, 0)
    successor.lease.take()
    write(successor, 1)
    with pytest.raises(StoreError, match=r"the run one took the store at .* over at 20\d\d-.* UTC"):
        write(first, 2)
    assert held(successor) == (2, 2)


def test_who_lost_it_writes_nothing_any_more(shared_redis: EmbeddedServer, learner: Learner) -> None:
    first, second = learner(shared_redis, "one", lease_seconds=0.0), learner(shared_redis, "two")
    first.lease.take()
    write(first, 0)
    (taken,), ids = first.fifo.take(1, 1.0), first.replay.entries().ids.tolist()
    second.lease.take()
    writes: list[Callable[[], Any]] = [
        lambda: first.fifo.put([Put(1, 2, 1, 2, 1, b"x")]),
        lambda: first.fifo.acknowledge([taken]),
        first.fifo.epoch,
        first.fifo.clear,
        lambda: first.replay.insert([Insert(1, 2, 1, 2, 1, b"x", 1.0)]),
        lambda: first.replay.update_priorities(ids, [7.0]),
        first.replay.epoch,
        first.replay.clear,
        first.lease.renew,
        first.lease.release,
    ]
    for one in writes:
        with pytest.raises(StoreError, match="the run two took the store"):
            one()
    first.fifo._next_look = 0.0  # as after a pause
    with pytest.raises(StoreError, match="the run two took the store"):
        first.fifo.take(1, 0.0)
    assert held(second) == (1, 1) and second.replay.entries().priorities.tolist() == [1.0]
    assert second.fifo.counts() == (1, 0, 0, 1, 1)
    second.lease.renew()


def test_a_lease_that_ended_is_still_good_while_nobody_else_takes_it(
    shared_redis: EmbeddedServer, learner: Learner
) -> None:
    one = learner(shared_redis, "one", lease_seconds=0.0)
    one.lease.take()
    write(one, 0)
    one.lease.renew()
    assert held(one) == (1, 1)


def test_a_lease_that_redis_lost_is_made_anew(shared_redis: EmbeddedServer, learner: Learner, prefix: str) -> None:
    one = learner(shared_redis, "one")
    one.lease.take()
    with redis.Redis(unix_socket_path=str(shared_redis.socket_path), driver_info=None) as client:
        before = client.hgetall(f"{prefix}:owner")
        client.delete(f"{prefix}:owner")
        write(one, 0)
        one.lease.renew()
        after = client.hgetall(f"{prefix}:owner")
    assert before.pop(b"until") <= after.pop(b"until") and before == after


def test_tokens_grow_also_where_redis_went_back(make_redis: ServerFactory, learner: Learner, prefix: str) -> None:
    """An older owner that comes back with an older dump does not refuse who has the store now."""
    server = make_redis()
    old, new = learner(server, "old", lease_seconds=0.0), learner(server, "new")
    old.lease.take()
    with redis.Redis(unix_socket_path=str(server.socket_path), driver_info=None) as client:
        dump = client.hgetall(f"{prefix}:owner")
        new.lease.take()
        assert int(new.claim.token) > int(old.claim.token)
        client.hset(f"{prefix}:owner", mapping=dump)
        write(new, 0)
        new.lease.renew()
        assert client.hget(f"{prefix}:owner", "token") == new.claim.token.encode()
    with pytest.raises(StoreError, match="the run new took the store"):
        write(old, 1)


def stores(server: EmbeddedServer, prefix: str, lease_seconds: float) -> Stores:
    section = {"url": server.url, "prefix": prefix, "lease_seconds": lease_seconds}
    config = Config.model_validate({"environment": {"id": "CartPole-v1"}, "store": section})
    return Stores(config.store, config.replay)


def test_a_learner_renews_while_it_runs_and_gives_back(
    shared_redis: EmbeddedServer, prefix: str, tmp_path: Path
) -> None:
    key, stop = f"{prefix}:owner", StopToken()
    with redis.Redis(unix_socket_path=str(shared_redis.socket_path), driver_info=None) as client:
        with owned(stores(shared_redis, prefix, 15.0), "one", tmp_path, stop):
            begun = int(client.hget(key, "until"))
            changed = threading.Event()
            for _ in range(int(LIMIT_SECONDS / 0.05)):
                if int(client.hget(key, "until")) > begun:
                    break
                changed.wait(0.05)
            else:
                pytest.fail("the lease was not renewed")
            with pytest.raises(ConfigError, match=f"the run in {tmp_path} \\(process"):
                owned(stores(shared_redis, prefix, 15.0), "two", tmp_path, StopToken()).__enter__()
        with owned(stores(shared_redis, prefix, 15.0), "two", tmp_path, StopToken()):
            pass
    assert stop.error is None and not stop.stopped


def test_a_learner_that_lost_it_is_stopped(shared_redis: EmbeddedServer, prefix: str, tmp_path: Path) -> None:
    stop = StopToken()
    with redis.Redis(unix_socket_path=str(shared_redis.socket_path), driver_info=None) as client:
        with owned(stores(shared_redis, prefix, 3.0), "one", tmp_path, stop):
            while not stop.stopped:
                client.hset(f"{prefix}:owner", "until", 0)  # as if it had slept
                try:
                    with owned(stores(shared_redis, prefix, 60.0), "two", tmp_path, StopToken()):
                        assert stop.wait(LIMIT_SECONDS)
                except ConfigError:  # it has renewed meanwhile
                    continue
        with pytest.raises(StoreError, match="writes nothing any more"):
            stop.raise_error()


def test_memory_is_nobodys_but_the_process(tmp_path: Path) -> None:
    config = Config.model_validate({"environment": {"id": "CartPole-v1"}, "store": {"backend": "memory"}})
    with owned(Stores(config.store, config.replay), "one", tmp_path, StopToken()):
        assert [thread for thread in threading.enumerate() if thread.name == "lease"] == []
