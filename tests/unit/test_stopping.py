"""Signals and the hard end, in processes of their own: also while the main thread is in C code."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pipeline.stopping import StopToken

pytestmark = pytest.mark.unit

SCRIPT = """
import hashlib, sys
from pipeline.stopping import StopToken, hard_end, install_signal_handlers
stop = StopToken()
install_signal_handlers(stop)
with hard_end(stop, float(sys.argv[1])):
    print("ready", flush=True)
    if sys.argv[2] == "compute":
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # many minutes, without the interpreter's lock
    else:
        while not stop.wait(1.0):
            pass
print(stop.reason, stop.signal, flush=True)
"""


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SCRIPT, *request.param]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate(timeout=60)


@pytest.mark.parametrize("started", [("0.3", "compute")], indirect=True)
def test_what_does_not_stop_in_time_is_ended_with_the_reason(started: subprocess.Popen[str]) -> None:
    started.send_signal(signal.SIGTERM)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 3
    assert "not stopped within run.drain_timeout_seconds = 0.3: still in " in errors


@pytest.mark.parametrize("started", [("4", "compute")], indirect=True)
def test_time_for_which_the_process_stood_still_does_not_count(started: subprocess.Popen[str]) -> None:
    started.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        started.wait(0.5)
    started.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        started.wait(4.5)
    began = time.monotonic()
    started.send_signal(signal.SIGCONT)
    started.communicate(timeout=60)
    assert started.returncode == 3 and time.monotonic() - began > 0.5


@pytest.mark.parametrize("started", [("60", "compute")], indirect=True)
def test_a_second_signal_ends_a_process_that_computes(started: subprocess.Popen[str]) -> None:
    started.send_signal(signal.SIGINT)
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=60)
    assert started.returncode in (130, 143), "of whichever came second: the kernel may deliver them in either order"


@pytest.mark.parametrize("started", [("60", "wait")], indirect=True)
def test_what_stops_in_time_is_left_alone(started: subprocess.Popen[str]) -> None:
    started.send_signal(signal.SIGINT)
    output, errors = started.communicate(timeout=60)
    assert (started.returncode, output, errors) == (0, "signal 2\n", "")


def test_what_fails_after_the_stop_is_its_error():
    stop = StopToken()
    stop.stop("signal")
    stop.stop("error", OSError("first"))
    stop.stop("error", ValueError("second"))
    assert stop.reason == "signal"
    with pytest.raises(OSError, match="first"):
        stop.raise_error()


ENDING = """
import atexit, os, signal
from pipeline.stopping import StopToken, install_signal_handlers
class Late:
    def __del__(self):  # when the interpreter has taken its handlers away
        os.kill(os.getpid(), signal.SIGTERM)
install_signal_handlers(StopToken())
late = Late()
late.itself = late
raise SystemExit(7)
"""


def test_a_signal_while_the_interpreter_ends_changes_nothing():
    assert subprocess.run([sys.executable, "-c", ENDING], timeout=60, check=False).returncode == 7
