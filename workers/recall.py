"""``workers.recall:Recall-v0``: a task that only memory solves, for testing recurrent agents.

One of k cues is shown in the first observation of an episode alone. ``delay`` steps later the agent must name it: the
reward is 1 for the right action in that step, else 0, and the episode ends. Actions in between do nothing. Without
memory the mean return is 1/k, whatever the policy (unless it is fed its own previous actions, which can carry the cue).

Observations are float32 ``[k + 1]``: the cue one-hot, zeros later; the last element is 1 in the row that is answered.
An episode has ``delay + 1`` steps.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

Array = npt.NDArray[Any]
Seed = int | list[int | None] | None


def _spaces(cues: int, delay: int) -> tuple[Box, Discrete[np.int64]]:
    if cues < 2 or delay < 1:
        raise ValueError(f"recall needs cues from 2 and delay from 1, not {cues} and {delay}")
    return Box(0.0, 1.0, (cues + 1,), np.float32), Discrete(cues)


class RecallVectorEnv(VectorEnv[Array, Array, Array]):  # type: ignore[misc]
    """``num_envs`` of them as one array program; finished ones begin anew in the next step (``NEXT_STEP``).

    Args:
        num_envs: How many.
        cues: k.
        delay: Steps between the cue and its question.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, cues: int = 4, delay: int = 20) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = _spaces(cues, delay)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._cues, self._delay = cues, delay
        self._cue = np.zeros(num_envs, np.int64)
        self._step = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: Seed = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begins all episodes, or those of ``options["reset_mask"]``; one seed serves all."""
        if isinstance(seed, list):
            raise ValueError("recall takes one seed for all its environments")
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self._begin(np.asarray(mask, np.bool_))
        return self._observation(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """See the module's text."""
        began, asked = self._ended.copy(), self._step == self._delay
        reward = (~began & asked & (np.asarray(actions) == self._cue)).astype(np.float64)
        self._step += 1
        self._begin(began)
        self._ended = ~began & asked
        return self._observation(), reward, self._ended.copy(), np.zeros(self.num_envs, np.bool_), {}

    def _begin(self, mask: Array) -> None:
        self._cue[mask] = self.np_random.integers(0, self._cues, int(mask.sum()))
        self._step[mask] = 0
        self._ended[mask] = False

    def _observation(self) -> Array:
        observation = np.zeros((self.num_envs, self._cues + 1), np.float32)
        shown = np.flatnonzero(self._step == 0)
        observation[shown, self._cue[shown]] = 1.0
        observation[:, -1] = self._step == self._delay
        return observation


class RecallEnv(gymnasium.Env[Array, np.int64]):  # type: ignore[misc]
    """One of them: ``RecallVectorEnv`` with a single environment.

    Args:
        cues: k.
        delay: Steps between the cue and its question.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, cues: int = 4, delay: int = 20) -> None:
        self._vector = RecallVectorEnv(1, cues, delay)
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begins an episode."""
        super().reset(seed=seed)
        observation, info = self._vector.reset(seed=None if seed is None else int(self.np_random.integers(2**31)))
        return observation[0], info

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """See the module's text."""
        observation, reward, terminated, truncated, info = self._vector.step(np.asarray([action]))
        return observation[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), info


gymnasium.register(
    "Recall-v0", entry_point="workers.recall:RecallEnv", vector_entry_point="workers.recall:RecallVectorEnv"
)
