"""Values in units of their own spread: PopArt (van Hasselt et al. 2016, arXiv 1602.07714), as IMPALA uses it
(Hessel et al. 2018, arXiv 1809.04474).

A network's output n stands for V = mean + std n. When mean and std move, the last layer of the value is changed so
that V stays what it was, where the network says which layer that is.
"""

from __future__ import annotations

import tensorflow as tf

from learner.networks.network import Network

SLOWEST = 0.01
"""Least share of a new batch in the running statistics; those before t = 100 count 1 / t."""
SMALLEST, RELATIVE = 1e-4, 1e-5
"""Least standard deviation, absolute and as a part of the mean."""

Named = tuple[str, tf.Variable]


class ValueScale:
    """Running mean and standard deviation of the value targets. Made in the strategy's scope.

    Args:
        network: Whose values they are.
    """

    def __init__(self, network: Network) -> None:
        self._strategy = tf.distribute.get_strategy()
        self._layer = network.value_output
        self._mean = tf.Variable(0.0, trainable=False, name="value_mean")
        self._std = tf.Variable(1.0, trainable=False, name="value_std")
        self.variables: list[Named] = [("value_mean", self._mean), ("value_std", self._std)]

    @property
    def mean(self) -> tf.Tensor:
        return tf.convert_to_tensor(self._mean)

    @property
    def std(self) -> tf.Tensor:
        return tf.convert_to_tensor(self._std)

    def value(self, output: tf.Tensor) -> tf.Tensor:
        """V of the network's outputs."""
        return self.mean + self.std * output

    def normalized(self, value: tf.Tensor) -> tf.Tensor:
        """The inverse of ``value``."""
        return (value - self.mean) / self.std

    def update(self, updates: tf.Tensor, target: tf.Tensor, target_squared: tf.Tensor) -> None:
        """Traced, in cross-replica context: a batch's targets join the statistics.

        Args:
            updates: int64 scalar, updates so far, this one included.
            target: float32 scalar, mean of the batch's normalized targets. In these units nothing is lost to rounding
                where values lie far from 0.
            target_squared: Mean of their squares.
        """
        share = tf.maximum(1.0 / tf.cast(updates, tf.float32), SLOWEST)
        variance = tf.maximum(target_squared - tf.square(target), 0.0)
        spread = (1.0 - share) * (1.0 + share * tf.square(target)) + share * variance
        mean = self.mean + share * self.std * target
        std = tf.maximum(self.std * tf.sqrt(spread), tf.maximum(SMALLEST, RELATIVE * tf.abs(mean)))
        if self._layer is not None:
            kernel, bias = self._layer
            self._assign(kernel, tf.convert_to_tensor(kernel) * (self.std / std))
            self._assign(bias, (self.std * tf.convert_to_tensor(bias) + self.mean - mean) / std)
        self._assign(self._mean, mean)
        self._assign(self._std, std)

    def _assign(self, variable: tf.Variable, value: tf.Tensor) -> None:
        self._strategy.extended.update(variable, lambda v, x: v.assign(x), args=(value,), group=False)
