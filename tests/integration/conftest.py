"""Redis-protocol servers (the bundled valkey-server and, where installed, Debian's redis-server), and a broker."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.store.embedded import EmbeddedServer
from pipeline.store.redis_client import RedisServer
from pipeline.store.redis_replay import RedisReplay
from pipeline.store.redis_store import RedisFifo
from tests.integration.flaky_proxy import FlakyProxy
from tests.integration.supervised import environments_processes
from tests.mini_broker import MiniBroker
from tests.runs import free_ports

REDIS_SERVER = shutil.which("redis-server")
BINARIES = {"valkey": None, "redis": REDIS_SERVER} if REDIS_SERVER else {"valkey": None}

ServerFactory = Callable[..., EmbeddedServer]
FifoFactory = Callable[..., RedisFifo]
ReplayFactory = Callable[..., RedisReplay]


@pytest.fixture(scope="session", params=list(BINARIES))
def redis_binary(request: pytest.FixtureRequest) -> Path | None:
    """None for the bundled server, else another one's path: every test that uses it runs on each."""
    path = BINARIES[request.param]
    return None if path is None else Path(path)


@pytest.fixture
def make_redis(redis_binary: Path | None) -> Iterator[ServerFactory]:
    """Starts servers of the test's own on private sockets; keyword arguments as ``EmbeddedServer``."""
    servers: list[EmbeddedServer] = []

    def make(**options: object) -> EmbeddedServer:
        # Not tmp_path: socket paths are short.
        directory = Path(tempfile.mkdtemp(prefix="seedmq-"))
        servers.append(EmbeddedServer(directory, binary=redis_binary, **options))
        servers[-1].start()
        return servers[-1]

    yield make
    for server in servers:
        server.stop()
        shutil.rmtree(server.directory)


@pytest.fixture(scope="session")
def shared_redis(redis_binary: Path | None) -> Iterator[EmbeddedServer]:
    """One server for all tests that only need their own prefix in it."""
    with (
        tempfile.TemporaryDirectory(prefix="seedmq-") as directory,
        EmbeddedServer(Path(directory), binary=redis_binary) as server,
    ):
        yield server


@pytest.fixture(scope="session", params=["memory", *BINARIES])
def backend(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer | None]:
    """Of the conformance suites: None for the memory of this process, else a server for all of them."""
    if request.param == "memory":
        yield None
        return
    path = BINARIES[request.param]
    with (
        tempfile.TemporaryDirectory(prefix="seedmq-") as directory,
        EmbeddedServer(Path(directory), binary=None if path is None else Path(path)) as server,
    ):
        yield server


@pytest.fixture
def free_port() -> int:
    """A TCP port of the loopback that nobody listens on."""
    return free_ports(1)[0]


@pytest.fixture
def prefix() -> str:
    """A prefix of the test's own."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def proxy(shared_redis: EmbeddedServer, prefix: str) -> Iterator[FlakyProxy]:
    """Between clients and the shared server."""
    flaky = FlakyProxy(shared_redis.socket_path.with_name(f"{prefix}.sock"), shared_redis.socket_path)
    yield flaky
    flaky.close()


@pytest.fixture
def make_redis_fifo(prefix: str) -> Iterator[FifoFactory]:
    """FIFOs of the test's prefix on a server; keyword arguments as ``RedisServer`` or ``RedisFifo``."""
    made: list[RedisFifo] = []

    def make(server: EmbeddedServer | str, **options: Any) -> RedisFifo:
        url = server if isinstance(server, str) else server.url
        patience = {name: options.pop(name) for name in list(options) if name in RedisServer.__dataclass_fields__}
        settings = {"prefix": prefix, "capacity": 1000, "when_full": "block", "consumer": "learner"} | options
        made.append(RedisFifo(RedisServer(url, **({"unreachable_seconds": 10.0} | patience)), **settings))
        return made[-1]

    yield make
    for fifo in made:
        fifo.close()


@pytest.fixture
def make_redis_replay(prefix: str) -> Iterator[ReplayFactory]:
    """Replays of the test's prefix on a server; keyword arguments as ``RedisServer`` or ``RedisReplay``."""
    made: list[RedisReplay] = []

    def make(server: EmbeddedServer | str, **options: Any) -> RedisReplay:
        url = server if isinstance(server, str) else server.url
        patience = {name: options.pop(name) for name in list(options) if name in RedisServer.__dataclass_fields__}
        settings = {"prefix": prefix, "capacity": 1000, "producer": "learner"} | options
        made.append(RedisReplay(RedisServer(url, **({"unreachable_seconds": 10.0} | patience)), **settings))
        return made[-1]

    yield make
    for replay in made:
        replay.close()


@pytest.fixture
def broker() -> Iterator[MiniBroker]:
    """Of workers that this process supervises; at the end none of their children is left."""
    with MiniBroker() as made:
        yield made
    assert not environments_processes()
