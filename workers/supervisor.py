"""A worker: a supervisor and one spawned child, whose own child steps environments.

The supervisor runs no environment code, so nothing an environment does can stop it: it sees through shared memory how
long the child has been where it is, has a stuck stack written by faulthandler (a C signal handler, so it works while
C code holds the GIL), kills the child and starts another, within a budget. The spawned process keeps the one with the
environments (``pipeline.reaping``): what they have started ends with them, also where the supervisor is killed.

Stop order: the stop token asks the child to drain (deliver, BYE, GOODBYE); what is left after
``run.drain_timeout_seconds`` is killed, and its last counters are told to the broker. A child that has grown
above ``environment.max_memory_bytes`` is asked the same, and another takes its place.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import platform
import random
import secrets
import signal
import time
from collections import Counter
from contextlib import suppress
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from pipeline import files, logs, reaping
from pipeline.config.tree import Config
from pipeline.errors import EXIT_FINISHED, EnvironmentFailure, SeedmqError
from pipeline.folders import private_folder
from pipeline.metrics.endpoint import served
from pipeline.protocol import Report
from pipeline.stopping import StopToken
from workers import metrics
from workers.assignment import Assignment
from workers.block import At, Block, Of, Phase
from workers.child import child_main
from workers.farewell import say_bye
from workers.restarts import FIRST_STEPS, TRIES, FirstSteps, RestartBudget
from workers.tally import Counted, Tally

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
DUMP_SECONDS = 2.0
LAST_DUMP_SECONDS = 0.5  # where the stop waits for it
MEMORY_SECONDS = 0.5
END_SECONDS = reaping.SWEEP_SECONDS + 1.0
MAX_REPORTS = 8  # in one HELLO, whose head is bounded


class Fault(NamedTuple):
    """Why a child had to end: ``env_errors``, ``env_hangs``, ``env_memory`` or ``fatal``, and in words."""

    kind: str
    message: str


def supervise(config: Config, stop: StopToken) -> int:
    """Runs one worker until the learner dismisses it, the token stops it, or it fails for good.

    Must be called by a thread that lives as long as the worker: the child dies with it.

    Returns:
        The exit code: 0 after an orderly end (also after a stop), else that of the error, which is logged.
    """
    supervisor = Supervisor(config, stop)
    try:
        files.require("worker")
        health = metrics.health(supervisor, stop)
        with served(config.metrics, metrics.registry(supervisor, config.workers.envs, health), health, stop):
            supervisor.run()
        stop.raise_error()
    except SeedmqError as error:
        log.error("worker %s: %s", supervisor.worker_id, error)
        return error.exit_code
    return EXIT_FINISHED


class Patience:
    """Whether a child has been at one place for too long."""

    def __init__(self) -> None:
        self._suspect = 0.0

    def ends(self, since: float, timeout: float, now: float) -> bool:
        """Takes a look; all are monotonic seconds, ``since`` 0 while it is written.

        It ends at the second look in a row, so that no half-written pair of time and phase counts.
        """
        late = since > 0.0 and now - since > timeout
        again = late and since == self._suspect
        self._suspect = since if late else 0.0
        return again


class Supervisor:
    """See the module's docstring.

    Attributes:
        faults: Of all children: kind (``env_hangs``, ``env_errors``, ``env_memory``, ``non_finite``) -> number.
        looked: Monotonic seconds when it last looked after its child. Any thread may read it.
    """

    def __init__(self, config: Config, stop: StopToken) -> None:
        self.worker_id = config.workers.id or f"{platform.node()}-{os.getpid()}"
        logs.identify(component=config.workers.id or f"worker-{self.worker_id}")
        self.faults: Counter[str] = Counter()
        self._config = config
        self._stop = stop
        self._context = multiprocessing.get_context("spawn")
        self._budget = RestartBudget(config.environment.fault_budget)
        self._first_steps = FirstSteps()
        self._worker = -1
        self._tally = Tally()
        self._last_fault = ""
        self.looked = time.monotonic()
        self._renewed = 0  # environments of the present child that are booked in the budget
        self._reports: dict[int, Report] = {}  # last words of dead runs that the broker has not heard

    def run(self) -> None:
        """Starts children until one ends in order.

        Raises:
            EnvironmentFailure: more faults than the budget, the same one in the first steps of each try, or a value
                that is not finite; the message is the original.
            ConfigError, UnreachableError, ComponentError: what the child failed with.
        """
        with private_folder("worker-") as folder:
            try:
                while not self._stop.stopped:
                    fault, broken = self._child(folder / "stacks.txt")
                    if fault is None:
                        return
                    self._recover(fault, broken)
            finally:
                say_bye(self._config, self._reports)

    def why_not_admitted(self) -> str:
        """Why no environment of it steps for a learner; empty: it is admitted. Any thread."""
        block = self._tally.block
        if block is None:
            return f"environments start anew: {self._last_fault}" if self._last_fault else "environments start"
        if block.numbers[At.SERVING]:
            return ""
        return "environments are made" if block.phase is Phase.MAKING else "no learner has admitted this worker"

    def counted(self) -> Counted:
        """What this worker has counted so far. Any thread."""
        return self._tally.read()

    @property
    def child_pid(self) -> int | None:
        """Of the process that steps environments; None where there is none. Any thread."""
        return self._tally.pid

    def _recover(self, fault: Fault, broken: bool) -> None:
        delay = self._budget.fault(time.monotonic(), random.random())
        if delay is None:
            budget = self._config.environment.fault_budget
            raise EnvironmentFailure(
                f"environment.fault_budget = {budget} faults in ten minutes is spent: {fault.message}"
            )
        if broken:
            raise EnvironmentFailure(
                f"{fault.message}: the same in {TRIES} tries, none of which ended an episode or came beyond "
                f"{FIRST_STEPS} steps; it is not tried again"
            )
        log.warning("worker %s: %s; starting anew in %.1f s", self.worker_id, fault.message, delay)
        self._stop.wait(delay)

    def _child(self, dump: Path) -> tuple[Fault | None, bool]:
        """One child from start to end: its fault, None after an orderly end, and whether the next would have it too."""
        run, block = secrets.randbits(62) + 1, Block(self._context)
        assignment = Assignment(
            config=self._config,
            worker_id=self.worker_id,
            run=run,
            worker=self._worker,
            reports={str(dead): report.to_wire() for dead, report in self._reports.items()},
            faults=dict(self.faults),
            budget=self._budget,
            last_fault=self._last_fault,
            block=block,
            dump=str(dump),
            logs=logs.current(),
            parent=os.getpid(),
        )
        resource_tracker.ensure_running()
        others = reaping.children()
        process = self._context.Process(target=child_main, args=(assignment,), name="seedmq-environments")
        process.start()
        self._renewed = 0
        self._tally.begins(block)
        try:
            fault = self._watch(process, block, dump)
        finally:
            _end(process)
            reaping.end_orphans(others)
        self._settle(run, block, fault)
        if (error := block.error()) is not None:
            raise error
        return fault, fault is not None and self._is_broken(fault, block)

    def _is_broken(self, fault: Fault, block: Block) -> bool:
        steps = block.count(Of.TAKEN) / self._config.workers.envs
        return self._first_steps.fault(fault.message, block.count(Of.MASKED) - int(block.numbers[At.RENEWED]), steps)

    def _watch(self, process: SpawnProcess, block: Block, dump: Path) -> Fault | None:
        """Until the child ends or is to be killed."""
        kill_at: float | None = None
        patience, large = Patience(), 0
        scale = _Scale(block, self._config.environment.max_memory_bytes)
        # What an environment forks holds the sentinel, too: where the keeper is killed, it says nothing.
        while not connection.wait([process.sentinel], POLL_SECONDS) and process.is_alive():
            self.looked = now = time.monotonic()
            self._book(block, now)
            if kill_at is None:
                large = scale.above(now)
                if large or self._stop.stopped:
                    block.numbers[At.STOP] = 1
                    making = block.phase is Phase.MAKING  # nothing is taken, and nobody has heard of it
                    kill_at = now + (0.0 if making else self._config.run.drain_timeout_seconds)
            if kill_at is not None and now >= kill_at:
                self._say_killed(process, block, dump)
                return self._too_large(large)
            if patience.ends(block.since_seconds, self._timeout(block.phase), now):
                return self._hung(process, block, dump)
        return self._ended(process, block, dump, large)

    def _book(self, block: Block, now: float) -> None:
        """Books the faults of environments that the child has made anew: it keeps the same budget, and their delays."""
        renewed = int(block.numbers[At.RENEWED])
        for _ in range(renewed - self._renewed):
            self._budget.fault(now, 0.0)
        self._renewed = renewed

    def _too_large(self, nbytes: int) -> Fault | None:
        """Why a child was told to end; None where it is the whole worker that ends."""
        if not nbytes or self._stop.stopped:
            return None
        self.faults["env_memory"] += 1
        most = self._config.environment.max_memory_bytes
        return Fault(
            "env_memory", f"the environments' process has {nbytes} bytes, above environment.max_memory_bytes = {most}"
        )

    def _say_killed(self, process: SpawnProcess, block: Block, dump: Path) -> None:
        place = self._place(block)
        making = block.phase is Phase.MAKING
        stack = "" if making else f"; its stack:\n{self._stack(process, block, dump, LAST_DUMP_SECONDS)}"
        log.warning("worker %s: not drained in time (%s): killed%s", self.worker_id, place, stack)

    def _timeout(self, phase: Phase) -> float:
        environment = self._config.environment
        if phase is Phase.CLOSING:
            return self._config.run.drain_timeout_seconds
        slow = phase in (Phase.MAKING, Phase.RESET)
        return environment.reset_timeout_seconds if slow else environment.step_timeout_seconds

    def _hung(self, process: SpawnProcess, block: Block, dump: Path) -> Fault | None:
        seconds = time.monotonic() - block.since_seconds
        stack = self._stack(process, block, dump)
        message = f"hung for {seconds:.1f} s in {self._place(block)}"
        log.error("worker %s: %s; its stack:\n%s", self.worker_id, message, stack)
        self.faults["env_hangs"] += 1
        # All is delivered and booked when environments are closed: there is nothing to start anew for.
        return None if block.numbers[At.DONE] else Fault("env_hangs", message)

    def _ended(self, process: SpawnProcess, block: Block, dump: Path, large: int) -> Fault | None:
        process.join(5.0)
        self._book(block, time.monotonic())
        if block.numbers[At.DONE]:
            return self._too_large(large) if block.numbers[At.STOP] == 2 else None
        text = block.text()
        if block.numbers[At.FATAL]:
            return Fault("fatal", text)
        if not text:
            code = process.exitcode or 0
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            text = f"the process ended with {how} in {self._place(block)}"
            if stack := _read(dump):
                log.error("worker %s: %s; its stack:\n%s", self.worker_id, text, stack)
        self.faults["env_errors"] += 1
        return Fault("env_errors", text)

    def _settle(self, run: int, block: Block, fault: Fault | None) -> None:
        """Keeps what a next child needs: the lease, and the last words that are still to be said."""
        if block.numbers[At.WELCOMED]:
            self._reports.clear()  # they were in its HELLO
        self._worker = int(block.numbers[At.WORKER])
        if block.fault():
            self._last_fault = block.fault()
        if fault is not None:
            self._last_fault = fault.message
        block.bury()
        report = block.report(self.faults, self._last_fault)
        if block.numbers[At.BYE] != 1 + report.taken:  # not booked, or stepped once more after its BYE
            self._reports[run] = report
        self.faults = Counter(report.faults)
        self._tally.ends(self.faults)
        while len(self._reports) > MAX_REPORTS:  # at most one of them took steps
            del self._reports[min(self._reports, key=lambda dead: self._reports[dead].taken)]

    def _stack(self, process: SpawnProcess, block: Block, dump: Path, seconds: float = DUMP_SECONDS) -> str:
        """Asks the child for its stacks, and waits so long for them."""
        before = len(_read(dump))
        if block.numbers[At.PID]:
            with suppress(ProcessLookupError):
                os.kill(block.numbers[At.PID], signal.SIGUSR1)
        deadline = time.monotonic() + seconds
        text = ""
        while time.monotonic() < deadline:
            ended = connection.wait([process.sentinel], POLL_SECONDS)
            last, text = text, _read(dump)[before:]
            if ended or (text and text == last):
                break
        return text or "(no stack came)"

    def _place(self, block: Block) -> str:
        """Where the child is: environment, step, seed and last action."""
        numbers = block.numbers
        one = numbers[At.ENVIRONMENT] >= 0
        place = f"environment {numbers[At.ENVIRONMENT]}" if one else f"group {numbers[At.GROUP]}"
        words = f"{block.phase.name.lower()} of {place} (worker {numbers[At.WORKER]}, group {numbers[At.GROUP]})"
        if block.phase not in (Phase.RESET, Phase.STEP):
            return words
        return f"{words}, step {numbers[At.STEP]}, seed {numbers[At.SEED]}, last actions {_words(block)}"


class _Scale:
    """Looks now and then how large the process with the environments is."""

    def __init__(self, block: Block, most_bytes: int | None) -> None:
        self._block, self._most, self._next = block, most_bytes or 0, 0.0

    def above(self, now: float) -> int:
        """Its resident set in bytes, if that is above the bound, else 0."""
        pid = int(self._block.numbers[At.PID])
        if not self._most or not pid or now < self._next:
            return 0
        self._next = now + MEMORY_SECONDS
        try:
            nbytes: int = psutil.Process(pid).memory_info().rss
        except psutil.NoSuchProcess:
            return 0  # it has ended, as its sentinel says at once
        return nbytes if nbytes > self._most else 0


def _end(process: SpawnProcess) -> None:
    """Ends the child with all that its environments have started; its keeper does that, and is waited for."""
    if process.pid is not None and process.is_alive():
        os.kill(process.pid, reaping.END)
        process.join(END_SECONDS)
    process.kill()
    process.join(5.0)


def _words(block: Block) -> str:
    """The last actions as bytes, or as numbers where they have 8 or 4 bytes each."""
    data, kind = block.action(), chr(block.numbers[At.ACTION_KIND] or ord("B"))
    values = np.frombuffer(data[: len(data) - len(data) % np.dtype(kind).itemsize], kind)
    return str(values[:64].tolist())


def _read(dump: Path) -> str:
    try:
        return dump.read_text(errors="replace")
    except FileNotFoundError:
        return ""  # the child did not come so far
