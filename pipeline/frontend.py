"""The worker-facing socket and the state machines behind it: what both placements of the broker share.

Receives many messages per call, never looks into payload frames, and sends what the router asks. Belongs to the thread
that made it.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable
from typing import Any

import zmq

from pipeline import keys
from pipeline.admission import Admission
from pipeline.config.tree import Config
from pipeline.protocol import Kind, encode
from pipeline.routing.actions import Say, SendLearner, SendWorker, Settings
from pipeline.routing.messages import WorkerMessages
from pipeline.routing.router import Router
from pipeline.routing.status import StatusBoard
from pipeline.sockets import Context, Socket, close_bound, worker_facing
from pipeline.stages import Stage
from pipeline.traffic import Traffic

log = logging.getLogger(__name__)

RECEIVE_LIMIT = 512  # messages per call, so that sending gets its turn under load
PARTING_SECONDS = 1.0
PROBE_SECONDS = 0.02  # before the second GOODBYE; then twice as long each time
UNREACHABLE = "worker_unreachable"
Frames = list[Any]
Take = Callable[[bytes, list[Any], float], None]
EVENTS = int(zmq.EVENTS)
POLLIN = int(zmq.POLLIN)
NOBLOCK = int(zmq.NOBLOCK)
MORE = int(zmq.SNDMORE) | NOBLOCK


def settings_of(config: Config) -> Settings:
    """The router's settings."""
    broker = config.broker
    return Settings(
        heartbeat_seconds=broker.heartbeat_seconds,
        lease_seconds=broker.lease_seconds,
        max_workers=broker.max_workers,
        min_rows=broker.min_rows,
        max_wait_seconds=broker.max_wait_seconds,
        settle_seconds=0.0 if broker.placement == "embedded" else broker.lease_seconds,
    )


def receive_frames(socket: Socket) -> Frames:
    """The rest of a message, without copying it: it is there when the first frame is.

    Raises:
        zmq.Again: no message waits.
    """
    receive = socket.recv
    frame = receive(0, False)
    frames = [frame]
    while frame.more:
        frame = receive(0, False)
        frames.append(frame)
    return frames


def waits(socket: Socket) -> bool:
    """Whether there is a message; cheaper than an exception where there is none."""
    return bool(int(socket.get(EVENTS)) & POLLIN)


def send_frames(socket: Socket, frames: Frames) -> None:
    """Sends a message; not any of it where the first frame is not taken. A ZeroMQ frame is sent without copying it.

    Raises:
        zmq.ZMQError: as the first frame's ``send``.
    """
    send = socket.send
    for frame in frames[:-1]:
        send(frame, MORE)
    send(frames[-1], NOBLOCK)


def receive(socket: Socket, traffic: Traffic | None, take: Take, now: float, waiting: bool) -> int:
    """Hands what waits at a ROUTER to ``take(peer, frames, now)``, at most ``RECEIVE_LIMIT`` messages; how many.

    To be called also where nothing is ``waiting``: the traffic's period ends.
    """
    count = 0
    while waiting and count < RECEIVE_LIMIT:
        peer = socket.recv()
        frames = receive_frames(socket)  # a routing id has at least one frame behind it
        count += 1
        if traffic is None or traffic.take(peer, frames[0]):
            take(peer, frames, now)
        waiting = waits(socket)
    if traffic is not None:
        traffic.end_period(now, drained=count < RECEIVE_LIMIT)
    return count


class Frontend:
    """The ROUTER that workers connect to, and the ``Router`` that decides.

    Attributes:
        router: The state machine; its counters also count what could not be sent.
        board: What STATUS answers.
    """

    def __init__(self, context: Context, config: Config, admission: Admission, stage: Stage | None = None) -> None:
        """Binds. ``admission`` is the context's, ``stage`` a broker process's loop.

        Raises:
            ConfigError: see ``pipeline.sockets.worker_facing``.
        """
        self.socket = worker_facing(context, config.broker, config.security, admission.monitor(keys.WORKERS))
        self._admission = admission
        self._traffic = admission.traffic(keys.WORKERS)
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)
        self.router = Router(settings_of(config), secrets.randbits(62))
        self.board = StatusBoard(self.router, stage)
        self._messages = WorkerMessages(self.router, self.board)

    def wait(self, seconds: float) -> bool:
        """Whether a message waits; at the latest after ``seconds``, rounded up to milliseconds."""
        return bool(self._poller.poll(max(0, math.ceil(seconds * 1000))))

    def receive(self, now: float, waiting: bool) -> int:
        """See ``receive``."""
        return receive(self.socket, self._traffic, self._messages.take, now, waiting)

    def tick(self, now: float) -> None:
        """``Router.tick``, and the connections' part of the counters."""
        self._admission.check()
        counters = self.router.counters
        if self._traffic is not None:
            counters["worker_too_many_messages"] = self._traffic.dropped
            for name, number in self._admission.counts().items():
                counters[name] = number
        self.router.tick(now)
        self.board.observe(now)

    def send(self) -> list[SendLearner]:
        """Sends what the router asked for workers; returns what is for learners, in order.

        A worker that is gone or does not read loses the message and it is counted: it will repeat its request.
        """
        for_learners = []
        for action in self.router.take_actions():
            if isinstance(action, SendWorker):
                counter = self._send_one(action)
                if counter is not None:
                    self.router.counters[counter] += 1
            elif isinstance(action, Say):
                log.log(logging.DEBUG if action.detail else logging.INFO, "%s", action.text)
            else:
                for_learners.append(action)
        return for_learners

    def close(self) -> None:
        """Closes the socket when those that were told GOODBYE have hung up, at the latest after ``PARTING_SECONDS``.

        For a worker loses what it has not read when another ends its connection (``ZMQ_IMMEDIATE``). What else is under
        way has the linger time.
        """
        try:
            if not self.socket.closed:
                self._part()
        finally:
            close_bound(self.socket)

    def _part(self) -> None:
        """Says GOODBYE again to each until it is gone."""
        parting, deadline = self.router.parting, time.monotonic() + PARTING_SECONDS
        pause = PROBE_SECONDS
        while parting and (now := time.monotonic()) < deadline:
            self.receive(now, waits(self.socket))
            self.send()
            for peer, run in list(parting.items()):
                if self._send_one(SendWorker(peer, encode(Kind.GOODBYE, run), [])) == UNREACHABLE:
                    del parting[peer]
            if parting:
                self.wait(pause)
                pause *= 2  # one that does not read must not be filled up

    def _send_one(self, action: SendWorker) -> str | None:
        """The counter of why it was not sent, or None."""
        peer, head, buffers = action
        try:
            send_frames(self.socket, [peer, head, *buffers])
        except zmq.Again:
            return "worker_does_not_read"
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return UNREACHABLE
        return None
