"""An env group: environments whose steps are rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.errors import SeedmqError
from workers.rows import RowBuilder, StepRows, non_finite
from workers.vector import Mask, Vector

Array = npt.NDArray[Any]


class NonFinite(SeedmqError):
    """A NaN or infinite reward or observation that is not to be dropped.

    Attributes:
        environment: Which one, within the group (``shifted``: within the worker).
    """

    def __init__(self, environment: int, text: str) -> None:
        super().__init__(text)
        self.environment = environment

    def shifted(self, offset: int) -> NonFinite:
        """The same, named from ``offset`` on."""
        return NonFinite(self.environment + offset, str(self))


class Counters(NamedTuple):
    """A group's counters: see ``RowBuilder``; ``non_finite`` counts environments abandoned for it."""

    taken: int
    masked: int
    dropped: int
    non_finite: int


class Group:
    """``n`` environments stepped together.

    Attributes:
        vector: The environments.
        n: How many.
        spaces: Of one environment.
        rows: Counters.
        drop_non_finite: Abandon episodes that are not finite, instead of failing.
        non_finite: How many were.
        made: Told how many transitions a step has made, as soon as the environments have come back from it.
    """

    def __init__(self, vector: Vector, drop_non_finite: bool = False) -> None:
        self.vector, self.n, self.spaces = vector, vector.n, vector.spaces
        self.rows = RowBuilder(self.n)
        self.drop_non_finite = drop_non_finite
        self.non_finite = 0
        self.made: Callable[[int], None] = lambda transitions: None
        self._action_dtype = self.spaces.action.numpy_dtype
        self._action_shape = (self.n, *self.spaces.action.shape)

    def reset(self, seeds: Array) -> StepRows:
        """Begins the run: int64 seeds ``[n]``.

        Raises:
            BadResult: what an environment returned is not what it should be. NonFinite. And what environments raise.
        """
        leaves = self.vector.reset(seeds)
        bad = non_finite(leaves, np.zeros(self.n, np.float32))
        if bad is not None:
            if not self.drop_non_finite:
                raise NonFinite(int(np.flatnonzero(bad)[0]), "the observation of a reset is not finite")
            leaves, _ = self._reset_some(bad, leaves)
        return self.rows.reset(leaves)

    def abandon(self, _: None = None) -> StepRows:
        """Begins new episodes everywhere, in the midst of the run.

        Raises:
            As ``reset``.
        """
        leaves = self.vector.reset()
        _check_finite(leaves, self.n)
        return self.rows.abandon(leaves)

    def step(self, buffer: Any) -> StepRows:
        """One step.

        Args:
            buffer: Actions ``[n, *shape]`` in the action leaf's dtype; its length is checked by the caller.

        Raises:
            As ``reset``.
        """
        # Copied, for environments that write into their actions.
        actions = np.frombuffer(buffer, self._action_dtype).reshape(self._action_shape).copy()
        stepped = self.vector.step(actions)
        renewed = 0 if stepped.renewed is None else int(np.count_nonzero(stepped.renewed))
        self.made(self.rows.stepping - renewed)
        leaves, finals, reward = stepped.leaves, stepped.finals, _float32(stepped.reward)
        bad, abandoned = non_finite(leaves, reward), None
        if finals is not None:
            lost = non_finite(finals.leaves, np.zeros(len(finals.environments)))
            if lost is not None:
                bad = np.zeros(self.n, np.bool_) if bad is None else bad
                bad[finals.environments[lost]] = True
        if bad is not None:
            if not self.drop_non_finite:
                raise self._not_finite(int(np.flatnonzero(bad)[0]), reward)
            leaves, abandoned = self._reset_some(bad, leaves)
        if self.vector.next_step:
            return self.rows.next_step(stepped._replace(leaves=leaves), abandoned)
        return self.rows.same_step(stepped._replace(leaves=leaves), abandoned)

    def _not_finite(self, environment: int, reward: Array) -> NonFinite:
        """What of this environment's step was not finite."""
        value = float(reward[environment])
        what = "an observation is not finite" if np.isfinite(value) else f"the reward is {value}"
        done = int(self.rows.index[environment])
        way = "environment.non_finite: drop abandons such episodes"
        return NonFinite(environment, f"{what}, {done} transitions after its start ({way})")

    def counters(self) -> Counters:
        """What was counted so far."""
        rows = self.rows
        return Counters(rows.taken, rows.masked, rows.dropped, self.non_finite)

    def close(self) -> None:
        """Closes the environments."""
        self.vector.close()

    def _reset_some(self, bad: Mask, leaves: list[Array]) -> tuple[list[Array], Mask]:
        """Abandons the episodes of ``bad``; all observations, and who begins an episode."""
        which = np.flatnonzero(bad)
        self.non_finite += len(which)
        after, began = self.vector.reset_some(bad, leaves)
        _check_finite(after, self.n)
        return after, began


def _check_finite(leaves: list[Array], n: int) -> None:
    if (bad := non_finite(leaves, np.zeros(n, np.float32))) is not None:
        raise NonFinite(int(np.flatnonzero(bad)[0]), "the observation of a reset is not finite")


def _float32(reward: Array) -> Array:
    if reward.dtype == np.float32:
        return reward
    with np.errstate(over="ignore"):
        return reward.astype(np.float32)
