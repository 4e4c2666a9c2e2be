"""A worker and a learner of nothing but the protocol, for the tests of everything between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from pipeline.config.tree import Config
from pipeline.protocol import Hello, Kind, Message, Report, decode, encode
from pipeline.requests import Event, Joined, Reply, StepRequest
from pipeline.rows import ROW
from pipeline.sockets import worker_socket
from pipeline.sources import BrokerSource, EmbeddedSource
from pipeline.spaces import Leaf, Spaces
from pipeline.stopping import OwnedThread, StopToken

SPACES = Spaces((Leaf("observation", "box", "int64", (2,)),), Leaf("action", "discrete", "int64", (), n=2**30))
PATIENCE = 120.0
"""Seconds; ten times what it takes where others use the machine as well."""


class FakeWorker:
    """One worker with ``groups``; every observation is (run, sequence), every action must be the sequence.

    Not a thread of its own: ``advance`` takes what came and sends what is due.
    """

    def __init__(
        self, context: Any, config: Config, name: str, run: int, groups: list[int], steps: int, repeat: float = 1.0
    ) -> None:
        self.socket = worker_socket(context, config.broker, config.security)
        self.name, self.run, self.groups, self.steps, self.repeat = name, run, groups, steps, repeat
        self.index, self.seed = -1, -1
        self.sequence = dict.fromkeys(range(len(groups)), 0)
        self.sent: dict[int, float] = {}
        self.answers: dict[int, list[int]] = {group: [] for group in self.sequence}
        self.wrong: list[str] = []
        self.said: list[Message] = []
        self.welcomed = self.refused = self.drained = False
        self._next_hello = 0.0
        self._next_heartbeat = 0.0

    @property
    def done(self) -> bool:
        return all(n >= self.steps for n in self.sequence.values())

    def hello(self) -> Hello:
        return Hello(self.name, self.run, "train", SPACES.to_wire(), self.groups, "", self.index, {}, {"host": "here"})

    def send(self, kind: Kind, *fields: Any, buffers: list[Any] | None = None) -> bool:
        try:
            self.socket.send_multipart([encode(kind, *fields), *(buffers or [])], zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def advance(self) -> None:
        """Takes what came, says HELLO or HEARTBEAT where it is due, sends the steps that are free."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._take(decode(frames))
        now = time.monotonic()
        if self.refused or self.drained:
            return
        if not self.welcomed:
            if now >= self._next_hello and self.send(Kind.HELLO, self.hello().to_wire()):
                self._next_hello = now + 0.3
            return
        if now >= self._next_heartbeat and self.send(Kind.HEARTBEAT, self.run, Report().to_wire()):
            self._next_heartbeat = now + 0.3
        for group, sequence in self.sequence.items():
            if sequence < self.steps and now - self.sent.get(group, 0.0) > self.repeat and self.step(group):
                self.sent[group] = now

    def step(self, group: int) -> bool:
        n = self.groups[group]
        rows = np.zeros(n, ROW)
        rows["environment"] = np.arange(n)
        observation = np.tile(np.array([self.run, self.sequence[group]], "<i8"), (n, 1))
        fields = (self.run, group, self.sequence[group], n, n)
        return self.send(Kind.STEP, *fields, buffers=[rows.tobytes(), observation.tobytes()])

    def close(self) -> None:
        self.socket.close(linger=0)

    def _take(self, message: Message) -> None:
        self.said.append(message)
        if message.kind == Kind.ACTIONS:
            run, group, sequence = message.fields
            action = np.frombuffer(message.buffers[0], "<i8")
            if run != self.run or len(action) != self.groups[group] or not (action == sequence).all():
                self.wrong.append(f"{message.fields}: {action}")
            if sequence == self.sequence[group]:
                self.answers[group].append(sequence)
                self.sequence[group] += 1
                self.sent.pop(group, None)
        elif message.kind == Kind.WELCOME:
            self.welcomed = True
            self.index, self.seed = message.fields[1]["worker"], message.fields[1]["seed"]
        elif message.kind == Kind.UNKNOWN:
            self.welcomed = False
        elif message.kind == Kind.REFUSED:
            self.refused = True
        elif message.kind == Kind.DRAIN:
            self.drained = True


class EchoLearner:
    """A learner whose policy is the identity: answers each row with its sequence number."""

    def __init__(self, source: EmbeddedSource | BrokerSource, batch: int = 32) -> None:
        self.source, self.batch = source, batch
        self.events: list[Event] = []
        self.batches: list[list[StepRequest]] = []
        self.errors: list[str] = []
        self.answered = 0

    def advance(self, timeout_seconds: float = 0.002) -> None:
        requests, events = self.source.poll(self.batch, timeout_seconds)
        for event in events:
            self.events.append(event)
            if isinstance(event, Joined):
                self.source.admit(event.worker, event.run, event.worker, False)
        if not requests:
            return
        keys = [(x.run, x.group) for x in requests]
        if len(set(keys)) != len(keys) or sum(x.rows for x in requests) > self.batch:
            self.errors.append(f"a batch of {sum(x.rows for x in requests)} rows holds {keys}")
        self.source.reply([self._answer(x) for x in requests])
        self.answered += len(requests)

    def _answer(self, x: StepRequest) -> Reply:
        observation = np.frombuffer(x.buffers[1], "<i8").reshape(x.rows, 2)
        if not (observation == [x.run, x.sequence]).all():
            self.errors.append(f"{x[:6]} holds {observation}")
        return Reply(x.worker, x.run, x.group, x.sequence, np.full(x.replies, x.sequence, "<i8").tobytes())


def in_thread(name: str, body: Callable[[StopToken], None]) -> tuple[OwnedThread, StopToken]:
    """Runs ``body(stop)`` in a thread; end it with ``finish``."""
    stop = StopToken()
    thread = OwnedThread(name, lambda: body(stop), stop)
    thread.start()
    return thread, stop


def finish(thread: OwnedThread, stop: StopToken) -> None:
    """Stops and joins a thread of ``in_thread``, and raises what ended it."""
    stop.stop("test over")
    thread.join(PATIENCE)
    assert not thread.is_alive()
    stop.raise_error()


def until(condition: Callable[[], bool], step: Callable[[], None], seconds: float = PATIENCE) -> None:
    """Calls ``step`` until ``condition`` holds, at most for ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within the time limit"
        step()


def pause() -> None:
    """Gives way to other threads."""
    threading.Event().wait(0.001)
