"""Spoilt messages at a broker process: each is refused and counted, and work goes on.

``FUZZ_MESSAGES`` is how many (``make fuzz``: 100 000); the figures are printed.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from pipeline.protocol import Kind, decode, encode
from pipeline.requests import Reply, StepRequest
from pipeline.sockets import learner_socket, worker_socket
from pipeline.sources import BrokerSource
from tests.fuzz import mutations
from tests.integration.peers import PATIENCE, EchoLearner, FakeWorker, until
from tests.integration.test_broker import SCRIPT, make_config
from tests.runs import Stopwatch

pytestmark = pytest.mark.integration

MESSAGES = int(os.environ.get("FUZZ_MESSAGES", "3000"))
GROWTH_BYTES = 50 * 2**20
SERVED, SPOILED = 2**61 + 1, 2**61 + 2
REFUSALS = ("hello_refused", "unknown_run", "unknown_learner", "learner_refused")


class CountedWorker(FakeWorker):
    """Counts what it has sent."""

    count = 0

    def send(self, kind: Kind, *fields: Any, buffers: list[Any] | None = None) -> bool:
        sent = super().send(kind, *fields, buffers=buffers)
        self.count += sent
        return sent


class CountedSource(BrokerSource):
    """Counts what it has sent."""

    count = 0

    def _send(self, head: bytes, buffers: list[Any] | None = None) -> bool:
        sent = super()._send(head, buffers)
        self.count += sent
        return sent


class CarefulLearner(EchoLearner):
    """Looks at lengths before it looks at content, as a learner does."""

    refused = 0

    def _answer(self, x: StepRequest) -> Reply:
        if [len(buffer) for buffer in x.buffers] == [32 * x.rows, 16 * x.rows] and x.run == SERVED:
            return super()._answer(x)
        self.refused += 1
        return Reply(x.worker, x.run, x.group, x.sequence, bytes(8 * x.replies))


class Attack:
    """Spoilt messages of every kind, from sockets of their own, and what comes back to them.

    Workers' messages speak for the run ``SPOILED``, which is really served. Learners' come from one that says READY
    spoilt, one that is known by a valid READY, and, where a valid one would end the run (DISMISS), from a stranger.
    """

    def __init__(self, context: Any, config: Any) -> None:
        self.rng = random.Random(7)
        self.worker = worker_socket(context, config.broker, config.security)
        self.ready, self.known, self.stranger = (
            learner_socket(context, config.broker, config.security) for _ in range(3)
        )
        self.sent: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self._next_ready = 0.0

    @property
    def sockets(self) -> list[Any]:
        return [self.worker, self.ready, self.known, self.stranger]

    def say_ready(self) -> None:
        """The one valid message."""
        now = time.monotonic()
        if now >= self._next_ready and self._send(self.known, [encode(Kind.READY, self._ready("known"))], "learners"):
            self._next_ready = now + 0.5

    def one(self) -> None:
        kind, how = self.rng.choice(sorted(mutations.FIELDS)), self.rng.choice(mutations.HOW)
        fields, buffers = mutations.FIELDS[kind], []
        if kind in (Kind.HEARTBEAT, Kind.BYE):
            fields = [SPOILED, *fields[1:]]
        elif kind == Kind.STEP:
            fields, buffers = [SPOILED, 0, self.rng.randrange(100), 2, 2], [bytes(64), bytes(32)]
        elif kind == Kind.READY:
            fields = [self._ready("spoilt")]
        to_learners = Kind.READY <= kind <= Kind.DISMISS
        if self.rng.random() < 0.05:
            to_learners = not to_learners
        socket = self.worker
        if to_learners:
            socket = {Kind.READY: self.ready, Kind.DISMISS: self.stranger}.get(kind, self.known)
        frames = mutations.message(self.rng, kind, fields, buffers, how)
        if self._send(socket, frames, "learners" if to_learners else "workers"):
            self.sent[how] += 1

    def listen(self) -> None:
        for socket in self.sockets:
            while socket.poll(0):
                self.answers[decode(socket.recv_multipart()).kind.name] += 1

    def close(self) -> None:
        for socket in self.sockets:
            socket.close(linger=0)

    def _ready(self, name: str) -> dict[str, Any]:
        return {**mutations.FIELDS[Kind.READY][0], "learner": name, "slots": 0, "workers": [], "runs": []}

    def _send(self, socket: Any, frames: list[bytes], side: str) -> bool:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        self.sent[side] += 1
        return True


class Stage:
    """A broker process, the learner and the worker that it serves, and who attacks them; one thread moves all."""

    def __init__(self, folder: Path) -> None:
        self.config, self.context, self.log = make_config(folder), zmq.Context(), folder / "log"
        with self.log.open("w") as log:
            self.broker = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, self.config.model_dump_json(by_alias=True)], stderr=log
            )
        self.learner = CarefulLearner(CountedSource(self.config, self.context, "learner", 256))
        self.attack = Attack(self.context, self.config)
        self.workers: list[CountedWorker] = []
        self.served = self.worker("served", SERVED, [2, 1], steps=10**9)
        self.spoiled = self.worker("spoiled", SPOILED, [2], steps=0)
        self.asker = self.worker("asker", 1, [1], steps=0)
        self.asker.welcomed, self.asker._next_heartbeat = True, float("inf")

    def worker(self, name: str, run: int, groups: list[int], steps: int) -> CountedWorker:
        self.workers.append(CountedWorker(self.context, self.config, name, run, groups, steps))
        return self.workers[-1]

    def go_on(self) -> None:
        for worker in self.workers:
            worker.advance()
        if self.served.welcomed and self.spoiled.welcomed:
            self.attack.say_ready()
        self.attack.listen()
        self.learner.advance(0.001)

    def status(self) -> dict[str, Any]:
        """A status by which every message that was sent so far has been looked at; fails where one was not."""
        deadline, least = time.monotonic() + PATIENCE, self.sent()
        while True:
            self.asker.said.clear()
            self.asker.send(Kind.STATUS)
            until(lambda: bool(self.asker.said), self.go_on)
            found, most = dict(self.asker.said[-1].fields[0]), self.sent()
            assert all(found["messages"][side] <= most[side] for side in most)
            if all(found["messages"][side] >= least[side] for side in least):
                return found
            assert time.monotonic() < deadline, f"{least} were sent, {found['messages']} were looked at"

    def sent(self) -> dict[str, int]:
        assert isinstance(self.learner.source, CountedSource)
        return {
            "workers": self.attack.sent["workers"] + sum(worker.count for worker in self.workers),
            "learners": self.attack.sent["learners"] + self.learner.source.count,
        }

    def end(self) -> int:
        """Stops the broker, reads what it still says (else ZeroMQ may abort this process), and closes all; its code."""
        self.broker.terminate()
        try:
            until(lambda: self.broker.poll() is not None, self.go_on)
        finally:
            self.broker.kill()
            self.broker.wait()
            for one in [*self.workers, self.attack, self.learner.source]:
                one.close()
            self.context.destroy(linger=0)
        return self.broker.returncode


class Memory:
    """Resident bytes of a process over time."""

    def __init__(self, pid: int) -> None:
        self._process, self._resident = psutil.Process(pid), list[int]()

    def look(self) -> None:
        self._resident.append(self._process.memory_info().rss)

    @property
    def growth(self) -> int:
        """The largest against that after a twentieth of the looks."""
        return max(self._resident) - self._resident[len(self._resident) // 20]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    if made.broker.poll() is None:
        made.end()


@pytest.mark.timeout(max(300, MESSAGES // 50))
def test_spoilt_messages_at_a_broker(stage: Stage) -> None:
    attack, served, learner = stage.attack, stage.served, stage.learner
    memory = Memory(stage.broker.pid)
    steps: list[tuple[float, int]] = []
    until(lambda: served.welcomed and stage.spoiled.welcomed, stage.go_on)
    watch = Stopwatch()
    while (spoilt := sum(attack.sent[how] for how in mutations.HOW)) < MESSAGES:
        for _ in range(10):
            attack.one()
        stage.go_on()
        memory.look()
        steps.append((time.monotonic(), served.sequence[0]))
    held_up, found = watch.held_up, stage.status()
    looked_at = sum(found["messages"].values())
    refused = sum(n for name, n in found["counters"].items() if name.startswith("malformed_") or name in REFUSALS)
    own_pause, served_steps = max(b - a for (a, _), (b, _) in itertools.pairwise(steps)), steps[-1][1]
    print(
        f"\nbroker: {spoilt} spoilt messages ({dict(attack.sent)}) of {looked_at} that it looked at: "
        f"{refused} refused, {looked_at - refused} taken; memory +{memory.growth / 2**20:.1f} MB; "
        f"the worker that was served made {served_steps} steps, its longest pause {longest_pause(steps):.2f} s "
        f"(of the test itself {own_pause:.2f} s); answers {dict(attack.answers)}; {found['counters']}"
    )
    assert refused >= attack.sent["truncated"] + attack.sent["flipped"] // 10, "a truncated one is never valid"
    assert memory.growth < GROWTH_BYTES
    assert served.wrong == [] and learner.errors == [] and not served.refused and not served.drained
    assert served_steps > looked_at / 200 and longest_pause(steps) < 5.0 + own_pause + held_up
    late = stage.worker("late", 2**61 + 3, [1], steps=20)
    until(lambda: late.done, stage.go_on)
    assert stage.end() == 143 and "Traceback" not in stage.log.read_text()


def longest_pause(steps: list[tuple[float, int]]) -> float:
    """Seconds between two moments at which the number grew, at most."""
    grew = [steps[0][0]]
    grew += [now for (_, before), (now, after) in itertools.pairwise(steps) if after > before]
    return max((after - before for before, after in itertools.pairwise(grew)), default=float("inf"))
