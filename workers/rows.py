"""What a vector environment returns, as the rows of ``pipeline.rows``, for all three autoreset modes.

The final observation is always a row of its own. Environments that reset in the step after (NEXT_STEP) give it as an
ordinary row and its successor as FIRST; where the reset observation comes with the same step (SAME_STEP, and DISABLED
after our masked reset) the final rows stand before the reset rows of the same message and need no reply.

Pure: no zmq, threading or time, and no loop over environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.rows import FIRST, LIFE_LOST, NO_REPLY, ROW, TERMINATED, TRUNCATED
from workers.vector import Array, Indices, Mask, Stepped


class StepRows(NamedTuple):
    """The payload of one STEP message.

    Attributes:
        records: ``ROW`` records ``[m]``: rows without a reply first, then one per environment.
        leaves: Observation leaves ``[m, *shape]``, contiguous, in the space's dtype.
    """

    records: Array
    leaves: list[Array]


class RowBuilder:
    """Counts and flags the rows of one env group of ``n`` environments.

    What it returns is overwritten by its next call: a group's message is answered before the group steps again.

    Attributes:
        taken: Valid transitions taken, dropped ones included.
        masked: Rows whose successor is no valid transition: final rows and the last rows of abandoned episodes.
        dropped: Transitions dropped here (non-finite).
        index: ``[n]`` valid transitions completed per environment; stands in the records.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.taken = 0
        self.masked = 0
        self.dropped = 0
        self._return = np.zeros(n, np.float64)
        self._began = np.zeros(n, np.int64)  # the index where the episode began
        self._pending: Indices | None = None  # NEXT_STEP: ended, the next row is FIRST
        self._ones = np.ones(n, np.int64)
        self._records = np.zeros(n, ROW)
        self._records["environment"] = np.arange(n)
        self.index, self._reward, self._flags = (self._records[name] for name in ("index", "reward", "flags"))
        self._plain = True  # no record has flags, or an episode's return and length

    @property
    def stepping(self) -> int:
        """Environments that the next step steps: the others are reset by it."""
        return self.n if self._pending is None else self.n - len(self._pending)

    def reset(self, leaves: list[Array]) -> StepRows:
        """Rows of the run's first observations: all FIRST."""
        self.index[:], self._began[:] = 0, 0
        return self._all_first(leaves)

    def abandon(self, leaves: list[Array]) -> StepRows:
        """Rows of new episodes in the midst of a run: FIRST, without final rows before them; the index goes on."""
        self.masked += self.n
        self._return[:], self._began[:], self._pending = 0, self.index, None
        return self._all_first(leaves)

    def next_step(self, stepped: Stepped, abandoned: Mask | None = None) -> StepRows:
        """Rows of one step where episodes that ended begin anew in the next one.

        Args:
            stepped: Of n environments; rewards are finite where not abandoned.
            abandoned: ``[n]`` environments that were reset because this step was not finite: ``leaves`` holds their
                reset observations; None where there are none.
        """
        first = self._begun(self._pending, stepped.renewed, abandoned)
        self._complete(stepped.reward, first)
        ended = np.logical_or(stepped.terminated, stepped.truncated)
        if first is not None:
            ended[first] = False  # environments may report flags that still stand
        self._pending = None
        if np.count_nonzero(ended):
            self._pending = last = np.flatnonzero(ended)
            self._finish(self._records, last, stepped, last)
            self._plain = False
        if stepped.life_lost is not None:
            self._lose_lives(stepped.life_lost, first)
        return StepRows(self._records, stepped.leaves)

    def same_step(self, stepped: Stepped, abandoned: Mask | None = None) -> StepRows:
        """Rows of one step after which ended environments stand at their reset observations already.

        Args:
            stepped: Of n environments; ``reward`` is of the step that ended the episode where one ended.
            abandoned: As in ``next_step``.
        """
        first, finals, leaves = self._begun(None, stepped.renewed, abandoned), stepped.finals, stepped.leaves
        self._complete(stepped.reward, first)
        if stepped.life_lost is not None:
            self._lose_lives(stepped.life_lost, first)
        if finals is None:
            return StepRows(self._records, leaves)
        done = stepped.terminated | stepped.truncated
        if first is not None:
            done[first] = False
        ended = np.flatnonzero(done)
        if not len(ended):
            return StepRows(self._records, leaves)
        final = self._records[ended]
        self._finish(final, slice(None), stepped, ended)
        final["flags"] += NO_REPLY
        self.masked += len(ended)
        self._first(ended)
        rows = np.searchsorted(finals.environments, ended)
        joined = [np.concatenate([f[rows], leaf]) for f, leaf in zip(finals.leaves, leaves, strict=True)]
        return StepRows(np.concatenate([final, self._records]), joined)

    def _begun(self, pending: Indices | None, renewed: Mask | None, abandoned: Mask | None) -> Indices | None:
        """Environments whose rows begin an episode; what is abandoned in the midst of one is taken and dropped."""
        if renewed is None and abandoned is None:
            return pending
        begun = np.zeros(self.n, np.bool_)
        if pending is not None:
            begun[pending] = True
        if renewed is not None:
            begun |= renewed
        if abandoned is not None:
            lost = int(np.count_nonzero(abandoned & ~begun))
            self.taken += lost
            self.dropped += lost
            begun |= abandoned
        return np.flatnonzero(begun)

    def _all_first(self, leaves: list[Array]) -> StepRows:
        for name in ("reward", "episode_return", "episode_length"):
            self._records[name] = 0
        self._flags[:] = FIRST
        self._plain = False
        return StepRows(self._records, leaves)

    def _complete(self, reward: Array, first: Indices | None) -> None:
        """Completes a transition everywhere but in the environments ``first``, which begin an episode."""
        if not self._plain:
            for name in ("flags", "episode_return", "episode_length"):
                self._records[name] = 0
            self._plain = True
        if first is not None:  # environments may report a reset's reward, and what is abandoned may not be finite
            reward = reward.copy()
            reward[first] = 0
            self.index[first] -= 1
            self.taken -= len(first)
            self.masked += len(first)
        np.add(self.index, self._ones, out=self.index)
        np.add(self._return, reward, out=self._return)
        self._reward[:] = reward
        self.taken += self.n
        if first is not None:
            self._first(first)

    def _first(self, which: Indices) -> None:
        """These environments' rows begin an episode."""
        self._flags[which] = FIRST
        self._reward[which] = 0
        self._return[which] = 0
        self._began[which] = self.index[which]
        self._plain = False

    def _finish(self, records: Array, rows: Any, stepped: Stepped, ended: Indices) -> None:
        """Says in these rows of the records how the episodes of the environments ``ended`` have ended."""
        how = TERMINATED * stepped.terminated[ended] + TRUNCATED * stepped.truncated[ended]
        records["flags"][rows] |= how.astype(np.uint16)
        records["episode_return"][rows] = self._return[ended]
        records["episode_length"][rows] = self.index[ended] - self._began[ended]

    def _lose_lives(self, lost: Mask, first: Indices | None) -> None:
        """A life that is lost ends what is learnt, not the episode."""
        self._flags[lost] |= LIFE_LOST
        if first is not None:
            self._flags[first] = FIRST
        self._plain = False


def non_finite(leaves: Sequence[Array], reward: Array) -> Mask | None:
    """``[n]`` environments with a NaN or infinite reward or observation, or None where all are finite.

    Args:
        leaves: ``[n, *shape]`` per leaf; only floating leaves are looked at.
        reward: ``[n]`` as it will travel.
    """
    bad: Mask | None = None
    for values in (reward, *leaves):
        if values.dtype.kind != "f":
            continue
        finite = np.isfinite(values)
        if np.count_nonzero(finite) < finite.size:
            mine = ~finite.reshape(len(values), -1).all(axis=1)
            bad = mine if bad is None else bad | mine
    return bad
