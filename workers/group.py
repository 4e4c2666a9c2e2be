"""An env group: a vector environment whose observations are leaves and whose steps are rows."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from pipeline.errors import SeedmqError
from workers.rows import Finals, RowBuilder, StepRows, non_finite
from workers.spaces import flatten, leaf_paths, spaces_of
from workers.watched import BadObservation, warn_dtype

Array = npt.NDArray[Any]
SeedStyle = Literal["int", "list", "array"]


class NonFinite(SeedmqError):
    """A NaN or infinite reward or observation that is not to be dropped.

    Attributes:
        environment: Which one, within the group (``shifted``: within the worker).
    """

    def __init__(self, environment: int, text: str) -> None:
        super().__init__(text)
        self.environment = environment

    def shifted(self, offset: int) -> NonFinite:
        """The same, named from ``offset`` on."""
        return NonFinite(self.environment + offset, str(self))


class Counters(NamedTuple):
    """A group's counters: see ``RowBuilder``; ``non_finite`` counts environments abandoned for it."""

    taken: int
    masked: int
    dropped: int
    non_finite: int


class Group:
    """``n`` environments stepped together.

    Attributes:
        n: Environments.
        spaces: Of one environment.
        rows: Counters.
        drop_non_finite: Abandon episodes that are not finite, instead of failing.
        non_finite: How many were.
    """

    def __init__(
        self, vector: Any, seed_style: SeedStyle, resets_some: bool, observation_space: Any | None = None
    ) -> None:
        """Args:
        vector: A gymnasium ``VectorEnv``.
        seed_style: What its ``reset`` takes as seeds.
        resets_some: Its ``reset`` understands ``options={"reset_mask": ...}``.
        observation_space: Of one environment, where leaves are to be reshaped to it (the number of bytes is equal).
        """
        space = vector.single_observation_space if observation_space is None else observation_space
        self.vector = vector
        self.n = int(vector.num_envs)
        self.spaces = spaces_of(space, vector.single_action_space)
        self.rows = RowBuilder(self.n)
        self.drop_non_finite = False
        self.non_finite = 0
        self._reshape = observation_space is not None
        self._paths = leaf_paths(space)
        self._seed_style = seed_style
        self._resets_some = resets_some
        mode = vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._mode = mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
        self._action_dtype = self.spaces.action.numpy_dtype
        self._action_shape = (self.n, *self.spaces.action.shape)
        self._dtypes = [np.dtype(leaf.dtype) for leaf in self.spaces.observation]

    def reset(self, seeds: Array) -> StepRows:
        """Begins the run: int64 seeds ``[n]``.

        Raises:
            BadObservation: an observation that does not fit its space. NonFinite. And what the environment raises.
        """
        if self._seed_style == "int":
            observation, _ = self.vector.reset(seed=int(seeds[0]))
        else:
            observation, _ = self.vector.reset(seed=seeds if self._seed_style == "array" else seeds.tolist())
        leaves = self._leaves(observation)
        bad = non_finite(leaves, np.zeros(self.n, np.float32))
        if bad is not None:
            leaves = self._reset_some(bad, leaves)
        return self.rows.reset(leaves)

    def abandon(self, _: None = None) -> StepRows:
        """Begins new episodes everywhere, in the midst of the run.

        Raises:
            As ``reset``.
        """
        observation, _info = self.vector.reset()
        leaves = self._leaves(observation)
        if (bad := non_finite(leaves, np.zeros(self.n, np.float32))) is not None:
            raise NonFinite(int(np.flatnonzero(bad)[0]), "the observation of a reset is not finite")
        return self.rows.abandon(leaves)

    def step(self, buffer: Any) -> StepRows:
        """One step.

        Args:
            buffer: Actions ``[n, *shape]`` in the action leaf's dtype; its length is checked by the caller.

        Raises:
            As ``reset``.
        """
        # Copied, for environments that write into their actions.
        actions = np.frombuffer(buffer, self._action_dtype).reshape(self._action_shape).copy()
        observation, reward, terminated, truncated, info = self.vector.step(actions)
        leaves = self._leaves(observation)
        reward, terminated, truncated = self._flags(reward, terminated, truncated)
        travelling = _float32(reward)
        if self._mode == AutoresetMode.NEXT_STEP:
            bad = non_finite(leaves, travelling)
            if bad is not None:
                leaves = self._reset_some(bad, leaves)
            return self.rows.next_step(leaves, reward, terminated, truncated, self._lost(bad))
        finals, done = None, terminated | truncated
        if np.count_nonzero(done):
            finals, leaves = self._finals(done, leaves, info)
        bad = non_finite(leaves, travelling)
        lost_finals = None if finals is None else non_finite(finals.leaves, np.zeros(len(finals.environments)))
        if bad is not None or lost_finals is not None:
            bad = np.zeros(self.n, np.bool_) if bad is None else bad
            if finals is not None and lost_finals is not None:
                bad[finals.environments[lost_finals]] = True
            leaves = self._reset_some(bad, leaves)
        return self.rows.same_step(leaves, reward, terminated, truncated, finals=finals, abandoned=self._lost(bad))

    def counters(self) -> Counters:
        rows = self.rows
        return Counters(rows.taken, rows.masked, rows.dropped, self.non_finite)

    def close(self) -> None:
        self.vector.close()

    def _lost(self, bad: Any) -> Any:
        """Environments that began anew: all of them where the vector environment cannot reset some."""
        if bad is None or self._resets_some:
            return bad
        return np.ones(self.n, np.bool_)

    def _finals(self, done: Any, leaves: list[Array], info: dict[str, Any]) -> tuple[Finals, list[Array]]:
        ended = np.flatnonzero(done)
        if self._mode == AutoresetMode.DISABLED:
            finals = Finals(ended, [leaf[ended] for leaf in leaves])
            observation, _ = self.vector.reset(options={"reset_mask": done})
            return finals, self._leaves(observation)
        final = info.get("final_obs")
        if final is None:
            raise BadObservation(f"environment {ended[0]} ended without a final_obs, though it resets in the same step")
        if isinstance(final, np.ndarray) and final.dtype == object:
            each = [flatten(final[i], self._paths) for i in ended]
            parts = [[np.asarray(one[k]) for one in each] for k in range(len(self._paths))]
        else:
            parts = [list(np.asarray(leaf)[ended]) for leaf in flatten(final, self._paths)]
        return Finals(ended, self._fitted([_stacked(part) for part in parts], len(ended))), leaves

    def _reset_some(self, bad: Any, leaves: list[Array]) -> list[Array]:
        """Abandons the episodes of ``bad``; returns all environments' observations."""
        which = np.flatnonzero(bad)
        if not self.drop_non_finite:
            done = int(self.rows.index[which[0]])
            raise NonFinite(int(which[0]), f"reward or observation is not finite, {done} transitions after its start")
        self.non_finite += len(which)
        before = [leaf.copy() for leaf in leaves] if self._resets_some else leaves
        observation, _ = self.vector.reset(options={"reset_mask": np.array(bad)} if self._resets_some else None)
        after = self._leaves(observation)
        if self._resets_some:  # not every vector environment reports the others' observations again
            for new, old in zip(after, before, strict=True):
                new[~bad] = old[~bad]
        if (still := non_finite(after, np.zeros(self.n, np.float32))) is not None:
            raise NonFinite(int(np.flatnonzero(still)[0]), "the observation of a reset is not finite")
        return after

    def _leaves(self, observation: Any) -> list[Array]:
        try:
            leaves = flatten(observation, self._paths)
        except (KeyError, IndexError, TypeError) as error:
            raise BadObservation(f"the observation has no leaf {error} that its space has") from error
        return self._fitted(leaves, self.n)

    def _fitted(self, leaves: list[Any], n: int) -> list[Array]:
        """Each leaf ``[n, *shape]``, contiguous, in its space's dtype."""
        fitted = []
        for value, leaf, dtype in zip(leaves, self.spaces.observation, self._dtypes, strict=True):
            array = np.asarray(value)
            if array.dtype != dtype:
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

    def _flags(self, reward: Any, terminated: Any, truncated: Any) -> tuple[Array, Array, Array]:
        reward, terminated, truncated = np.asarray(reward), np.asarray(terminated), np.asarray(truncated)
        if not reward.shape == terminated.shape == truncated.shape == (self.n,):
            raise BadObservation(
                f"reward, terminated and truncated have the shapes {reward.shape}, {terminated.shape} and "
                f"{truncated.shape}, not ({self.n},)"
            )
        return reward, terminated.astype(np.bool_, copy=False), truncated.astype(np.bool_, copy=False)


def _float32(reward: Array) -> Array:
    if reward.dtype == np.float32:
        return reward
    with np.errstate(over="ignore"):
        return reward.astype(np.float32)


def _stacked(parts: list[Array]) -> Array:
    try:
        return np.stack(parts)
    except ValueError as error:
        raise BadObservation(f"final observations differ in shape: {error}") from error
