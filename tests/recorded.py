"""A wrapper that writes down what an environment began with and what it was told."""

from __future__ import annotations

import os
from typing import Any

import gymnasium


class Recorded(gymnasium.Wrapper):
    """Adds a line to the file that ``RECORDED`` names at each reset: ``seed observation actions``.

    The actions are those of the episode before it in the same environment; a word that would be empty is ``-``.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._file = os.open(os.environ["RECORDED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._actions = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        words = ("-" if seed is None else str(seed), observation.tobytes().hex(), self._actions or "-")
        os.write(self._file, f"{' '.join(words)}\n".encode())
        self._actions = ""
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._actions += str(int(action))
        return self.env.step(action)
