"""Redis carries a command out and its reply is lost: nothing happens twice, and the caller learns what happened."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.store.embedded import EmbeddedServer
from pipeline.store.interface import Item, Put
from pipeline.store.redis_store import RedisFifo

pytestmark = pytest.mark.integration

FifoFactory = Callable[..., RedisFifo]
MARGIN_SECONDS = 10.0


class FlakyProxy:
    """Forwards bytes; ``lose_reply_to(word)`` lets the next request that holds ``word`` reach the server and closes the
    client's connection instead of forwarding the reply."""

    def __init__(self, path: Path, upstream: Path) -> None:
        self.url = f"unix://{path}"
        self.lost = threading.Event()
        self._upstream = upstream
        self._word: bytes | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._sockets = [self._listener]
        self._threads[0].start()

    def lose_reply_to(self, word: bytes) -> None:
        self.lost.clear()
        self._word = word

    def close(self) -> None:
        for end in self._sockets:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                assert error.errno is not None
            end.close()
        for thread in self._threads:
            thread.join(MARGIN_SECONDS)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(str(self._upstream))
            self._sockets += [client, server]
            losing = threading.Event()
            for source, target, requests in ((client, server, True), (server, client, False)):
                thread = threading.Thread(target=self._pump, args=(source, target, requests, losing), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, target: socket.socket, requests: bool, losing: threading.Event) -> None:
        try:
            while data := source.recv(1 << 16):
                if requests and self._word is not None and self._word in data:
                    self._word = None
                    losing.set()
                if not requests and losing.is_set():
                    self.lost.set()
                    break
                target.sendall(data)
        except OSError as error:
            assert error.errno is not None
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                assert error.errno is not None


@pytest.fixture
def proxy(shared_redis: EmbeddedServer, prefix: str) -> Iterator[FlakyProxy]:
    flaky = FlakyProxy(shared_redis.socket_path.with_name(f"{prefix}.sock"), shared_redis.socket_path)
    yield flaky
    flaky.close()


def items(*rows: int, size: int = 0) -> list[Put]:
    return [Put(1, 2, row, row + 1, 1, b"%d " % row + bytes(size)) for row in rows]


def rows(taken: list[Item]) -> list[int]:
    return [int(x.payload.split(b" ")[0]) for x in taken]


def test_a_put_whose_reply_is_lost_gives_that_reply(proxy: FlakyProxy, make_redis_fifo: FifoFactory) -> None:
    """Also what it dropped: the ledger books it from the reply."""
    fifo = make_redis_fifo(proxy.url, capacity=2, when_full="drop_oldest")
    fifo.put(items(0, 1))
    proxy.lose_reply_to(b"precious")
    assert fifo.put([Put(1, 2, 5, 6, 1, b"5 precious")])[:3] == (1, 0, 1)
    assert proxy.lost.is_set()
    assert fifo.counts() == (3, 0, 1, 2, 2)


def test_a_take_whose_reply_is_lost_takes_the_same_again(proxy: FlakyProxy, make_redis_fifo: FifoFactory) -> None:
    fifo = make_redis_fifo(proxy.url)
    fifo.put(items(*range(6)))
    assert rows(fifo.take(2, 1.0)) == [0, 1]
    assert fifo.take(2, 0.0) != [], "the pending list is read by now"
    proxy.lose_reply_to(b"XREADGROUP")
    assert rows(fifo.take(1, 2.0)) == [4]
    assert proxy.lost.is_set()
    assert rows(fifo.take(9, 2.0)) == [5]


def test_an_acknowledgement_whose_reply_is_lost_counts_once(proxy: FlakyProxy, make_redis_fifo: FifoFactory) -> None:
    fifo = make_redis_fifo(proxy.url)
    fifo.put(items(0, 1))
    taken = fifo.take(2, 1.0)
    proxy.lose_reply_to(taken[0].handle.encode())
    fifo.acknowledge(taken)
    assert proxy.lost.is_set()
    assert fifo.counts() == (2, 2, 0, 0, 0)
