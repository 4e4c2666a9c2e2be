"""Signals of the launcher, remembered until its loop takes them."""

from __future__ import annotations

import signal
import threading
from collections import deque
from types import FrameType
from typing import Any


class Signals:
    """Remembers SIGINT, SIGTERM and SIGHUP, and wakes up for them and for ended children, while it is open."""

    def __init__(self) -> None:
        self._arrived: deque[int] = deque(maxlen=16)
        self._wake = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            # nohup ignores SIGHUP, and it stays ignored.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def wait(self, seconds: float) -> None:
        """Until one arrives or a child ends, at most ``seconds``."""
        self._wake.wait(seconds)
        self._wake.clear()

    def take(self) -> list[int]:
        """What arrived since the last call, in order; a lost terminal counts as SIGTERM."""
        numbers = [self._arrived.popleft() for _ in range(len(self._arrived))]
        return [int(signal.SIGTERM) if number == signal.SIGHUP else number for number in numbers]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._arrived.append(number)
        self._wake.set()
