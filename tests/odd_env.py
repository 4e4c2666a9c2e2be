"""Environments that return what others do not: shapes and types of rewards, flags and infos, their own buffers.

``tests.odd_env:Odd-v0``: observation (episode, step), float32 ``[2]``; the reward is 1. Episodes of ``length`` steps
end as ``ends`` says. ``OddVector-v0``: the same vectorized; the reward is the step.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

VALUES: dict[str, Any] = {
    "list": [1.0],
    "array": np.array([1.0]),
    "array11": np.array([[1.0]]),
    "array0": np.array(1.0),
    "float32": np.float32(1),
    "int": 1,
    "bool": True,
    "two": np.array([1.0, 2.0]),
    "ragged": [1.0, [2.0]],
    "empty": [],
    "none": None,
    "text": "1.0",
    "bytes": b"1",
    "complex": 1 + 0j,
    "object": object(),
    "mapping": {"reward": 1.0},
}
FLAGS: dict[str, Any] = {
    "bool": bool,
    "numpy": np.bool_,
    "int": int,
    "int8": np.int8,
    "list": lambda flag: [flag],
    "array": lambda flag: np.array([[flag]]),
    "two": lambda flag: np.array([flag, flag]),
    "none": lambda flag: None,
    "text": str,
    "seven": lambda flag: 7,
    "half": lambda flag: 0.5,
}


class Raising:
    """Whoever looks into it, fails."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("nobody may look into an info")

    def __len__(self) -> int:
        raise RuntimeError("nobody may look into an info")


def odd_info(kind: str, step: int, number: int) -> Any:
    """An info as no two steps of it go together."""
    return {
        "plain": {},
        "lengths": {"x": np.zeros(1 + step % 3 + number)},
        "types": {"x": [1.0, "text", None, {"a": 1}][(step + number) % 4]},
        "none": None,
        "final": {"final_obs": "mine", "final_info": 3, "final_observation": None},
        "raising": {"x": Raising(), "final_obs": Raising()},
        "list": [1, 2, 3],
    }[kind]


class OddEnv(gymnasium.Env):
    """One environment.

    Args:
        length: Steps of an episode.
        ends: ``terminated`` or ``truncated``.
        reward: One of ``VALUES``.
        flags: One of ``FLAGS``, for ``terminated`` or ``truncated`` as ``flagged`` says.
        flagged: Which of them.
        info: See ``odd_info``.
        buffer: Returns the same arrays at every step and reset: observation, reward and flags.
        interface: ``new``; ``old_reset``: reset returns an observation only; ``old_step``: step four values;
            ``nothing``: step returns None.
        odd_at: The step (of every episode) from which on reward and flags are odd.
        action: A Discrete's dtype name, or ``box`` for a Box of shape ().
        start: Of a Discrete.
        lives: At the start of an episode; each second step loses one. ``info["lives"]`` says how many; None: no lives.
    """

    metadata: ClassVar = {"render_modes": []}

    def __init__(
        self,
        length: int = 7,
        ends: str = "terminated",
        reward: str = "float32",
        flags: str = "bool",
        flagged: str = "terminated",
        info: str = "plain",
        buffer: bool = False,
        interface: str = "new",
        odd_at: int = 1,
        action: str = "int64",
        start: int = 0,
        lives: int | None = None,
    ) -> None:
        self.length, self.ends, self.buffer, self.interface = length, ends, buffer, interface
        self.reward, self.flags, self.flagged, self.info = VALUES[reward], FLAGS[flags], flagged, info
        self.odd_at, self.lives = odd_at, lives
        self.episode = self.steps = self.number = 0
        self.array, self.reward_array, self.flag_array = np.zeros(2, np.float32), np.zeros(1), np.zeros(1, bool)
        self.observation_space = spaces.Box(-1, 2**24, (2,), np.float32)
        self.action_space: Any = (
            spaces.Box(-1, 1, (), np.float32)
            if action == "box"
            else spaces.Discrete(3, start=start, dtype=np.dtype(action))
        )
        self.action_type = type(self.action_space.sample())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.number = seed % 7
        self.episode, self.steps = self.episode + 1, 0
        if self.interface == "old_reset":
            return self._observation()
        return self._observation(), self._info()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} of {type(action)}"
        assert type(action) is self.action_type and np.asarray(action).dtype == self.action_space.dtype
        self.steps += 1
        ended = self.steps >= self.length
        odd = self.steps >= self.odd_at
        flags = {"terminated": ended and self.ends == "terminated", "truncated": ended and self.ends == "truncated"}
        if odd:
            flags[self.flagged] = self.flags(flags[self.flagged])
        reward = self.reward if odd else 1.0
        if self.interface == "nothing":
            return None
        if self.interface == "old_step":
            return self._observation(), reward, ended, self._info()
        if self.buffer:
            self.reward_array[0], self.flag_array[0] = self.steps, ended
            name = self.ends
            return (
                self._observation(),
                self.reward_array,
                *(
                    self.flag_array if name == "terminated" else False,
                    self.flag_array if name == "truncated" else False,
                ),
                self._info(),
            )
        return self._observation(), reward, flags["terminated"], flags["truncated"], self._info()

    def _info(self) -> Any:
        if self.lives is not None:
            return {"lives": max(0, self.lives - self.steps // 2)}
        return odd_info(self.info, self.steps, self.number)

    def _observation(self) -> Any:
        if self.buffer:
            self.array[:] = self.episode, self.steps
            return self.array
        return np.array([self.episode, self.steps], np.float32)


class OddVectorEnv(VectorEnv):
    """Natively vectorized; whatever it returns are its own buffers, which it writes into at the next call.

    Args:
        final: How ``final_obs`` comes: ``copy``, or ``alias`` (the buffer that the observation is returned in).
        info: See ``odd_info``; where episodes end in SAME_STEP, ``final_obs`` is there too.
        reward: ``plain``, ``column`` (``[n, 1]``), ``object``, ``text``, ``short`` (one less).
        lives: As of ``OddEnv``.
    """

    def __init__(
        self,
        num_envs: int = 1,
        length: int = 7,
        autoreset_mode: str = "NextStep",
        ends: str = "terminated",
        final: str = "copy",
        info: str = "plain",
        reward: str = "plain",
        lives: int | None = None,
    ) -> None:
        self.num_envs, self.length, self.ends, self.final = num_envs, length, ends, final
        self.kind, self.reward, self.lives = info, reward, lives
        self.mode = AutoresetMode(autoreset_mode)
        self.metadata = {"autoreset_mode": self.mode}
        self.single_observation_space = spaces.Box(-1, 2**24, (2,), np.float32)
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.array, self.rewards = np.zeros((num_envs, 2), np.float32), np.zeros(num_envs)
        self.done, self.no = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        self.life = np.zeros(num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        mask = np.ones(self.num_envs, bool)
        if options is not None and self.mode == AutoresetMode.DISABLED:
            mask = options["reset_mask"].copy()
        self._begin(mask)
        self.done[mask], self.rewards[mask] = False, -100.0
        return self.array, self._info()

    def step(self, actions: Any) -> Any:
        reset = self.done.copy() if self.mode == AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        self._begin(reset)
        self.array[~reset, 1] += 1
        self.rewards[:] = self.array[:, 1]
        self.done[:] = (self.array[:, 1] >= self.length) & ~reset
        info = self._info()
        if self.mode == AutoresetMode.SAME_STEP and self.done.any():
            info = dict(info) if isinstance(info, dict) else {}
            info["final_obs"] = self.array if self.final == "alias" else self.array.copy()
            self._begin(self.done)
        flags = (self.done, self.no) if self.ends == "terminated" else (self.no, self.done)
        return self.array, self._reward(), *flags, info

    def _reward(self) -> Any:
        return {
            "plain": self.rewards,
            "column": self.rewards[:, None],
            "object": self.rewards.astype(object),
            "text": self.rewards.astype(str),
            "short": self.rewards[1:],
        }[self.reward]

    def _info(self) -> Any:
        if self.lives is not None:
            self.life[:] = np.maximum(0, self.lives - self.array[:, 1].astype(np.int64) // 2)
            return {"lives": self.life}
        return odd_info(self.kind, int(self.array[0, 1]), 0)

    def _begin(self, mask: Any) -> None:
        self.array[mask, 0] += 1
        self.array[mask, 1] = 0


gymnasium.register("Odd-v0", entry_point=OddEnv, max_episode_steps=1000)
gymnasium.register("OddVector-v0", vector_entry_point=OddVectorEnv)
