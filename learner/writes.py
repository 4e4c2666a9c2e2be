"""Writes to the run directory that training can go on without: a full disk is counted and said, and tried again.

The last checkpoint of a run is none of these: ``learner.service`` raises what kept it from being written.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.errors import UnwrittenError

log = logging.getLogger(__name__)

COMPLAINT_SECONDS = 60.0


class Writes:
    """Failed writes by name. Any thread.

    Args:
        directory: The run's, for what is said.
        clock: Monotonic seconds.
    """

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: Counter[str] = Counter()
        self._failing: dict[str, str] = {}  # name -> why, of those whose last try failed
        self._complained: dict[str, float] = {}

    def attempt(self, name: str, write: Callable[[], object]) -> bool:
        """Whether the file system took it.

        Raises:
            Exception: whatever ``write`` raises but OSError and UnwrittenError.
        """
        try:
            write()
        except (OSError, UnwrittenError) as error:
            self._note(name, str(error))
            return False
        with self._lock:
            recovered = self._failing.pop(name, None) is not None
        if recovered:
            log.info("%s: written again", name)
        return True

    def status(self) -> dict[str, Any]:
        """For ``summary.json``: failures by name, and why the last try failed where it did; empty without a failure."""
        with self._lock:
            return {"failed_writes": dict(self._failed), "failing": dict(self._failing)} if self._failed else {}

    def _note(self, name: str, why: str) -> None:
        now = self._clock()
        with self._lock:
            self._failed[name] += 1
            self._failing[name] = why
            silent = now - self._complained.get(name, -COMPLAINT_SECONDS) < COMPLAINT_SECONDS
            if not silent:
                self._complained[name] = now
            number = self._failed[name]
        if not silent:
            risk = "what is trained since the last one is at risk, " if name == "checkpoint" else ""
            log.error(
                "%s: not written (%d times so far): %s; make room in %s: training goes on, %sand it is tried again",
                name,
                number,
                why,
                self._directory,
                risk,
            )
