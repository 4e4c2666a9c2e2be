"""The Redis FIFO while Redis restarts, loses its data, kills, pauses and delays connections, or runs full."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from pipeline.config.replay import ReplaySection
from pipeline.config.store import StoreSection
from pipeline.errors import ConfigError, StoreError, UnreachableError
from pipeline.stopping import StopToken
from pipeline.store.backends import Stores
from pipeline.store.embedded import EmbeddedServer, bundled_server
from pipeline.store.interface import Item, Put, PutResult, StoreFull
from pipeline.store.redis_client import RedisServer
from pipeline.store.redis_store import RedisFifo
from tests.integration.servers import kill
from tests.runs import free_ports

pytestmark = pytest.mark.integration

LIMIT_SECONDS = 60.0
ServerFactory = Callable[..., EmbeddedServer]
FifoFactory = Callable[..., RedisFifo]


def items(*rows: int, size: int = 0) -> list[Put]:
    return [Put(1, 2, row, row + 1, 1, b"%d " % row + bytes(size)) for row in rows]


def rows(taken: list[Item]) -> list[int]:
    return [int(x.payload.split(b" ")[0]) for x in taken]


def admin(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(server.socket_path), decode_responses=True, driver_info=None)


def wait_for_blocked_reader(client: redis.Redis) -> str:
    """Id of the connection that blocks in a take."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        for entry in client.client_list():
            if entry["name"].endswith(":reads") and "b" in entry["flags"]:
                return str(entry["id"])
    raise AssertionError("nobody blocks")


class Taker:
    """One blocking take in a thread; the instance is the thread's while it runs."""

    def __init__(self, fifo: RedisFifo, seconds: float = LIMIT_SECONDS) -> None:
        self.result: list[Item] = []
        self._thread = threading.Thread(target=self._run, args=(fifo, seconds))
        self._thread.start()

    def _run(self, fifo: RedisFifo, seconds: float) -> None:
        self.result = fifo.take(10, seconds)

    def join(self) -> list[int]:
        self._thread.join(2 * LIMIT_SECONDS)
        assert not self._thread.is_alive()
        return rows(self.result)


def test_a_restart_with_persistence_loses_nothing(make_redis: ServerFactory, make_redis_fifo: FifoFactory) -> None:
    server = make_redis(persist=True)
    fifo = make_redis_fifo(server)
    epoch = fifo.epoch()
    fifo.put(items(0, 1, 2, 3))
    fifo.acknowledge(fifo.take(1, 1.0))
    taken = fifo.take(1, 1.0)
    kill(server)
    server.start()
    assert fifo.put(items(3, 4))[:3] == (2, 1, 0)
    assert rows(fifo.take(9, 1.0)) == [2, 3, 4], "what it holds already does not come again"
    fifo.acknowledge(taken)
    assert fifo.counts() == (5, 2, 0, 3, 3)
    assert fifo.epoch() == epoch


def test_a_restart_without_persistence_begins_a_new_epoch(
    make_redis: ServerFactory, make_redis_fifo: FifoFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_redis()
    fifo = make_redis_fifo(server)
    fifo.put(items(0, 1, 2))
    taken, epoch = fifo.take(2, 1.0), fifo.epoch()
    kill(server)
    server.start()
    assert fifo.take(2, 0.0) == []
    assert fifo.epoch() != epoch
    assert "lost what it held" in caplog.text
    fifo.acknowledge(taken)
    assert fifo.counts() == (0, 0, 0, 0, 0), "what is lost is not counted as ended"
    assert fifo.put(items(3))[:3] == (1, 0, 0)
    assert rows(fifo.take(2, 1.0)) == [3]


def test_a_put_after_a_loss_is_taken(make_redis: ServerFactory, make_redis_fifo: FifoFactory) -> None:
    server = make_redis()
    fifo = make_redis_fifo(server)
    fifo.put(items(5))
    epoch = fifo.epoch()
    kill(server)
    server.start()
    assert fifo.put(items(5, 6))[:3] == (2, 0, 0)
    assert fifo.epoch() != epoch
    assert rows(fifo.take(9, 1.0)) == [5, 6]


def test_a_stream_deleted_by_hand_begins_a_new_epoch(
    shared_redis: EmbeddedServer, make_redis_fifo: FifoFactory, prefix: str
) -> None:
    fifo = make_redis_fifo(shared_redis)
    fifo.put(items(0, 1))
    fifo.take(1, 1.0)
    epoch = fifo.epoch()
    admin(shared_redis).delete(f"{prefix}:unrolls")
    assert fifo.take(1, 0.0) == []
    assert fifo.epoch() != epoch and fifo.counts() == (0, 0, 0, 0, 0)


def test_an_entry_deleted_by_hand_is_passed_over(
    shared_redis: EmbeddedServer, make_redis_fifo: FifoFactory, prefix: str
) -> None:
    fifo = make_redis_fifo(shared_redis)
    fifo.put(items(0, 1))
    taken = fifo.take(1, 1.0)
    admin(shared_redis).xdel(f"{prefix}:unrolls", taken[0].handle)
    assert rows(make_redis_fifo(shared_redis).take(2, 1.0)) == [1]


def test_idle_waiting_logs_nothing(
    shared_redis: EmbeddedServer, make_redis_fifo: FifoFactory, caplog: pytest.LogCaptureFixture
) -> None:
    fifo = make_redis_fifo(shared_redis)
    with caplog.at_level("INFO"):
        assert fifo.take(4, 2.2) == []
    assert not caplog.records


def test_a_take_goes_on_while_redis_restarts(make_redis: ServerFactory, make_redis_fifo: FifoFactory) -> None:
    server = make_redis(persist=True)
    taker = Taker(make_redis_fifo(server))
    wait_for_blocked_reader(admin(server))
    kill(server)
    server.start()
    make_redis_fifo(server, consumer="producer").put(items(7))
    assert taker.join() == [7]


def test_a_killed_connection_during_a_blocking_take(shared_redis: EmbeddedServer, make_redis_fifo: FifoFactory) -> None:
    taker = Taker(make_redis_fifo(shared_redis))
    client = admin(shared_redis)
    client.client_kill_filter(_id=wait_for_blocked_reader(client))
    make_redis_fifo(shared_redis, consumer="producer").put(items(7))
    assert taker.join() == [7]


@pytest.mark.parametrize("flush", [True, False])
def test_data_that_is_deleted_during_a_blocking_take(
    flush: bool, make_redis: ServerFactory, make_redis_fifo: FifoFactory
) -> None:
    server = make_redis()
    taker = Taker(make_redis_fifo(server))
    client = admin(server)
    wait_for_blocked_reader(client)
    if flush:
        client.flushall()
    else:
        client.delete(*client.keys("*:unrolls"))
    make_redis_fifo(server, consumer="producer").put(items(7))
    assert taker.join() == [7]


def test_a_pause_above_the_socket_timeout(shared_redis: EmbeddedServer, make_redis_fifo: FifoFactory) -> None:
    taker = Taker(make_redis_fifo(shared_redis, operation_timeout_seconds=0.1))
    client = admin(shared_redis)
    wait_for_blocked_reader(client)
    client.client_pause(1500)
    producer = make_redis_fifo(shared_redis, consumer="producer", operation_timeout_seconds=0.1)
    assert producer.put(items(7))[:3] == (1, 1, 0) or producer.counts().length == 1
    assert taker.join() == [7]


def test_delayed_replies_mix_nothing_up(shared_redis: EmbeddedServer, make_redis_fifo: FifoFactory) -> None:
    """Pauses above the timeouts at random: every reply belongs to its command, each item comes once and whole."""
    rng, client = random.Random(5), admin(shared_redis)
    producer = make_redis_fifo(shared_redis, consumer="producer", operation_timeout_seconds=0.05)
    consumer = make_redis_fifo(shared_redis, operation_timeout_seconds=0.05)
    got: list[int] = []
    for start in range(0, 400, 10):
        if rng.random() < 0.3:
            client.client_pause(rng.randint(60, 150))
        producer.put(items(*range(start, start + 10), size=1000))
        taken = consumer.take(10, LIMIT_SECONDS)
        got += rows(taken)
        assert all(x.payload == items(row, size=1000)[0].payload for x, row in zip(taken, rows(taken), strict=True))
        consumer.acknowledge(taken)
    while len(got) < 400 and (taken := consumer.take(10, LIMIT_SECONDS)):
        got += rows(taken)
        consumer.acknowledge(taken)
    assert consumer.take(10, 0.2) == [] and got == list(range(400))
    assert producer.counts() == (400, 400, 0, 0, 0)


def test_what_a_dead_consumer_took_goes_back(shared_redis: EmbeddedServer, make_redis_fifo: FifoFactory) -> None:
    dead = make_redis_fifo(shared_redis, consumer="dead")
    dead.put(items(0, 1, 2))
    held = dead.take(2, 1.0)
    dead.close()
    patient = make_redis_fifo(shared_redis, consumer="patient")
    assert rows(patient.take(1, 1.0)) == [2]
    heir = make_redis_fifo(shared_redis, consumer="heir", dead_consumer_seconds=0.0)
    taken: list[Item] = []
    while len(taken) < 2:
        found = heir.take(9, LIMIT_SECONDS)
        assert found
        taken += found
    assert sorted(rows(taken))[:2] == [0, 1]
    heir.acknowledge(held)
    assert heir.counts().acknowledged_total == 0, "an old handle ends nothing"
    heir.acknowledge(taken)
    assert heir.counts().put_total == heir.counts().acknowledged_total + heir.counts().waiting


def test_a_redis_that_stays_away_is_named(make_redis: ServerFactory, make_redis_fifo: FifoFactory) -> None:
    server = make_redis(password="secret-word")
    fifo = make_redis_fifo(server, password="secret-word", unreachable_seconds=0.3)
    fifo.put(items(0))
    kill(server, "secret-word")
    for operation in (lambda: fifo.put(items(1)), fifo.check, fifo.epoch):
        with pytest.raises(UnreachableError, match="state connection") as caught:
            operation()
        assert "secret-word" not in str(caught.value)
    deadline = time.monotonic() + LIMIT_SECONDS
    with pytest.raises(UnreachableError):
        while time.monotonic() < deadline:
            fifo.take(1, 0.05)
    assert "secret-word" not in repr(RedisServer(server.url, password="secret-word"))


def test_a_stop_shortens_the_patience(make_redis: ServerFactory, make_redis_fifo: FifoFactory) -> None:
    server, stop = make_redis(), StopToken()
    fifo = make_redis_fifo(server, stop=stop, operation_timeout_seconds=0.2, unreachable_seconds=600.0)
    stop.stop("test")
    assert fifo.put(items(0))[:3] == (1, 0, 0) and rows(fifo.take(1, 0.0)) == [0], "a drain still works"
    kill(server)
    begun = time.monotonic()
    with pytest.raises(UnreachableError):
        fifo.put(items(1))
    assert time.monotonic() - begun < LIMIT_SECONDS


@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_wrong_password_is_refused_at_once(
    make_redis: ServerFactory, make_redis_fifo: FifoFactory, password: str | None
) -> None:
    fifo = make_redis_fifo(make_redis(password="right"), password=password)
    with pytest.raises(StoreError) as caught:
        fifo.check()
    assert "right" not in str(caught.value) and "wrong pass" not in str(caught.value)


def put_patiently(fifo: RedisFifo, batch: list[Put]) -> PutResult:
    """As a writer does: Redis frees what was acknowledged when it comes to it."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            return fifo.put(batch)
        except StoreFull:
            assert time.monotonic() < deadline


def test_a_full_redis_is_a_named_state_that_passes(
    make_redis: ServerFactory, make_redis_fifo: FifoFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_redis()
    fifo, client = make_redis_fifo(server), admin(server)
    fifo.put(items(0))
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 2**21)
    row = 0
    with pytest.raises(StoreFull):
        for row in range(1, 1000):
            fifo.put(items(row, size=100_000))
    before = fifo.counts()
    assert before.length == row, "the put that was refused left nothing"
    with pytest.raises(StoreFull):
        fifo.put(items(row, size=100_000))
    assert caplog.text.count("Redis is full") == 1, "one line a minute"
    taken = fifo.take(row // 2, 1.0)
    fifo.acknowledge(taken)
    assert put_patiently(fifo, items(row, size=100_000))[:3] == (1, 0, 0)
    assert fifo.counts().waiting == before.waiting - len(taken) + 1


def test_an_evicting_policy_is_refused(
    make_redis: ServerFactory, make_redis_fifo: FifoFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_redis(max_memory_bytes=2**26)
    fifo, client = make_redis_fifo(server, capacity=100), admin(server)
    fifo.check(unroll_bytes=1000)
    with pytest.raises(
        StoreError, match=r"1000000 bytes per unroll .* x 100 unrolls .* store.capacity to 5[13] or less"
    ):
        fifo.check(unroll_bytes=1_000_000)
    with pytest.raises(StoreError, match="proto-max-bulk-len"):
        fifo.check(unroll_bytes=2**30)
    client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreError, match=r"allkeys-lru.*CONFIG SET maxmemory-policy noeviction"):
        fifo.check()
    client.config_set("maxmemory", 0)
    fifo.check()


def test_a_cluster_is_refused_and_named(tmp_path: Path) -> None:
    port, bus = free_ports(2)
    command = [str(bundled_server()), "--port", str(port), "--cluster-enabled", "yes", "--cluster-port", str(bus)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        try:
            store = StoreSection(url=f"redis://127.0.0.1:{port}")
            owner = Stores(store, ReplaySection()).ownership("run", "here", StopToken())
            assert owner is not None
            with pytest.raises(ConfigError, match=r"is a Redis Cluster: .* Use a Redis that is none"):
                owner.take()
            owner.close()
        finally:
            process.kill()


def test_a_redis_that_hides_its_settings_is_taken(
    make_redis: ServerFactory, make_redis_fifo: FifoFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_redis()
    admin(server).acl_setuser(
        "limited", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-config", "-info"]
    )
    fifo = make_redis_fifo(server, username="limited", password="pw")
    with caplog.at_level("INFO"):
        fifo.check(unroll_bytes=1000)
    assert "Redis hides CONFIG" in caplog.text and "hides its memory settings" in caplog.text
    assert fifo.put(items(0))[:3] == (1, 0, 0) and rows(fifo.take(1, 1.0)) == [0]


def test_misconf_is_waited_for(make_redis: ServerFactory, make_redis_fifo: FifoFactory) -> None:
    """Redis cannot write its snapshot: a named state, over once writing works again."""
    server = make_redis()
    client = admin(server)
    fifo = make_redis_fifo(server, unreachable_seconds=0.3)
    fifo.put(items(0))
    (Path(server.directory) / "dump.rdb").mkdir()
    client.config_set("save", "3600 1")
    with pytest.raises(redis.ResponseError):
        client.save()
    client.bgsave()
    deadline = time.monotonic() + LIMIT_SECONDS
    while client.info("persistence")["rdb_last_bgsave_status"] == "ok":
        assert time.monotonic() < deadline
    with pytest.raises(UnreachableError, match="MISCONF"):
        fifo.put(items(1))
    client.config_set("save", "")
    assert fifo.put(items(1))[:3] == (1, 0, 0)
