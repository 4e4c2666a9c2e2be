"""For tests of real processes: a command runner, and a failure where a process or a socket folder stays behind.

Every process of a test has the test's own temporary folder in its environment, children of children too: by it they are
found, and what stands in it at the end was left behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import redis

from pipeline.folders import sweep
from pipeline.store.embedded import EmbeddedServer
from tests.processes import processes_of
from tests.runs import free_ports

GONE_SECONDS = 30.0
"""A process that was killed or lost its parent may take so long to go."""
SLOWER = 4.0
"""The machine may be so many times slower than the one for which a test says how long it waits."""


class Commands:
    """Starts ``seedmq`` as processes in ``cwd``.

    Attributes:
        cwd: working directory of the test.
        temporary: ``TMPDIR`` of its processes.
    """

    def __init__(self, cwd: Path, temporary: Path) -> None:
        self.cwd = cwd
        self.temporary = temporary
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, there: Sequence[str] = (), **variables: str) -> subprocess.Popen[str]:
        """A process that goes on; its output is piped together. ``there`` begins the command line of another host."""
        environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("SEEDMQ_")}
        process = subprocess.Popen(
            [*there, sys.executable, "-m", "pipeline.cli", *arguments],
            cwd=self.cwd,
            env={**environment, **variables, "TMPDIR": str(self.temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str, timeout: float = 120.0, **variables: str) -> subprocess.CompletedProcess[str]:
        """A process that ends by itself within ``timeout`` seconds, or later where the machine is slow."""
        process, timeout = self.start(*arguments, **variables), SLOWER * timeout
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            output, _ = process.communicate()
            pytest.fail(f"seedmq {' '.join(arguments)} ran longer than {timeout:g} s:\n{output}", pytrace=False)
        return subprocess.CompletedProcess(arguments, process.returncode, output)

    def alive(self) -> dict[int, str]:
        """Processes of this test that run now, whoever their parent is: pid -> command line."""
        return processes_of(self.temporary)

    def find(self, words: str) -> list[int]:
        """Pids whose command line holds ``words``."""
        return [pid for pid, command in self.alive().items() if words in command]

    def forget_sockets(self) -> None:
        """Removes what a killed run has left, as the next run does; waits for those of its processes that are dying."""
        deadline = time.monotonic() + GONE_SECONDS
        while self.alive() and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        sweep(self.temporary)

    def end(self) -> None:
        """Kills what a failed test left, and shows what that has said."""
        failed = [process for process in self._started if process.poll() is None]
        for process in failed:
            process.kill()
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        for process in self._started:
            if process in failed:
                print(process.args, process.communicate()[0], sep="\n")
            elif process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    # Not below tmp_path: the path of a socket is short.
    temporary = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
    runner = Commands(tmp_path, temporary)
    try:
        yield runner
        left = runner.alive()
        deadline = time.monotonic() + GONE_SECONDS
        while left and time.monotonic() < deadline:
            left = runner.alive()
        files = [str(path.relative_to(temporary)) for path in temporary.iterdir()]
    finally:
        runner.end()
        shutil.rmtree(temporary, ignore_errors=True)
    assert not left, f"processes outlived the test: {left}"
    assert not files, f"left in the temporary folder: {files}"


@pytest.fixture
def their_redis(commands: Commands, request: pytest.FixtureRequest) -> Iterator[tuple[EmbeddedServer, redis.Redis]]:
    """A Redis over TCP with the password ``PASSWORD`` of the test's module, and a client that sees everything."""
    place, password = commands.temporary / "their-redis", request.module.PASSWORD
    with EmbeddedServer(place, tcp=("127.0.0.1", *free_ports(1)), password=password) as server:
        host, port = server.tcp
        with redis.Redis(host=host, port=port, password=password) as client:
            yield server, client
    shutil.rmtree(place)


@pytest.fixture
def until() -> Callable[[Callable[[], object], float, str], None]:
    """Waits for something that another process does, for so many seconds, or more where the machine is slow."""

    def wait(condition: Callable[[], object], seconds: float, what: str) -> None:
        deadline = time.monotonic() + SLOWER * seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {SLOWER * seconds:g} s: {what}", pytrace=False)
            threading.Event().wait(0.05)

    return wait
