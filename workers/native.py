"""An environment's own vectorized version as a ``workers.vector.Vector``.

What it returns may be its own buffers, which its next ``step`` or ``reset`` writes into. Observations are passed on as
they are, since a group's rows are answered before it steps again; everything else that is kept is copied. Of its info
nothing is read but ``final_obs``, where episodes begin in the step that ends others, and the lives that are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode

from workers.scalars import REAL, BadObservation, all_lives_of, flags_of, parts_of, rewards_of, words
from workers.spaces import flatten, leaf_paths, spaces_of
from workers.vector import Array, Finals, Mask, Stepped
from workers.watched import warn_dtype

SeedStyle = Literal["int", "array"]


class Native:
    """See ``Vector``.

    Args:
        environment: A gymnasium ``VectorEnv``.
        seed_style: What its ``reset`` takes as seeds.
        resets_some: Its ``reset`` understands ``options={"reset_mask": ...}``.
        observation_space: Of one environment, where leaves are to be reshaped to it (the number of bytes is equal).
        counts_lives: Reads ``info["lives"]``.
    """

    def __init__(
        self,
        environment: Any,
        seed_style: SeedStyle,
        resets_some: bool,
        observation_space: Any | None = None,
        counts_lives: bool = False,
    ) -> None:
        space = environment.single_observation_space if observation_space is None else observation_space
        self.environment = environment
        self.n = int(environment.num_envs)
        self.spaces = spaces_of(space, environment.single_action_space)
        self.mode = AutoresetMode(environment.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.next_step = self.mode == AutoresetMode.NEXT_STEP
        self._seed_style, self._resets_some = seed_style, resets_some
        self._reshape = observation_space is not None
        self._paths = leaf_paths(space)
        self._dtypes = [np.dtype(leaf.dtype) for leaf in self.spaces.observation]
        self._lives = np.zeros(self.n, np.int64) if counts_lives else None

    def reset(self, seeds: Array | None = None) -> list[Array]:
        """See ``Vector``."""
        if seeds is None:
            return self._reset()
        return self._reset(seed=int(seeds[0]) if self._seed_style == "int" else seeds)

    def reset_some(self, which: Mask, leaves: list[Array]) -> tuple[list[Array], Mask]:
        """See ``Vector``."""
        if not self._resets_some:
            return self._reset(), np.ones(self.n, np.bool_)
        before = [leaf.copy() for leaf in leaves]
        after = self._reset(which)
        for new, old in zip(after, before, strict=True):  # not every one reports the others' observations again
            new[~which] = old[~which]
        return after, which

    def step(self, actions: Array) -> Stepped:
        """See ``Vector``."""
        observation, reward, terminated, truncated, info = parts_of(
            self.environment, "step", self.environment.step(actions), 5
        )
        leaves, reward = self._leaves(observation), rewards_of(reward, self.n)
        terminated, truncated = flags_of("terminated", terminated, self.n), flags_of("truncated", truncated, self.n)
        life_lost = None if self._lives is None else self._count(all_lives_of(info, self.n))
        finals = None
        if not self.next_step and np.count_nonzero(done := terminated | truncated):
            finals, leaves = self._finals(done, observation, leaves, info)
        return Stepped(leaves, reward, terminated, truncated, finals, None, life_lost)

    def close(self) -> None:
        """Closes the environment."""
        self.environment.close()

    def _reset(self, which: Mask | None = None, seed: Any = None) -> list[Array]:
        """All observations, after a reset of ``which``, or of all."""
        chosen: dict[str, Any] = {} if which is None else {"options": {"reset_mask": which.copy()}}
        seeded = {} if seed is None else {"seed": seed}
        observation, info = parts_of(self.environment, "reset", self.environment.reset(**seeded, **chosen), 2)
        if self._lives is not None:
            which = np.ones(self.n, np.bool_) if which is None else which
            known = isinstance(info, Mapping) and "lives" in info
            self._lives[which] = all_lives_of(info, self.n)[which] if known else 0
        return self._leaves(observation)

    def _count(self, lives: Array) -> Mask | None:
        assert self._lives is not None
        lost: Mask = lives < self._lives
        self._lives[:] = lives
        return lost if np.count_nonzero(lost) else None

    def _finals(self, done: Mask, observation: Any, leaves: list[Array], info: Any) -> tuple[Finals, list[Array]]:
        """Final observations, and all observations after the resets."""
        ended = np.flatnonzero(done)
        if self.mode == AutoresetMode.DISABLED:
            finals = Finals(ended, [leaf[ended] for leaf in leaves])
            return finals, self._reset(done)
        final = info.get("final_obs") if isinstance(info, Mapping) else None
        if final is None:
            raise BadObservation(f"environment {ended[0]} ended without a final_obs, though it resets in the same step")
        if isinstance(final, np.ndarray) and final.dtype == object:
            each = [self._flat(final[i]) for i in ended]
            parts = [_stacked([np.asarray(one[k]) for one in each]) for k in range(len(self._paths))]
            sources = [leaf for one in each for leaf in one]
        else:
            sources = self._flat(final)
            parts = [np.asarray(leaf)[ended] for leaf in sources]
        if _overlap(sources, self._flat(observation)):
            raise BadObservation(
                "final_obs is the array that the observation is returned in, so it shows how the next episode begins: "
                "the environment has to copy it"
            )
        return Finals(ended, self._fitted(parts, len(ended))), leaves

    def _flat(self, observation: Any) -> list[Any]:
        try:
            return flatten(observation, self._paths)
        except (KeyError, IndexError, TypeError) as error:
            raise BadObservation(f"the observation has no leaf {error} that its space has") from error

    def _leaves(self, observation: Any) -> list[Array]:
        return self._fitted(self._flat(observation), self.n)

    def _fitted(self, leaves: list[Any], n: int) -> list[Array]:
        """Each leaf ``[n, *shape]``, contiguous, in its space's dtype."""
        fitted = []
        for value, leaf, dtype in zip(leaves, self.spaces.observation, self._dtypes, strict=True):
            array = np.asarray(value)
            if array.dtype != dtype:
                if array.dtype.kind not in REAL:
                    raise BadObservation(f"observation {leaf.path!r} is {words(array)}, its space says {leaf.dtype}")
                warn_dtype(leaf.path, array.dtype, leaf.dtype)
                array = array.astype(dtype)
            shape = (n, *leaf.shape)
            if array.shape != shape:
                if not self._reshape or array.size != np.prod(shape):
                    raise BadObservation(
                        f"observation {leaf.path!r} has shape {array.shape[1:]}, its space says {leaf.shape}"
                    )
                array = array.reshape(shape)
            fitted.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
        return fitted


def _stacked(parts: list[Array]) -> Array:
    try:
        return np.stack(parts)
    except ValueError as error:
        raise BadObservation(f"final observations differ in shape: {error}") from error


def _overlap(some: list[Any], others: list[Any]) -> bool:
    arrays = [x for x in others if isinstance(x, np.ndarray)]
    return any(np.shares_memory(x, y) for x in some if isinstance(x, np.ndarray) for y in arrays)
