"""Real processes of a test are found by the temporary folder that each of them has in its environment."""

from __future__ import annotations

from pathlib import Path

import psutil


def processes_of(temporary: Path) -> dict[int, str]:
    """Processes that have ``temporary`` as ``TMPDIR`` or work in it, whoever their parent is: pid -> command line."""
    found = {}
    for process in psutil.process_iter():
        try:
            # A server that sets its own title has written over its environment; it works in the folder.
            places = (process.environ().get("TMPDIR", ""), process.cwd())
            if any(place.startswith(str(temporary)) for place in places):
                found[process.pid] = " ".join(process.cmdline())
        except (psutil.Error, OSError):
            # Ended since, or somebody else's.
            continue
    return found
