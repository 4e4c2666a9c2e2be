"""How much each environment explores. Pure functions of its slot."""

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
    """The ``exploration`` of ``learner.distributions`` by slot.

    Attributes:
        training: float32 ``[K]``; slot s of a training environment has entry ``s mod K``, so that adding or losing
            workers leaves the others as they are.
        evaluation: Of every evaluation environment; None: as if it trained.
    """

    training: npt.NDArray[np.float32]
    evaluation: float | None = 0.0

    def of(self, slots: Array, evaluation: Array | bool) -> npt.NDArray[np.float32]:
        """float32 ``[n]`` of int ``slots`` ``[n]``; ``evaluation`` is a bool for all or bool ``[n]``."""
        training = self.training[slots % len(self.training)]  # take(mode="wrap") counts down one length at a time
        if self.evaluation is None or evaluation is False:
            return training
        return np.where(evaluation, np.float32(self.evaluation), training)

    def in_mode(self, mode: Literal["greedy", "sample"]) -> Exploration:
        """With evaluation environments that act in this mode of ``evaluation.mode``."""
        return self if mode == "greedy" else replace(self, evaluation=None)


SAMPLE = Exploration(np.ones(1, np.float32))
"""Of a stochastic policy: training environments sample, evaluation environments take the mode."""
