"""Keys: who gets in, who does not, and which endpoints are refused without them."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import zmq

from broker.service import serve
from pipeline import keys, sockets
from pipeline.admission import Admission
from pipeline.config.tree import BrokerSection, Config, EnvironmentSection, SecuritySection
from pipeline.errors import ConfigError
from pipeline.sources import BrokerSource, EmbeddedSource
from tests.integration.peers import PATIENCE, EchoLearner, FakeWorker, finish, in_thread, pause, until
from tests.runs import free_ports

pytestmark = pytest.mark.integration

LOCAL = BrokerSection(bind="tcp://127.0.0.1:*")


@pytest.fixture
def context() -> Any:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    keys.write_keys(tmp_path / "keys")
    return tmp_path / "keys"


def connect(context: Any, server: Any, security: SecuritySection) -> Any:
    broker = BrokerSection(bind=sockets.endpoint_of(server))
    return sockets.worker_socket(context, broker, security)


def arrives(client: Any, server: Any, seconds: float) -> bool:
    if not client.poll(seconds * 1000, zmq.POLLOUT):
        return False
    client.send(b"hello")
    return bool(server.poll(seconds * 1000)) and server.recv_multipart()[1] == b"hello"


def test_keys_are_private_and_never_overwritten(directory: Path) -> None:
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    files = [x for x in directory.rglob("*") if x.is_file()]
    assert len(files) == 8 and {stat.S_IMODE(x.stat().st_mode) for x in files} == {0o600}
    before = {x: x.read_bytes() for x in files}
    with pytest.raises(ConfigError, match="holds keys already"):
        keys.write_keys(directory)
    assert before == {x: x.read_bytes() for x in files}
    assert keys.load(directory, "client", secret=True).public in keys.authorized(directory, keys.WORKERS)


def test_a_client_with_keys_gets_in(context: Any, directory: Path) -> None:
    security = SecuritySection(keys=str(directory))
    with Admission(context, LOCAL, security) as admission:
        server = sockets.worker_facing(context, LOCAL, security)
        client = connect(context, server, security)
        assert arrives(client, server, PATIENCE)
        assert (admission.counts()["connections_admitted"], admission.counts()["connections_refused"]) == (1, 0)
        client.close(linger=0)
        server.close(linger=0)


@pytest.mark.parametrize("placement", ["embedded", "process"])
def test_workers_are_served_over_curve_in_both_placements(context: Any, directory: Path, placement: str) -> None:
    ports = free_ports(2)
    config = Config(
        environment=EnvironmentSection(id="none"),
        broker=BrokerSection(bind=f"tcp://127.0.0.1:{ports[0]}", learner_bind=f"tcp://127.0.0.1:{ports[1]}"),
        security=SecuritySection(keys=str(directory)),
    )
    broker = in_thread("broker", lambda stop: print(serve(config, stop))) if placement == "process" else None
    kind = EmbeddedSource if placement == "embedded" else BrokerSource
    learner = EchoLearner(kind(config, None, "learner", 8))
    worker = FakeWorker(context, config, "w", 1, [2, 2], steps=20)

    def step() -> None:
        worker.advance()
        learner.advance()

    until(lambda: worker.done, step)
    assert worker.wrong == [] and learner.errors == []
    worker.close()
    learner.source.close()
    if broker is not None:
        finish(*broker)


def test_a_client_without_keys_stays_outside(context: Any, directory: Path) -> None:
    security = SecuritySection(keys=str(directory))
    with Admission(context, LOCAL, security):
        server = sockets.worker_facing(context, LOCAL, security)
        client = connect(context, server, SecuritySection())
        assert not arrives(client, server, 0.5)
        client.close(linger=0)
        server.close(linger=0)


def test_a_key_that_is_not_listed_is_refused_until_it_is(context: Any, directory: Path, tmp_path: Path) -> None:
    keys.write_keys(tmp_path / "other")
    shutil.copy(directory / "server.key", tmp_path / "other" / "server.key")
    security, other = SecuritySection(keys=str(directory)), SecuritySection(keys=str(tmp_path / "other"))
    with Admission(context, LOCAL, security) as admission:
        server = sockets.worker_facing(context, LOCAL, security)
        client = connect(context, server, other)
        until(lambda: admission.counts()["connections_refused"] >= 1, pause)
        assert not arrives(client, server, 0.5)
        (directory / "authorized" / "workers" / "first.key").write_text("nonsense")
        shutil.copy(tmp_path / "other" / "client.key", directory / "authorized" / "workers" / "second.key")
        client.close(linger=0)
        client = connect(context, server, other)
        assert arrives(client, server, PATIENCE)
        client.close(linger=0)
        server.close(linger=0)


def test_another_server_is_not_trusted(context: Any, directory: Path, tmp_path: Path) -> None:
    keys.write_keys(tmp_path / "other")
    theirs = SecuritySection(keys=str(tmp_path / "other"))
    with Admission(context, LOCAL, theirs):
        server = sockets.worker_facing(context, LOCAL, theirs)
        client = connect(context, server, SecuritySection(keys=str(directory)))
        assert not arrives(client, server, 0.5)
        client.close(linger=0)
        server.close(linger=0)


def test_without_an_admission_nobody_comes_in(context: Any, directory: Path) -> None:
    security = SecuritySection(keys=str(directory))
    server = sockets.worker_facing(context, LOCAL, security)
    client = connect(context, server, security)
    assert not arrives(client, server, 0.5)
    client.close(linger=0)
    server.close(linger=0)


def test_one_admission_for_each_context(context: Any, directory: Path) -> None:
    security = SecuritySection(keys=str(directory))
    with (
        Admission(context, LOCAL, security),
        pytest.raises(ConfigError, match="another admission"),
    ):
        Admission(context, LOCAL, security)


def test_missing_and_damaged_keys_are_named(context: Any, directory: Path) -> None:
    security = SecuritySection(keys=str(directory))
    (directory / "client.key_secret").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"client\.key_secret"):
        sockets.worker_socket(context, LOCAL.model_copy(update={"bind": "tcp://127.0.0.1:9"}), security)
    with pytest.raises(ConfigError, match=r"server\.key"):
        sockets.worker_facing(context, LOCAL, SecuritySection(keys=str(directory / "nowhere")))


@pytest.mark.parametrize(
    "endpoint", ["tcp://0.0.0.0:5555", "tcp://*:5555", "tcp://10.0.0.1:5555", "tcp://broker:5555", "tcp://[::]:5555"]
)
def test_off_the_loopback_keys_are_required(context: Any, endpoint: str) -> None:
    broker = BrokerSection(bind=endpoint)
    for make in (sockets.worker_facing, sockets.worker_socket):
        with pytest.raises(ConfigError, match="off the loopback"):
            make(context, broker, SecuritySection())
    sockets.check_endpoint("broker.bind", endpoint, SecuritySection(insecure=True))


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:1", "tcp://127.8.8.8:1", "tcp://localhost:1", "tcp://[::1]:1", "ipc:///x"]
)
def test_on_the_loopback_they_are_not(endpoint: str) -> None:
    sockets.check_endpoint("broker.bind", endpoint, SecuritySection())


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("localhost:5555", "not an endpoint"),
        ("udp://127.0.0.1:5555", "not an endpoint"),
        ("tcp://127.0.0.1", "HOST:PORT"),
        ("tcp://127.0.0.1:http", "HOST:PORT"),
        ("tcp://127.0.0.1:70000", "HOST:PORT"),
        ("ipc:///tmp/" + "x" * 120, "at most 107"),
        ("ipc:///nowhere/at/all", "broker.bind"),
    ],
)
def test_malformed_endpoints_are_named(context: Any, endpoint: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        sockets.worker_facing(context, BrokerSection(bind=endpoint), SecuritySection())


def test_oversized_messages_are_refused_by_the_socket(context: Any) -> None:
    broker = LOCAL.model_copy(update={"max_message_bytes": 1000})
    server = sockets.worker_facing(context, broker, SecuritySection())
    client = connect(context, server, SecuritySection())
    assert client.poll(int(PATIENCE * 1000), zmq.POLLOUT)
    client.send(b"x" * 1001)
    assert not server.poll(300)
    assert arrives(client, server, PATIENCE), "the connection was cut and made anew"
    client.close(linger=0)
    server.close(linger=0)
