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
import numpy.typing as npt

from pipeline.rows import FIRST, NO_REPLY, ROW, TERMINATED, TRUNCATED

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


class StepRows(NamedTuple):
    """The payload of one STEP message.

    Attributes:
        records: ``ROW`` records ``[m]``: rows without a reply first, then one per environment.
        leaves: Observation leaves ``[m, *shape]``, contiguous, in the space's dtype.
    """

    records: Array
    leaves: list[Array]


class Finals(NamedTuple):
    """Final observations that came with their successors' reset observations.

    Attributes:
        environments: ``[k]`` indices, ascending.
        leaves: ``[k, *shape]`` per observation leaf.
    """

    environments: npt.NDArray[np.intp]
    leaves: list[Array]


class RowBuilder:
    """Counts and flags the rows of one env group of ``n`` environments.

    What it returns is overwritten by its next call: a group's message is answered before the group steps again.

    Attributes:
        taken: Valid transitions taken, dropped ones included.
        masked: Rows whose successor is no valid transition: final rows and the last rows of abandoned episodes.
        dropped: Transitions dropped here (non-finite).
        index: ``[n]`` valid transitions completed per environment.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.taken = 0
        self.masked = 0
        self.dropped = 0
        self.index = np.zeros(n, np.int64)
        self._return = np.zeros(n, np.float64)
        self._length = np.zeros(n, np.int64)
        self._pending = np.zeros(n, np.bool_)  # NEXT_STEP: ended, the next row is FIRST
        self._records = np.zeros(n, ROW)
        self._records["environment"] = np.arange(n)

    def reset(self, leaves: list[Array]) -> StepRows:
        """Rows of the run's first observations: all FIRST."""
        self._records["flags"] = FIRST
        for name in ("reward", "index", "episode_return", "episode_length"):
            self._records[name] = 0
        return StepRows(self._records, leaves)

    def abandon(self, leaves: list[Array]) -> StepRows:
        """Rows of new episodes in the midst of a run: FIRST, without final rows before them; the index goes on."""
        self.masked += self.n
        self._return[:], self._length[:], self._pending[:] = 0, 0, False
        self._records["flags"] = FIRST
        self._records["index"] = self.index
        for name in ("reward", "episode_return", "episode_length"):
            self._records[name] = 0
        return StepRows(self._records, leaves)

    def next_step(
        self, leaves: list[Array], reward: Array, terminated: Mask, truncated: Mask, abandoned: Mask | None = None
    ) -> StepRows:
        """Rows of one step of a NEXT_STEP environment.

        Args:
            leaves: Observations ``[n, *shape]`` per leaf.
            reward: ``[n]``, finite where not abandoned.
            terminated: ``[n]``.
            truncated: ``[n]``.
            abandoned: ``[n]`` environments that were reset because this step was not finite: ``leaves`` holds their
                reset observations; None where there are none.
        """
        started = self._pending
        if abandoned is not None:
            self._drop(abandoned & ~started)
            started = started | abandoned
        going = ~started
        done = (terminated | truncated) & going
        # Environments may report a reset's reward, and flags that still stand: a FIRST row has neither.
        reward = np.where(going, reward, 0)
        self._advance(going, reward)
        records = self._records
        records["flags"] = TERMINATED * (terminated & going) + TRUNCATED * (truncated & going) + FIRST * started
        self._fill(records, reward, done)
        self._pending = done
        return StepRows(records, leaves)

    def same_step(
        self,
        leaves: list[Array],
        reward: Array,
        terminated: Mask,
        truncated: Mask,
        *,
        finals: Finals | None,
        abandoned: Mask | None = None,
    ) -> StepRows:
        """Rows of one step after which ended environments stand at their reset observations already.

        Args:
            leaves: Observations ``[n, *shape]`` per leaf, of the new episode where one ended.
            reward: ``[n]``, of the step that ended the episode where one ended.
            terminated: ``[n]``.
            truncated: ``[n]``.
            finals: Final observations of the environments that ended; None where none did.
            abandoned: As in ``next_step``.
        """
        if abandoned is None and finals is None:
            self._advance(None, reward)
            self._records["flags"] = 0
            self._fill(self._records, reward, None)
            return StepRows(self._records, leaves)
        left = np.zeros(self.n, np.bool_) if abandoned is None else abandoned
        self._drop(left)
        going, done = ~left, (terminated | truncated) & ~left
        reward = np.where(going, reward, 0)
        self._advance(going, reward)
        ended = np.flatnonzero(done)
        final = np.zeros(len(ended), ROW)
        final["environment"] = ended
        final["flags"] = NO_REPLY + (TERMINATED * terminated + TRUNCATED * truncated)[ended]
        self._fill(final, reward[ended], None, ended)
        final["episode_return"], final["episode_length"] = self._return[ended], self._length[ended]
        self._return[done] = 0
        self._length[done] = 0
        self.masked += len(ended)
        self._records["flags"] = FIRST * (done | left)
        self._fill(self._records, np.where(done, 0, reward), None)
        if not len(ended) or finals is None:
            return StepRows(self._records, leaves)
        rows = np.searchsorted(finals.environments, ended)
        joined = [np.concatenate([f[rows], leaf]) for f, leaf in zip(finals.leaves, leaves, strict=True)]
        return StepRows(np.concatenate([final, self._records]), joined)

    def _drop(self, lost: Mask) -> None:
        """Transitions whose observation or reward is unusable: taken, and dropped at once."""
        number = int(np.count_nonzero(lost))
        self.taken += number
        self.dropped += number

    def _advance(self, going: Mask | None, reward: Array) -> None:
        """Completes a transition where ``going`` (None: everywhere), begins an episode elsewhere."""
        if going is None:
            self.index += 1
            self._length += 1
            self._return += reward
            self.taken += self.n
            return
        number = int(np.count_nonzero(going))
        self.taken += number
        self.masked += self.n - number
        self.index += going
        self._return += reward
        self._length += 1
        if number < self.n:
            self._return *= going
            self._length *= going

    def _fill(self, records: Array, reward: Array, done: Mask | None, at: Any = slice(None)) -> None:
        records["reward"] = reward
        records["index"] = self.index[at]
        if done is None:
            records["episode_return"] = 0
            records["episode_length"] = 0
        else:
            records["episode_return"] = self._return * done
            records["episode_length"] = self._length * done


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
        if not finite.all():
            mine = ~finite.reshape(len(values), -1).all(axis=1)
            bad = mine if bad is None else bad | mine
    return bad
