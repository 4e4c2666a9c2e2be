"""A man in the middle of workers and broker, who duplicates, reorders, delays and drops single messages.

    worker  DEALER -- ROUTER  front, in the clear  |  back  DEALER, one for each connection -- ROUTER  broker

What loses packets below TCP never does this to messages. Orders come as lines of JSON (``Fate``) on the standard input,
whose end is the end of the process; each is answered by a line of JSON, what was done to messages so far.

Bounded: so many messages and connections; what finds no room, or cannot be delivered in time, is lost, as in networks.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import NamedTuple

import zmq

from pipeline.config.tree import BrokerSection, SecuritySection
from pipeline.sockets import Context, Socket, worker_facing, worker_socket

MESSAGES = 2000
CONNECTIONS = 64
DELIVERY_SECONDS = 10.0
IDLE_SECONDS = 15.0
"""A worker that is there says HEARTBEAT every second."""
AGAIN_SECONDS = 0.02
POLL_SECONDS = 1.0
END_SECONDS = 5.0
COUNTS = ("duplicated", "reordered", "late", "dropped", "lost")


class Fate(NamedTuple):
    """What befalls a message, in either direction: probabilities, each of its own.

    Attributes:
        duplicate: It comes twice; either copy has a fate of its own.
        reorder: Some that come after it overtake it.
        late: It is held for seconds.
        drop: It never comes.
    """

    duplicate: float = 0.0
    reorder: float = 0.0
    late: float = 0.0
    drop: float = 0.0


OVERTAKEN_SECONDS = (0.005, 0.2)
LATE_SECONDS = (1.0, 5.0)


class Middle:
    """The process as the suite sees it: between ``start`` and ``close``.

    Args:
        front: Endpoint for workers.
        back: The broker's.
        keys: Directory of CURVE keys, or None.
        environment: Of the process.
    """

    def __init__(self, front: str, back: str, keys: str | None, environment: dict[str, str]) -> None:
        self._environment = environment
        self._command = [sys.executable, "-m", "tests.chaos.middle", front, back, *(["--keys", keys] if keys else [])]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment
        )

    def shape(self, fate: Fate) -> dict[str, int]:
        """From now on; what was done so far.

        Raises:
            RuntimeError: it does not answer.
        """
        if self._process is None:
            raise RuntimeError("the man in the middle is gone")
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(fate._asdict()) + "\n")
        self._process.stdin.flush()
        watchdog = threading.Timer(END_SECONDS, self._process.kill)  # then the line is empty
        watchdog.start()
        try:
            counts: dict[str, int] | None = json.loads(self._process.stdout.readline() or "null")
        finally:
            watchdog.cancel()
        if counts is None:
            raise RuntimeError("the man in the middle does not answer")
        return counts

    @property
    def died(self) -> int | None:
        """The exit code of a process that ended by itself."""
        return None if self._process is None else self._process.poll()

    def close(self) -> None:
        """Ends it. Nothing comes through any more."""
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(END_SECONDS)
            self._process.stdout.close()
            self._process = None


class _Held(NamedTuple):
    """A message that waits for its time, or for room."""

    due: float
    number: int
    expires: float
    peer: bytes  # the worker's connection
    inward: bool  # from worker to broker
    frames: list[bytes]


class Relay:
    """The loop's state. One thread."""

    def __init__(self, context: Context, front: BrokerSection, back: BrokerSection, keys: SecuritySection) -> None:
        self._context, self._broker, self._keys = context, back, keys
        self._front = worker_facing(context, front, SecuritySection())
        self._backs: dict[bytes, Socket] = {}
        self._heard: dict[bytes, float] = {}
        self._held: list[_Held] = []
        self._number = 0
        self._chance = random.Random(0)
        self._fate = Fate()
        self.counts = Counter(dict.fromkeys(COUNTS, 0))
        self._poller = zmq.Poller()
        self._poller.register(self._front, zmq.POLLIN)
        self._poller.register(sys.stdin, zmq.POLLIN)

    def run(self) -> None:
        """Until the standard input ends."""
        words = b""
        while True:
            patience = min(POLL_SECONDS, max(0.0, self._held[0].due - time.monotonic())) if self._held else POLL_SECONDS
            readable = dict(self._poller.poll(int(patience * 1000 + 0.999)))
            if sys.stdin.fileno() in readable:
                data = os.read(sys.stdin.fileno(), 4096)
                if not data:
                    return
                *lines, words = (words + data).split(b"\n")
                for line in lines:
                    self._fate = Fate(**json.loads(line))
                    print(json.dumps(self.counts), flush=True)
            if self._front in readable:
                self._from_workers()
            for peer, socket in list(self._backs.items()):
                if socket in readable:
                    self._receive(socket, peer)
            self._deliver()
            self._forget()

    def close(self) -> None:
        for peer in list(self._backs):
            self._end(peer)
        self._front.close(linger=0)

    def _from_workers(self) -> None:
        for _ in range(MESSAGES):
            try:
                peer, *frames = self._front.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard[peer] = time.monotonic()
            if peer not in self._backs:
                if len(self._backs) >= CONNECTIONS:
                    self.counts["lost"] += 1
                    continue
                self._backs[peer] = worker_socket(self._context, self._broker, self._keys)
                self._poller.register(self._backs[peer], zmq.POLLIN)
            self._meet(peer, True, frames)

    def _receive(self, socket: Socket, peer: bytes) -> None:
        for _ in range(MESSAGES):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._meet(peer, False, frames)

    def _meet(self, peer: bytes, inward: bool, frames: list[bytes]) -> None:
        """A message meets its fate."""
        fate, chance = self._fate, self._chance.random
        copies = 1
        if chance() < fate.duplicate:
            copies = 2
            self.counts["duplicated"] += 1
        for _ in range(copies):
            delay = 0.0
            if chance() < fate.drop:
                self.counts["dropped"] += 1
                continue
            if chance() < fate.late:
                self.counts["late"] += 1
                delay = self._chance.uniform(*LATE_SECONDS)
            elif chance() < fate.reorder:
                self.counts["reordered"] += 1
                delay = self._chance.uniform(*OVERTAKEN_SECONDS)
            if len(self._held) >= MESSAGES:
                self.counts["lost"] += 1
                continue
            self._number += 1
            due = time.monotonic() + delay
            heapq.heappush(self._held, _Held(due, self._number, due + DELIVERY_SECONDS, peer, inward, frames))

    def _deliver(self) -> None:
        """What is due; where there is no room now, it is tried again until it expires."""
        now = time.monotonic()
        again = []
        while self._held and self._held[0].due <= now:
            held = heapq.heappop(self._held)
            if not self._send(held) and held.peer in self._backs:
                if now < held.expires:
                    again.append(held._replace(due=now + AGAIN_SECONDS))
                else:
                    self.counts["lost"] += 1
        for held in again:
            heapq.heappush(self._held, held)

    def _send(self, held: _Held) -> bool:
        """Whether it is gone, in either sense."""
        if held.peer not in self._backs:
            self.counts["lost"] += 1
            return True
        socket = self._backs[held.peer] if held.inward else self._front
        frames = held.frames if held.inward else [held.peer, *held.frames]
        last = len(frames) - 1
        for i, frame in enumerate(frames):
            try:
                socket.send(frame, zmq.NOBLOCK | (zmq.SNDMORE if i < last else 0))
            except zmq.Again:
                if i == 0 or not held.inward:  # a full ROUTER says so at its first frame, which names the peer
                    return False
                # The connection went in the midst of it: ZeroMQ drops the rest, which must follow.
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self._end(held.peer)  # that worker is gone
                return True
        return True

    def _forget(self) -> None:
        for peer in [peer for peer, heard in self._heard.items() if heard < time.monotonic() - IDLE_SECONDS]:
            self._end(peer)

    def _end(self, peer: bytes) -> None:
        self._heard.pop(peer, None)
        if (socket := self._backs.pop(peer, None)) is not None:
            self._poller.unregister(socket)
            socket.close(linger=0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.middle")
    parser.add_argument("front")
    parser.add_argument("back")
    parser.add_argument("--keys")
    arguments = parser.parse_args()
    context = Context()
    relay = Relay(
        context,
        BrokerSection(bind=arguments.front),
        BrokerSection(bind=arguments.back),
        SecuritySection(keys=arguments.keys),
    )
    try:
        relay.run()
    finally:
        relay.close()
        context.term()
    return 0


if __name__ == "__main__":
    sys.exit(main())
