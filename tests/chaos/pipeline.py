"""The pipeline under fire: store, broker, learner and workers, each a process that is started again when it ends.

What ends a component must be a fault that said so (``expect``); any other end is a surprise, which fails the suite.
Belongs to the main thread, on whose life its processes hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import redis

from pipeline.config.tree import SecuritySection
from pipeline.errors import ProtocolError, UnreachableError
from pipeline.launch.children import Child
from pipeline.launch.processes import BROKER, LEARNER, STORE, words
from pipeline.launch.status import ask
from pipeline.store.embedded import EmbeddedServer
from tests.chaos.commands import CHECKPOINT_SECONDS, DRAIN_SECONDS, REPOSITORY, VTRACE, plan
from tests.chaos.environment import FLAGS
from tests.chaos.link import Link
from tests.chaos.middle import Middle
from tests.processes import processes_of

TICK_SECONDS = 0.05
STATUS_SECONDS = 1.0
STATUS_AGE_SECONDS = 0.15
"""An answer may be so old."""
RESTART_SECONDS = 0.5
DRAINED = (0, 143)
STOP_SECONDS = DRAIN_SECONDS + 10.0
"""And what the interpreter takes to end."""


class Store(EmbeddedServer):
    """Keeps its data (append-only file); ``load_seconds_per_key`` makes it slow to come back."""

    load_seconds_per_key = 0.0

    def __init__(self, directory: Path, binary: Path | None = None) -> None:
        super().__init__(directory, persist=True, binary=binary, start_timeout_seconds=30.0)

    def _settings(self) -> dict[str, str]:
        slow = {"key-load-delay": str(int(self.load_seconds_per_key * 1e6))} if self.load_seconds_per_key else {}
        return super()._settings() | slow


class Pipeline:
    """See the module's docstring; ``with Pipeline(folder) as pipeline``.

    Args:
        folder: For everything, with a short path.
        link: To the host of every other worker; None: all are here.
        redis_server: A binary; default the bundled one.
        checkpoint_seconds: Between two checkpoints.
        preset: One of ``commands.PRESETS``.

    Attributes:
        flags: Folder of ``environment.Faulty``.
        temporary: ``TMPDIR`` of all processes.
        checkpoint_seconds, preset: The same.
        middle: Through whom one of the workers speaks to the broker.
        surprises: What ended that no fault explains.
        leaking: Processes that grow because a fault told them to.
        look: Called while time passes.
    """

    def __init__(
        self,
        folder: Path,
        link: Link | None = None,
        redis_server: Path | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        preset: str = VTRACE,
    ) -> None:
        self.flags, self.temporary, self.directory = folder / "flags", folder / "tmp", folder / "run"
        self._logs, self._folder = folder / "logs", folder
        for path in (self.flags, self.temporary, self._logs):
            path.mkdir(mode=0o700)
        self.store = Store(folder / "tmp" / "s", redis_server)
        self.checkpoint_seconds = checkpoint_seconds
        self.surprises: list[str] = []
        self.look: Callable[[], None] = lambda: None
        self.leaking: set[int] = set()
        self.preset = preset
        self.plan = plan(folder, self.store.url, preset, link, checkpoint_seconds)
        self._commands = self.plan.lines
        self.middle = Middle(self.plan.front, self.plan.endpoint, self.plan.keys, self.environment)
        self._children: dict[str, Child] = {}
        self._born: dict[str, float] = {}
        self._start_at: dict[str, float] = {}
        self._expected: dict[str, set[int]] = {name: set() for name in self._commands}
        self._ending = False

    @property
    def workers(self) -> list[str]:
        return [name for name in self._commands if name.startswith("worker")]

    # Life.

    def __enter__(self) -> Pipeline:
        self.store.start()
        self.middle.start()
        for name in self._commands:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        """Kills what an error left."""
        for child in self._children.values():
            child.kill()
            child.wait(STOP_SECONDS)
        self.middle.close()
        self.store.stop()

    @property
    def environment(self) -> dict[str, str]:
        """Variables of all processes."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SEEDMQ_")}
        return environment | {"TMPDIR": str(self.temporary), "PYTHONPATH": str(REPOSITORY), FLAGS: str(self.flags)}

    def start(self, name: str) -> None:
        self._start_at.pop(name, None)
        self._born[name] = time.time()
        self._children[name] = Child(self._commands[name], self.environment, self._logs / f"{name}.log")

    def keep(self) -> None:
        """Looks who ended, and starts again what shall run."""
        for name, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                del self._children[name]
                self._judge(name, code, child)
                if not self._ending:
                    self._start_at[name] = time.monotonic() + RESTART_SECONDS
        for name in [name for name, at in self._start_at.items() if at <= time.monotonic()]:
            self.start(name)
        if (died := self.middle.died) is not None:
            self.surprises.append(f"the man in the middle ended with {words(died)}")
            self.middle.close()
        self.look()

    def hold(self, seconds: float) -> None:
        """Time passes."""
        self.wait(lambda: False, seconds)

    def wait(self, condition: Callable[[], object], seconds: float, tick: float = TICK_SECONDS) -> bool:
        """Time passes until ``condition``; whether it came true."""
        deadline = time.monotonic() + seconds
        while True:
            self.keep()
            if condition():
                return True
            if time.monotonic() > deadline:
                return False
            threading.Event().wait(tick)

    def end(self) -> None:
        """Learner, workers, broker, in order; the store goes on, to be looked into. What hangs is a surprise."""
        self._ending = True
        self._start_at.clear()
        for names in ([LEARNER], self.workers, [BROKER]):
            for name in names:
                # A worker is dismissed by the learner, if there is one.
                if name in self._children and name not in self.workers:
                    self.signal(name, signal.SIGTERM, -signal.SIGTERM, 143, 0)
            if not self.wait(lambda names=names: not set(names) & set(self._children), STOP_SECONDS):
                self.surprises += [
                    f"{name} did not end in time, {self._doing(name)}" for name in names if name in self._children
                ]

    def _doing(self, name: str) -> str:
        """State of a component, and of the machine: on one that is busy with other work everything takes longer."""
        load = f"load average {os.getloadavg()[0]:.1f}"
        with contextlib.suppress(psutil.Error, KeyError):
            process = psutil.Process(self._children[name].pid)
            return f"{process.status()}, {sum(process.cpu_times()[:2]):.1f} s of processor so far; {load}"
        return load

    def _judge(self, name: str, code: int, child: Child) -> None:
        # The learner sends workers home when it is told to end.
        allowed = self._expected[name] | ({0} if name in self.workers else set())
        self._expected[name] = set()
        if code not in allowed:
            lines = "\n    ".join(child.tail(6))
            self.surprises.append(f"{name} ended with {words(code)}:\n    {lines}")
        if name == LEARNER and code in DRAINED and (error := self.summary()["ledger"]["error"]):
            self.surprises.append(f"the ledger of a learner that ended in order has the error {error}")

    # What faults do.

    def signal(self, name: str, number: int, *codes: int) -> None:
        """A signal to the component, which may end with ``codes`` now."""
        self._expected[name] |= set(codes)
        os.kill(self.pid(name), number)

    def hit(self, pid: int, number: int) -> None:
        """A signal to a process that may have ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def suspend(self, pid: int, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long."""
        self.hit(pid, signal.SIGSTOP)
        try:
            self.hold(seconds)
        finally:
            self.hit(pid, signal.SIGCONT)

    def ends(self, name: str) -> None:
        """Waits until the component, which was told to, has ended."""
        if not self.wait(lambda: name in self._start_at, STOP_SECONDS, tick=RESTART_SECONDS / 20):
            self.surprises.append(f"{name} did not end within {STOP_SECONDS:g} s, {self._doing(name)}")

    def signal_store(self, number: int) -> None:
        os.kill(self.pid(STORE), number)

    def pid(self, name: str) -> int:
        """Of a component, or of the store."""
        if name == STORE:
            assert self.store.pid is not None
            return self.store.pid
        if not self.wait(lambda: name in self._children, STOP_SECONDS):
            raise RuntimeError(f"{name} does not run")
        return self._children[name].pid

    def started_at(self, name: str) -> float:
        """Unix time of the component's last start."""
        return self._born[name]

    def environments(self, worker: str) -> int:
        """The pid of the process that steps the worker's environments; its parent, which keeps it, looks alike."""
        found: list[int] = []

        def there() -> bool:
            if worker in self._children:
                children = _children(self._children[worker].pid)
                found[:] = [pid for pid, command in children if "spawn_main" in command]
            return len(found) > 1

        if not self.wait(there, STOP_SECONDS):
            raise RuntimeError(f"{worker} has no environments")
        return found[-1]

    def restart_store(self, before: Callable[[], None] = lambda: None) -> None:
        """After it was ended: ``before``, then another server on the same data."""
        self.store.stop()
        before()
        self.store.start()

    def admin(self) -> redis.Redis:
        """A connection of the suite's own."""
        return redis.Redis.from_url(self.store.url, socket_timeout=30.0)

    # What can be seen.

    def summary(self, since: float = 0.0) -> dict[str, Any]:
        """``summary.json``, if it was written after ``since`` (Unix time)."""
        path = self.directory / "summary.json"
        try:
            if path.stat().st_mtime < since:
                return {}
            found: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        return found

    def status(self) -> dict[str, Any]:
        """What the broker says; empty where it does not answer."""
        security = SecuritySection(keys=self.plan.keys)
        try:
            return ask(self.plan.endpoint, security, STATUS_SECONDS)
        except (UnreachableError, ProtocolError):
            return {}

    def serving(self, since: float) -> set[str]:
        """Workers that were heard of since (monotonic) and are served."""
        age = time.monotonic() - since - STATUS_AGE_SECONDS
        return {
            one["worker_id"]
            for one in self.status().get("workers", [])
            if one["state"] in ("serving", "held_back") and one["heard_seconds_ago"] < age
        }

    def trains(self, seconds: float, since: float | None = None) -> bool:
        """Whether more is trained within so many seconds; by what the learner wrote after ``since`` (Unix time)."""
        since = time.time() if since is None else since
        seen: list[int] = []

        def more() -> bool:
            summary = self.summary(since)
            if summary:
                seen.append(summary["ledger"]["trained"])
            # A learner that was resumed begins with less than its predecessor had.
            return bool(seen) and seen[-1] > min(seen)

        return self.wait(more, seconds)

    def processes(self) -> dict[int, str]:
        return processes_of(self.temporary)

    def log(self, name: str) -> str:
        """What a component has said, in all its lives."""
        return (self._logs / f"{name}.log").read_text(errors="replace")

    def counter(self, *names: str) -> Callable[[], int]:
        """What the broker's counters of these names have grown by since now, together."""
        before: dict[str, Any] = {}
        if not self.wait(lambda: before.update(self.status()) or before, STOP_SECONDS):
            raise RuntimeError("the broker does not answer")

        def grown() -> int:
            after = self.status()
            old = before["counters"] if after.get("broker") == before["broker"] else {}
            return sum(after.get("counters", {}).get(name, 0) - old.get(name, 0) for name in names)

        return grown

    def alive(self) -> dict[str, int]:
        """Component -> pid, of those that run now; the store is not among them."""
        return {name: child.pid for name, child in self._children.items()}

    def newest_checkpoint(self) -> Path | None:
        return max((self.directory / "checkpoints").glob("0*"), default=None)


def pick(pipeline: Pipeline, rng: random.Random) -> str:
    """A worker."""
    return rng.choice(pipeline.workers)


def _children(pid: int) -> list[tuple[int, str]]:
    try:
        return [(one.pid, " ".join(one.cmdline())) for one in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
