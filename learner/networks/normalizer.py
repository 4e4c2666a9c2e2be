"""Observations in units of their own spread: running means and variances, which are variables of the network.

So they are in checkpoints, in the target network and in copies that evaluate, and a policy version has one normalizer:
the trainer changes it before each gradient, from the rows that the gradient learns from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pipeline.spaces import Leaf
from pipeline.unrolls import OBSERVATION

Array = npt.NDArray[Any]

COUNT = "count"
LONGEST = 1e7
"""Rows that the statistics are over at most: what is older fades, and float32 still counts them one by one."""
LARGEST = 10.0
"""Normalized observations are clipped to +- this."""
_EPSILON = 1e-8


def make_normalizer(leaves: Sequence[Leaf], frame_stack: int) -> Normalizer | None:
    """Of those leaves that have a scale of their own: neither one-hot nor flags. None: there is none."""
    scaled = [leaf for leaf in leaves if leaf.kind in ("box", "multi_discrete") and leaf.dtype != "bool"]
    return Normalizer(scaled, frame_stack) if scaled else None


class Normalizer(tf.Module):
    """(x - mean) / standard deviation of each element of some leaves, over all frames alike, clipped.

    Before the first update mean and variance are 0 and 1.

    Args:
        leaves: Which.
        frame_stack: S: stacked frames share the statistics of one.
    """

    def __init__(self, leaves: Sequence[Leaf], frame_stack: int) -> None:
        super().__init__()
        self._leaves, self._frame_stack = tuple(leaves), frame_stack
        self._strategy = tf.distribute.get_strategy()
        self.count = tf.Variable(0.0, trainable=False, name=COUNT)
        self.mean = [tf.Variable(np.zeros(x.shape, np.float32), trainable=False, name="mean") for x in leaves]
        self.variance = [tf.Variable(np.ones(x.shape, np.float32), trainable=False, name="variance") for x in leaves]

    def __call__(self, observation: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Stacked leaves ``[N, *stacked_shape]``, the normalized ones as float32."""
        result = dict(observation)
        for leaf, mean, variance in zip(self._leaves, self.mean, self.variance, strict=True):
            factor = self._stacked(leaf, tf.math.rsqrt(variance + _EPSILON))
            x = (tf.cast(observation[leaf.path], tf.float32) - self._stacked(leaf, tf.convert_to_tensor(mean))) * factor
            result[leaf.path] = tf.clip_by_value(x, -LARGEST, LARGEST)
        return result

    def observed(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """On the host, any thread: what ``update`` takes, of the valid rows of a whole batch.

        Returns:
            Leaf path -> float32 ``[2, *shape]``, mean and variance; ``COUNT`` -> how many rows, 0 where
            these are not finite.
        """
        valid = batch["valid"].astype(np.bool_)
        count = int(valid.sum())
        found: dict[str, Array] = {}
        for leaf in self._leaves:
            rows = batch[OBSERVATION + leaf.path][self._frame_stack - 1 :][: len(valid)]
            x = rows[valid].astype(np.float64) if count else np.zeros((1, *leaf.shape))
            with np.errstate(invalid="ignore", over="ignore"):  # judged below
                found[leaf.path] = np.stack([x.mean(0), x.var(0)]).astype(np.float32)
        finite = all(np.isfinite(x).all() for x in found.values())
        return {**found, COUNT: np.array(count if finite else 0, np.float32)}

    def update(self, observed: Mapping[str, tf.Tensor]) -> None:
        """Traced, in cross-replica context: adds a batch of rows, as ``observed`` describes it."""
        new, old = observed[COUNT], tf.minimum(tf.convert_to_tensor(self.count), LONGEST)
        total = new + old
        share = tf.math.divide_no_nan(new, total)
        for leaf, mean, variance in zip(self._leaves, self.mean, self.variance, strict=True):
            # What does not count may be anything: 0 times infinity is none.
            moments = tf.where(new > 0, observed[leaf.path], 0.0)
            before, spread = tf.convert_to_tensor(mean), tf.convert_to_tensor(variance)
            apart = moments[0] - before
            self._assign(mean, before + share * apart)
            self._assign(variance, spread + share * (moments[1] - spread + (1.0 - share) * tf.square(apart)))
        self._assign(self.count, total)

    def _assign(self, variable: tf.Variable, value: tf.Tensor) -> None:
        self._strategy.extended.update(variable, lambda v, x: v.assign(x), args=(value,), group=False)

    def _stacked(self, leaf: Leaf, statistic: tf.Tensor) -> tf.Tensor:
        """Of one frame -> broadcasts over ``frame_stack.stacked_shape``."""
        if len(leaf.shape) == 2:
            return statistic[..., None]
        if self._frame_stack == 1 or not leaf.shape:
            return statistic
        return tf.tile(statistic, [*[1] * (len(leaf.shape) - 1), self._frame_stack])
