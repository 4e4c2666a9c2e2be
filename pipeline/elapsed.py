"""The time that a run has had, which ``run.max_seconds`` bounds: over its crashes and resumes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError


def elapsed_seconds(*told: Mapping[str, Any] | None) -> float:
    """From checkpoint and summary, whichever says more: of a learner that was killed the summary is younger.

    Raises:
        ConfigError: one says what is no time.
    """
    return max((_seconds(one.get("elapsed_seconds") or one.get("seconds") or 0.0) for one in told if one), default=0.0)


def _seconds(told: Any) -> float:
    if type(told) not in (int, float) or not 0 <= told < math.inf:
        raise ConfigError(
            f"elapsed_seconds = {told!r}, in the run's summary.json or in a checkpoint, is no time: put in the seconds "
            f"that the run has had, or 0"
        )
    return float(told)


def reached(limit: float, elapsed: float) -> str:
    """That a run has had its time, and how it goes on."""
    return (
        f"run.max_seconds = {limit:g}: the run has had {elapsed:.1f} s already; to go on with it give it more, "
        f"--set run.max_seconds={elapsed + limit:.0f}, or no limit, --set run.max_seconds=null"
    )
