"""Connections of a broker with keys: who gets nothing, who is cut off, and who does not notice."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from benchmarks.flood import Pair, broker_with_keys, flooding
from benchmarks.harness import cpu_seconds
from broker.loop import BrokerLoop
from pipeline import keys, sockets
from pipeline.admission import Admission
from pipeline.config.tree import BrokerSection, Config, EnvironmentSection, SecuritySection
from pipeline.launch.status import ask
from pipeline.protocol import Kind, encode
from pipeline.sources import BrokerSource, EmbeddedSource
from pipeline.stopping import StopToken
from tests.integration.peers import PATIENCE, EchoLearner, FakeWorker, finish, in_thread, pause, until
from tests.runs import Stopwatch, free_ports

pytestmark = pytest.mark.integration

CUT_SECONDS = 5.0
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"


@pytest.fixture
def context() -> Iterator[Any]:
    made: Any = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    keys.write_keys(tmp_path / "keys")
    keys.write_client(tmp_path / "keys", "spare")
    return tmp_path / "keys"


class Served:
    """A broker or an embedded learner over TCP, and the learner that answers."""

    def __init__(self, security: SecuritySection, placement: str, **broker: Any) -> None:
        front, back = free_ports(2)
        section = BrokerSection(bind=f"tcp://127.0.0.1:{front}", learner_bind=f"tcp://127.0.0.1:{back}", **broker)
        environment = EnvironmentSection(id="none")
        self.config = Config(environment=environment, broker=section, security=security)
        self._bound = StopToken()
        self._broker = in_thread("broker", self._serve) if placement == "process" else None
        assert self._broker is None or self._bound.wait(PATIENCE)
        kind = EmbeddedSource if placement == "embedded" else BrokerSource
        self.learner = EchoLearner(kind(self.config, None, "learner", 64))

    def _serve(self, stop: StopToken) -> None:
        context: Any = zmq.Context()
        config = self.config
        with Admission(context, config.broker, config.security, (keys.WORKERS, keys.LEARNERS)) as admission:
            loop = BrokerLoop(context, config, admission)
            self._bound.stop("bound")
            try:
                loop.run(stop)
            finally:
                loop.close()
        context.term()

    def with_keys(self, directory: Path | None) -> Config:
        security = SecuritySection(keys=str(directory) if directory else None)
        return self.config.model_copy(update={"security": security})

    def counters(self) -> dict[str, int]:
        """As `seedmq status` shows them."""
        replies: list[dict[str, Any]] = []
        asking = in_thread("status", lambda stop: replies.append(ask(self.config.broker.bind, self.config.security)))
        until(lambda: bool(replies) or asking[1].stopped, self.learner.advance)
        finish(*asking)
        found: dict[str, int] = replies[0]["counters"]
        return found

    def close(self) -> None:
        self.learner.source.close()
        if self._broker is not None:
            finish(*self._broker)


@pytest.fixture
def served() -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def make(*arguments: Any, **broker: Any) -> Served:
        made.append(Served(*arguments, **broker))
        return made[-1]

    yield make
    for one in made:
        one.close()


def disconnections(worker: FakeWorker) -> Any:
    return worker.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)


def connected(endpoint: str) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2])), PATIENCE)
    made.settimeout(PATIENCE)
    return made


def plain_peer(endpoint: str) -> socket.socket:
    """A ZMTP connection without CURVE, ready to send."""
    made = connected(endpoint)
    made.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
    answer = b""
    while b"Socket-Type" not in answer:
        answer += made.recv(4096)
    return made


def closed_by_peer(peer: socket.socket) -> bool:
    """Reads to the end; False where the socket's timeout comes first."""
    try:
        while peer.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize("placement", ["embedded", "process"])
def test_a_revoked_key_is_cut_off_and_others_work_on(
    context: Any, fleet: Path, served: Callable[..., Served], placement: str
) -> None:
    one = served(SecuritySection(keys=str(fleet)), placement)
    good = FakeWorker(context, one.with_keys(fleet), "good", 1, [2, 2], steps=10**9)
    bad = FakeWorker(context, one.with_keys(fleet / "clients" / "spare"), "bad", 2, [2, 2], steps=10**9)
    lost, kept = disconnections(bad), disconnections(good)

    def step() -> None:
        good.advance()
        bad.advance()
        one.learner.advance()

    until(lambda: min(good.sequence[0], bad.sequence[0]) >= 20, step)
    (fleet / "authorized" / "workers" / "spare.key").unlink()
    revoked = Stopwatch()
    until(lambda: bool(lost.poll(0)), step)
    assert revoked.seconds < CUT_SECONDS, revoked
    bad_before, good_before = sum(bad.sequence.values()), good.sequence[0]
    heard = len(bad.said)
    until(lambda: good.sequence[0] >= good_before + 200 and revoked.elapsed > CUT_SECONDS, step)
    assert (sum(bad.sequence.values()), len(bad.said)) == (bad_before, heard), "it tried again and got nothing"
    assert not kept.poll(0), "the admitted worker has kept its connection"
    until(lambda: one.counters()["connections_cut_revoked"] >= 1, pause)
    assert one.counters()["connections_refused"] >= 1
    for worker in (good, bad):
        worker.socket.disable_monitor()
        worker.close()
    lost.close()
    kept.close()


def test_a_silent_connection_of_a_revoked_key_is_cut_off(context: Any, fleet: Path, served: Any) -> None:
    one = served(SecuritySection(keys=str(fleet)), "embedded")
    silent = FakeWorker(context, one.with_keys(fleet / "clients" / "spare"), "silent", 2, [1], steps=0)
    until(lambda: bool(silent.socket.poll(0, zmq.POLLOUT)), one.learner.advance)
    lost = disconnections(silent)
    (fleet / "authorized" / "workers" / "spare.key").unlink()
    revoked = Stopwatch()
    until(lambda: bool(lost.poll(0)), one.learner.advance)
    assert revoked.seconds < CUT_SECONDS, revoked
    silent.socket.disable_monitor()
    silent.close()
    lost.close()


def test_a_learner_with_a_revoked_key_is_cut_off(context: Any, fleet: Path, served: Any) -> None:
    one = served(SecuritySection(keys=str(fleet)), "process")
    worker = FakeWorker(context, one.with_keys(fleet), "w", 1, [2], steps=10**9)

    def step() -> None:
        worker.advance()
        one.learner.advance()

    until(lambda: worker.sequence[0] >= 20, step)
    (fleet / "authorized" / "learners" / "learner.key").unlink()
    revoked, last = Stopwatch(), [worker.sequence[0], Stopwatch()]

    def silent() -> bool:
        if worker.sequence[0] != last[0]:
            last[:] = worker.sequence[0], Stopwatch()
        return last[1].elapsed > 2.0 and revoked.elapsed > CUT_SECONDS

    until(silent, step)
    assert revoked.seconds - last[1].seconds < CUT_SECONDS, "nobody answers any more"
    worker.close()


def test_a_worker_s_key_does_not_open_the_learners_endpoint(context: Any, fleet: Path, served: Any) -> None:
    one = served(SecuritySection(keys=str(fleet)), "process")
    for secret, role, admitted in (("client", "learner_bind", False), ("learner", "learner_bind", True)):
        pair, server = keys.load(fleet, secret, secret=True), keys.load(fleet, "server", secret=False)
        client = context.socket(zmq.DEALER)
        client.setsockopt(zmq.IMMEDIATE, 1)
        client.curve_publickey, client.curve_secretkey, client.curve_serverkey = *pair, server.public
        client.connect(getattr(one.config.broker, role))
        assert bool(client.poll(int(PATIENCE * 1000) if admitted else 1000, zmq.POLLOUT)) is admitted
        client.close(linger=0)


def test_plain_zmtp_gets_nothing(fleet: Path, served: Any) -> None:
    one = served(SecuritySection(keys=str(fleet)), "embedded")
    peer = connected(one.config.broker.bind)
    peer.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
    head = encode(Kind.STATUS)
    peer.settimeout(0.01)
    got = b""
    watch, closed = Stopwatch(), False
    while not closed and watch.elapsed < PATIENCE:
        one.learner.advance()
        try:
            peer.sendall(b"\x00" + bytes([len(head)]) + head)
            more = peer.recv(4096)
            got, closed = got + more, not more
        except TimeoutError:
            continue
        except ConnectionError:
            closed = True
    assert closed and watch.seconds < 8.0, f"the handshake must be over within 5 s: {watch}"
    assert len(got) <= 64, "at most the server's own greeting"
    assert one.learner.source.counters.get("malformed_head", 0) == 0 and one.learner.source.workers() == 0
    peer.close()


@pytest.mark.parametrize("tail", [b"", b"x" * 250])
def test_a_message_without_end_is_cut_off(served: Any, tail: bytes) -> None:
    one = served(SecuritySection(), "process", max_message_bytes=2**20)
    peer = plain_peer(one.config.broker.bind)
    frame = (b"\x01" + bytes([len(tail)]) + tail) * (2**20 // (len(tail) + 2))
    sent = 0
    try:
        while sent < 2**30:
            peer.sendall(frame)
            sent += len(frame)
    except (ConnectionError, TimeoutError):  # with a full window it cannot know
        pass
    assert sent < 2**30
    until(lambda: one.counters()["connections_cut_unfinished"] == 1, pause)
    peer.close()


def test_a_peer_that_sends_too_fast_is_cut_off(context: Any, served: Any) -> None:
    one = served(SecuritySection(), "process", max_messages_per_second=200)
    peer = plain_peer(one.config.broker.bind)
    worker = FakeWorker(context, one.config, "w", 1, [1], steps=20)

    def step() -> None:
        worker.advance()
        one.learner.advance()

    head = encode(Kind.STATUS)
    peer.sendall((b"\x00" + bytes([len(head)]) + head) * 5000)
    assert closed_by_peer(peer)
    until(lambda: worker.done, step)
    until(lambda: one.counters()["connections_cut_rate"] == 1, pause)
    assert 0 < one.counters()["worker_too_many_messages"] <= 4800
    worker.close()
    peer.close()


def test_connections_are_bounded_and_come_free_again(context: Any, served: Any) -> None:
    one = served(SecuritySection(), "process", max_connections=8)
    crowd = [plain_peer(one.config.broker.bind) for _ in range(8)]
    ninth = connected(one.config.broker.bind)
    assert closed_by_peer(ninth)
    ninth.close()
    for peer in crowd:
        peer.close()
    worker = FakeWorker(context, one.config, "w", 1, [1], steps=20)

    def step() -> None:
        worker.advance()
        one.learner.advance()

    until(lambda: worker.done, step)
    until(lambda: one.counters()["connections_cut_limit"] >= 1, pause)
    worker.close()


def test_idle_connections_end_by_themselves(fleet: Path, served: Any) -> None:
    one = served(SecuritySection(keys=str(fleet)), "process")
    peer, watch = connected(one.config.broker.bind), Stopwatch()
    assert closed_by_peer(peer) and watch.seconds < 8.0, f"no handshake within 5 s: {watch}"
    peer.close()


def test_keys_work_on_ipc_too(context: Any, fleet: Path, tmp_path: Path) -> None:
    security, broker = SecuritySection(keys=str(fleet)), BrokerSection(bind=f"ipc://{tmp_path}/broker")
    config = Config(environment=EnvironmentSection(id="none"), broker=broker, security=security)
    learner = EchoLearner(EmbeddedSource(config, None, "learner", 8))
    spare = SecuritySection(keys=str(fleet / "clients" / "spare"))
    worker = FakeWorker(context, config.model_copy(update={"security": spare}), "w", 1, [1], steps=10**9)

    def step() -> None:
        worker.advance()
        learner.advance()

    until(lambda: worker.sequence[0] >= 20, step)
    lost = disconnections(worker)
    (fleet / "authorized" / "workers" / "spare.key").unlink()
    until(lambda: bool(lost.poll(0)), step)
    worker.socket.disable_monitor()
    worker.close()
    lost.close()
    learner.source.close()


def test_a_dead_admission_takes_its_owner_down(context: Any, fleet: Path) -> None:
    security = SecuritySection(keys=str(fleet))
    broker = BrokerSection(bind=f"tcp://127.0.0.1:{free_ports(1)[0]}")
    with Admission(context, broker, security) as admission:
        server = sockets.worker_facing(context, broker, security, admission.monitor(keys.WORKERS))
        traffic = admission.traffic(keys.WORKERS)
        assert traffic is not None
        request: Any = context.socket(zmq.DEALER)
        request.connect(sockets.ZAP_ENDPOINT)
        request.send(b"no ZAP at all")

        def died() -> bool:
            try:
                admission.check()
            except ValueError:
                return True
            return False

        until(died, lambda: None)
        request.close(linger=0)
        sockets.close_bound(server)


def test_descriptors_are_only_shut_down_where_they_are_connections_of_the_endpoint(tmp_path: Path) -> None:
    from pipeline.admission import shut_down

    with socket.create_server(("127.0.0.1", 0)) as server, (tmp_path / "file").open("w") as file:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            other, _ = server.accept()
            with other:
                assert not shut_down(client.fileno(), f"tcp://127.0.0.1:{port}"), "its local port is another"
                assert not shut_down(file.fileno(), f"tcp://127.0.0.1:{port}")
                client.sendall(struct.pack("B", 1))
                assert other.recv(1) == b"\x01"
                assert shut_down(other.fileno(), f"tcp://127.0.0.1:{port}")
                assert client.recv(1) == b""
            assert not shut_down(10**6, f"tcp://127.0.0.1:{port}")


def test_a_flood_of_idle_connections_costs_the_broker_little(tmp_path: Path) -> None:
    """By its CPU time: what share of a core the flood takes; `python -m benchmarks.flood` measures the rates."""
    with broker_with_keys(tmp_path) as (config, pid):
        pair = Pair(config)
        try:
            pair.join()
            with flooding(int(config.broker.bind.rpartition(":")[2]), 1000):
                before = pair.answered
                pair.rate(1.0)
                assert pair.answered > before, "the admitted worker is served in the flood"
                cpu, began = cpu_seconds([pid]), time.monotonic()
                threading.Event().wait(7.0)  # nobody works: all that the broker does is for the flood, reconnects too
                assert cpu_seconds([pid]) - cpu < 0.1 * (time.monotonic() - began)
        finally:
            pair.close()
