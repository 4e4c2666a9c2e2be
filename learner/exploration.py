"""How much each environment explores. Pure functions of its place among those that train, or that evaluate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def epsilons(base: float, alpha: float, count: int) -> npt.NDArray[np.float32]:
    """Epsilons of ``count`` environments, float32 ``[count]``: base ^ (1 + alpha u), u evenly from 0 to 1.

    Ape-X (arXiv 1803.00933, section 4.1) and SEED R2D2. A single environment has u = 0.
    """
    u = np.arange(count) / max(count - 1, 1)
    return np.asarray(base ** (1.0 + alpha * u), np.float32)


@dataclass(frozen=True)
class Exploration:
    """The ``exploration`` of ``learner.distributions`` by environment.

    Attributes:
        training: float32 ``[K]``, the ladder; a training environment has the entry of its place, modulo K, so that
            adding or losing workers leaves the others as they are.
        evaluation: Of every evaluation environment; None: as the training environments explore together.
    """

    training: npt.NDArray[np.float32]
    evaluation: float | None = 0.0

    def of_training(self, places: Array) -> npt.NDArray[np.float32]:
        """float32 ``[n]`` of the training environments at these places, int ``[n]``."""
        return self.training[places % len(self.training)]

    def of_evaluation(self, count: int) -> npt.NDArray[np.float32]:
        """float32 ``[count]`` of all evaluation environments there are.

        Those that explore as training does stand in the middles of ``count`` equal parts of the ladder, so that few
        of them are a fair sample of it; a place between two entries has a value between theirs.
        """
        if self.evaluation is not None:
            return np.full(count, self.evaluation, np.float32)
        ladder = np.arange(len(self.training))
        places = (np.arange(count) + 0.5) * len(ladder) / max(count, 1) - 0.5
        return np.interp(places, ladder, self.training).astype(np.float32)

    def in_mode(self, mode: Literal["greedy", "sample"]) -> Exploration:
        """With evaluation environments that act in this mode of ``evaluation.mode``."""
        return self if mode == "greedy" else replace(self, evaluation=None)


SAMPLE = Exploration(np.ones(1, np.float32))
"""Of a stochastic policy: training environments sample, evaluation environments take the mode."""
