"""What an env group steps: environments as one, whose results are checked. ``Singles`` and ``Native`` are such."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.spaces import Spaces

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]


class Finals(NamedTuple):
    """Final observations that came with their successors' reset observations.

    Attributes:
        environments: ``[k]`` indices, ascending.
        leaves: ``[k, *shape]`` per observation leaf.
    """

    environments: Indices
    leaves: list[Array]


class Stepped(NamedTuple):
    """What one step brought. Nothing of it changes before the next call.

    Attributes:
        leaves: Observations ``[n, *shape]`` per leaf, contiguous, in the space's dtype; where an episode ended and the
            next one begins in the same step, or an environment was made anew, its reset observation.
        reward: ``[n]``, in the environments' own precision.
        terminated: ``[n]``.
        truncated: ``[n]``.
        finals: Where the next episodes begin in the same step, the final observations of those that ended.
        renewed: ``[n]`` environments that failed in this step and were made anew; None where none did.
        life_lost: ``[n]`` environments that lost a life in this step; None where lives are not asked for.
    """

    leaves: list[Array]
    reward: Array
    terminated: Mask
    truncated: Mask
    finals: Finals | None = None
    renewed: Mask | None = None
    life_lost: Mask | None = None


class Vector(Protocol):
    """``n`` environments.

    Attributes:
        n: How many.
        spaces: Of one.
        next_step: An episode that ended is followed by a step that resets; else the next one begins in the same step.
    """

    n: int
    spaces: Spaces
    next_step: bool

    def reset(self, seeds: Array | None = None) -> list[Array]:
        """Begins all episodes: observations ``[n, *shape]`` per leaf.

        Args:
            seeds: int64 ``[n]``, where the run begins.

        Raises:
            BadResult: what came is not what it should be. And what the environment raises.
        """
        ...

    def reset_some(self, which: Mask, leaves: list[Array]) -> tuple[list[Array], Mask]:
        """Abandons the episodes of ``which`` (``[n]``).

        Args:
            which: At least one.
            leaves: The observations of all, before.

        Returns:
            The observations of all, and which environments begin an episode with them: all, where the vector
            environment cannot reset some.

        Raises:
            As ``reset``.
        """
        ...

    def step(self, actions: Array) -> Stepped:
        """One step of all.

        Args:
            actions: ``[n, *shape]`` in the action leaf's dtype, nobody else's.

        Raises:
            As ``reset``.
        """
        ...

    def close(self) -> None: ...
