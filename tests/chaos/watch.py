"""What is measured while faults go on: leaks of every process, and whether the task is solved."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import psutil

from pipeline.launch.processes import LEARNER
from tests.chaos.pipeline import Pipeline

INTERVAL_SECONDS = 3.0
WARM_SECONDS = 20.0
"""A process has all that it needs for its work when it is so old."""
MAX_DESCRIPTORS = 16
MAX_BYTES = 64 * 2**20
"""What a process may grow by after that."""
SOLVED_RETURN, SOLVED_EPISODES = 475.0, 100
ROLES = ("learner", "broker", "worker", "spawn_main", "server")


class Size(NamedTuple):
    descriptors: int
    memory_bytes: int


class Watch:
    """``look`` is called often, and looks now and then."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._next = 0.0
        self._sizes: dict[tuple[int, float], tuple[str, Size, Size]] = {}
        self._learner = (0, 0.0, -1)  # pid, since, episodes that others before it finished
        self._trains_since = math.inf
        self.solved = False
        self.best_return = 0.0

    def look(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + INTERVAL_SECONDS
            self._learn()
            self._measure()

    def growth(self) -> dict[str, Size]:
        """By role: what the process that grew most has grown by since it was warm."""
        found: dict[str, Size] = {}
        for role, first, last in self._sizes.values():
            grown = Size(*(after - before for before, after in zip(first, last, strict=True)))
            found[role] = Size(*map(max, grown, found.get(role, grown)))
        return found

    def leaks(self) -> list[str]:
        return [
            f"a process of {role} grew by {size.descriptors} descriptors and {size.memory_bytes / 2**20:.0f} MiB"
            for role, size in self.growth().items()
            if size.descriptors > MAX_DESCRIPTORS or size.memory_bytes > MAX_BYTES
        ]

    def _measure(self) -> None:
        for pid, command in self._pipeline.processes().items():
            if pid in self._pipeline.leaking:
                continue
            try:
                process = psutil.Process(pid)
                key = (pid, begun := process.create_time())
                size = Size(process.num_fds(), process.memory_info().rss)
            except psutil.Error:
                continue  # ended since
            role = next((role for role in ROLES if role in command), None)
            if role == LEARNER:
                begun = max(begun, self._trains_since)  # what it traces comes late on a busy machine
            if role is not None and time.time() - begun > WARM_SECONDS:
                self._sizes[key] = (role, self._sizes.get(key, (role, size, size))[1], size)

    def _learn(self) -> None:
        """Solved: the mean of so many episodes, all of them reported to one learner process."""
        pid = self._pipeline.alive().get(LEARNER, 0)
        if pid != self._learner[0]:
            self._learner = (pid, time.time(), -1)
            self._trains_since = math.inf
        _, since, before = self._learner
        summary = self._pipeline.summary(since)
        if summary and before < 0:
            self._learner = (pid, since, summary["episodes"])
            self._trains_since = time.time()
        elif summary and summary["episodes"] >= before + SOLVED_EPISODES:
            self.best_return = max(self.best_return, summary["episode_return_mean"] or 0.0)
            self.solved = self.best_return >= SOLVED_RETURN
