"""What tests say to ``seedmq run``, and what they see of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.run_dir import RunDirectory


def settings(*values: str) -> list[str]:
    """``--set`` for each ``key=value``."""
    return [word for value in values for word in ("--set", value)]


def summary(directory: Path) -> dict[str, Any]:
    """``summary.json`` of a run directory; empty before it is first written."""
    return RunDirectory(directory).read_summary() or {}
