"""How things stop: one token per process, threads that take their owner down, signals.

The first SIGINT or SIGTERM asks for a drain, the second ends the process at once.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pipeline.errors import EXIT_FAILED

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK_SECONDS = 0.1
PAUSE_SECONDS = 1.0


class StopToken:
    """Set once, by whoever is first, with a reason. Thread-safe.

    Attributes:
        error: The exception that caused the stop, or the first one of the drain after it.
        at: Monotonic seconds of the stop.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.RLock()  # a signal's handler may come upon its own thread within ``stop``
        self.reason: str | None = None
        self.error: BaseException | None = None
        self.signal: int | None = None
        self.at: float | None = None

    def stop(self, reason: str, error: BaseException | None = None) -> None:
        """Asks everything to stop. Only the first call's reason counts, and the first error."""
        with self._lock:
            self.error = self.error or error
            if self.reason is None:
                self.reason, self.at = reason, time.monotonic()
                self._event.set()

    @property
    def stopped(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleeps up to ``seconds``; True as soon as it is stopped."""
        return self._event.wait(seconds)

    def raise_error(self) -> None:
        """Raises ``error``, if there is one."""
        if self.error is not None:
            raise self.error


class OwnedThread(threading.Thread):
    """A thread that stops its owner's token with its exception when it dies; daemonic, but meant to be joined."""

    def __init__(self, name: str, target: Callable[[], None], stop: StopToken) -> None:
        super().__init__(name=name, daemon=True)
        self._body = target
        self._stop_token = stop

    def run(self) -> None:
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001 - handed to the owner, who raises it
            log.error("thread %s died: %s: %s", self.name, type(error).__name__, error)
            self._stop_token.stop("error", error)


def install_signal_handlers(stop: StopToken) -> None:
    """SIGINT, SIGTERM: the first stops the token with reason ``signal``, the second exits at once with 128 + signal.

    Must be called on the main thread.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.signal is not None:
            os._exit(128 + number)
        stop.signal = number
        stop.stop("signal")

    for number in SIGNALS:
        signal.signal(number, handle)
    atexit.register(_ignore_signals)


def _ignore_signals() -> None:
    """What the process ends with is decided: the interpreter takes its handlers away, and a signal would replace it."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def hard_end(stop: StopToken, seconds: float) -> Iterator[None]:
    """Ends the process with exit code 3 where the block goes on for so long after the stop, whatever it is in.

    Python runs handlers of signals on the main thread alone. While that is in C code, as it is for seconds where
    TensorFlow compiles, the time of a first signal is taken here, and a second one exits with 128 + signal. Time for
    which the whole process stood still (SIGSTOP) does not count.

    Must be entered on the main thread.
    """
    main, over = threading.get_ident(), threading.Event()
    readable, writable = os.pipe()
    os.set_blocking(writable, False)

    def watch() -> None:
        heard: list[float] = []
        paused, looked = 0.0, time.monotonic()
        while not over.is_set():
            if select.select([readable], [], [], LOOK_SECONDS)[0]:
                for number in os.read(readable, 64):
                    if number in SIGNALS:
                        heard.append(time.monotonic())
                    if len(heard) > 1:
                        os._exit(128 + number)
            began = stop.at if not heard or stop.at is not None else heard[0]
            now = time.monotonic()
            if now - looked > PAUSE_SECONDS and began is not None:
                paused += now - max(looked, began)
            looked = now
            if began is not None and now > began + seconds + paused:
                log.critical(
                    "not stopped within run.drain_timeout_seconds = %g: still in %s; the last checkpoint is what stays",
                    seconds,
                    _place(main),
                )
                os._exit(EXIT_FAILED)

    thread = threading.Thread(target=watch, name="hard end", daemon=True)
    before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.set_wakeup_fd(before)
        os.close(readable)
        os.close(writable)


def _place(thread: int) -> str:
    """The innermost function of ours that a thread is in."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] in ("learner", "pipeline"):
            return f"{module}, {frame.f_code.co_qualname}"
        frame = frame.f_back
    return "unknown code"
