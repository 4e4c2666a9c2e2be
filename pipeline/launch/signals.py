"""Signals of the launcher, remembered until its loop takes them.

Handlers take no lock: they run on the main thread wherever it is, within another handler, too.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from contextlib import suppress
from types import FrameType
from typing import Any

PIPE_BYTES = 4096  # read at once; what is left wakes again


class Signals:
    """Remembers SIGINT, SIGTERM and SIGHUP, and wakes up for them and for ended children, while it is open."""

    def __init__(self) -> None:
        self._arrived: deque[int] = deque(maxlen=16)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._readable, self._writable = os.pipe()  # the interpreter writes a byte for each signal
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        self._woken_before = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            # nohup ignores SIGHUP, and it stays ignored.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._woken_before)
        os.close(self._readable)
        os.close(self._writable)

    def wait(self, seconds: float) -> None:
        """Until one arrives or a child ends, at most ``seconds``."""
        select.select([self._readable], [], [], seconds)
        with suppress(BlockingIOError):
            os.read(self._readable, PIPE_BYTES)

    def take(self) -> list[int]:
        """What arrived since the last call, in order; a lost terminal counts as SIGTERM."""
        numbers = [self._arrived.popleft() for _ in range(len(self._arrived))]
        return [int(signal.SIGTERM) if number == signal.SIGHUP else number for number in numbers]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._arrived.append(number)
