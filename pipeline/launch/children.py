"""The processes of a run: each in its own process group, with its log file, ending with the parent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline import reaping
from pipeline.errors import EXIT_FAILED, EXIT_FINISHED, StoreError
from pipeline.launch.log_files import LogFile
from pipeline.launch.processes import STORE
from pipeline.store.embedded import EmbeddedServer

STORE_SECONDS = 0.5
"""The store ends last, when nobody uses it, and keeps nothing: it is soon killed where it does not end by itself."""
LOG_BYTES = 16 * 2**20
_LOGGED = re.compile(r"\S+Z [A-Z]+ \S+ (.+)")
_LOGGED_ERROR = re.compile(r"\S+Z (?:ERROR|CRITICAL) \S+ (.+)")


class Child:
    """One process, started at once. Belongs to the thread that made it: when that ends the kernel kills the process.

    It stands in a process group of its own, so that Ctrl-C in the terminal reaches only the parent, which stops the
    children in order. On Linux it is killed when the parent dies.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, log_bytes: int = LOG_BYTES
    ) -> None:
        """Appends output to ``log`` (0600), which ``bound_log`` keeps to twice ``log_bytes``.

        Raises:
            OSError: it cannot be started, or the log cannot be written.
        """
        self._log = LogFile(log, log_bytes)
        parent = os.getpid()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log.descriptor,
                stderr=self._log.descriptor,
                env=dict(environment),
                process_group=0,
                preexec_fn=lambda: reaping.die_with(parent),  # noqa: PLW1509 - the launcher has no threads
            )
        except OSError:
            self._log.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code (minus the signal that killed it) once it has ended; what its group still holds is killed."""
        if self._process.returncode is None:
            # Looked at before it is reaped: until then nobody else gets its id, so the group is its own.
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            self._signal_group(signal.SIGKILL)
            self._log.close()
        return self._process.poll()

    def terminate(self) -> None:
        """Asks it, and not what it started, to end."""
        self._process.terminate()

    def kill(self) -> None:
        """Kills it and its group."""
        if self._process.returncode is None:
            self._signal_group(signal.SIGKILL)

    def wait(self, seconds: float) -> int | None:
        """Waits for its end; None where it takes longer."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return self._process.returncode

    def bound_log(self) -> None:
        """Begins its log anew where that is too large."""
        self._log.bound()

    def tail(self, lines: int) -> list[str]:
        """The last lines that it wrote; none where somebody has removed its log."""
        return self._log.tail(lines)

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            # Nobody is left in it (macOS says "not permitted" of a zombie).
            return


class Children:
    """All processes of a run by component: children by their command lines, and the embedded store if there is one.

    Args:
        commands: component -> command line. The embedded store has none.
        environment: of the children.
        logs: directory of ``<component>.log``.
        store: not started yet; None where the store is somebody else's.
        log_bytes: Of each log, and of what is kept of it from before.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        environment: Mapping[str, str],
        logs: Path,
        store: EmbeddedServer | None,
        log_bytes: int = LOG_BYTES,
    ) -> None:
        self._log_bytes = log_bytes
        self._commands = commands
        self._environment = environment
        self._logs = logs
        self._store = store
        self._others = reaping.children()
        self._alive: dict[str, Child] = {}
        self._last: dict[str, Child] = {}
        self._store_ended: list[tuple[str, int]] = []
        self._store_words = ""

    def start(self, name: str, *arguments: str) -> None:
        """Starts a component; the store is waited for until it answers.

        Raises:
            MissingExtraError: no embedded store on this machine.
            StoreError: the store did not start.
            OSError: the process cannot be started.
        """
        if name in self._commands:
            command = [*self._commands[name], *arguments]
            log = self._logs / f"{name}.log"
            self._alive[name] = self._last[name] = Child(command, self._environment, log, self._log_bytes)
        elif self._store is not None:
            self._store.start()

    def terminate(self, name: str) -> None:
        """Asks it to end; the store has ended when this returns."""
        if name in self._alive:
            self._alive[name].terminate()
        elif name not in self._commands:
            self._end_store(name, EXIT_FINISHED)

    def kill(self, name: str) -> None:
        """Kills it and what it started."""
        if name in self._alive:
            self._alive[name].kill()
        elif name not in self._commands and self._store is not None and self._store.pid is not None:
            os.kill(self._store.pid, signal.SIGKILL)
            self._end_store(name, -signal.SIGKILL)

    def exits(self) -> list[tuple[str, int]]:
        """Components that ended since the last call: (component, exit code or minus the signal). Bounds their logs."""
        ended, self._store_ended = self._store_ended, []
        for name, child in list(self._alive.items()):
            child.bound_log()
            code = child.poll()
            if code is not None:
                del self._alive[name]
                ended.append((name, code))
                self._end_orphans()
        if self._store is not None and self._store.pid is not None:
            try:
                self._store.check()
            except StoreError as error:
                self._store_words = str(error)
                self._store.stop()
                ended.append((STORE, EXIT_FAILED))
        return ended

    def last_words(self, name: str, lines: int) -> list[str]:
        """The last lines that the component wrote since its last start."""
        if name in self._last:
            return self._last[name].tail(lines)
        return [self._store_words] if self._store_words else []

    def close(self) -> None:
        """Kills what still runs, and waits a second for it."""
        for name in [*self._alive, STORE]:
            self.kill(name)
        deadline = time.monotonic() + 1.0
        for child in self._alive.values():
            child.wait(max(0.0, deadline - time.monotonic()))
        self._end_orphans()

    def _end_orphans(self) -> None:
        """What a component has left that was killed with the keeper of its environments."""
        alive = [child.pid for child in self._alive.values()]
        store = [self._store.pid] if self._store is not None and self._store.pid is not None else []
        reaping.end_orphans({*self._others, *alive, *store})

    def _end_store(self, name: str, code: int) -> None:
        if self._store is not None and self._store.pid is not None:
            self._store.stop(STORE_SECONDS)
            self._store_ended.append((name, code))


def error_line(lines: list[str]) -> str | None:
    """The error that a component ended with, from the last lines of its log: what the command line said, or logged."""
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    logged = [match[1] for line in lines if (match := _LOGGED_ERROR.match(line))]
    records = [one["message"] for line in lines if (one := _record(line)) and one["level"] in ("ERROR", "CRITICAL")]
    return (said or logged or records or [None])[-1]


def last_logged(lines: list[str]) -> str:
    """The last message that a component logged, of those lines; empty where it logged none."""
    for line in reversed(lines):
        if match := _LOGGED.match(line):
            return match[1]
        if record := _record(line):
            return record["message"]
    return ""


def _record(line: str) -> dict[str, str] | None:
    """A line of a JSON log; None for any other."""
    try:
        record = json.loads(line) if line.startswith("{") else None
    except ValueError:
        return None
    return {"level": "", "message": "", **record} if isinstance(record, dict) else None
