"""The launcher's signals: remembered in order, and no handler waits for another that it interrupts."""

import os
import signal
import threading
import time

import pytest

from pipeline.launch.signals import Signals

pytestmark = pytest.mark.unit


def test_signals_are_remembered_and_end_a_wait() -> None:
    with Signals() as signals:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        begun = time.monotonic()
        signals.wait(20.0)
        assert time.monotonic() - begun < 10.0 and signals.take() == [signal.SIGTERM] and signals.take() == []


def test_a_storm_of_signals_does_not_stop_the_loop() -> None:
    """A handler that is interrupted by the next one must hold nothing that the next one needs."""
    over = threading.Event()

    def storm() -> None:
        while not over.is_set():
            for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
                os.kill(os.getpid(), number)

    with Signals() as signals:
        thread = threading.Thread(target=storm, daemon=True)
        thread.start()
        until, taken = time.monotonic() + 2.0, 0
        while time.monotonic() < until:
            signals.wait(0.05)
            taken += len(signals.take())
        over.set()
        thread.join(5.0)
    assert taken
