"""What a step costs from 1 to 1 000 workers, 10 environments each: CPU seconds of each side, and the broker's memory.

Up to 16 workers are processes of the product (``benchmarks.clients``); more are the product's client state machines, a
socket each, in one process (``benchmarks.fleet``). Every worker asks again as soon as it is answered. The learner's
side is the product with books and unrolls, which go nowhere, around a policy that answers zeros; batches hold at most
as many rows as ten workers have, so no point gains by larger ones. Observations are 16 bytes: a step costs nearly
nothing but its messages and books. Costs are CPU time, which what else the machine does changes little; rates are not.

Metrics begin with ``scale.`` where the broker is embedded in the learner's process, and with ``scale.process.`` where
it is a process of its own:

    cost_growth_10_to_1000        server CPU time (learner's side and broker) per step with 1 000 workers over that with
                                  10, less 1; median and spread of rounds that measure both
    fleet.cost_growth_10_to_1000  the same where the ten are driven as the thousand are, by one process
    workers_N.*                   CPU microseconds per step of the ``learner``'s process, the ``broker``'s and all
                                  ``clients``; steps per second; mean rows of a batch; resident bytes of the broker
    broker_bytes_per_worker       slope of a straight line through the broker's resident bytes at all points
    broker_bytes_off_the_line     largest distance of a point from that line, of its growth from 1 to 1 000 workers

A measurement fails where a single step is lost: what the clients' environments took must be what the learner's ledger
accepted, and each message of observations must have been served exactly once.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks.clients import Counted, clients, crowd
from benchmarks.harness import Metric, cpu_seconds
from benchmarks.serving import Requests, Zeros, broker_process, private, serving
from benchmarks.unrolls import layout_of
from pipeline.config.tree import Config, EnvironmentSection, LearnerSection, RunSection, WorkersSection
from pipeline.spaces import Leaf, Spaces

POINTS = (1, 4, 10, 16, 64, 256, 1000)
ENVIRONMENTS = 10
PROCESSES = 16
"""So many workers at most are processes of their own."""
BATCH = 10 * ENVIRONMENTS
DRAIN_SECONDS = 120.0
REPLY_SECONDS = 60.0
"""Requests are not sent again where a busy machine answers late: that would be counted as the cost of other steps."""
UNROLL = 20
SPACES = Spaces((Leaf("observation", "box", "float32", (4,)),), Leaf("action", "discrete", "int64", (), n=2))


class Point(NamedTuple):
    """What is measured together.

    Attributes:
        workers: How many.
        placement: Of the broker.
        one_process: Whether one process drives them all.
    """

    workers: int
    placement: str
    one_process: bool


def point(workers: int, placement: str) -> Point:
    return Point(workers, placement, workers > PROCESSES)


class Reading(NamedTuple):
    """One measurement: CPU seconds per step of each side, and the rest; 0 for a ``broker`` that is embedded."""

    learner: float
    broker: float
    clients: float
    steps_per_second: float
    rows_per_batch: float
    broker_bytes: float

    @property
    def server(self) -> float:
        """CPU seconds per step of the learner's side and the broker."""
        return self.learner + self.broker


def measure(at: Point, seconds: float) -> Reading:
    """Raises:
    RuntimeError: a step was lost, or a client did not leave in order.
    """
    config = Config(
        environment=EnvironmentSection(id="none"),
        run=RunSection(drain_timeout_seconds=DRAIN_SECONDS),
        workers=WorkersSection(count=at.workers, envs=ENVIRONMENTS, groups=1, reply_timeout_seconds=REPLY_SECONDS),
        learner=LearnerSection(slots=max(BATCH, at.workers * ENVIRONMENTS), inference_batch=BATCH),
    )
    start = crowd if at.one_process else clients
    with tempfile.TemporaryDirectory(prefix="seedmq-bench-") as name, private(config, at.placement) as config:
        files = [Path(name) / str(i) for i in range(at.workers)]
        with contextlib.ExitStack() as stack:
            broker = stack.enter_context(broker_process(config)) if at.placement == "process" else None
            layout = layout_of(SPACES.observation[0], UNROLL, 1)
            requests = stack.enter_context(serving(config, SPACES, Zeros(SPACES.action), layout, collects=True))
            with start(config, Counted, [(SPACES, ENVIRONMENTS, file) for file in files]) as check:
                requests.wait_for(at.workers, check, 2 * at.workers * ENVIRONMENTS)
                reading = _window(requests, broker, seconds, check)
        account(requests, [int(file.read_text()) for file in files])
    return reading


def _window(requests: Requests, broker: int | None, seconds: float, check: Callable[[], None]) -> Reading:
    # What this process has started with multiprocessing are the clients.
    sides = [[os.getpid()], [] if broker is None else [broker]]
    sides.append([process.pid for process in multiprocessing.active_children() if process.pid is not None])
    cpu, before = [cpu_seconds(side) for side in sides], requests.counters
    rate = requests.rate(seconds, check)
    after, spent = requests.counters, [cpu_seconds(side) - one for side, one in zip(sides, cpu, strict=True)]
    steps = after["rows"] - before["rows"]
    memory = 0 if broker is None else psutil.Process(broker).memory_info().rss
    rows = steps / (after["batches"] - before["batches"])
    learner, passed, asked = (one / steps for one in spent)
    return Reading(learner, passed, asked, rate, rows, memory)


def account(requests: Requests, taken: list[int]) -> None:
    """Compares both sides when all have ended.

    Raises:
        RuntimeError: a transition is not where it belongs, or observations were not served exactly once.
    """
    books, counters = requests.ledger.snapshot(), requests.counters
    # Of each worker's environments the first observations, which end no transition, were served as well.
    expected = {"taken": sum(taken), "rows": sum(taken) + len(taken) * ENVIRONMENTS}
    found = {"taken": books["taken"], "rows": counters["rows"]}
    lost = {"undelivered": books["undelivered"], "dropped": sum(books["dropped"].values()), "error": books["error"]}
    if found != expected or any(lost.values()):
        raise RuntimeError(f"steps were lost: {expected} at the clients, {found} at the learner, {lost}, {counters}")


class Rounds:
    """Measurements by point and round, each made when it is first asked for: figures of one round are of the same."""

    def __init__(self) -> None:
        self._found: dict[tuple[Point, int], Reading] = {}

    def figure(self, of: Callable[[Callable[[Point], Reading]], float]) -> Callable[[float], float]:
        """A measure of the harness: its n-th call is the figure of round n."""
        rounds = itertools.count()

        def measured(seconds: float) -> float:
            number = next(rounds)
            return of(lambda at: self._reading(at, number, seconds))

        return measured

    def _reading(self, at: Point, number: int, seconds: float) -> Reading:
        if (at, number) not in self._found:
            self._found[at, number] = measure(at, seconds)
        return self._found[at, number]


@contextmanager
def metrics() -> Iterator[list[Metric]]:
    rounds = Rounds()
    yield [*_metrics(rounds, "embedded", "scale."), *_metrics(rounds, "process", "scale.process.")]


def _metrics(rounds: Rounds, placement: str, prefix: str) -> Iterator[Metric]:
    few, many = point(10, placement), point(1000, placement)
    yield Metric(f"{prefix}cost_growth_10_to_1000", "of cost", rounds.figure(partial(growth, few, many)))
    few = few._replace(one_process=True)
    yield Metric(f"{prefix}fleet.cost_growth_10_to_1000", "of cost", rounds.figure(partial(growth, few, many)))
    for workers in POINTS:
        at = point(workers, placement)
        for name, unit, of in FIGURES[: None if placement == "process" else EMBEDDED]:
            figure = rounds.figure(partial(_at, at, of))
            yield Metric(f"{prefix}workers_{workers}.{name}", unit, figure)
    if placement == "process":
        yield Metric(f"{prefix}broker_bytes_per_worker", "bytes", rounds.figure(lambda read: memory(read)[0]))
        yield Metric(f"{prefix}broker_bytes_off_the_line", "of growth", rounds.figure(lambda read: memory(read)[1]))


def _at(at: Point, of: Callable[[Reading], float], read: Callable[[Point], Reading]) -> float:
    return of(read(at))


FIGURES: tuple[tuple[str, str, Callable[[Reading], float]], ...] = (
    ("learner_microseconds_per_step", "us/step", lambda found: 1e6 * found.learner),
    ("clients_microseconds_per_step", "us/step", lambda found: 1e6 * found.clients),
    ("steps_per_second", "steps/s", lambda found: found.steps_per_second),
    ("rows_per_batch", "rows", lambda found: found.rows_per_batch),
    ("broker_microseconds_per_step", "us/step", lambda found: 1e6 * found.broker),
    ("broker_bytes", "bytes", lambda found: found.broker_bytes),
)
EMBEDDED = 4
"""So many of them where the broker is no process."""


def growth(few: Point, many: Point, read: Callable[[Point], Reading]) -> float:
    """Server CPU time per step, beyond that of few workers, as a share of it."""
    return read(many).server / read(few).server - 1.0


def memory(read: Callable[[Point], Reading]) -> tuple[float, float]:
    """Bytes of the broker per worker, and the largest distance from the line as a share of the line's growth."""
    return line([(workers, read(point(workers, "process")).broker_bytes) for workers in POINTS])


def line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Slope of the least-squares line through (x, y), and the largest distance of y from it over its growth."""
    x, y = np.array(points, np.float64).T
    slope, begin = np.polyfit(x, y, 1)
    return float(slope), float(np.abs(y - begin - slope * x).max() / abs(slope * np.ptp(x)))
