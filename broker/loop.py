"""The broker process's loop: two ROUTERs, the state machines between them, and nothing else.

    workers --worker-facing ROUTER--> Frontend --> Router --> learner-facing ROUTER --> learners   (and back)

Payload frames pass as they came. A send never waits: what a peer's queue does not take is lost and counted, and
somebody repeats it (workers their requests, this broker JOIN, learners READY, after which LEFT is said again).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import zmq

from pipeline import keys
from pipeline.admission import Admission
from pipeline.config.tree import Config
from pipeline.frontend import Frontend, receive, send_frames
from pipeline.protocol import encode
from pipeline.routing.actions import SendLearner
from pipeline.routing.messages import LearnerMessages
from pipeline.sockets import Context, close_bound, endpoint_of, learner_facing
from pipeline.stages import BUSY, MESSAGES, Stage
from pipeline.stopping import StopToken


class BrokerLoop:
    """Owns both sockets; belongs to the thread that made it.

    Attributes:
        board: What it says about itself.
        waits: Seconds that requests wait here.
        stage: Busy, or waiting for messages.
        turned: Monotonic seconds of the loop's last turn. Any thread may read it.
    """

    def __init__(
        self, context: Context, config: Config, admission: Admission, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Binds both endpoints.

        Raises:
            ConfigError: an endpoint is malformed, taken, or off the loopback without keys.
        """
        self._clock = clock
        self.stage = Stage("broker", clock)
        self._frontend = Frontend(context, config, admission, self.stage)
        try:
            monitor = admission.monitor(keys.LEARNERS)
            self._learners = learner_facing(context, config.broker, config.security, monitor)
        except BaseException:
            self._frontend.close()
            raise
        self._traffic = admission.traffic(keys.LEARNERS)
        self._router = self._frontend.router
        self._messages = LearnerMessages(self._router, self._frontend.board)
        self.board, self.waits = self._frontend.board, self._router.waits
        self.turned = self._next_tick = clock()

    @property
    def tick_seconds(self) -> float:
        """The loop turns at least so often."""
        return self._router.tick_seconds

    def endpoints(self) -> tuple[str, str]:
        """Worker-facing and learner-facing endpoint, as bound."""
        return endpoint_of(self._frontend.socket), endpoint_of(self._learners)

    def run(self, stop: StopToken) -> None:
        """Serves until the token stops, looking at it at least every tick."""
        poller = zmq.Poller()
        poller.register(self._frontend.socket, zmq.POLLIN)
        poller.register(self._learners, zmq.POLLIN)
        self.stage.enter(BUSY)
        waiting: list[Any] = []
        while not stop.stopped:
            self.turned = now = self._clock()
            receive(self._learners, self._traffic, self._messages.take, now, self._learners in waiting)
            self._frontend.receive(now, self._frontend.socket in waiting)
            if now >= self._next_tick:
                if self._traffic is not None:
                    self._router.counters["learner_too_many_messages"] = self._traffic.dropped
                self._frontend.tick(now)
                self._next_tick = now + self._router.tick_seconds
            self._router.flush(now)
            for action in self._frontend.send():
                self._send_learner(action)
            due = min(self._next_tick, self._router.deadline(now))
            self.stage.enter(MESSAGES)
            waiting = [socket for socket, _ in poller.poll(max(0, math.ceil((due - self._clock()) * 1000)))]
            self.stage.enter(BUSY)

    def close(self) -> None:
        """Closes both sockets; what is under way has the linger time."""
        self._frontend.close()
        close_bound(self._learners)

    def _send_learner(self, action: SendLearner) -> None:
        try:
            send_frames(self._learners, [action.peer, encode(action.kind, *action.fields), *action.buffers])
        except zmq.Again:
            self._router.counters["learner_does_not_read"] += 1
            self._router.learner_unreachable(action.peer)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._router.counters["learner_unreachable"] += 1
            self._router.learner_unreachable(action.peer)
