"""Histograms: how many observations fell into which bucket, and their sum. For Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

NOTED = 4096  # observations that may wait to be counted

LATENCIES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Limits for seconds."""
ROWS = tuple(float(2**power) for power in range(14))
"""Limits for rows of a batch."""


class Counted(NamedTuple):
    """What a histogram holds.

    Attributes:
        limits: Largest value of each bucket but the last, which has no bound.
        counts: Observations of each bucket alone, one more than limits.
        sum: Of all observations.
    """

    limits: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Buckets:
    """One thread adds, any reads.

    Args:
        limits: Ascending.
    """

    def __init__(self, limits: Sequence[float]) -> None:
        self._limits = tuple(limits)
        self._edges = np.array(self._limits)
        self._counts = [0] * (len(self._limits) + 1)
        self._sum = 0.0
        self._noted: list[float] = []

    def add(self, value: float) -> None:
        """Counts one observation."""
        self._counts[bisect_left(self._limits, value)] += 1
        self._sum += value

    def note(self, values: list[float]) -> None:
        """Takes observations that ``settle`` counts later, all at once: for loops in which microseconds matter."""
        self._noted += values
        if len(self._noted) >= NOTED:
            self.settle()

    def settle(self) -> None:
        """Counts what was noted. The thread that notes calls it now and then."""
        if self._noted:
            values = np.array(self._noted)
            self._noted = []
            found = np.bincount(np.searchsorted(self._edges, values), minlength=len(self._counts))
            self._counts = [before + new for before, new in zip(self._counts, found.tolist(), strict=True)]
            self._sum += float(values.sum())

    def read(self) -> Counted:
        """So far. Any thread."""
        return Counted(self._limits, tuple(self._counts), self._sum)
