"""A proxy that loses replies."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

MARGIN_SECONDS = 60.0


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
