"""A single environment under watch: says when it is about to run, and takes of what it returns what is read, checked.

Observations are copied into rows that are not its own, so it may return the same buffer every time. Of its info nothing
is read, unless lives are asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workers.scalars import REAL, BadObservation, flag_of, lives_of, parts_of, reward_of, unconventional, words
from workers.spaces import flatten, leaf_paths, spaces_of

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Mark = Callable[[int, bool], None]
"""Called with the environment's index and whether it is reset (or made), before the call into it."""


class Outcome(NamedTuple):
    """Of a step, beside its observation; ``life_lost`` is False where lives are not asked for."""

    reward: float
    terminated: bool
    truncated: bool
    life_lost: bool


class Watched:
    """One environment.

    Args:
        environment: A gymnasium environment, with its wrappers.
        index: Within its group.
        mark: Told what is about to run.
        counts_lives: Reads ``info["lives"]``.

    Attributes:
        environment: As given.
        spaces: Of it.
    """

    def __init__(self, environment: Any, index: int, mark: Mark | None, counts_lives: bool = False) -> None:
        self.environment = environment
        self.spaces = spaces_of(environment.observation_space, environment.action_space)
        self._index, self._mark, self._counts_lives = index, mark, counts_lives
        self._paths = leaf_paths(environment.observation_space)
        self._expected = [(np.dtype(leaf.dtype), leaf.shape) for leaf in self.spaces.observation]
        self._lives = 0
        self._looked = False

    def reset(self, rows: Sequence[Array], seed: int | None = None) -> None:
        """Begins an episode; ``rows`` get its observation: a writable ``[*shape]`` for each leaf.

        Raises:
            BadResult: what it returned is not what it should be. EnvironmentFailure: it follows another convention. And
                what the environment raises.
        """
        if self._mark is not None:
            self._mark(self._index, True)
        try:
            result = self.environment.reset(**({} if seed is None else {"seed": seed}))
        except ValueError as error:
            if "to unpack (expected 2" in str(error):  # a wrapper did
                raise unconventional(self.environment, "reset", "no pair") from error
            raise
        observation, info = parts_of(self.environment, "reset", result, 2)
        exact = self._store(observation, rows)
        if not self._looked and exact:
            self._compare(observation)
        self._looked = True
        if self._counts_lives:
            self._lives = lives_of(info) if isinstance(info, Mapping) and "lives" in info else 0

    def step(self, action: Any, rows: Sequence[Array]) -> Outcome:
        """One step; ``rows`` get its observation.

        Raises:
            As ``reset``.
        """
        if self._mark is not None:
            self._mark(self._index, False)
        try:
            result = self.environment.step(action)
        except ValueError as error:
            if "to unpack (expected 5, got 4" in str(error):
                raise unconventional(self.environment, "step", "a tuple of 4") from error
            raise
        observation, reward, terminated, truncated, info = parts_of(self.environment, "step", result, 5)
        self._store(observation, rows)
        lost = self._counts_lives and self._life_lost(lives_of(info))
        return Outcome(reward_of(reward), flag_of("terminated", terminated), flag_of("truncated", truncated), lost)

    def close(self) -> None:
        self.environment.close()

    def _life_lost(self, lives: int) -> bool:
        before, self._lives = self._lives, lives
        return lives < before

    def _store(self, observation: Any, rows: Sequence[Array]) -> bool:
        """Whether each leaf was an array of its space's dtype and shape."""
        exact = True
        try:
            leaves = flatten(observation, self._paths)
        except (KeyError, IndexError, TypeError) as error:
            raise BadObservation(f"the observation has no leaf {error} that its space has") from error
        for position, (value, (dtype, shape)) in enumerate(zip(leaves, self._expected, strict=True)):
            if isinstance(value, np.ndarray) and value.dtype == dtype and value.shape == shape:
                rows[position][...] = value
            else:
                rows[position][...] = self._odd(position, value)
                exact = False
        return exact

    def _odd(self, position: int, value: Any) -> Array:
        leaf = self.spaces.observation[position]
        try:
            array = np.asarray(value)
        except Exception as error:  # an object of somebody else's: anything may come
            raise BadObservation(f"observation {leaf.path!r} is {words(value)}: {error}") from error
        if array.dtype.kind not in REAL:
            raise BadObservation(f"observation {leaf.path!r} is {words(value)}, its space says {leaf.dtype}")
        if array.shape != leaf.shape:
            raise BadObservation(f"observation {leaf.path!r} has shape {array.shape}, its space says {leaf.shape}")
        if leaf.kind == "box" and array.dtype != leaf.dtype:
            warn_dtype(leaf.path, array.dtype, leaf.dtype)
        return array

    def _compare(self, observation: Any) -> None:
        """Warns of a first observation that its space does not contain: its bounds are wrong, or it is."""
        space = self.environment.observation_space
        if not space.contains(observation):
            warn_once("outside", "the first observation lies outside of its space %s", space)


_warned: set[str] = set()


def warn_once(key: str, text: str, *arguments: Any) -> None:
    """One warning per key and process."""
    if key not in _warned:
        _warned.add(key)
        log.warning(text, *arguments)


def warn_dtype(path: str, got: Any, expected: str) -> None:
    """One warning per leaf and process."""
    warn_once(path, "observation %r comes as %s and is cast to its space's %s", path, got, expected)
