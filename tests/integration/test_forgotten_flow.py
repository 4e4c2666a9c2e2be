"""A router on the way forgets an idle flow: both ends believe that it stands, and nothing arrives any more."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pipeline.protocol import Kind
from pipeline.sources import BrokerSource
from tests.integration.peers import EchoLearner, FakeWorker, finish, until
from tests.integration.test_broker import make_config, start_broker

pytestmark = pytest.mark.integration


class ForgetfulRouter:
    """Forwards TCP, until it forgets: what was connected then stays so, and is never forwarded again."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._kept: list[socket.socket] = []
        self._forget = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def forget(self) -> None:
        self._forget.set()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(10)
        assert not self._thread.is_alive()
        for one in [self._listener, *self._pairs, *self._kept]:
            one.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._forget.is_set():
                self._forget.clear()
                self._kept += self._pairs
                self._pairs = {}
            for one in select.select([self._listener, *self._pairs], [], [], 0.02)[0]:
                if one is self._listener:
                    client, server = one.accept()[0], socket.create_connection(("127.0.0.1", self._upstream), 5)
                    self._pairs |= {client: server, server: client}
                elif one in self._pairs:
                    self._pass(one)

    def _pass(self, source: socket.socket) -> None:
        target = self._pairs[source]
        try:
            data = source.recv(1 << 16)
            target.sendall(data)
        except OSError as error:
            assert error.errno is not None
            data = b""
        if not data:
            for end in (source, target):
                del self._pairs[end]
                end.close()


@pytest.fixture
def router(free_port: int) -> Iterator[ForgetfulRouter]:
    made = ForgetfulRouter(free_port)
    yield made
    made.close()


def test_worker_and_learner_resume_within_30_seconds(router: ForgetfulRouter, free_port: int, tmp_path: Path) -> None:
    """Of 90 seconds that nothing passes, heartbeats need 10 to notice; what is connected anew passes."""
    near = make_config(tmp_path, bind=f"tcp://127.0.0.1:{free_port}", lease_seconds=10.0)
    far = make_config(tmp_path, connect=f"tcp://127.0.0.1:{router.port}", bind=near.broker.bind, lease_seconds=10.0)
    context = zmq.Context()
    broker = start_broker(near)
    learner = EchoLearner(BrokerSource(near, context, "learner", 64))
    worker = FakeWorker(context, far, "w", 1, [2], steps=10**9)

    def go_on() -> None:
        worker.advance()
        learner.advance()

    until(lambda: worker.sequence[0] > 20, go_on)
    router.forget()
    reached, began = worker.sequence[0] + 20, time.monotonic()
    until(lambda: worker.sequence[0] >= reached, go_on)
    print(f"resumed after {time.monotonic() - began:.1f} s")
    assert 1.0 < time.monotonic() - began < 30.0, "it was cut, and healed"
    assert worker.wrong == [] and not worker.refused and learner.errors == []
    assert sum(message.kind == Kind.WELCOME for message in worker.said) >= 1
    worker.close()
    learner.source.close()
    finish(*broker)
    context.destroy(linger=0)
