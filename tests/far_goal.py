"""``FarGoal-v0``: a task whose numbers are large, as those of most tasks are before someone scales them.

A walker starts in the middle of a road of 25 places; the episode ends at one of its ends, the one that the observation
names. Each step costs 5, 100 steps at most: a random walk mostly returns -500, the straight way -55 to -65. An
observation is in units that nobody chose with a network in mind: position 5000 + 100 * place, and 3000 or 3200 where
the left or the right end is the goal.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

PLACES, MIDDLE = 25, 12

Seen = npt.NDArray[np.float32]


class FarGoal(gymnasium.Env[Seen, np.int64]):  # type: ignore[misc]
    """See the module's text."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._right = bool(self.np_random.integers(2))
        self._place = MIDDLE + int(self.np_random.integers(-1, 2))
        return self._seen(), {}

    def step(self, action):
        self._place = min(max(0, self._place + (1 if action == 1 else -1)), PLACES - 1)
        there = self._place == (PLACES - 1 if self._right else 0)
        return self._seen(), -5.0, there, False, {}

    def _seen(self) -> Seen:
        return np.array([5000.0 + 100.0 * self._place, 3200.0 if self._right else 3000.0], np.float32)


gymnasium.register("FarGoal-v0", FarGoal, max_episode_steps=100)
