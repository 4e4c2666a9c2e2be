"""What tests say to ``seedmq run``, and what they see of it."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from pipeline.run_dir import RunDirectory


def settings(*values: str) -> list[str]:
    """``--set`` for each ``key=value``."""
    return [word for value in values for word in ("--set", value)]


def processor_seconds() -> float:
    """What children of this process that have ended have used, and theirs: their seconds where nothing else runs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def summary(directory: Path) -> dict[str, Any]:
    """``summary.json`` of a run directory; empty before it is first written."""
    return RunDirectory(directory).read_summary() or {}
