"""Workers to measure with: the loop, session and socket of the product's worker, a process each, without environments.

    clients(config, ...)  starts one process for each worker; at the end of the block they drain, say BYE and end
    crowd(config, ...)    the same with all of them in one process, a ``benchmarks.fleet.Fleet``

What a group would step stands still instead: ``Still`` gives the same rows at once, ``Paced`` new ones at a fixed rate.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fleet import Fleet
from pipeline import logs
from pipeline.config.tree import Config
from pipeline.spaces import Spaces
from workers.assignment import Assignment
from workers.block import At, Block
from workers.group import Counters
from workers.loop import Worker
from workers.restarts import RestartBudget
from workers.rows import RowBuilder, StepRows
from workers.vector import Stepped

JOIN_SECONDS = 20.0
QUIET = logs.Settings("worker", verbosity=-1)


class Still:
    """A group whose rows are always the same: what it costs is the way to the actions and back.

    Args:
        spaces: Of one environment.
        n: Environments.
    """

    def __init__(self, spaces: Spaces, n: int) -> None:
        self.spaces, self.n = spaces, n
        rng = np.random.default_rng(1)
        self._leaves = [
            np.frombuffer(rng.bytes(n * leaf.nbytes), np.uint8).view(leaf.numpy_dtype).reshape(n, *leaf.shape)
            if leaf.dtype == "uint8"
            else rng.normal(size=(n, *leaf.shape)).astype(leaf.dtype)
            for leaf in spaces.observation
        ]
        self.rows = RowBuilder(n)
        self._rows = self.rows.reset(self._leaves)

    def reset(self, seeds: Any) -> StepRows:
        return self._rows

    def abandon(self, _: None = None) -> StepRows:
        return self._rows

    def step(self, buffer: Any) -> StepRows:
        return self._rows

    def counters(self) -> Counters:
        return Counters(self.rows.taken, 0, 0, 0)

    def close(self) -> None:
        pass


class Stepping(Still):
    """A group whose environments go on: rows count, as those of an environment whose episode never ends."""

    def __init__(self, spaces: Spaces, n: int) -> None:
        super().__init__(spaces, n)
        nobody = np.zeros(n, np.bool_)
        self._stepped = Stepped(self._leaves, np.zeros(n, np.float32), nobody, nobody)

    def step(self, buffer: Any) -> StepRows:
        return self.rows.next_step(self._stepped)


class Counted(Stepping):
    """Writes at the end how many transitions were taken.

    Args:
        spaces: Of one environment.
        n: Environments.
        file: Text, the number.
    """

    def __init__(self, spaces: Spaces, n: int, file: Path) -> None:
        super().__init__(spaces, n)
        self._file = file

    def close(self) -> None:
        self._file.write_text(str(self.counters().taken))


class Paced(Stepping):
    """Steps at fixed times, and notes how long each request took: from the rows given to the actions received.

    A step whose time has passed, as its actions came late, is taken at the next time.

    Args:
        spaces: Of one environment.
        n: Environments.
        begun: Monotonic seconds of the first step.
        period: Seconds between steps.
        file: Written at the end, float64 ``[k, 2]``: when each request was sent (monotonic), seconds to its actions.
    """

    def __init__(self, spaces: Spaces, n: int, begun: float, period: float, file: Path) -> None:
        super().__init__(spaces, n)
        self._next, self._period, self._file = begun, period, file
        self._sent: float | None = None
        self._found: list[tuple[float, float]] = []

    def step(self, buffer: Any) -> StepRows:
        now = time.monotonic()
        if self._sent is not None:
            self._found.append((self._sent, now - self._sent))
        rows = super().step(buffer)
        self._next = next_due(self._next, self._period, now)
        pause_until(self._next)
        self._sent = time.monotonic()
        return rows

    def close(self) -> None:
        np.save(self._file, np.array(self._found).reshape(-1, 2))


def next_due(due: float, period: float, now: float) -> float:
    """The first time of those every ``period`` after ``due`` that has not passed."""
    return due + period * max(1, math.ceil((now - due) / period))


def pause_until(due: float) -> None:
    """Sleeps until ``due`` (monotonic)."""
    while (left := due - time.monotonic()) > 0:
        time.sleep(left)


class Client(Worker):
    """The worker's loop around one group that is given."""

    def __init__(self, assignment: Assignment, group: Still) -> None:
        self._given: Any = group
        super().__init__(assignment)

    def _make_groups(self) -> list[Any]:
        return [self._given]


MakeGroup = Callable[..., Still]


def _main(assignment: Assignment, make_group: MakeGroup, arguments: tuple[Any, ...]) -> None:
    logs.configure(assignment.logs)
    Client(assignment, make_group(*arguments)).run()


@contextmanager
def clients(config: Config, make_group: MakeGroup, arguments: list[tuple[Any, ...]]) -> Iterator[Callable[[], None]]:
    """A worker process for each entry of ``arguments``, whose group is ``make_group(*entry)``.

    Gives what raises RuntimeError once one of them has ended early.
    """
    context = multiprocessing.get_context("spawn")
    blocks = [Block(context) for _ in arguments]
    jobs: list[tuple[Any, ...]] = []
    for i, (block, entry) in enumerate(zip(blocks, arguments, strict=True)):
        assignment = Assignment(
            config=config, worker_id=f"client-{i}", run=i + 1, worker=-1, reports={}, budget=RestartBudget(0),
            faults={}, last_fault="", block=block, dump="", logs=QUIET, parent=os.getpid(),
        )  # fmt: skip
        jobs.append((_main, assignment, make_group, entry))

    def stop() -> None:
        for block in blocks:
            block.numbers[At.STOP] = 1

    with _running(context, jobs, stop) as check:
        yield check


@contextmanager
def crowd(config: Config, make_group: MakeGroup, arguments: list[tuple[Any, ...]]) -> Iterator[Callable[[], None]]:
    """As ``clients``, all of them in one process: for more workers than a machine has room for processes."""
    context = multiprocessing.get_context("spawn")
    stopped = context.Event()
    patience = config.run.drain_timeout_seconds + JOIN_SECONDS
    with _running(context, [(_play, config, make_group, arguments, stopped)], stopped.set, patience) as check:
        yield check


def _play(config: Config, make_group: MakeGroup, arguments: list[tuple[Any, ...]], stopped: Event) -> None:
    """Until the event is set or the parent has ended; raises where a client ends before or does not leave in order."""
    groups = iter(arguments)
    with Fleet(config, len(arguments), "client", lambda: [make_group(*next(groups))]) as fleet:
        parent = os.getppid()
        fleet.play_until(lambda: stopped.is_set() or os.getppid() != parent, math.inf)
        left = fleet.leave(time.monotonic() + config.run.drain_timeout_seconds)
        if not left or not stopped.is_set():
            raise RuntimeError(f"clients ended with {fleet.statistics()}")


@contextmanager
def _running(
    context: SpawnContext, jobs: list[tuple[Any, ...]], stop: Callable[[], None], patience: float = JOIN_SECONDS
) -> Iterator[Callable[[], None]]:
    """A process for each ``(function, *arguments)``; all are told to stop in the end, and have ``patience`` seconds.

    Raises:
        RuntimeError: one of them ended early, or not in order.
    """
    processes = [context.Process(target=target, args=arguments, daemon=True) for target, *arguments in jobs]
    for process in processes:
        process.start()

    def check() -> None:
        ended = [process.exitcode for process in processes if process.exitcode is not None]
        if ended:
            raise RuntimeError(f"clients ended early with {ended}")

    try:
        yield check
        check()
    finally:
        stop()
        deadline = time.monotonic() + patience
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        failed = [process.exitcode for process in processes if process.exitcode]
        for process in processes:
            process.kill()
            process.join()
    if failed:
        raise RuntimeError(f"clients failed with {failed}")
