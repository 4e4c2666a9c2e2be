"""A router on the way that drops packets or forgets flows, while both ends believe that their connections stand."""

from __future__ import annotations

import select
import socket
import threading


class ForgetfulRouter:
    """Forwards TCP, until it forgets: what was connected then stays so, and is never forwarded again.

    While it is silent it takes new connections and all that is sent, and passes nothing on.

    Args:
        upstream: Port of the loopback that it forwards to.

    Attributes:
        port: Where it listens on the loopback.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._kept: list[socket.socket] = []
        self._forget = threading.Event()
        self._silent = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def forget(self) -> None:
        """What is connected is dead from now on; what connects anew passes."""
        self._forget.set()

    def silence(self) -> None:
        """Nothing passes until ``speak``."""
        self._silent.set()

    def speak(self) -> None:
        """What connects from now on passes; what was connected before is dead, as bytes of it are missing."""
        self._forget.set()
        self._silent.clear()

    def close(self) -> None:
        """Closes all connections."""
        self._ended.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        for one in {self._listener, *self._pairs, *self._kept}:
            one.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._forget.is_set():
                self._forget.clear()
                self._kept += self._pairs
                self._pairs = {}
            for one in select.select([self._listener, *self._pairs], [], [], 0.02)[0]:
                if one is self._listener:
                    self._connect()
                elif one in self._pairs:
                    self._pass(one)

    def _connect(self) -> None:
        client = self._listener.accept()[0]
        if self._silent.is_set():
            self._kept.append(client)
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._upstream), 5)
        except ConnectionRefusedError:
            client.close()  # nobody listens there yet
            return
        self._pairs |= {client: server, server: client}

    def _pass(self, source: socket.socket) -> None:
        target = self._pairs[source]
        try:
            data = source.recv(1 << 16)
            if data and self._silent.is_set():
                return
            target.sendall(data)
        except OSError as error:
            assert error.errno is not None
            data = b""
        if data:
            return
        for end in (source, target):
            del self._pairs[end]
            if self._silent.is_set() and end is target:
                self._kept.append(end)  # the other end does not hear of it
            else:
                end.close()
