"""How things stop: one token per process, threads that take their owner down, signals.

The first SIGINT or SIGTERM asks for a drain, the second ends the process at once.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

log = logging.getLogger(__name__)


class StopToken:
    """Set once, by whoever is first, with a reason and perhaps the exception that caused it. Thread-safe."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self.reason: str | None = None
        self.error: BaseException | None = None
        self.signal: int | None = None

    def stop(self, reason: str, error: BaseException | None = None) -> None:
        """Asks everything to stop. Only the first call's reason and error count."""
        with self._lock:
            if self.reason is None:
                self.reason, self.error = reason, error
                self._event.set()

    @property
    def stopped(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleeps up to ``seconds``; True as soon as it is stopped."""
        return self._event.wait(seconds)

    def raise_error(self) -> None:
        """Raises the exception that caused the stop, if one did."""
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

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
