"""Layers as plain modules: variables made in the constructor from one seeded generator, in order, on any strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Kernel = npt.NDArray[np.float32]
Initializer = Callable[[np.random.Generator, tuple[int, ...]], Kernel]
Activation = Callable[[tf.Tensor], tf.Tensor]

ACTIVATIONS: dict[str, Activation] = {"tanh": tf.tanh, "relu": tf.nn.relu, "elu": tf.nn.elu, "silu": tf.nn.silu}


def orthogonal(gain: float) -> Initializer:
    """(Semi-)orthogonal matrices times ``gain``; the last axis is the output, the others are the input."""

    def initialize(rng: np.random.Generator, shape: tuple[int, ...]) -> Kernel:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        normal = rng.standard_normal((max(rows, columns), min(rows, columns)))
        q, r = np.linalg.qr(normal)
        q = q * np.sign(np.diag(r))
        return (gain * (q if rows >= columns else q.T)).reshape(shape).astype(np.float32)

    return initialize


def glorot_uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> Kernel:
    """Uniform in +- sqrt(6 / (fan_in + fan_out)), the default of Keras and so of SEED's networks."""
    receptive = math.prod(shape[:-2])
    limit = math.sqrt(6.0 / (receptive * (shape[-2] + shape[-1])))
    return rng.uniform(-limit, limit, shape).astype(np.float32)


class Dense(tf.Module):
    """``[N, inputs] -> [N, units]``, in the dtype of the input; weights are float32."""

    def __init__(
        self, rng: np.random.Generator, inputs: int, units: int, initializer: Initializer, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.units = units
        self.kernel = tf.Variable(initializer(rng, (inputs, units)), name="kernel")
        self.bias = tf.Variable(np.zeros(units, np.float32), name="bias") if bias else None

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        product = tf.matmul(x, tf.cast(self.kernel, x.dtype))
        return product if self.bias is None else tf.nn.bias_add(product, tf.cast(self.bias, x.dtype))


class DenseStack(tf.Module):
    """Dense layers, each followed by the activation: ``[N, inputs] -> [N, size]``."""

    def __init__(
        self,
        rng: np.random.Generator,
        inputs: int,
        hidden: Sequence[int],
        *,
        activation: Activation,
        initializer: Initializer,
    ) -> None:
        super().__init__()
        self._activation = activation
        self.layers: list[Dense] = []
        self.size = inputs
        for units in hidden:
            self.layers.append(Dense(rng, self.size, units, initializer))
            self.size = units

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        for layer in self.layers:
            x = self._activation(layer(x))
        return x


class Conv(tf.Module):
    """Square convolution, NHWC, in the dtype of the input; weights are float32."""

    def __init__(
        self,
        rng: np.random.Generator,
        inputs: int,
        filters: int,
        *,
        size: int,
        stride: int,
        padding: str,
        initializer: Initializer,
    ) -> None:
        super().__init__()
        self._stride, self._padding = stride, padding
        self.kernel = tf.Variable(initializer(rng, (size, size, inputs, filters)), name="kernel")
        self.bias = tf.Variable(np.zeros(filters, np.float32), name="bias")

    def __call__(self, x: tf.Tensor, scale: float = 1.0) -> tf.Tensor:
        """Of ``x * scale``: the kernel is scaled, which is smaller, and bytes stay exact in bfloat16."""
        kernel = self.kernel if scale == 1.0 else self.kernel * scale
        convolved = tf.nn.conv2d(x, tf.cast(kernel, x.dtype), self._stride, self._padding)
        return tf.nn.bias_add(convolved, tf.cast(self.bias, x.dtype))


class LstmCore(tf.Module):
    """An LSTM (Hochreiter and Schmidhuber 1997, with forget gate; gates in the order i, f, g, o) that resets itself.

    State: ``(h, c)``, float32 ``[B, units]`` each, zero at the start of an episode. Input kernel Glorot uniform,
    recurrent kernel orthogonal, forget bias 1.
    """

    def __init__(self, rng: np.random.Generator, inputs: int, units: int) -> None:
        super().__init__()
        self.units = units
        bias = np.zeros(4 * units, np.float32)
        bias[units : 2 * units] = 1.0
        self.kernel = tf.Variable(glorot_uniform(rng, (inputs, 4 * units)), name="kernel")
        self.recurrent_kernel = tf.Variable(orthogonal(1.0)(rng, (units, 4 * units)), name="recurrent_kernel")
        self.bias = tf.Variable(bias, name="bias")

    def initial_state(self, batch: int) -> tuple[tf.Tensor, tf.Tensor]:
        zeros = tf.zeros([batch, self.units])
        return zeros, zeros

    def step(
        self, x: tf.Tensor, first: tf.Tensor, state: tuple[tf.Tensor, ...]
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """``x`` ``[B, inputs]``, ``first`` bool ``[B]`` -> output ``[B, units]`` and the state after the row."""
        h, c = self._cell(self._project(x), _keep(first), self.recurrent_kernel, state)
        return h, (h, c)

    def unroll(
        self, x: tf.Tensor, first: tf.Tensor, state: tuple[tf.Tensor, ...]
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """``x`` ``[R, B, inputs]``, ``first`` bool ``[R, B]`` -> outputs ``[R, B, units]`` and the last state.

        R must be static: the input projection is one product over all rows, the recurrence is unrolled in the graph
        (a ``while`` costs more per iteration, above all in its gradient, than the products of a row).
        """
        rows = x.shape[0]
        projected = tf.reshape(self._project(tf.reshape(x, [-1, x.shape[-1]])), [rows, -1, 4 * self.units])
        recurrent_kernel = tf.convert_to_tensor(self.recurrent_kernel)  # read once, one gradient accumulation
        h, c = state
        outputs = []
        for row, keep in zip(tf.unstack(projected, rows), tf.unstack(_keep(first), rows), strict=True):
            h, c = self._cell(row, keep, recurrent_kernel, (h, c))
            outputs.append(h)
        return tf.stack(outputs), (h, c)

    def _project(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(tf.matmul(x, self.kernel), self.bias)

    def _cell(
        self, projected: tf.Tensor, keep: tf.Tensor, recurrent_kernel: tf.Tensor, state: tuple[tf.Tensor, ...]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        h, c = state
        i, f, g, o = tf.split(projected + tf.matmul(keep * h, recurrent_kernel), 4, -1)
        c = tf.sigmoid(f) * (keep * c) + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(c), c


def _keep(first: tf.Tensor) -> tf.Tensor:
    """float32 ``[..., 1]``: 0 where the state is reset, else 1."""
    return tf.cast(tf.logical_not(first), tf.float32)[..., None]
