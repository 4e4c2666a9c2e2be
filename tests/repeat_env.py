"""An environment whose return tells how much its policy explores, whatever the policy is."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Array = np.ndarray[Any, np.dtype[Any]]


class RepeatEnv(gymnasium.Env):
    """Nothing to see and two actions; reward 1 for one that is the same as the one before, and for the first.

    Args:
        length: Steps of an episode.
    """

    def __init__(self, length: int = 20) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
        self._length, self._steps, self._last = length, 0, -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps, self._last = 0, -1
        return np.ones(2, np.float32), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward = float(self._last in (-1, int(action)))
        self._steps, self._last = self._steps + 1, int(action)
        return np.ones(2, np.float32), reward, self._steps >= self._length, False, {}


gymnasium.register("Repeat-v0", RepeatEnv, disable_env_checker=True)
