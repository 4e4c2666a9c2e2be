"""The loop of a worker's child process: it owns the connection and the env groups.

While one group waits for its actions the others step. Its every microsecond is paid once per request.
"""

from __future__ import annotations

import logging
import os
import platform
import random
import time
from collections import deque

import gymnasium
import numpy as np

from pipeline import protocol, sockets
from pipeline.config.load import config_hash
from pipeline.errors import ConfigError, ProtocolError
from pipeline.protocol import Hello
from pipeline.stages import ACTIONS, BUSY, Stage, shares
from pipeline.streams import environment_seeds
from workers.actions import Abandon, Action, Begin, Finish, Reconnect, Say, Send, Step, Timing
from workers.assignment import Assignment
from workers.block import At, Phase
from workers.books import GroupBooks
from workers.connection import Connection, silence
from workers.environments import make_group
from workers.group import Group, NonFinite
from workers.place import words_of
from workers.restarts import FIRST_STEPS
from workers.rows import StepRows
from workers.session import Session
from workers.singles import OnFault
from workers.watched import Mark

log = logging.getLogger(__name__)

PULSE_NANOSECONDS = 200_000_000  # between signs of life while a group of slow environments steps
POLL_SECONDS = 0.08  # and a grain of the wait: how soon a stop of the supervisor is seen, and a deadline at the latest
MEASURED_SECONDS = 0.5  # at least, between two measurements of the share that is busy
MAX_ENVIRONMENTS = 2**16  # of one worker: see pipeline.rows.environment_id
# Enumerations are slow.
STOP, SERVING, BUSY_NS, ACTIONS_NS = int(At.STOP), int(At.SERVING), int(At.BUSY), int(At.ACTIONS)


class Worker:
    """The loop of one child process."""

    def __init__(self, assignment: Assignment) -> None:
        self._config = assignment.config
        self._assignment = assignment
        self._block = assignment.block
        self._block.numbers[At.WORKER] = assignment.worker
        self._stage = Stage("environments")
        self._measured, self._measured_at, self._busy_percent = self._stage.seconds(), time.monotonic(), 0
        self._seeds: list[list[int]] = []
        self._pulse_at, self._tick_at = 0, 0.0
        self._groups = self._make_groups()
        self._books = [GroupBooks(self._block, i, group) for i, group in enumerate(self._groups)]
        self._block.numbers[At.ACTION_KIND] = ord(self._groups[0].spaces.action.numpy_dtype.char)
        self._check_sizes()
        self._connection = Connection(self._config.broker, self._config.security)
        self._todo: deque[Step | Abandon | int] = deque()  # and groups to reset first; bounded: each group once
        self._finish: Finish | None = None
        self._session = Session(
            self._hello(),
            self._groups[0].spaces.action.nbytes,
            self._timing(),
            self._report,
            time.monotonic(),
        )

    def run(self) -> None:
        """Runs until the session ends.

        Raises:
            SeedmqError: what the session failed with. And what environments raise.
        """
        self._stage.enter(BUSY)
        try:
            while self._finish is None:
                self._turn()
        finally:
            self._connection.close()
        if self._finish.error is not None:
            raise self._finish.error
        self._block.numbers[At.DONE] = 1
        self._block.enter(Phase.CLOSING)
        for group in self._groups:
            group.close()
        self._connection.term()

    def _turn(self) -> None:
        """One task, if there is one, else the next message; and at times what else has come, and what is due."""
        now = self._work(self._todo.popleft()) if self._todo else self._await()
        if now >= self._tick_at:
            self._attend()

    def _attend(self) -> None:
        """What has come, what is due, and whether the supervisor wants an end."""
        self._block.wait()
        self._converse()
        if self._block.numbers[STOP] and not self._session.stopping:
            self._block.numbers[STOP] = 2
            self._perform(self._session.drain("asked to stop", time.monotonic()))

    def _await(self) -> float:
        """Waits for the next message, until something is due; returns monotonic seconds."""
        now = self._stage.enter(ACTIONS)
        frames = self._connection.receive(self._tick_at - now)
        now = self._stage.enter(BUSY)
        if frames is not None:
            self._take(frames, now)
        return now

    def _take(self, frames: list[bytes], now: float) -> None:
        try:
            message = protocol.decode(frames)
        except ProtocolError as error:
            log.warning("ignored a message that is not of the protocol: %s", error)
            return
        self._perform(self._session.received(message, now))

    def _converse(self) -> None:
        """What has come, at most a queue's worth, then what time brings about."""
        for _ in range(sockets.WORKER_QUEUE):
            frames = self._connection.receive(0.0)
            if frames is None:
                break
            self._take(frames, time.monotonic())
        now = time.monotonic()
        if now >= self._session.deadline():
            self._perform(self._session.tick(now))
        self._tick_at = min(now + POLL_SECONDS, self._session.deadline())
        numbers, seconds = self._block.numbers, self._stage.seconds()
        numbers[SERVING] = self._session.serving
        numbers[BUSY_NS], numbers[ACTIONS_NS] = int(1e9 * seconds[BUSY]), int(1e9 * seconds.get(ACTIONS, 0.0))

    def _work(self, task: Step | Abandon | int) -> float:
        """Resets or steps one group and sends its rows, unless the worker is stopping; returns monotonic seconds."""
        index = task if isinstance(task, int) else task.group
        session, block, group = self._session, self._block, self._groups[index]
        if not session.stepping(index):
            return time.monotonic()
        books = self._books[index]
        actions, phase = (task.actions, Phase.STEP) if isinstance(task, Step) else (b"", Phase.RESET)
        books.begins()
        begun = block.begin(phase, index, self._seeds[index][0], books.steps, actions)
        self._pulse_at = begun + PULSE_NANOSECONDS
        try:
            rows = group.step(actions) if phase is Phase.STEP else self._first_rows(task, group)
        except NonFinite as error:  # named by the environment's offset within the worker
            raise error.shifted(index * group.n) from error
        ended = block.wait()
        now = ended * 1e-9
        if ended - begun > PULSE_NANOSECONDS:
            session.paused(now - begun * 1e-9, now)
        books.ended(session.over)
        self._perform(session.stepped(index, len(rows.records), group.n, [rows.records, *rows.leaves], now))
        return now

    def _first_rows(self, task: Step | Abandon | int, group: Group) -> StepRows:
        """Of new episodes, at the start of the run or in the midst of it."""
        return group.reset(np.array(self._seeds[task], np.int64)) if isinstance(task, int) else group.abandon()

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._connection.send(action)
                case Step():
                    self._todo.append(action)
                case Abandon():
                    self._todo.append(action)
                case Begin():
                    self._block.numbers[At.WELCOMED], self._block.numbers[At.WORKER] = 1, action.worker
                    self._begin(action)
                case Reconnect():
                    self._connection.renew()
                    self._block.numbers[At.RECONNECTS] += 1
                case Say():
                    log.log(getattr(logging, action.level.upper()), "%s", action.text)
                case Finish():
                    self._finish = action
                    if action.booked is not None:
                        self._block.numbers[At.BYE] = 1 + action.booked.taken

    def _begin(self, lease: Begin) -> None:
        offset = 0
        for index, group in enumerate(self._groups):
            seeds = environment_seeds(lease.seed, group.n, offset)
            self._seeds.append(seeds.tolist())
            offset += group.n
            self._todo.append(index)

    def _report(self) -> protocol.Report:
        now = time.monotonic()
        if now - self._measured_at >= MEASURED_SECONDS:
            seconds = self._stage.seconds()
            self._busy_percent = round(100 * shares(seconds, self._measured).get(BUSY, 0.0))
            self._measured, self._measured_at = seconds, now
        report = self._block.report(self._assignment.faults, self._block.fault() or self._assignment.last_fault)
        return report._replace(busy_percent=self._busy_percent)

    def _make_groups(self) -> list[Group]:
        self._block.enter(Phase.MAKING)
        section = self._config.workers
        n = section.envs // section.groups
        threads = max(1, len(os.sched_getaffinity(0)) // max(1, section.count))
        environment = self._config.environment
        return [
            make_group(environment, n, threads, self._marker(g, g * n), self._fault_of(g, g * n))
            for g in range(section.groups)
        ]

    def _marker(self, group: int, offset: int) -> Mark:
        """For single environments: says which one runs, and keeps the lease alive between slow ones."""
        block, seeds = self._block, self._seeds

        def mark(index: int, resets: bool) -> None:
            phase, environment = Phase.RESET if resets else Phase.STEP, offset + index
            if not seeds:  # it is being made: there is no session yet
                block.mark(phase, group, environment, 0)
                return
            seed, made = seeds[group][index], self._books[group].marks(resets)
            if block.mark(phase, group, environment, seed, made) < self._pulse_at:
                return
            block.wait()
            self._converse()
            self._pulse_at = block.mark(phase, group, environment, seed, made) + PULSE_NANOSECONDS

        return mark

    def _fault_of(self, group: int, offset: int) -> OnFault:
        """For single environments that failed: waits before one is made anew, or raises its error for good."""
        block, seeds = self._block, self._seeds

        def on_fault(index: int, error: BaseException) -> None:
            self._books[group].failed()
            delay = self._assignment.budget.fault(time.monotonic(), random.random())
            if delay is None or (self._early() and block.numbers[At.RENEWED]):
                raise error
            place = f"worker {block.numbers[At.WORKER]}, environment {offset + index}, step {self._books[group].steps}"
            text = words_of(error, f"{place}, seed {seeds[group][index]}")
            block.renew(text)
            log.error("%s; this environment is made anew in %.1f s", text, delay, exc_info=error)
            self._linger(delay)

        return on_fault

    def _early(self) -> bool:
        """None has come far: where more than one fails they may all be broken, which the supervisor finds out."""
        rows = [group.rows for group in self._groups]
        episodes = sum(one.masked for one in rows) - int(self._block.numbers[At.RENEWED])
        return episodes <= 0 and sum(one.taken for one in rows) <= FIRST_STEPS * self._config.workers.envs

    def _linger(self, seconds: float) -> None:
        """Waits, and speaks to the broker meanwhile; not while the worker is stopping."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until and not self._session.stopping:
            frames = self._connection.receive(min(until - now, POLL_SECONDS))
            if frames is not None:
                self._take(frames, time.monotonic())
            self._attend()

    def _check_sizes(self) -> None:
        """Raises ConfigError for more than has a name, or where a message would be refused by the broker's socket."""
        n, limit = self._groups[0].n, self._config.broker.max_message_bytes
        if self._config.workers.envs > MAX_ENVIRONMENTS:
            raise ConfigError(f"workers.envs = {self._config.workers.envs}: a worker has at most {MAX_ENVIRONMENTS}")
        for leaf in self._groups[0].spaces.observation:
            if 2 * n * leaf.nbytes > limit:
                raise ConfigError(
                    f"observation {leaf.path!r}: up to 2 x {n} x {leaf.nbytes} bytes in a message exceed "
                    f"broker.max_message_bytes = {limit}: use more workers.groups, or raise it"
                )

    def _hello(self) -> Hello:
        assignment, section = self._assignment, self._config.workers
        return Hello(
            worker_id=assignment.worker_id,
            run=assignment.run,
            mode=section.mode,
            spaces=self._groups[0].spaces.to_wire(),
            groups=[group.n for group in self._groups],
            config_hash=config_hash(self._config),
            worker=assignment.worker,
            reports=assignment.reports,
            info={
                "host": platform.node(),
                "pid": os.getpid(),
                "python": platform.python_version(),
                "gymnasium": gymnasium.__version__,
                "numpy": np.__version__,
            },
        )

    def _timing(self) -> Timing:
        drain = self._config.run.drain_timeout_seconds
        return Timing(
            reply=self._config.workers.reply_timeout_seconds,
            connect=self._config.workers.connect_timeout_seconds,
            replies_drain=0.5 * drain,
            goodbye=0.3 * drain,
            heartbeat=self._config.broker.heartbeat_seconds,
            silence=silence(self._config),
        )
