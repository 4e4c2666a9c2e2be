"""The scale model: a simulation of one learner with its workers, from what each stage costs per unit of work.

    worker (each one) -> [broker] -> transport -> inference -> writer -> store -> feed -> training
       ^------------ actions ------------------------'

Each stage does one thing at a time. All of them share the machine's CPUs evenly (``workers_elsewhere``: without the
workers); a stage that works alone has one CPU, and the learner's Python threads have one together. Inference takes what
waits, up to its batch; what training and store do not keep up with holds inference back, as in the product. Everything
is deterministic.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

TRANSPORT, BROKER, INFERENCE, WRITER, STORE, FEED, TRAINING = range(7)
STAGES = ("transport", "broker", "inference", "writer", "store", "feed", "training")
LOCKED = [INFERENCE, WRITER, FEED]
"""Threads of one Python process: together they have one CPU. Training is TensorFlow's own work."""
PUT_UNROLLS = 64  # in one put of the learner's writer
PREFETCHED = 2
NOTHING = 1e-12  # seconds of rounding
LAPS = 10  # of all env groups through a whole unroll, behind as many to warm up


class Costs(NamedTuple):
    """CPU seconds. A request is one env group's observations, a row one environment's.

    Attributes:
        environment_request: Stepping an env group, whatever its size; with ``environment_row`` for each environment.
        worker_request: Session, rows and sockets of a worker, both ways; with ``worker_row``.
        transport_request: The learner process's ZeroMQ thread; with ``transport_byte``.
        broker_turn: A broker process's turn, which passes on what waits; with ``broker_request`` (both ways) and
            ``broker_byte``.
        inference_batch: The inference loop with checks, books and unrolls; with ``_request``, ``_row`` and ``_byte``.
        policy_batch: The acting policy; with ``policy_row``.
        heartbeat: Of the serving side per worker and second.
        writer_unroll: Encoding and putting.
        store_unroll: The server, from the put to the acknowledgement.
        feed_unroll: Taking and decoding.
        update_batch: An update, whatever its size; with ``update_row`` for each transition.
    """

    environment_request: float = 0.0
    environment_row: float = 0.0
    worker_request: float = 0.0
    worker_row: float = 0.0
    transport_request: float = 0.0
    transport_byte: float = 0.0
    broker_turn: float = 0.0
    broker_request: float = 0.0
    broker_byte: float = 0.0
    inference_batch: float = 0.0
    inference_request: float = 0.0
    inference_row: float = 0.0
    inference_byte: float = 0.0
    policy_batch: float = 0.0
    policy_row: float = 0.0
    heartbeat: float = 0.0
    writer_unroll: float = 0.0
    store_unroll: float = 0.0
    feed_unroll: float = 0.0
    update_batch: float = 0.0
    update_row: float = 0.0


class Setup(NamedTuple):
    """One learner and its workers.

    Attributes:
        workers: Processes.
        environments: Of each worker.
        groups: Env groups of each worker.
        row_bytes: One environment's observation and row record.
        broker: Whether the broker is a process of its own.
        batch: Most rows of an inference batch.
        unroll: Transitions of an unroll.
        training_batch: Unrolls of an update; 0: unrolls are thrown away.
        capacity: Unrolls that the store holds.
        cpus: Of the machine.
        workers_elsewhere: Workers have CPUs enough of their own.
        pause: Seconds that a group's step lasts besides its CPU time (of a slow or paced environment).
    """

    workers: int
    environments: int
    groups: int
    row_bytes: int
    broker: bool
    batch: int
    unroll: int
    training_batch: int
    capacity: int
    cpus: int
    workers_elsewhere: bool = False
    pause: float = 0.0

    @property
    def rows(self) -> int:
        """Of a request."""
        return self.environments // self.groups


class Prediction(NamedTuple):
    """What comes of it.

    Attributes:
        steps_per_second: Environment steps that were answered.
        trained_per_second: Transitions that updates have used.
        busy: Stage -> share of the time in which it worked, waiting for a CPU included; ``workers`` is the mean.
        cpu_per_step: Stage -> CPU seconds per answered step.
        rows: Sent, answered, and on their way at the end.
        unrolls: Finished, trained, and on their way at the end.
    """

    steps_per_second: float
    trained_per_second: float
    busy: dict[str, float]
    cpu_per_step: dict[str, float]
    rows: tuple[int, int, int]
    unrolls: tuple[int, int, int]

    @property
    def bottleneck(self) -> str:
        """The busiest stage."""
        return max(self.busy, key=lambda stage: self.busy[stage])


def simulate(setup: Setup, costs: Costs) -> Prediction:
    """Runs until every env group has been through ``LAPS`` unrolls in the mean, and as much before that to warm up."""
    pipeline = _Pipeline(setup, costs)
    groups = setup.workers * setup.groups
    requests = LAPS * groups * setup.unroll
    pipeline.run(requests)
    before = pipeline.reading()
    pipeline.run(2 * requests)
    now, answered, trained, worked, busy = (b - a for a, b in zip(before, pipeline.reading(), strict=True))
    names = [*STAGES, "workers"]
    worked, busy = (np.append(x[: len(STAGES)], x[len(STAGES) :].sum()) for x in (worked, busy))
    busy[-1] /= setup.workers
    return Prediction(
        steps_per_second=answered / now,
        trained_per_second=trained / now,
        busy=dict(zip(names, (busy / now).tolist(), strict=True)),
        cpu_per_step=dict(zip(names, (worked / answered).tolist(), strict=True)),
        rows=(pipeline.sent, pipeline.answered, pipeline.under_way * setup.rows),
        unrolls=(pipeline.finished, pipeline.trained_unrolls, pipeline.waiting + pipeline.in_store),
    )


class _Pipeline:
    """The state. A stage's job is CPU seconds and what follows; ``left`` is infinite where it has none."""

    def __init__(self, setup: Setup, costs: Costs) -> None:
        self._setup, self._costs = setup, costs
        stages = len(STAGES) + setup.workers
        self._left = np.full(stages, math.inf)
        self._then: list[Any] = [None] * stages
        self._queues: list[deque[tuple[float, Callable[[], None]]]] = [deque() for _ in range(stages)]
        self._worked, self._busy = np.zeros(stages), np.zeros(stages)
        self._shares = np.ones(stages, np.bool_)
        self._shares[len(STAGES) :] = not setup.workers_elsewhere
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._now, self._number = 0.0, 0
        self._at_broker: list[Callable[[], None]] = []
        self._pending: deque[int] = deque()
        self._requests = np.zeros(setup.workers * setup.groups, np.int64)
        self.sent = self.answered = self.under_way = 0
        self.waiting = self.in_store = self._putting = self._taken = self._prepared = 0
        self.finished = self.trained_unrolls = 0
        # Heartbeats take their share of the one that serves.
        self._slowed = 1.0 / max(1e-3, 1.0 - setup.workers * costs.heartbeat)
        for group in range(len(self._requests)):
            self._step(group)

    def reading(self) -> tuple[Any, ...]:
        """Time, steps answered, transitions trained, CPU seconds and busy seconds of each stage."""
        trained = self.trained_unrolls * self._setup.unroll
        return self._now, self.answered, trained, self._worked.copy(), self._busy.copy()

    def run(self, requests: int) -> None:
        """Until so many were answered."""
        while self.answered < requests * self._setup.rows:
            self._advance()

    def _advance(self) -> None:
        working = np.isfinite(self._left)
        sharing = int(np.count_nonzero(working & self._shares))
        speed = np.where(self._shares, min(1.0, self._setup.cpus / max(sharing, 1)), 1.0)
        speed[LOCKED] = np.minimum(speed[LOCKED], 1.0 / max(int(np.count_nonzero(working[LOCKED])), 1))
        seconds = float((self._left / speed).min())
        if self._timers:
            seconds = min(seconds, max(0.0, self._timers[0][0] - self._now))
        self._now += seconds
        spent = np.where(working, speed * seconds, 0.0)
        self._left -= spent
        self._worked += spent
        self._busy += np.where(working, seconds, 0.0)
        while self._timers and self._timers[0][0] <= self._now + NOTHING:
            heapq.heappop(self._timers)[2]()
        for stage in np.flatnonzero(self._left <= NOTHING).tolist():
            self._left[stage] = math.inf
            self._then[stage]()
            if self._queues[stage] and not np.isfinite(self._left[stage]):
                self._begin(stage, *self._queues[stage].popleft())
        self._pass_on()
        self._infer()
        self._write()
        self._feed()

    def _begin(self, stage: int, work: float, then: Callable[[], None]) -> None:
        self._left[stage], self._then[stage] = max(work, 2 * NOTHING), then

    def _job(self, stage: int, work: float, then: Callable[[], None]) -> None:
        """One after the other."""
        if np.isfinite(self._left[stage]):
            self._queues[stage].append((work, then))
        else:
            self._begin(stage, work, then)

    def _step(self, group: int) -> None:
        """A worker steps a group and sends what comes of it."""
        costs, rows = self._costs, self._setup.rows
        work = costs.environment_request + costs.worker_request + rows * (costs.environment_row + costs.worker_row)
        stage = len(STAGES) + group // self._setup.groups
        begin: Callable[[], None] = partial(self._job, stage, work, partial(self._send, group))
        if self._setup.pause:
            self._number += 1
            due = self._now + self._setup.pause
            heapq.heappush(self._timers, (due, self._number, begin))
        else:
            begin()

    def _send(self, group: int) -> None:
        self.sent += self._setup.rows
        self.under_way += 1
        costs, nbytes = self._costs, self._setup.rows * self._setup.row_bytes
        work = costs.transport_request + nbytes * costs.transport_byte
        arrive = partial(self._job, TRANSPORT, work, partial(self._pending.append, group))
        if self._setup.broker:
            self._at_broker.append(arrive)
        else:
            arrive()

    def _pass_on(self) -> None:
        """A turn of the broker process."""
        arriving = self._at_broker
        if arriving and not np.isfinite(self._left[BROKER]):
            self._at_broker = []
            costs = self._costs
            each = costs.broker_request + self._setup.rows * self._setup.row_bytes * costs.broker_byte
            work = self._slowed * (costs.broker_turn + len(arriving) * each)

            def passed() -> None:
                for arrive in arriving:
                    arrive()

            self._begin(BROKER, work, passed)

    def _infer(self) -> None:
        setup, costs = self._setup, self._costs
        held = setup.training_batch and self.waiting >= setup.training_batch
        if not self._pending or held or np.isfinite(self._left[INFERENCE]):
            return
        groups = [self._pending.popleft() for _ in range(min(len(self._pending), max(1, setup.batch // setup.rows)))]
        rows = len(groups) * setup.rows
        work = costs.inference_batch + costs.policy_batch + len(groups) * costs.inference_request
        work += rows * (costs.inference_row + costs.policy_row + setup.row_bytes * costs.inference_byte)
        self._begin(INFERENCE, work if setup.broker else self._slowed * work, partial(self._answer, groups))

    def _answer(self, groups: list[int]) -> None:
        rows = self._setup.rows
        for group in groups:
            self.answered += rows
            self.under_way -= 1
            self._requests[group] += 1
            if self._requests[group] % self._setup.unroll == 0:
                self.finished += rows
                if self._setup.training_batch:
                    self.waiting += rows
                else:
                    self.trained_unrolls += rows
            self._step(group)

    def _write(self) -> None:
        """The writer's backlog goes to the store as far as there is room."""
        count = min(PUT_UNROLLS, self.waiting, self._setup.capacity - self.in_store)
        if count <= 0 or self._putting:
            return
        self._putting = count

        def put() -> None:
            self.waiting -= count
            self.in_store += count
            self._putting = 0

        self._job(
            WRITER, count * self._costs.writer_unroll, lambda: self._job(STORE, count * self._costs.store_unroll, put)
        )

    def _feed(self) -> None:
        """Batches are prepared ahead; what is taken leaves the store when it was trained on."""
        batch, costs = self._setup.training_batch, self._costs
        if not batch or self.in_store - self._taken < batch or self._prepared >= PREFETCHED + 1:
            return
        if np.isfinite(self._left[FEED]):
            return
        self._taken += batch
        self._prepared += 1
        work = costs.update_batch + batch * self._setup.unroll * costs.update_row
        self._begin(FEED, batch * costs.feed_unroll, lambda: self._job(TRAINING, work, self._trained))

    def _trained(self) -> None:
        batch = self._setup.training_batch
        self._taken -= batch
        self._prepared -= 1
        self.in_store -= batch
        self.trained_unrolls += batch
