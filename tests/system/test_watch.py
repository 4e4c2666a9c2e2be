"""``seedmq status --watch`` in a terminal of 80 columns and 24 lines, beside a real run."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading

import psutil
import pytest

from tests.runs import END_SECONDS, PATIENT, settings

pytestmark = pytest.mark.system

COLUMNS, LINES = 80, 24
SCREEN, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
HOME = re.compile(r"\x1b\[H|\x1b\[1;1H")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command in a pseudo terminal, and what it has drawn."""

    def __init__(self, arguments: list[str], cwd, environment: dict[str, str]) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", *arguments],
            cwd=cwd,
            env={**environment, "TERM": "xterm-256color"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self._text = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # its last user has gone
                return
            self._text += data.decode(errors="replace")

    @property
    def all(self) -> str:
        return self._text

    def screens(self) -> list[list[str]]:
        """Lines of each screen that was drawn, whole ones only."""
        drawn = HOME.split(self._text.partition(SCREEN)[2].partition(LEAVE)[0])
        return [CONTROL.sub("", one).replace("\r", "").rstrip("\n").split("\n") for one in drawn[1:-1]]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(END_SECONDS)
        self._reader.join(10)
        os.close(self._master)


@pytest.fixture
def terminal(commands):
    opened = []

    def start(*arguments):
        environment = {**os.environ, "TMPDIR": str(commands.temporary)}
        opened.append(Terminal(list(arguments), commands.cwd, environment))
        return opened[-1]

    yield start
    for one in opened:
        one.end()


def test_it_fits_follows_the_run_and_tells_who_is_silent(commands, terminal, until, tmp_path):
    values = settings(
        "run.solved_return=null",
        "run.max_seconds=null",
        "workers.count=2",
        "workers.envs=8",
        "broker.lease_seconds=60",
        PATIENT,
    )
    run = commands.start("run", "cartpole_vtrace", *values, "--run-dir", "run")
    until((tmp_path / "run" / "endpoints.json").exists, 30, "a run directory")
    shown = terminal("status", "run", "--watch")

    def says(*words):
        return any(all(word in " ".join(screen) for word in words) for screen in shown.screens()[-3:])

    until(lambda: says("the run starts") or says("training"), 60, "a start that is called one")
    until(lambda: says("training, 2 workers", "worker-0", "worker-1", "rows/s"), 90, "a run that trains")
    assert not any("start workers" in line for screen in shown.screens() for line in screen), "nothing is advised yet"
    (supervisor,) = (psutil.Process(pid) for pid in commands.find("worker-1.yaml"))
    stopped = [supervisor, *supervisor.children(recursive=True)]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: says("last heard of "), 30, "a silent worker")
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)
    until(lambda: not says("last heard of "), 60, "a worker that is back")
    screens = shown.screens()
    assert max(map(len, screens)) <= LINES
    assert max(len(line.rstrip()) for screen in screens for line in screen) <= COLUMNS
    run.send_signal(signal.SIGTERM)
    output, _ = run.communicate(timeout=END_SECONDS)
    assert run.returncode == 143, output
    assert shown.process.wait(END_SECONDS) == 0
    assert "run has ended: signal" in CONTROL.sub("", shown.all.partition(LEAVE)[2]), "its end stays on the terminal"


def test_an_interrupt_ends_it_in_order(commands, terminal, until, tmp_path):
    shown = terminal("status", "--broker", "tcp://127.0.0.1:1", "--watch")
    until(
        lambda: any("no broker answers" in line for screen in shown.screens() for line in screen), 30, "what is wrong"
    )
    shown.process.send_signal(signal.SIGINT)
    assert shown.process.wait(END_SECONDS) == 0 and LEAVE in shown.all and "Traceback" not in shown.all


def test_without_a_terminal_it_is_a_line_each_time(commands, until):
    shown = commands.start("status", "--broker", "tcp://127.0.0.1:1", "--watch")
    assert shown.stdout.readline().startswith("no broker answers at tcp://127.0.0.1:1")
    shown.send_signal(signal.SIGTERM)
    assert shown.wait(END_SECONDS) == 0
