"""Spoilt messages at a broker process, and spoilt unrolls in Redis: each is refused and counted, and work goes on.

``FUZZ_MESSAGES`` is how many of each (``make fuzz``: 100 000); the figures are printed.
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

from learner.assembler import Unroll
from learner.fifo import FifoFeed, FifoSink
from learner.paths import LEARNER_ID, Context, open_path
from learner.replay import ReplayFeed, ReplaySink
from pipeline.ledger import Ledger
from pipeline.protocol import Kind, decode, encode
from pipeline.requests import Reply, StepRequest
from pipeline.sockets import learner_socket, worker_socket
from pipeline.sources import BrokerSource
from pipeline.stopping import OwnedThread, StopToken
from pipeline.store.backends import Stores
from pipeline.store.codec import Codec
from pipeline.store.codec import encode as encode_unroll
from pipeline.store.embedded import EmbeddedServer
from tests.fuzz import mutations
from tests.integration.peers import PATIENCE, EchoLearner, FakeWorker, until
from tests.integration.test_broker import SCRIPT, make_config
from tests.integration.test_semantics import Pipeline
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


class Reader:
    """The path from the store to an update, and a sink whose encoder spoils what it is told to.

    One unroll in ``WHOLE_EACH`` is whole.
    """

    WHOLE_EACH = 50
    ROUND = 200

    def __init__(self, server: EmbeddedServer, prefix: str, **sections: Any) -> None:
        sections["store"] = {"url": server.url, "prefix": prefix, "capacity": 1000}
        self.pipeline = Pipeline(3, **sections)
        self.pipeline.join()
        for _ in range(40):
            self.pipeline.step()
        self.patterns = [unroll for unroll in self.pipeline.collected.unrolls if unroll.valid]
        self.ledger, self.stop = Ledger(replay="replay" in sections), StopToken()
        stores = Stores(self.pipeline.config.store, self.pipeline.config.replay)
        agent, self.trainer = self.pipeline.agent, self.pipeline.agent.trainer()
        self.path = open_path(
            Context(self.pipeline.config, stores, agent, self.trainer, self.ledger, lambda: 1, self.stop, self.stop)
        )
        self.path.begin()
        self.rng, self.spoilt, self.whole, self.valid = random.Random(5), 0, 0, [0, 0]
        feed = self.path.feed
        if isinstance(feed, FifoFeed):
            self.sink: Any = FifoSink(stores.fifo(LEARNER_ID, self.stop), self.encode, self.ledger, self.path.epochs)
        else:
            assert isinstance(feed, ReplayFeed)
            self.sink = ReplaySink(
                store=stores.replay(LEARNER_ID, self.stop),
                layout=agent.layout,
                encode=self.encode,
                settings=self.pipeline.config.r2d2,
                ledger=self.ledger,
                epochs=self.path.epochs,
                sampling=feed._sampling,
            )
        self.prefetch = OwnedThread("prefetch", feed.run, self.stop)

    def encode(self, record: Any) -> bytes:
        layout = self.pipeline.agent.layout
        payload = encode_unroll(record, layout, self.rng.choice(list(Codec)))
        valid = int(layout.view(record)["valid"].sum())
        spoilt = payload
        if (self.spoilt + self.whole) % self.WHOLE_EACH:
            spoilt = mutations.payload(self.rng, payload, layout, self.rng.choice(mutations.HOW))
        self.spoilt += spoilt != payload
        self.whole += spoilt == payload
        self.valid[spoilt == payload] += valid
        return spoilt

    def put(self) -> None:
        """A round of unrolls, each under a name of its own."""
        unrolls = []
        for i in range(self.ROUND):
            pattern: Unroll = self.rng.choice(self.patterns)
            unrolls.append(pattern._replace(environment=1, run=3, row=self.spoilt + self.whole + i))
        number = sum(unroll.valid for unroll in unrolls)
        self.ledger.arrived(number, number, 0)
        assert self.sink.put(unrolls) == self.ROUND

    def update(self) -> bool:
        """Trains on a batch where there is one."""
        batch = self.path.feed.get(0.02)
        if batch is not None:
            self.path.feed.done(batch, self.trainer.update(batch.prepared, 0))
        self.stop.raise_error()
        return batch is not None

    def close(self) -> None:
        self.stop.stop("end")
        self.prefetch.join(PATIENCE)
        self.sink.close()
        self.path.close()
        self.stop.raise_error()


SMALL = {"unroll_length": 4, "batch_size": 2}


@pytest.mark.timeout(max(300, MESSAGES // 50))
def test_spoilt_unrolls_in_the_fifo(shared_redis: EmbeddedServer, prefix: str) -> None:
    reader = Reader(shared_redis, prefix, training=SMALL)
    feed = reader.path.feed
    assert isinstance(feed, FifoFeed)
    reader.prefetch.start()
    memory = Memory(os.getpid())
    while reader.spoilt < MESSAGES:
        reader.put()
        until(lambda: reader.ledger.snapshot()["waiting"]["store"] == 0, reader.update)
        memory.look()
    until(lambda: feed.damage.unrolls == reader.spoilt and reader.ledger.snapshot()["trained"] > 0, reader.update)
    while reader.update():
        pass
    reader.close()
    ledger = reader.ledger.snapshot()
    print(f"\nfifo: {reader.spoilt} spoilt, {reader.whole} whole; memory +{memory.growth / 2**20:.1f} MB; {ledger}")
    assert feed.damage.unrolls == reader.spoilt
    assert ledger["dropped"]["damaged"] == reader.valid[False]
    assert ledger["trained"] + ledger["waiting"]["prefetch"] == reader.valid[True] and ledger["error"] == 0
    assert ledger["waiting"]["prefetch"] <= 8 and memory.growth < GROWTH_BYTES


@pytest.mark.timeout(max(300, MESSAGES // 50))
def test_spoilt_unrolls_in_the_replay(shared_redis: EmbeddedServer, prefix: str) -> None:
    replay: dict[str, Any] = {"capacity": 1000, "min_size": 1, "samples_per_insert": 1000.0, "hold_inserts": False}
    replay["priority_exponent"] = 0.0  # each is drawn as often as any other, so that all are drawn soon
    training = {**SMALL, "algorithm": "r2d2"}
    reader = Reader(shared_redis, prefix, training=training, replay=replay, r2d2={"burn_in": 2})
    feed = reader.path.feed
    assert isinstance(feed, ReplayFeed)
    reader.prefetch.start()
    memory = Memory(os.getpid())
    while reader.spoilt < MESSAGES:
        reader.put()
        until(lambda: feed.damage.unrolls == reader.spoilt, reader.update)
        memory.look()
    assert reader.update()
    reader.close()
    ledger = reader.ledger.snapshot()
    print(f"\nreplay: {reader.spoilt} spoilt, {reader.whole} whole; memory +{memory.growth / 2**20:.1f} MB; {ledger}")
    assert feed.damage.unrolls == reader.spoilt, "each is drawn once"
    assert ledger["samples"] > 0 and ledger["error"] == 0 and memory.growth < GROWTH_BYTES
