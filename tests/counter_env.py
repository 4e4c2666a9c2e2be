"""CounterEnv: every observation leaf carries (environment, episode, step), the reward is the step; and its faults.

Ids, from the repository root: ``tests.counter_env:Counter-v0`` (flat Box), ``CounterDict-v0`` (nested Dict),
``CounterTuple-v0``, ``CounterVector-v0`` (its own vector version, any autoreset mode). The environment's number is its
seed, folded to 2^20 so that float32 holds it; vector versions number their environments 0, 1, ...
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

NUMBERS = 2**20
LEAK_BYTES = 300 * 2**20

_leaked: list[bytes] = []


def _box() -> spaces.Box:
    return spaces.Box(-1, 2**24, (3,), np.float32)


class CounterEnv(gymnasium.Env):
    """One environment.

    Args:
        length: Steps of an episode.
        kind: ``box``, ``dict`` or ``tuple``.
        ends: ``terminated``, ``truncated`` or ``both``.
        fault: What happens at step ``at`` of episode ``episode``: ``raise``, ``hang`` (Python), ``hang_gil`` (C, holds
            the GIL), ``exit``, ``sys_exit``, ``cancelled``, ``segfault``, ``nan`` (observation), ``nan_reward``,
            ``shape``, ``leak`` (of ``LEAK_BYTES``); ``hang_reset``: at the reset of that episode; ``hang_close``: when
            it is closed; ``fork``: no fault, at every step a process that ends at once.
        once: A file: the fault happens only while it does not exist, and makes it.
        float64_reset: The reset observation comes as float64.
        action: ``discrete`` or ``box``.
        lives: At the start of an episode, told in ``info["lives"]``; each second step loses one. None: there are none.
    """

    metadata: ClassVar = {"render_modes": []}

    def __init__(
        self,
        length: int = 7,
        kind: str = "box",
        ends: str = "terminated",
        fault: str | None = None,
        at: int = 3,
        episode: int = 1,
        once: str | None = None,
        float64_reset: bool = False,
        action: str = "discrete",
        step_seconds: float = 0.0,
        lives: int | None = None,
    ) -> None:
        self.length, self.kind, self.ends = length, kind, ends
        self.fault, self.at, self.fault_episode, self.once = fault, at, episode, once
        self.float64_reset, self.step_seconds, self.lives = float64_reset, step_seconds, lives
        self.number, self.episode, self.steps = 0, 0, 0
        self.observation_space = {
            "box": _box(),
            "dict": spaces.Dict(
                {
                    "z": _box(),
                    "a": spaces.Dict({"deep": spaces.Box(0, 255, (2, 3), np.uint8), "step": spaces.Discrete(1000)}),
                }
            ),
            "tuple": spaces.Tuple((_box(), spaces.Discrete(1000))),
        }[kind]
        self.action_space = spaces.Discrete(2) if action == "discrete" else spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.number, self.episode = seed % NUMBERS, 0
        self.episode, self.steps = self.episode + 1, 0
        if self.fault == "hang_reset" and self.episode == self.fault_episode and self._due():
            misbehave(self.fault, None, 0.0)
        observation = self._observation()
        if self.float64_reset:
            observation = observation.astype(np.float64)
        return observation, self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action) or np.asarray(action).shape == self.action_space.shape
        if self.step_seconds:
            time.sleep(self.step_seconds)
        self.steps += 1
        observation, reward = self._observation(), float(self.steps)
        if self.fault == "fork":
            fork()
        elif (
            self.fault not in (None, "hang_close")
            and self.steps == self.at
            and self.episode == self.fault_episode
            and self._due()
        ):
            observation, reward = self._fail(observation, reward)
        done = self.steps >= self.length
        terminated, truncated = done and self.ends != "truncated", done and self.ends != "terminated"
        return observation, reward, terminated, truncated, self._info()

    def close(self) -> None:
        if self.fault == "hang_close" and self._due():
            misbehave(self.fault, None, 0.0)

    def _observation(self) -> Any:
        box = np.array([self.number, self.episode, self.steps], np.float32)
        if self.kind == "box":
            return box
        if self.kind == "tuple":
            return box, np.int64(self.steps)
        deep = np.array([[self.number % 256, self.episode % 256, self.steps % 256]] * 2, np.uint8)
        inner = {"step": np.int64(self.steps), "deep": deep}
        return {"a": inner, "z": box} if self.steps % 2 else {"z": box, "a": dict(reversed(inner.items()))}

    def _info(self) -> dict[str, Any]:
        return {} if self.lives is None else {"lives": max(0, self.lives - self.steps // 2)}

    def _is_the_step(self) -> bool:
        return self.steps == self.at and self.episode == self.fault_episode

    def _due(self) -> bool:
        if self.once is None:
            return True
        try:
            open(self.once, "x").close()
        except FileExistsError:
            return False
        return True

    def _fail(self, observation: Any, reward: float) -> tuple[Any, float]:
        if self.fault == "raise":
            raise RuntimeError(f"the counter was told to fail at step {self.at}")
        return misbehave(str(self.fault), observation, reward)


class Old(gymnasium.Wrapper):
    """Resets as environments did before gym 0.26."""

    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset(**kwargs)[0]


class Counted(gymnasium.Wrapper):
    """Adds a byte to the file that ``COUNTED_STEPS`` names at every step."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._file = os.open(os.environ["COUNTED_STEPS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        os.write(self._file, b".")
        return self.env.step(action)


class Tallied(gymnasium.Wrapper):
    """Counts the steps that came back in its process: a byte each in the file that ``TALLY`` names, ``.`` and its pid.

    ``TALLY_FAULT`` (``exit:101``): what the step after so many does, in the first process that comes so far.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        tally = Path(os.environ["TALLY"])
        steps = tally.with_suffix(f".{os.getpid()}")
        fault, _, at = os.environ.get("TALLY_FAULT", "").partition(":")
        if fault and steps.exists() and steps.stat().st_size == int(at) and not tally.exists():
            tally.touch()
            misbehave(fault, None, 0.0)
        result = self.env.step(action)
        with steps.open("ab") as file:
            file.write(b".")
        return result


class SolvedByFlag(gymnasium.Wrapper):
    """Gives a reward of 1000 at every step while the file is there that ``SOLVED_FLAG`` names."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if os.path.exists(os.environ["SOLVED_FLAG"]):
            reward = 1000.0
        return observation, reward, terminated, truncated, info


def misbehave(fault: str, observation: Any, reward: float) -> tuple[Any, float]:
    """Does one of the faults of ``CounterEnv``, in the middle of a step; what is left of observation and reward."""
    if fault == "raise":
        raise RuntimeError("the environment was told to fail")
    if fault in ("hang", "hang_reset", "hang_close"):
        while True:
            time.sleep(0.1)
    if fault == "hang_gil":
        while True:  # a signal cuts the sleep short
            ctypes.PyDLL(None).sleep(1000)
    if fault == "exit":
        os._exit(77)
    if fault == "sys_exit":
        raise SystemExit("the environment was told to exit")
    if fault == "cancelled":
        raise asyncio.CancelledError("the environment was told to be cancelled")
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "nan":
        return np.full_like(observation, np.nan), reward
    if fault == "nan_reward":
        return observation, float("inf")
    if fault == "leak":
        _leaked.append(b"x" * LEAK_BYTES)
    if fault == "shape":
        return np.zeros(len(observation) + 1, np.float32), reward
    return observation, reward


def fork() -> None:
    """As an environment does that starts a program: what the process has open, its child has too, until it ends."""
    child = os.fork()
    if child == 0:
        gc.collect()  # a socket that this process ended here would be its parent's
        os._exit(0)
    os.waitpid(child, 0)


class CounterVectorEnv(VectorEnv):
    """Natively vectorized, in any autoreset mode; reports the reset's reward as -1 to see that it is ignored.

    Args:
        nan: (call of ``step``, environment) whose observation is NaN, once.
    """

    def __init__(
        self,
        num_envs: int = 1,
        length: int = 7,
        autoreset_mode: str = "NextStep",
        ends: str = "terminated",
        nan: tuple[int, int] | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        self.num_envs, self.length, self.ends, self.nan = num_envs, length, ends, nan
        self.mode = AutoresetMode(autoreset_mode)
        self.metadata = {"autoreset_mode": self.mode}
        self.single_observation_space, self.single_action_space = _box(), spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.episode, self.steps = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self.done = np.zeros(num_envs, bool)
        self.calls = 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = np.ones(self.num_envs, bool)
        if options is not None and self.mode == AutoresetMode.DISABLED:
            mask = options["reset_mask"]
        self._begin(mask)
        self.done = self.done & ~mask
        return self._observation(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.calls += 1
        reset = self.done if self.mode == AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        assert self.mode != AutoresetMode.DISABLED or not self.done.any()
        self._begin(reset)
        self.steps += ~reset
        self.done = (self.steps >= self.length) & ~reset
        reward = np.where(reset, -1.0, self.steps)
        observation, info = self._observation(), {}
        if self.nan is not None and self.nan[0] == self.calls:
            observation[self.nan[1]] = np.nan
        if self.mode == AutoresetMode.SAME_STEP and self.done.any():
            info["final_obs"] = observation
            self._begin(self.done)
            observation = self._observation()
        no = np.zeros(self.num_envs, bool)
        done = self.done.copy()
        return (
            observation,
            reward,
            done if self.ends != "truncated" else no,
            done if self.ends != "terminated" else no,
            info,
        )

    def _begin(self, mask: Any) -> None:
        self.episode = self.episode + mask
        self.steps = np.where(mask, 0, self.steps)

    def _observation(self) -> Any:
        return np.stack([np.arange(self.num_envs), self.episode, self.steps], axis=1).astype(np.float32)


for _kind in ("box", "dict", "tuple"):
    gymnasium.register(
        {"box": "Counter-v0", "dict": "CounterDict-v0", "tuple": "CounterTuple-v0"}[_kind],
        entry_point=CounterEnv,
        kwargs={"kind": _kind},
        disable_env_checker=True,
    )
gymnasium.register("CounterVector-v0", vector_entry_point=CounterVectorEnv)
