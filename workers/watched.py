"""A single environment under watch: says which one is about to run, and what it returned that its space forbids."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from workers.spaces import flatten, leaf_paths, spaces_of

log = logging.getLogger(__name__)

Mark = Callable[[int, bool], None]
"""Called with the environment's index and whether it is reset (or made), before the call into it."""


class BadObservation(Exception):
    """An observation that does not fit its space; an environment fault."""


class Watched(gymnasium.Wrapper):  # type: ignore[misc]
    """The outermost wrapper of each environment of gymnasium's SyncVectorEnv."""

    def __init__(self, environment: Any, index: int, mark: Mark | None) -> None:
        super().__init__(environment)
        self._index = index
        self._mark = mark
        self._leaves = spaces_of(environment.observation_space, environment.action_space).observation
        self._paths = leaf_paths(environment.observation_space)
        self._expected = [(np.dtype(leaf.dtype), leaf.shape) for leaf in self._leaves]
        self._warned = False

    def reset(self, **kwargs: Any) -> Any:
        if self._mark is not None:
            self._mark(self._index, True)
        observation, info = self.env.reset(**kwargs)
        self._check(observation)
        return observation, info

    def step(self, action: Any) -> Any:
        if self._mark is not None:
            self._mark(self._index, False)
        result = self.env.step(action)
        self._check(result[0])
        return result

    def _check(self, observation: Any) -> None:
        try:
            leaves = flatten(observation, self._paths)
        except (KeyError, IndexError, TypeError) as error:
            raise BadObservation(f"the observation has no leaf {error} that its space has") from error
        for position, (value, (dtype, shape)) in enumerate(zip(leaves, self._expected, strict=True)):
            if isinstance(value, np.ndarray) and value.dtype == dtype and value.shape == shape:
                continue
            self._odd(position, np.asarray(value))

    def _odd(self, position: int, value: Any) -> None:
        leaf = self._leaves[position]
        if value.shape != leaf.shape:
            raise BadObservation(f"observation {leaf.path!r} has shape {value.shape}, its space says {leaf.shape}")
        if leaf.kind == "box" and value.dtype != leaf.dtype and not self._warned:
            self._warned = True
            warn_dtype(leaf.path, value.dtype, leaf.dtype)


_warned: set[str] = set()


def warn_dtype(path: str, got: Any, expected: str) -> None:
    """One warning per leaf and process."""
    if path not in _warned:
        _warned.add(path)
        log.warning("observation %r comes as %s and is cast to its space's %s", path, got, expected)
