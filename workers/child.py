"""The process that steps environments: one loop that owns the socket and the env groups.

While one group waits for its actions the others step. The supervisor (``workers.supervisor``) watches it through shared
memory; signals are its business alone.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import platform
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import gymnasium
import numpy as np
import zmq

from pipeline import logs, protocol, sockets
from pipeline.config.load import config_hash
from pipeline.config.tree import Config
from pipeline.errors import EXIT_FAILED, EXIT_FINISHED, ConfigError, EnvironmentFailure, ProtocolError, SeedmqError
from pipeline.protocol import Hello
from pipeline.stages import ACTIONS, BUSY, Stage, shares
from workers.actions import Abandon, Action, Begin, Finish, Reconnect, Say, Send, Step, Timing
from workers.block import At, Block, Phase
from workers.environments import make_group, seeds_of
from workers.group import Counters, Group, NonFinite
from workers.rows import StepRows
from workers.session import Session

log = logging.getLogger(__name__)

FAULT_EXIT = 10
PULSE_SECONDS = 0.2  # between signs of life while a group of slow environments steps
POLL_SECONDS = 0.1  # how soon a stop of the supervisor is seen, and a deadline at the latest
PR_SET_PDEATHSIG = 1
MEASURED_SECONDS = 0.5  # at least, between two measurements of the share that is busy
MAX_ENVIRONMENTS = 2**16  # of one worker: see pipeline.rows.environment_id
POLLIN, SNDMORE = int(zmq.POLLIN), int(zmq.SNDMORE)  # the enumeration's own operators are slow


@dataclass(frozen=True)
class Assignment:
    """What the supervisor hands to a child.

    Attributes:
        config: The configuration.
        worker_id: Logical name of the worker.
        run: Run id of this child's environments.
        worker: Index that an earlier child held, or -1.
        generation: Children before this one.
        reports: Last words of earlier runs: run -> ``Report.to_wire()``.
        faults: Of the children before this one: kind -> number.
        last_fault: The last of them in words.
        block: Shared memory.
        dump: File for stacks.
        logs: Logging settings.
        parent: The supervisor's process id.
    """

    config: Config
    worker_id: str
    run: int
    worker: int
    generation: int
    reports: dict[str, Any]
    faults: dict[str, int]
    last_fault: str
    block: Block
    dump: str
    logs: logs.Settings
    parent: int


def child_main(assignment: Assignment) -> NoReturn:
    """Entry point of the spawned process; exits 0 after an orderly end."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != assignment.parent:
        sys.exit(FAULT_EXIT)  # the supervisor died before we asked for the signal
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logs.configure(assignment.logs)
    with open(assignment.dump, "w") as dump:
        faulthandler.enable(dump)
        faulthandler.register(signal.SIGUSR1, dump, all_threads=True, chain=False)
        sys.exit(_guarded(assignment))


def _guarded(assignment: Assignment) -> int:
    block = assignment.block
    try:
        Worker(assignment).run()
    except NonFinite as fault:
        numbers = block.numbers
        numbers[At.NON_FINITE] += 1
        text = f"worker {numbers[At.WORKER]}, environment {fault.environment}, group step {numbers[At.STEP]}: {fault}"
        block.set_error(EnvironmentFailure(text))
        return EXIT_FAILED
    except SeedmqError as error:
        block.set_error(error)
        return error.exit_code
    except (Exception, SystemExit) as error:  # an environment may raise anything; the supervisor decides
        where = _where(block)
        log.error("%s: %s: %s", where, type(error).__name__, error, exc_info=True)
        block.set_text(f"{type(error).__name__}: {error} ({where})")
        return FAULT_EXIT
    return EXIT_FINISHED


def _where(block: Block) -> str:
    numbers, phase = block.numbers, block.phase
    place = f"environment {numbers[At.ENVIRONMENT]}" if numbers[At.ENVIRONMENT] >= 0 else f"group {numbers[At.GROUP]}"
    return f"worker {numbers[At.WORKER]}, {place}, {phase.name.lower()}, step {numbers[At.STEP]}"


class Worker:
    """The loop of one child process."""

    def __init__(self, assignment: Assignment) -> None:
        self._config = assignment.config
        self._assignment = assignment
        self._block = assignment.block
        self._block.numbers[At.WORKER] = assignment.worker
        self._stage = Stage("environments")
        self._measured, self._measured_at, self._busy_percent = self._stage.seconds(), time.monotonic(), 0
        self._seeds: list[Any] = []
        self._steps = [0] * self._config.workers.groups
        self._pulse_at = self._tick_at = 0.0
        self._groups = self._make_groups()
        self._block.numbers[At.ACTION_KIND] = ord(self._groups[0].spaces.action.numpy_dtype.char)
        self._check_sizes()
        self._context: sockets.Context = zmq.Context()
        self._socket = sockets.worker_socket(self._context, self._config.broker, self._config.security)
        self._outbox: dict[str, Send] = {}  # bounded: a key per group, and hello, heartbeat, bye
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
            self._socket.close()  # lingers shortly: what is taken may still get through
        if self._finish.error is not None:
            raise self._finish.error
        self._block.numbers[At.DONE] = 1
        self._block.enter(Phase.CLOSING)
        for group in self._groups:
            group.close()
        self._context.term()

    def _turn(self) -> None:
        """One task, if there is one, else a wait for messages; then what has come, and what time brings about."""
        self._block.wait()
        if self._todo:
            self._work(self._todo.popleft())
            self._flush()
        else:
            self._wait_until(self._tick_at)
        self._converse()
        if self._block.numbers[At.STOP] and not self._session.stopping:
            self._block.numbers[At.STOP] = 2
            self._perform(self._session.drain("asked to stop", time.monotonic()))

    def _converse(self) -> None:
        """What has come, then what time brings about."""
        if self._readable():
            self._receive()
        now = time.monotonic()
        if now >= self._tick_at:
            if now >= self._session.deadline():
                self._perform(self._session.tick(now))
            self._tick_at = min(now + POLL_SECONDS, self._session.deadline())

    def _work(self, task: Step | Abandon | int) -> None:
        """Resets or steps one group and sends its rows, unless the worker is stopping."""
        if self._session.stopping:
            return
        index = task if isinstance(task, int) else task.group
        group, block = self._groups[index], self._block
        before, begun = group.counters(), time.monotonic()
        self._pulse_at = begun + PULSE_SECONDS
        block.numbers[At.GROUP], block.numbers[At.STEP] = index, self._steps[index]
        self._session.stepping(index)
        block.numbers[At.ENVIRONMENT] = -1
        block.numbers[At.SEED] = self._seeds[index][0]
        if isinstance(task, int):
            block.enter(Phase.RESET)
            rows = self._counted(index, group.reset, self._seeds[index])
        elif isinstance(task, Abandon):
            block.enter(Phase.RESET)
            rows = self._counted(index, group.abandon, None)
        else:
            block.set_action(task.actions)
            block.enter(Phase.STEP)
            rows = self._counted(index, group.step, task.actions)
        block.wait()
        now = time.monotonic()
        if now - begun > PULSE_SECONDS:
            self._session.paused(now - begun, now)
        self._steps[index] += 1
        self._publish(before, group.counters())
        buffers = [rows.records, *rows.leaves]
        self._perform(self._session.stepped(index, len(rows.records), group.n, buffers, now))

    def _counted(self, index: int, call: Callable[[Any], StepRows], argument: Any) -> StepRows:
        """Calls into a group; a value that is not finite is named by the environment's offset within the worker."""
        try:
            return call(argument)
        except NonFinite as error:
            raise error.shifted(index * self._groups[index].n) from error

    def _wait_until(self, deadline: float) -> None:
        """Waits for a message, or for room where messages wait to be sent."""
        timeout = deadline - time.monotonic()
        if timeout > 0:
            self._stage.enter(ACTIONS)
            self._socket.poll(max(1, int(timeout * 1000)), zmq.POLLIN | (zmq.POLLOUT if self._outbox else 0))
            self._stage.enter(BUSY)
        self._flush()

    def _receive(self) -> None:
        """Takes what has come, at most a queue's worth."""
        for _ in range(sockets.WORKER_QUEUE):
            try:
                message = protocol.decode(self._socket.recv_multipart())
            except ProtocolError as error:
                log.warning("ignored a message that is not of the protocol: %s", error)
                continue
            self._perform(self._session.received(message, time.monotonic()))
            if not self._readable():
                return

    def _readable(self) -> bool:
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & POLLIN)

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._outbox[action.key] = action
                case Step():
                    self._todo.append(action)
                case Abandon():
                    self._todo.append(action)
                case Begin():
                    self._block.numbers[At.WELCOMED], self._block.numbers[At.WORKER] = 1, action.worker
                    self._begin(action)
                case Reconnect():
                    self._outbox.clear()
                    self._socket.close(linger=0)
                    self._socket = sockets.worker_socket(self._context, self._config.broker, self._config.security)
                case Say():
                    log.log(getattr(logging, action.level.upper()), "%s", action.text)
                case Finish():
                    self._finish = action
                    self._block.numbers[At.BYE] = action.booked
        self._flush()

    def _flush(self) -> None:
        """Sends what waits, in order, until the socket takes no more."""
        while self._outbox:
            key = next(iter(self._outbox))
            if not self._send(self._outbox[key]):
                return
            del self._outbox[key]

    def _send(self, message: Send) -> bool:
        """Whether the socket took the message whole."""
        buffers, send = message.buffers, self._socket.send
        try:
            send(message.head, SNDMORE if buffers else 0)
        except zmq.Again:
            return False
        whole, last = True, len(buffers) - 1
        for i, buffer in enumerate(buffers):
            # Small frames are copied anyhow; large ones may be read, and stay as they are, until their ACTIONS come.
            try:
                send(buffer, SNDMORE if i < last else 0, copy=message.again)
            except zmq.Again:  # the connection went in the midst of it: ZeroMQ drops the rest, which must follow
                whole = False
        return whole

    def _begin(self, lease: Begin) -> None:
        offset = 0
        for index, group in enumerate(self._groups):
            self._seeds.append(seeds_of(lease.seed, lease.worker, offset, group.n, self._assignment.generation))
            offset += group.n
            self._todo.append(index)

    def _publish(self, before: Counters, after: Counters) -> None:
        numbers = self._block.numbers
        numbers[At.TAKEN] += after.taken - before.taken
        numbers[At.MASKED] += after.masked - before.masked
        if after.non_finite != before.non_finite:
            numbers[At.DROPPED] += after.dropped - before.dropped
            numbers[At.NON_FINITE] += after.non_finite - before.non_finite

    def _report(self) -> protocol.Report:
        now = time.monotonic()
        if now - self._measured_at >= MEASURED_SECONDS:
            seconds = self._stage.seconds()
            self._busy_percent = round(100 * shares(seconds, self._measured).get(BUSY, 0.0))
            self._measured, self._measured_at = seconds, now
        report = self._block.report(self._assignment.faults, self._assignment.last_fault)
        return report._replace(busy_percent=self._busy_percent)

    def _make_groups(self) -> list[Group]:
        self._block.enter(Phase.MAKING)
        section = self._config.workers
        n = section.envs // section.groups
        threads = max(1, len(os.sched_getaffinity(0)) // max(1, section.count))
        return [make_group(self._config.environment, n, threads, self._marker(g, g * n)) for g in range(section.groups)]

    def _marker(self, group: int, offset: int) -> Any:
        """For single environments: says which one runs, and keeps the lease alive between slow ones."""
        numbers, seeds = self._block.numbers, self._seeds

        def mark(index: int, resets: bool) -> None:
            if seeds:  # else it is being made: there is no session yet
                numbers[At.SEED] = seeds[group][index]
                if time.monotonic() >= self._pulse_at:
                    self._block.wait()
                    self._converse()
                    self._pulse_at = time.monotonic() + PULSE_SECONDS
            numbers[At.GROUP], numbers[At.ENVIRONMENT] = group, offset + index
            # Each environment has the whole timeout for itself.
            self._block.enter(Phase.RESET if resets else Phase.STEP)

        return mark

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
        )
