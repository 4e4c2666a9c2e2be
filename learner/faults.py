"""Faults of workers' environments, as their reports count them. Owned by the inference thread."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping

from pipeline.protocol import Report

REMEMBERED_WORKERS = 4096
MAX_KINDS = 32
OTHER = "other"


class WorkerFaults:
    """Adds up what each worker counts from 0 whenever its process begins.

    Attributes:
        newest: Whose the newest fault is, and in words; empty before the first.
    """

    def __init__(self) -> None:
        self.newest = ""
        self._total: Counter[str] = Counter()
        self._heard: OrderedDict[str, Mapping[str, int]] = OrderedDict()

    def hear(self, worker_id: str, report: Report) -> None:
        """Takes a worker's counts, and its last fault in words. What has fallen was counted anew."""
        before, faults = self._heard.get(worker_id, {}), report.faults
        if faults != before and report.message:
            self.newest = f"{worker_id}: {report.message}"
        for kind, number in faults.items():
            known = kind if kind in self._total or len(self._total) < MAX_KINDS else OTHER
            was = before.get(kind, 0)
            if number:
                self._total[known] += number - was if number >= was else number
        if faults or before:
            self._heard[worker_id] = faults
            self._heard.move_to_end(worker_id)
        if len(self._heard) > REMEMBERED_WORKERS:
            self._heard.popitem(last=False)

    def total(self) -> dict[str, int]:
        """Kind -> number, of all workers since this learner began."""
        return dict(self._total)
