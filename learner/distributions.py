"""Action distributions: parameters ``[..., D]`` from the network, raw actions ``[..., *action_shape]`` as stored.

How much a row explores is one number, ``exploration``: 0 takes the best action; at 1 a stochastic policy samples what
it is, and an epsilon-greedy one acts at random.

The **raw** action is what was sampled: an index for discrete spaces, the value before squashing for boxes. It is what
rows store, so that the behaviour log-probability is computed again without inverting the squash.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pipeline.errors import SpaceError
from pipeline.spaces import Leaf


class Distribution(ABC):
    """How one action leaf is chosen. Everything but ``to_env`` is TensorFlow.

    Attributes:
        parameters: D.
        action_shape: Shape of the raw action.
        action_dtype: dtype name of the raw action.
        features_size: Size of ``features``.
    """

    parameters: int
    action_shape: tuple[int, ...]
    action_dtype: str
    features_size: int

    @abstractmethod
    def sample(self, params: tf.Tensor, seed: tf.Tensor, exploration: tf.Tensor | None = None) -> tf.Tensor:
        """Raw actions ``[B, *action_shape]`` from ``params`` ``[B, D]``.

        Args:
            params: float32 ``[B, D]``.
            seed: int32 ``[2]`` of the stateless generator: same seed, same shape, same actions.
            exploration: float32 ``[B]`` from 0 (the mode) to 1; None is 1 everywhere.
        """

    @abstractmethod
    def mode(self, params: tf.Tensor) -> tf.Tensor:
        """The greedy raw action ``[..., *action_shape]``."""

    @abstractmethod
    def features(self, raw: tf.Tensor) -> tf.Tensor:
        """float32 ``[..., features_size]``, bounded where the space is: the previous action as a network sees it."""

    @abstractmethod
    def to_env(self, raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """numpy ``[..., *leaf.shape]`` in the leaf's dtype, inside the space whatever ``raw`` is."""


class Stochastic(Distribution):
    """A distribution with densities, differentiable in ``params``; ``exploration`` scales its noise."""

    @abstractmethod
    def log_prob(self, params: tf.Tensor, raw: tf.Tensor) -> tf.Tensor:
        """float32 ``[...]``, log-probability (density) of the action that ``raw`` stands for."""

    @abstractmethod
    def entropy(self, params: tf.Tensor) -> tf.Tensor:
        """float32 ``[...]``, in nats."""

    @abstractmethod
    def kl(self, p: tf.Tensor, q: tf.Tensor) -> tf.Tensor:
        """float32 ``[...]``, KL(p || q) of two parameter tensors, exact, in nats."""


class Discrete(Distribution):
    """Discrete actions: one parameter each, the mode is the largest; the raw action is the index from 0 (int32)."""

    def __init__(self, leaf: Leaf) -> None:
        self.parameters = self.features_size = leaf.n
        self.action_shape = ()
        self.action_dtype = "int32"
        self._dtype = leaf.numpy_dtype
        self._start = np.array(leaf.start).astype(self._dtype)

    def mode(self, params: tf.Tensor) -> tf.Tensor:
        return tf.argmax(params, -1, tf.int32)

    def features(self, raw: tf.Tensor) -> tf.Tensor:
        return tf.one_hot(raw, self.parameters)

    def to_env(self, raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # Where the index is beyond the dtype's range it wraps, and back again by adding the start.
        return raw.astype(self._dtype) + self._start


class EpsilonGreedy(Discrete):
    """Parameters are Q-values; ``exploration`` is epsilon: the probability of an action drawn evenly from all."""

    def sample(self, params: tf.Tensor, seed: tf.Tensor, exploration: tf.Tensor | None = None) -> tf.Tensor:
        uniform = tf.random.stateless_uniform([tf.shape(params)[0], 2], seed)
        # The product may round up to the number of actions.
        any_action = tf.minimum(tf.cast(uniform[:, 1] * self.parameters, tf.int32), self.parameters - 1)
        if exploration is None:
            return any_action
        return tf.where(uniform[:, 0] < exploration, any_action, self.mode(params))


class Categorical(Discrete, Stochastic):
    """Discrete actions; parameters are logits, the raw action is the index from 0 (int32)."""

    def sample(self, params: tf.Tensor, seed: tf.Tensor, exploration: tf.Tensor | None = None) -> tf.Tensor:
        # Gumbel-max: one argmax serves sampled and greedy rows.
        uniform = tf.random.stateless_uniform(tf.shape(params), seed, minval=np.finfo(np.float32).tiny)
        noise = -tf.math.log(-tf.math.log(uniform))
        if exploration is not None:
            noise *= exploration[:, None]
        return self.mode(params + noise)

    def log_prob(self, params: tf.Tensor, raw: tf.Tensor) -> tf.Tensor:
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=raw, logits=params)

    def entropy(self, params: tf.Tensor) -> tf.Tensor:
        log_p = tf.nn.log_softmax(params)
        return -tf.reduce_sum(tf.exp(log_p) * log_p, -1)

    def kl(self, p: tf.Tensor, q: tf.Tensor) -> tf.Tensor:
        log_p = tf.nn.log_softmax(p)
        return tf.reduce_sum(tf.exp(log_p) * (log_p - tf.nn.log_softmax(q)), -1)


MIN_STD = 1e-3
_STD_OFFSET = math.log(math.expm1(1.0))  # a parameter of 0 means a standard deviation of about 1
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(16)


class SquashedNormal(Stochastic):
    """Box actions: a diagonal normal, each bounded dimension squashed by tanh and scaled to its bounds.

    Parameters are means and, through softplus, standard deviations (``[..., 2 k]``). The raw action is the normal's
    sample (float32). Densities of bounded dimensions are those of tanh(raw) in [-1, 1]: entropy and its costs and
    targets then do not depend on the unit of the bounds. Unbounded dimensions are plain normals.
    """

    def __init__(self, leaf: Leaf) -> None:
        low, high = np.asarray(leaf.low, np.float64), np.asarray(leaf.high, np.float64)
        limit = float(np.finfo(np.float32).max)
        has_low, has_high = low > -limit, high < limit
        wrong = np.flatnonzero((has_low != has_high) | ~(low <= high))
        if wrong.size:
            i = int(wrong[0])
            raise SpaceError(
                f"action {leaf.path!r}, dimension {i}: bounds [{low[i]}, {high[i]}] are not supported; "
                "supported: both finite, or both infinite; set environment.wrappers to one that bounds both sides"
            )
        self._leaf = leaf
        self._size = low.size
        self._bounded = has_low
        self._low = np.where(has_low, low, 0.0)
        self._high = np.where(has_low, high, 0.0)
        self.parameters, self.features_size = 2 * self._size, self._size
        self.action_shape = leaf.shape
        self.action_dtype = "float32"

    def _normal(self, params: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        mean, std = tf.split(params, 2, -1)
        return mean, tf.nn.softplus(std + _STD_OFFSET) + MIN_STD

    def _flat(self, raw: tf.Tensor) -> tf.Tensor:
        lead = raw.shape.rank - len(self.action_shape)
        return tf.reshape(raw, tf.concat([tf.shape(raw)[:lead], [self._size]], 0))

    def _shaped(self, flat: tf.Tensor) -> tf.Tensor:
        return tf.reshape(flat, tf.concat([tf.shape(flat)[:-1], tf.constant(self.action_shape, tf.int32)], 0))

    def _log_slope(self, x: tf.Tensor) -> tf.Tensor:
        """log(1 - tanh(x)^2), stable for large x; 0 in unbounded dimensions."""
        log_slope = 2.0 * (math.log(2.0) - x - tf.nn.softplus(-2.0 * x))
        return log_slope * self._bounded.astype(np.float32)

    def sample(self, params: tf.Tensor, seed: tf.Tensor, exploration: tf.Tensor | None = None) -> tf.Tensor:
        mean, std = self._normal(params)
        noise = tf.random.stateless_normal(tf.shape(mean), seed)
        if exploration is not None:
            noise *= exploration[:, None]
        return self._shaped(mean + std * noise)

    def mode(self, params: tf.Tensor) -> tf.Tensor:
        """The image of the normal's mean (the median of the squashed action)."""
        return self._shaped(self._normal(params)[0])

    def log_prob(self, params: tf.Tensor, raw: tf.Tensor) -> tf.Tensor:
        mean, std = self._normal(params)
        x = self._flat(raw)
        normal = -0.5 * tf.square((x - mean) / std) - tf.math.log(std) - _HALF_LOG_2PI
        return tf.reduce_sum(normal - self._log_slope(x), -1)

    def entropy(self, params: tf.Tensor) -> tf.Tensor:
        """Entropy of the normal plus E[log(1 - tanh^2)] by Gauss-Hermite quadrature: no sampling noise."""
        mean, std = self._normal(params)
        nodes = tf.constant(_NODES, tf.float32)[:, None]
        weights = tf.constant(_WEIGHTS / _WEIGHTS.sum(), tf.float32)[:, None]
        correction = tf.reduce_sum(weights * self._log_slope(mean[..., None, :] + std[..., None, :] * nodes), -2)
        return tf.reduce_sum(0.5 + _HALF_LOG_2PI + tf.math.log(std) + correction, -1)

    def kl(self, p: tf.Tensor, q: tf.Tensor) -> tf.Tensor:
        """KL of the normals: squashing both alike changes nothing."""
        (mean_p, std_p), (mean_q, std_q) = self._normal(p), self._normal(q)
        ratio = tf.square(std_p / std_q)
        distance = tf.square((mean_p - mean_q) / std_q)
        return 0.5 * tf.reduce_sum(ratio + distance - 1.0 - tf.math.log(ratio), -1)

    def features(self, raw: tf.Tensor) -> tf.Tensor:
        x = self._flat(raw)
        return tf.where(self._bounded, tf.tanh(x), x)

    def to_env(self, raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """In float64, clipped, and rounded where the leaf is of integers; no rounding leaves the bounds."""
        leaf = self._leaf
        x = raw.reshape((*raw.shape[: raw.ndim - len(leaf.shape)], self._size)).astype(np.float64)
        squashed = np.clip(self._low + (self._high - self._low) * (0.5 + 0.5 * np.tanh(x)), self._low, self._high)
        action = np.where(self._bounded, squashed, x)
        if leaf.numpy_dtype.kind in "iub":
            action = np.rint(action)
        return action.astype(leaf.numpy_dtype).reshape(raw.shape)


def distribution_for(action: Leaf) -> Stochastic:
    """The stochastic distribution of an action leaf.

    Raises:
        SpaceError: a kind without a distribution, or a box that is bounded on one side only.
    """
    if action.kind == "discrete":
        return Categorical(action)
    if action.kind == "box":
        return SquashedNormal(action)
    raise SpaceError(f"action {action.path!r} of kind {action.kind!r} is not supported; supported: box, discrete")


def epsilon_greedy_for(action: Leaf) -> EpsilonGreedy:
    """The epsilon-greedy choice over the Q-values of an action leaf.

    Raises:
        SpaceError: it is not discrete.
    """
    if action.kind != "discrete":
        raise SpaceError(
            f"{action.path!r} is a space of kind {action.kind!r}, and training.algorithm = r2d2 learns Q-values of "
            "discrete actions only: set training.algorithm to vtrace, which takes both"
        )
    return EpsilonGreedy(action)
