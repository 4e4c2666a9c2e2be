"""Wrappers: one makes an environment misbehave once when it is told to, the other one is slow and forks."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium

from tests.counter_env import fork, misbehave

LEAK = "leak"
FLAGS = "CHAOS_FLAGS"
"""Variable that names the folder of flags: a file by the name of a fault asks for it."""
STEP_SECONDS = "SOAK_STEP_SECONDS"
"""Variable that says what a step of ``Paced`` takes at least."""
FORK_STEPS = 1000
FATAL = ("raise", "hang", "hang_gil", "hang_reset", "exit", "segfault", "shape")
NON_FINITE = ("nan", "nan_reward")


class Faulty(gymnasium.Wrapper):
    """Whoever is first to remove the flag has the fault; ``hang_reset`` in a reset, the others in a step.

    A flag with a number after a dot is for environments of that process.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._flags, self._pid = os.environ[FLAGS], str(os.getpid())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        if "hang_reset" in os.listdir(self._flags) and self._take("hang_reset"):
            misbehave("hang_reset", observation, 0.0)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        for flag in os.listdir(self._flags):
            fault, _, pid = flag.partition(".")
            if fault != "hang_reset" and pid in ("", self._pid) and self._take(flag):
                observation, reward = misbehave(fault, observation, float(reward))
        return observation, reward, terminated, truncated, info

    def _take(self, fault: str) -> bool:
        try:
            os.unlink(os.path.join(self._flags, fault))
        except FileNotFoundError:  # another environment was faster
            return False
        return True


class Paced(gymnasium.Wrapper):
    """Its steps take time, and every thousandth step starts a process that ends at once."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._seconds, self._steps = float(os.environ[STEP_SECONDS]), 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._seconds:
            time.sleep(self._seconds)
        self._steps += 1
        if self._steps % FORK_STEPS == 0:
            fork()
        return self.env.step(action)
