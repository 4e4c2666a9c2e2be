"""``run.max_seconds``: it bounds a run over its crashes and resumes, also where no environment ever takes a step."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.elapsed import elapsed_seconds, reached
from pipeline.errors import ComponentError

log = logging.getLogger(__name__)


class TimeLimit:
    """The run's time: from the first environment step of each process to its end. Until then a process's wait for it.

    Args:
        seconds: ``run.max_seconds``.
        first_step: Reads when the first environment step of this process was (monotonic seconds), once there was one.
        clock: Monotonic seconds.
    """

    def __init__(
        self, seconds: float | None, first_step: Callable[[], float | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._first_step = first_step
        self._clock = clock
        self._before = 0.0
        self._waits_since: float | None = None

    def resume(self, *told: Mapping[str, Any] | None) -> float:
        """Takes, from what earlier processes say, the time that they had; gives it."""
        self._before = elapsed_seconds(*told)
        if self.over():
            log.warning("%s", reached(self._seconds, self._before))
        return self._before

    def wait(self) -> None:
        """From now on this process is ready, and waits for environments."""
        self._waits_since = self._clock()

    def elapsed(self) -> float:
        """Of the run."""
        since = self._first_step() or self._waits_since
        return self._before + (0.0 if since is None else self._clock() - since)

    def over(self) -> bool:
        """Whether the run has had all of it."""
        return self.elapsed() >= self._seconds

    def untrained(self, what: str, fault: str, bottleneck: Mapping[str, Any] | None) -> ComponentError:
        """A run whose time is over before its first update is no success.

        Args:
            what: There was instead.
            fault: The newest of an environment; empty where there was none.
            bottleneck: See ``pipeline.bottleneck.to_wire``.
        """
        why = f"the last fault of {fault}" if fault else bottleneck["why"] if bottleneck else "it is not known why"
        return ComponentError(f"run.max_seconds = {self._seconds:g} is over, {what}: {why}")
