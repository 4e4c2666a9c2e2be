"""Policy lag: how many updates lie between the policy that acted and the one that learns from it, by valid row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from learner.feed import Versions
from learner.lineage import Lineage

EXACT = 32
"""Lags up to this have a bucket each; above, a bucket ends at each power of two."""
LIMITS = np.array([*range(EXACT + 1), *(2**power for power in range(6, 32))], np.int64)
"""Largest lag of each bucket but the last, which has no bound."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

Counts = npt.NDArray[np.int64]


class Lag:
    """Lag of all valid rows trained so far: updates before the consuming one minus those before the policy that acted.

    Attributes:
        rows: Valid rows by bucket, int64 ``[len(LIMITS) + 1]``.
        max: The largest lag.

    Args:
        lineage: From versions to updates.
    """

    def __init__(self, lineage: Lineage | None = None) -> None:
        self._lineage = lineage or Lineage()
        self.rows: Counts = np.zeros(len(LIMITS) + 1, np.int64)
        self.max = 0
        self._sum = 0

    def add(self, version: int, versions: Versions) -> None:
        """Books a batch that is trained at ``version``. One row from a later policy than that counts as lag 0."""
        if not len(versions.values):
            return
        lags = np.maximum(self._lineage.updates(version) - self._lineage.updates(versions.values), 0)
        np.add.at(self.rows, np.searchsorted(LIMITS, lags), versions.rows)
        self._sum += int(lags @ versions.rows)
        self.max = max(self.max, int(lags[0]))

    @property
    def sum(self) -> int:
        """Of the lags of all rows."""
        return self._sum

    @property
    def mean(self) -> float:
        total = int(self.rows.sum())
        return self._sum / total if total else 0.0

    def status(self) -> dict[str, Any]:
        """For ``summary.json``: mean, maximum, quantiles, and the histogram: largest lag of a bucket -> rows."""
        rows = self.rows
        limits = [*LIMITS.tolist(), self.max]
        found = {
            f"policy_lag_{name}": min(self.max, limits[quantile(rows, share)]) for name, share in QUANTILES.items()
        }
        histogram = {str(limits[i]): int(rows[i]) for i in np.flatnonzero(rows)}
        return {"policy_lag_mean": self.mean, "policy_lag_max": self.max, **found, "policy_lag_histogram": histogram}


def quantile(rows: Counts, share: float) -> int:
    """The first bucket up to which at least ``share`` of the rows lie; 0 where there is no row."""
    return int(np.searchsorted(np.cumsum(rows), share * rows.sum())) if rows.any() else 0


def buckets(rows: Counts, largest: int) -> npt.NDArray[np.float64]:
    """As TensorBoard draws them: left edge, right edge and rows, float64 ``[K, 3]``, up to the last that has any."""
    last = int(np.flatnonzero(rows)[-1]) if rows.any() else 0
    right = np.array([*LIMITS.tolist(), max(largest, int(LIMITS[-1]) + 1)], np.float64)[: last + 1] + 0.5
    left = np.concatenate([[-0.5], right[:-1]])
    return np.stack([left, right, rows[: last + 1].astype(np.float64)], 1)
