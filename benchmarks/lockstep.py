"""Raw pyzmq as a limit: clients with one request outstanding, a server that answers each with the same bytes.

    client DEALER ----------------------------> ROUTER server      (the fewest hops and frames)
    client DEALER --> ROUTER relay DEALER ----> DEALER server      (the hops of a broker process)

Nothing is encoded, checked or counted but the requests. Clients and relay are a process each, sockets stand on ipc.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import zmq

START_SECONDS = 120.0
WARM_UP_SECONDS = 1.0
LARGE_BYTES = 2**16  # from here on pyzmq's frames are cheaper than copies
POLL_MILLISECONDS = 100
POLLIN = int(zmq.POLLIN)


def measure(request: Sequence[int], reply: Sequence[int], clients: int, *, relayed: bool, seconds: float) -> float:
    """Requests per second.

    Args:
        request: Bytes of each frame of a request.
        reply: The same of a reply.
        clients: How many.
        relayed: Through a process that receives and sends.
        seconds: To measure for, the warm-up apart.

    Raises:
        TimeoutError: not all clients came. RuntimeError: a process ended early.
    """
    copy = sum(request) < LARGE_BYTES
    with tempfile.TemporaryDirectory(prefix="seedmq-bench-") as folder:
        front, back = f"ipc://{folder}/front", f"ipc://{folder}/back"
        context: Any = zmq.Context()
        socket = context.socket(zmq.DEALER if relayed else zmq.ROUTER)
        socket.bind(back if relayed else front)
        jobs: list[tuple[Any, tuple[Any, ...]]] = [(ask, (front, tuple(request), copy))] * clients
        jobs += [(relay, (front, back, copy))] if relayed else []
        try:
            with _processes(jobs) as check:
                return _Server(socket, [bytes(n) for n in reply], copy, check).rate(clients, seconds)
        finally:
            socket.close(linger=0)
            context.term()


def ask(endpoint: str, sizes: tuple[int, ...], copy: bool) -> None:
    """A client, until it is killed."""
    context: Any = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    frames = [bytes(n) for n in sizes]
    while True:
        socket.send_multipart(frames, copy=copy)
        socket.recv_multipart(copy=copy)


def relay(front: str, back: str, copy: bool) -> None:
    """Receives and sends both ways, until it is killed."""
    context: Any = zmq.Context()
    one, other = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    one.bind(front)
    other.connect(back)
    poller = zmq.Poller()
    for socket in (one, other):
        poller.register(socket, zmq.POLLIN)
    while True:
        poller.poll()
        for taker, giver in ((one, other), (other, one)):
            while int(taker.get(zmq.EVENTS)) & POLLIN:
                giver.send_multipart(taker.recv_multipart(copy=copy), copy=copy)


class _Server:
    """Answers ``[peer, *request]`` by ``[peer, *reply]``."""

    def __init__(self, socket: Any, reply: list[bytes], copy: bool, check: Callable[[], None]) -> None:
        self._socket, self._reply, self._copy, self._check = socket, reply, copy, check
        self._peers: set[bytes] = set()

    def rate(self, clients: int, seconds: float) -> float:
        deadline = time.monotonic() + START_SECONDS
        while len(self._peers) < clients:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self._peers)} of {clients} clients came within {START_SECONDS:g} s")
            self._answer(0.1)
        self._answer(WARM_UP_SECONDS)
        begun = time.monotonic()
        return self._answer(seconds) / (time.monotonic() - begun)

    def _answer(self, seconds: float) -> int:
        """How many requests there were."""
        socket, copy, until, count = self._socket, self._copy, time.monotonic() + seconds, 0
        while time.monotonic() < until:
            if not int(socket.get(zmq.EVENTS)) & POLLIN:
                socket.poll(POLL_MILLISECONDS)
                continue
            peer = socket.recv_multipart(copy=copy)[0]
            socket.send_multipart([peer, *self._reply], copy=copy)
            self._peers.add(peer if copy else peer.bytes)
            count += 1
        self._check()
        return count


@contextmanager
def _processes(jobs: list[tuple[Any, tuple[Any, ...]]]) -> Iterator[Callable[[], None]]:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=arguments, daemon=True) for target, arguments in jobs]
    for process in processes:
        process.start()

    def check() -> None:
        ended = [process.exitcode for process in processes if process.exitcode is not None]
        if ended:
            raise RuntimeError(f"processes ended early with {ended}")

    try:
        yield check
    finally:
        for process in processes:
            process.kill()
            process.join()
