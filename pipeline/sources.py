"""The two request sources of the inference loop (``pipeline.requests.RequestSource``).

``EmbeddedSource`` is broker and learner side in one: the inference thread polls the worker-facing socket and asks the
router itself. ``BrokerSource`` is a DEALER to a broker process. Both belong to the thread that made them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from pipeline.admission import Admission
from pipeline.config.tree import Config
from pipeline.errors import ComponentError, ProtocolError
from pipeline.frontend import RECEIVE_LIMIT, Frontend, receive_frames, send_frames, waits
from pipeline.protocol import Cause, Kind, Message, are_integers, decode, encode, fields_of
from pipeline.requests import Event, Reply, Standing, StepRequest
from pipeline.roll import Roll
from pipeline.routing.batching import Batcher
from pipeline.routing.learners import Ready
from pipeline.sockets import Context, learner_socket
from pipeline.stages import BUSY, REQUESTS, ROOM, Stage

log = logging.getLogger(__name__)

Clock = Callable[[], float]
REPLIES_PER_MESSAGE = 4096
SILENT_HEARTBEATS = 5.0  # without an answer: the broker counts as away
RETRY_SECONDS = 0.05  # while there is no connection to the broker


class EmbeddedSource:
    """The broker inside the inference thread: no hop between workers and policy."""

    def __init__(
        self, config: Config, context: Context | None, learner_id: str, slots: int, clock: Clock = time.monotonic
    ) -> None:
        """Binds the worker-facing endpoint.

        Raises:
            ConfigError: the endpoint is malformed, taken, or off the loopback without keys.
        """
        self._owns_context = context is None
        self._context: Context = zmq.Context() if context is None else context
        self._clock = clock
        self.stage = Stage("inference", clock)
        self.broker_busy: float | None = None
        self._events: list[Event] = []
        self._roll = Roll()
        self._admission = Admission(self._context, config.broker, config.security)
        try:
            self._frontend = Frontend(self._context, config, self._admission)
        except BaseException:
            self._admission.close()
            raise
        self._router = self._frontend.router
        self._ready = Ready(learner_id, 1, slots, config.learner.inference_batch, "", [], [])
        self._next_tick = clock()
        learner = self._router.ready(b"embedded", self._ready, clock())
        if learner is None:
            raise ComponentError(f"the embedded learner {learner_id} was refused by its own router")
        self._learner = learner

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """The worker-facing ROUTER."""
        return self._frontend.socket

    @property
    def counters(self) -> dict[str, int]:
        """What was refused, dropped or repeated, by reason."""
        return dict(self._router.counters)

    def poll(self, credit: int, timeout_seconds: float) -> tuple[list[StepRequest], list[Event]]:
        """See ``RequestSource.poll``."""
        deadline = self._clock() + timeout_seconds
        router, learner = self._router, self._learner
        learner.credit = credit
        waiting = waits(self._frontend.socket)
        while True:
            now = self._clock()
            self._frontend.receive(now, waiting)
            if now >= self._next_tick:
                self._tick(now)
            requests = router.take(learner, credit, now)
            self._flush()
            if requests or self._events:
                events, self._events = self._events, []
                return requests, events
            if now >= deadline:
                return [], []
            wait = min(deadline, self._next_tick, router.deadline(now)) - self._clock()
            self.stage.enter(REQUESTS if credit else ROOM)
            waiting = self._frontend.wait(wait)
            self.stage.enter(BUSY)

    def reply(self, replies: list[Reply]) -> None:
        """See ``RequestSource.reply``."""
        for reply in replies:
            self._router.reply(self._learner, reply)
        self._flush()

    def admit(self, worker: int, run: int, seed: int, anew: bool) -> None:
        """See ``RequestSource.admit``."""
        self._roll.admit(worker, run, seed)
        self._router.admit(self._learner, worker, run, seed=seed, anew=anew, now=self._clock())
        self._flush()

    def reject(self, worker: int, run: int, reason: str, cause: Cause) -> None:
        """See ``RequestSource.reject``."""
        self._roll.reject(worker, run)
        self._router.reject(self._learner, worker, run, reason, cause)
        self._flush()

    def hold_back(self, reason: str | None) -> None:
        """See ``RequestSource.hold_back``."""
        self._learner.held_back = (reason or "")[:300]

    def publish(self, status: dict[str, Any]) -> None:
        """See ``RequestSource.publish``. Takes a copy, over the wire format, so that what cannot travel fails here."""
        self._learner.published = decode([encode(Kind.STATUS_REPLY, {"learner": status})]).fields[0]["learner"]

    def dismiss(self, reason: str) -> None:
        """See ``RequestSource.dismiss``."""
        self._router.dismiss(reason)
        self._flush()

    def workers(self) -> int:
        """Workers that hold a lease now."""
        return len(self._router.leases)

    @property
    def arrived(self) -> Sequence[float]:
        """See ``RequestSource``."""
        return self._learner.batcher.arrived

    def standing(self, now: float) -> Standing:
        """See ``RequestSource.standing``."""
        return Standing("", self._frontend.board.reading, last_fault=self._router.leases.last_fault())

    def close(self) -> None:
        """Closes the socket; with an own context waits for what is under way, for the linger time."""
        self._frontend.close()
        self._admission.close()
        if self._owns_context:
            self._context.term()

    def _tick(self, now: float) -> None:
        self._learner.heard = now
        self._frontend.tick(now)
        self._next_tick = now + self._router.tick_seconds

    def _flush(self) -> None:
        for action in self._frontend.send():
            self._events += self._roll.event(action.kind, action.fields)


class BrokerSource:
    """A learner's side of a broker process."""

    def __init__(
        self,
        config: Config,
        context: Context | None,
        learner_id: str,
        slots: int,
        clock: Clock = time.monotonic,
    ) -> None:
        """Connects; the broker need not be there yet.

        Raises:
            ConfigError: the endpoint is malformed, or off the loopback without keys.
        """
        self._owns_context = context is None
        self._context: Context = zmq.Context() if context is None else context
        self.stage = Stage("inference", clock)
        self.broker_busy: float | None = None
        self._clock = clock
        self._socket = learner_socket(self._context, config.broker, config.security)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._batch = config.learner.inference_batch
        self._min_rows = config.broker.min_rows
        self._heartbeat = config.broker.heartbeat_seconds
        self._ready = Ready(learner_id, time.time_ns() // 1000, slots, self._batch, "", [], [])
        self._batcher = Batcher()
        self._roll = Roll()
        self._events: list[Event] = []
        self._granted = 0
        self._session: tuple[int, int] | None = None
        self._dismissed: str | None = None
        self._heard = self._next_ready = clock()
        self.counters: dict[str, int] = {"malformed": 0, "unsent": 0, "request_of_gone_worker": 0}

    def poll(self, credit: int, timeout_seconds: float) -> tuple[list[StepRequest], list[Event]]:
        """See ``RequestSource.poll``."""
        deadline = self._clock() + timeout_seconds
        while True:
            now = self._clock()
            if now >= self._next_ready:
                self._say_ready(now)
            self._receive(now)
            requests = self._admitted(self._batcher.take(credit, self._batch, now))
            if requests or self._events:
                events, self._events = self._events, []
                return requests, events
            if now >= deadline:
                return [], []
            self._grant(credit)
            wait = min(deadline, self._next_ready) - self._clock()
            self.stage.enter(REQUESTS if credit else ROOM)
            self._poller.poll(max(0, math.ceil(wait * 1000)))
            self.stage.enter(BUSY)

    def reply(self, replies: list[Reply]) -> None:
        """See ``RequestSource.reply``. What cannot be sent is counted: the workers will repeat their requests."""
        now = self._clock()
        if now >= self._next_ready:
            self._say_ready(now)  # after a long pause the broker must know us again before it takes replies
        for start in range(0, len(replies), REPLIES_PER_MESSAGE):
            some = replies[start : start + REPLIES_PER_MESSAGE]
            self._send(encode(Kind.REPLIES, [reply[:4] for reply in some]), [reply.buffer for reply in some])

    def admit(self, worker: int, run: int, seed: int, anew: bool) -> None:
        """See ``RequestSource.admit``."""
        self._roll.admit(worker, run, seed)
        self._send(encode(Kind.ADMIT, worker, run, seed, anew))

    def reject(self, worker: int, run: int, reason: str, cause: Cause) -> None:
        """See ``RequestSource.reject``."""
        self._roll.reject(worker, run)
        self._send(encode(Kind.REJECT, worker, run, reason[:1000], int(cause)))

    def hold_back(self, reason: str | None) -> None:
        """See ``RequestSource.hold_back``."""
        text = (reason or "")[:300]
        if text != self._ready.held_back:
            self._ready = self._ready._replace(held_back=text)
            self._say_ready(self._clock())

    def publish(self, status: dict[str, Any]) -> None:
        """See ``RequestSource.publish``."""
        self._send(encode(Kind.PUBLISH, status))

    def dismiss(self, reason: str) -> None:
        """See ``RequestSource.dismiss``. Said again to a broker that restarts."""
        self._dismissed = reason[:300]
        self._send(encode(Kind.DISMISS, self._dismissed))

    def workers(self) -> int:
        """Workers that this learner has admitted and that have not left."""
        return len(self._roll.admitted)

    @property
    def arrived(self) -> Sequence[float]:
        """See ``RequestSource``."""
        return self._batcher.arrived

    def standing(self, now: float) -> Standing:
        """See ``RequestSource.standing``. A broker answers every READY."""
        silent, away = now - self._heard, ""
        if self._session is None:
            away = "no broker has answered yet"
        elif silent > SILENT_HEARTBEATS * self._heartbeat:
            away = f"the broker is silent for {silent:.0f} s"
        return Standing(away, None, dict(self.counters), len(self._batcher), self._batcher.rows)

    def close(self) -> None:
        """Closes the socket; with an own context waits for what is under way, for the linger time."""
        self._socket.close()
        if self._owns_context:
            self._context.term()

    def _send(self, head: bytes, buffers: list[Any] | None = None) -> bool:
        """Sends or counts: everything is repeated by somebody where it is lost."""
        try:
            send_frames(self._socket, [head, *(buffers or [])])
        except zmq.Again:
            self.counters["unsent"] += 1
            return False
        return True

    def _say_ready(self, now: float) -> None:
        admitted = self._roll.admitted
        ready = self._ready._replace(workers=list(admitted), runs=list(admitted.values()))
        sent = self._send(encode(Kind.READY, ready._asdict()))
        self._next_ready = now + (self._heartbeat if sent else RETRY_SECONDS)

    def _grant(self, credit: int) -> None:
        """Tops the broker's credit up to what this call may return.

        Only where less than half of it is left, or less than one request or ``min_rows`` may need: most batches are
        small, and each grant is a message.
        """
        more = credit - self._granted - self._batcher.rows
        needed = max(credit // 2, self._roll.largest_request, self._min_rows)
        if self._session is not None and more > 0 and self._granted < needed and self._send(encode(Kind.CREDIT, more)):
            self._granted += more

    def _receive(self, now: float) -> None:
        for _ in range(RECEIVE_LIMIT):
            if not waits(self._socket):
                return
            frames = receive_frames(self._socket)
            try:
                self._take(decode(frames), now)
            except ProtocolError as error:
                self.counters["malformed"] += 1
                log.warning("a broker's message was refused: %s", error)

    def _take(self, message: Message, now: float) -> None:
        if message.kind == Kind.BATCH:
            self._take_batch(message, now)
        elif message.kind == Kind.BROKER:
            self._take_broker(message)
        elif message.kind == Kind.JOIN and self._roll.is_admitted(message):
            # A broker that restarted asks; nothing is new to the learner.
            worker, run, _ = message.fields
            self._send(encode(Kind.ADMIT, worker, run, self._roll.seeds[worker], False))
        elif message.kind in (Kind.JOIN, Kind.LEFT, Kind.REPORT):
            self._events += self._roll.event(message.kind, message.fields)
        else:
            raise ProtocolError(f"{message.kind.name} is not a broker's message to a learner")

    def _take_batch(self, message: Message, now: float) -> None:
        (items,) = fields_of(message, list)
        start = 0
        if not all(are_integers(x, 7) for x in items):
            raise ProtocolError("BATCH: items are [worker, run, group, sequence, rows, replies, frames]")
        for worker, run, group, sequence, rows, replies, frames in items:
            buffers = message.buffers[start : start + frames]
            start += frames
            self._granted = max(0, self._granted - rows)
            self._batcher.add(StepRequest(worker, run, group, sequence, rows, replies, buffers), now)

    def _admitted(self, requests: list[StepRequest]) -> list[StepRequest]:
        admitted = self._roll.admitted
        found = [request for request in requests if admitted.get(request.worker) == request.run]
        if len(found) < len(requests):
            self.counters["request_of_gone_worker"] += len(requests) - len(found)
            batcher, kept = self._batcher, set(map(id, found))
            batcher.arrived = [at for at, x in zip(batcher.arrived, requests, strict=True) if id(x) in kept]
        return found

    def _take_broker(self, message: Message) -> None:
        (status,) = fields_of(message, dict)
        self._heard = self._clock()
        if status.get("refused"):
            raise ComponentError(f"the broker refused this learner: {str(status['refused'])[:300]}")
        busy = status.get("busy_percent")
        self.broker_busy = busy / 100 if type(busy) is int and 0 <= busy <= 100 else None
        session = (status.get("broker", 0), status.get("session", 0))
        if session != self._session:
            if self._session is not None:
                log.info("another session with the broker: workers will say HELLO again where it restarted")
            self._session, self._granted = session, 0
            if self._dismissed is not None:
                self._send(encode(Kind.DISMISS, self._dismissed))
