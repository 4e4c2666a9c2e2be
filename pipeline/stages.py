"""Stages of the data path: how many seconds each was busy, and for what it waited the rest.

    environments -> broker -> inference -> writer -> (store) -> feed -> training

A stage is one thread's loop. It says what it does whenever that changes, once or twice per batch and never per row;
who reports reads the seconds of an interval as shares of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

BUSY = "busy"
# What a stage waits for.
ACTIONS = "actions"  # environments: inference's answer
MESSAGES = "messages"  # broker: anybody
REQUESTS = "requests"  # inference: environments
UNROLLS = "unrolls"  # writer: inference; feed: the store has none, or the limiter lets none be sampled
ROOM = "room"  # inference: the writer's backlog is full; writer: the store is; feed: the prefetched batches are
BATCHES = "batches"  # training: the feed
STORE = "store"  # training: the store's answer to an acknowledgement
CHECKPOINT = "checkpoint"  # training: the checkpoint is written

NAMES = ("environments", "broker", "inference", "writer", "feed", "training")
"""In the order of the flow. Writer and feed are both sides of the store."""

Seconds = dict[str, float]
Shares = Mapping[str, Mapping[str, float]]
"""Stage -> what it did -> share of its time, 0 to 1."""


class Stage:
    """Seconds of one stage by what it did: entered by one thread, or added to by one, and read by any.

    No lock, as a loop enters twice per message: an entry is one tuple, and what it says goes before what is booked.

    Args:
        name: One of ``NAMES``.
        clock: Monotonic seconds.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self._seconds: Seconds = {}
        self._entry: tuple[str | None, float, float] = (None, 0.0, 0.0)  # what it does, since when, its seconds by then

    def enter(self, doing: str | None) -> float:
        """From now on it does this: ``BUSY``, or what it waits for; None: its loop has ended. Returns now."""
        now = self._clock()
        seconds = self._seconds
        before, since, spent = self._entry
        if before is not None:
            seconds[before] = spent + now - since
        self._entry = (doing, now, 0.0 if doing is None else seconds.get(doing, 0.0))
        return now

    def add(self, busy_share: float, waits_for: str, seconds: float) -> None:
        """Books what was measured elsewhere: of so many seconds, this share was busy. Not beside ``enter``."""
        for doing, share in ((BUSY, busy_share), (waits_for, 1.0 - busy_share)):
            self._seconds[doing] = self._seconds.get(doing, 0.0) + share * seconds

    def seconds(self) -> Seconds:
        """So far, with what goes on."""
        doing, since, spent = self._entry  # first: what is booked meanwhile is of the same entry, or of one after it
        seconds = dict(self._seconds)
        if doing is not None:
            seconds[doing] = spent + self._clock() - since
        return seconds


class Meter:
    """Shares of stages by interval; belongs to the thread that reports.

    Args:
        stages: Which.
    """

    def __init__(self, stages: Iterable[Stage]) -> None:
        self._stages = list(stages)
        self._before = self._first = {stage.name: stage.seconds() for stage in self._stages}

    def begin(self) -> None:
        """The run begins: ``total`` counts from the last ``interval`` on."""
        self._first = self._before

    def interval(self) -> Shares:
        """Since the last call; without stages of which nothing is known."""
        now = {stage.name: stage.seconds() for stage in self._stages}
        found = {name: shares(seconds, self._before[name]) for name, seconds in now.items()}
        self._before = now
        return {name: share for name, share in found.items() if share}

    def total(self) -> Shares:
        """Since ``begin``."""
        found = {stage.name: shares(stage.seconds(), self._first[stage.name]) for stage in self._stages}
        return {name: share for name, share in found.items() if share}


def shares(seconds: Mapping[str, float], before: Mapping[str, float] | None = None) -> dict[str, float]:
    """Shares of the time since ``before``, which add up to 1; empty where there was none."""
    spent = {doing: max(0.0, value - (before or {}).get(doing, 0.0)) for doing, value in seconds.items()}
    whole = sum(spent.values())
    return {doing: value / whole for doing, value in spent.items() if value > 0.0} if whole > 0.0 else {}


def in_order(shares: Mapping[str, Any]) -> list[str]:
    """Names of stages, in the order of the flow; none that is not of it."""
    return [name for name in NAMES if name in shares]
