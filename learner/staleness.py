"""Which unrolls are too old to train on (``training.max_lag``), and whose they are. A state machine.

To drop what is stale drops slow environments: they come to be trained on less than others. So drops are counted by
worker, and once a minute the share of its unrolls that each worker keeps is compared.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from learner.lineage import Lineage
from pipeline.rows import worker_of

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]

LARGEST_SKEW = 2.0
WINDOW_SECONDS = 60.0
LEAST_UNROLLS = 10  # of a worker in a window, for a share to be compared
SHOWN_WORKERS = 32


class Staleness:
    """Judges unrolls, and keeps the count. ``judge`` on the prefetch thread, ``status`` on any.

    Args:
        max_lag: Updates; an unroll whose oldest valid row acted longer ago is stale.
        lineage: From versions to updates.
        now: A monotonic time in seconds.
    """

    def __init__(self, max_lag: int, lineage: Lineage, now: float) -> None:
        self._max_lag, self._lineage = max_lag, lineage
        self._lock = threading.Lock()
        self._dropped: dict[int, int] = defaultdict(int)  # worker -> valid transitions
        self._window: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # worker -> unrolls that came, and were kept
        self._window_ends = now + WINDOW_SECONDS
        self._skew = 1.0

    def judge(self, unrolls: Mapping[str, Array], updates: int, now: float) -> npt.NDArray[np.bool_]:
        """Which are stale, bool ``[n]``. One without a valid row is not: there is nothing old in it.

        Args:
            unrolls: Fields as ``UnrollLayout.view``: ``environment`` ``[n]``, ``version`` ``[n, T + 1]``, ``valid``
                ``[n, T]``.
            updates: Those before the one that is to consume them.
            now: Seconds.
        """
        valid = unrolls["valid"].astype(bool)
        oldest = np.where(valid, unrolls["version"][:, :-1], np.iinfo(np.int64).max).min(axis=1)
        stale: npt.NDArray[np.bool_] = updates - self._lineage.updates(oldest) > self._max_lag
        with self._lock:
            for environment, gone, number in zip(unrolls["environment"], stale, valid.sum(axis=1), strict=True):
                worker = worker_of(int(environment))
                seen = self._window[worker]
                seen[0] += 1
                seen[1] += not gone
                if gone:
                    self._dropped[worker] += int(number)
            if now >= self._window_ends:
                self._compare(now)
        return stale

    def status(self) -> dict[str, Any]:
        """For ``summary.json``: valid transitions dropped by worker (those with most), and the last minute's skew."""
        with self._lock:
            most = sorted(self._dropped.items(), key=lambda entry: -entry[1])[:SHOWN_WORKERS]
            return {"dropped_by_worker": {str(worker): n for worker, n in most}, "skew": self._skew}

    def _compare(self, now: float) -> None:
        """Ends a window: the largest kept share divided by the smallest (at least one unroll's)."""
        shares = {w: max(1, kept) / came for w, (came, kept) in self._window.items() if came >= LEAST_UNROLLS}
        self._window.clear()
        self._window_ends = now + WINDOW_SECONDS
        self._skew = 1.0
        if not shares:
            return
        least, most = min(shares, key=lambda w: shares[w]), max(shares, key=lambda w: shares[w])
        self._skew = shares[most] / shares[least]
        if self._skew > LARGEST_SKEW:
            log.warning(
                "training.max_lag = %d drops unevenly: worker %d keeps %.0f %% of its unrolls, worker %d %.0f %%; "
                "raise it, or slow environments are trained on less",
                self._max_lag,
                least,
                100 * shares[least],
                most,
                100 * shares[most],
            )
