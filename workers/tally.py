"""What a worker has counted over all its children: read at any moment by the threads that serve its metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from workers.block import At, Block, Of, Phase

Name = At | Of
ADDED: tuple[Name, ...] = (Of.TAKEN, Of.MASKED, Of.DROPPED, At.RECONNECTS, At.BUSY, At.ACTIONS)
"""What a block has of its child's counters; no two have the same number."""


class Counted(NamedTuple):
    """See ``pipeline.metrics.catalogue``.

    Attributes:
        numbers: Of all children together.
        faults: Kind -> number.
        restarts: Children after the first.
        phase: What the present child does, and for how many seconds; None where there is none.
    """

    numbers: Mapping[Name, int]
    faults: Mapping[str, int]
    restarts: int
    phase: tuple[Phase, float] | None


class _State(NamedTuple):
    ended: Mapping[Name, int]
    faults: Mapping[str, int]
    children: int
    block: Block | None


class Tally:
    """The supervisor's thread tells it what begins and ends, as one value each time: no reader sees half of it."""

    def __init__(self) -> None:
        self._state = _State(dict.fromkeys(ADDED, 0), {}, 0, None)

    def begins(self, block: Block) -> None:
        """A child was started."""
        self._state = self._state._replace(children=self._state.children + 1, block=block)

    def ends(self, faults: Mapping[str, int]) -> None:
        """It has ended; ``faults`` are now those of all children."""
        state = self._state
        self._state = state._replace(ended=_sum(state), faults=dict(faults), block=None)

    @property
    def block(self) -> Block | None:
        """The present child's."""
        return self._state.block

    @property
    def pid(self) -> int | None:
        """The present child's; None before its environments' process is there."""
        block = self.block
        return None if block is None else int(block.numbers[At.PID]) or None

    def read(self) -> Counted:
        """So far. Any thread."""
        state = self._state
        faults, phase = Counter(state.faults), None
        if state.block is not None:
            faults.update(state.block.faults())
            now = time.monotonic()
            phase = (state.block.phase, max(0.0, now - (state.block.since_seconds or now)))
        return Counted(_sum(state), faults, max(0, state.children - 1), phase)


def _sum(state: _State) -> dict[Name, int]:
    block = state.block
    return {name: number + (0 if block is None else _counted(block, name)) for name, number in state.ended.items()}


def _counted(block: Block, name: Name) -> int:
    return block.count(name) if isinstance(name, Of) else int(block.numbers[name])
