"""``tests.wavering_env:Wavering-v0``: nothing is to be learnt, and a return says whether one action was kept."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Wavering(gymnasium.Env):
    """Every observation is 1. A step pays 1 for action 1 and -1 for action 0, in half of the episodes the other way.

    Who takes the same action all the time gets ``length`` or ``-length``.

    Args:
        length: Steps of an episode.
        frame_skip: Frames per step, of which nothing depends.
    """

    def __init__(self, length: int = 100, frame_skip: int = 1) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._length, self._step, self._sign = length, 0, 1.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step, self._sign = 0, float(self.np_random.choice([-1.0, 1.0]))
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return np.ones(1, np.float32), self._sign * (2.0 * action - 1.0), self._step == self._length, False, {}


gymnasium.register("Wavering-v0", Wavering, kwargs={"frame_skip": 1})
