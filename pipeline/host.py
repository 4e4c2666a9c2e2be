"""What this machine gives a process: memory, as the container's limits leave it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil

MEMORY_SHARE = 0.8
"""Of the memory, what may be planned with."""
_CGROUPS = Path("/sys/fs/cgroup")


class Memory(NamedTuple):
    """``nbytes`` of ``whose``: ``this host's`` or ``this container's`` memory."""

    nbytes: int
    whose: str


def memory() -> Memory:
    """What all processes here may have together."""
    total = psutil.virtual_memory().total
    limits = [limit for path in _limits() if (limit := _limit(path)) is not None and limit < total]
    return Memory(min(limits), "this container's") if limits else Memory(total, "this host's")


def _limits() -> list[Path]:
    """Files with a limit of this process' control groups, also of those above it; version 2, then 1."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    own = [Path(line.split(":", 2)[2].lstrip("/")) for line in lines if line.startswith("0::")]
    groups = [group for path in own for group in (path, *path.parents)]
    return [*(_CGROUPS / group / "memory.max" for group in groups), _CGROUPS / "memory/memory.limit_in_bytes"]


def _limit(path: Path) -> int | None:
    """What the file says; None where there is no limit, or no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
