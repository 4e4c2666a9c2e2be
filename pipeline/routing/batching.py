"""Batching by credit: what is pending, up to the credit, oldest first, at once or waiting a little for more rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.requests import StepRequest

Key = tuple[int, int]  # run, group


class Waiting(NamedTuple):
    """A request and when it came."""

    request: StepRequest
    arrived: float


class Batcher:
    """The requests that wait for one learner.

    At most one per (run, group): so the bound is the number of leased groups, and no batch holds a group twice.

    Attributes:
        rows: Of all that waits.
        arrived: When those that ``take`` gave last had come, in their order.
    """

    def __init__(self, min_rows: int = 1, max_wait_seconds: float = 0.0) -> None:
        self._min_rows = min_rows
        self._max_wait = max_wait_seconds
        self._waiting: OrderedDict[Key, Waiting] = OrderedDict()
        self.rows = 0
        self.arrived: Sequence[float] = ()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: StepRequest, now: float) -> bool:
        """Queues a request; False for a repeat of the one that waits, which changes nothing.

        Another sequence number of the same group replaces what waits, and goes to the end.
        """
        key = (request.run, request.group)
        old = self._waiting.get(key)
        if old is not None:
            if old.request.sequence == request.sequence:
                return False
            self.remove(*key)
        self._waiting[key] = Waiting(request, now)
        self.rows += request.rows
        return True

    def remove(self, run: int, group: int) -> Waiting | None:
        """Takes a group's waiting request out, if there is one."""
        waiting = self._waiting.pop((run, group), None)
        if waiting is not None:
            self.rows -= waiting.request.rows
        return waiting

    def sequence_of(self, run: int, group: int) -> int | None:
        """Sequence number of a group's waiting request."""
        waiting = self._waiting.get((run, group))
        return None if waiting is None else waiting.request.sequence

    def take(self, credit: int, full: int, now: float) -> list[StepRequest]:
        """The oldest requests of together at most ``credit`` rows, in order.

        A first request larger than the credit is given alone where the credit is the ``full`` batch; otherwise it waits
        for credit, and nothing younger passes it.
        """
        waiting = self._waiting
        if not waiting or credit <= 0:
            return []
        if self.rows < min(self._min_rows, credit) and now < self._oldest() + self._max_wait:
            return []
        if self.rows <= credit:
            whole, self.arrived = zip(*waiting.values(), strict=True)
            waiting.clear()
            self.rows = 0
            return list(whole)
        taken: list[StepRequest] = []
        came: list[float] = []
        left = credit
        while waiting:
            request, arrived = next(iter(waiting.values()))
            if request.rows > left and (taken or credit < full):
                break
            waiting.popitem(last=False)
            self.rows -= request.rows
            left -= request.rows
            taken.append(request)
            came.append(arrived)
            if left <= 0:
                break
        self.arrived = came
        return taken

    def deadline(self) -> float | None:
        """When what waits for ``min_rows`` is given out anyway; None where nothing does."""
        if not self._waiting or self.rows >= self._min_rows:
            return None
        return self._oldest() + self._max_wait

    def oldest_seconds(self, now: float) -> float:
        """How long the oldest request has waited."""
        return now - self._oldest() if self._waiting else 0.0

    def _oldest(self) -> float:
        return next(iter(self._waiting.values())).arrived
