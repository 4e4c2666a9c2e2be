"""Finished episodes: raw undiscounted returns, as the workers summed them."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt


class Episodes:
    """Rolling window over finished episodes, with the first window kept for comparison. Thread-safe.

    Args:
        window: Episodes in ``episode_return_mean``.
    """

    def __init__(self, window: int) -> None:
        self._lock = threading.Lock()
        self._window = window
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)
        self._first: list[float] = []
        self.count = 0

    def add(self, returns: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> None:
        with self._lock:
            self._returns.extend(float(x) for x in returns)
            self._lengths.extend(int(x) for x in lengths)
            if len(self._first) < self._window:
                self._first.extend(float(x) for x in returns[: self._window - len(self._first)])
            self.count += len(returns)

    def solved(self, target: float) -> bool:
        """The window is full and its mean return reaches ``target``."""
        with self._lock:
            return len(self._returns) == self._window and float(np.mean(self._returns)) >= target

    def snapshot(self) -> dict[str, Any]:
        """``episodes``, and mean, deviation and mean length over the window; None before the first episode."""
        with self._lock:
            returns, first = list(self._returns), self._first
            return {
                "episodes": self.count,
                "episode_return_mean": float(np.mean(returns)) if returns else None,
                "episode_return_std": float(np.std(returns)) if returns else None,
                "episode_length_mean": float(np.mean(self._lengths)) if returns else None,
                "first_episode_return_mean": float(np.mean(first)) if first else None,
                "first_episode_return_std": float(np.std(first)) if first else None,
            }
