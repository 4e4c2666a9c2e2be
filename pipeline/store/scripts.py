"""The Lua scripts beside this module, and what two stores read in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pipeline.store.interface import Insert, Put

INCLUDE = "-- include "


def script(name: str) -> str:
    """The text of ``NAME.lua``, with each line ``-- include OTHER`` replaced by ``OTHER.lua``."""
    lines = []
    for line in (Path(__file__).parent / f"{name}.lua").read_text("utf-8").splitlines():
        lines.append(script(line.removeprefix(INCLUDE)) if line.startswith(INCLUDE) else line)
    return "\n".join(lines)


def name_of(item: Put | Insert) -> str:
    """How ``runs.lua`` reads an item's name."""
    return f"{item.environment} {item.run} {item.row} {item.next_index} {item.valid}"


def read_runs(found: Mapping[bytes, bytes]) -> dict[tuple[int, int], int]:
    """What ``runs.lua`` keeps: (environment, run) -> next_index of its last item."""
    index = {}
    for environment, value in found.items():
        for put in value.split(b";"):
            run, _, next_index = put.split()
            index[int(environment), int(run)] = int(next_index)
    return index
