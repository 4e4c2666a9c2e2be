"""Observation torsos: a dictionary of stacked leaves ``[N, ...]`` in, features ``[N, size]`` out.

Pictures go through convolutions where the torso has them; all other leaves are flattened to float32 (discrete ones
one-hot, uint8 divided by 255) and concatenated behind them; dense layers follow. All of it computes in the torso's
dtype, from float32 weights to float32 features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from learner.frame_stack import stacked_shape
from learner.networks.layers import Activation, Conv, DenseStack, Initializer, glorot_uniform, orthogonal
from pipeline.errors import ConfigError, SpaceError
from pipeline.spaces import Leaf, Spaces

LARGEST_ONE_HOT = 4096
SMALLEST_PICTURE = 36
"""Pixels of either side that ``nature_cnn`` needs."""


class Convolutions(Protocol):
    """``[N, height, width, channels]``, times ``scale`` -> ``[N, size]``, in the dtype of the input."""

    size: int

    def __call__(self, x: tf.Tensor, scale: float) -> tf.Tensor: ...


MakeConvolutions = Callable[[np.random.Generator, tuple[int, ...]], Convolutions]


class Torso(tf.Module):
    """See the module's text. Without ``convolutions`` pictures are flattened like everything else."""

    def __init__(
        self,
        rng: np.random.Generator,
        spaces: Spaces,
        frame_stack: int,
        *,
        hidden: Sequence[int],
        activation: Activation,
        initializer: Initializer,
        convolutions: MakeConvolutions | None = None,
        dtype: tf.DType = tf.float32,
    ) -> None:
        super().__init__()
        self._dtype = dtype
        shapes = {leaf.path: stacked_shape(leaf, frame_stack) for leaf in spaces.observation}
        images = [leaf for leaf in spaces.observation if convolutions is not None and is_image(leaf)]
        if convolutions is not None and not images:
            raise ConfigError("network.name: a convolutional network needs a picture among the observations; use mlp")
        self._leaves = spaces.observation
        self.images = [convolutions(rng, shapes[leaf.path]) for leaf in images] if convolutions is not None else []
        self._image_leaves = images
        size = sum(image.size for image in self.images)
        size += sum(_features_size(leaf, shapes[leaf.path]) for leaf in self._leaves if leaf not in images)
        self.dense = DenseStack(rng, size, hidden, activation=activation, initializer=initializer)
        self.size = self.dense.size

    def __call__(self, observation: Mapping[str, tf.Tensor]) -> tf.Tensor:
        parts = [
            image(tf.cast(observation[leaf.path], self._dtype), _scale(observation[leaf.path]))
            for image, leaf in zip(self.images, self._image_leaves, strict=True)
        ]
        others = [_features(leaf, observation[leaf.path]) for leaf in self._leaves if leaf not in self._image_leaves]
        parts += [tf.cast(x, self._dtype) for x in others]
        return tf.cast(self.dense(tf.concat(parts, -1) if len(parts) > 1 else parts[0]), tf.float32)


def is_image(leaf: Leaf) -> bool:
    """Whether convolutions take it: height, width, channels, or bytes of height and width."""
    return leaf.kind != "discrete" and (len(leaf.shape) == 3 or (len(leaf.shape) == 2 and leaf.dtype == "uint8"))


def _scale(x: tf.Tensor) -> float:
    """What an observation is multiplied by: uint8 is divided by 255."""
    return 1.0 / 255.0 if x.dtype == tf.uint8 else 1.0


def _features_size(leaf: Leaf, shape: tuple[int, ...]) -> int:
    if leaf.n > LARGEST_ONE_HOT:
        raise SpaceError(
            f"observation {leaf.path!r}: Discrete({leaf.n}) is fed one-hot, for {LARGEST_ONE_HOT} values at most: "
            "use a network of your own that embeds it (network.name: package.module:Class)"
        )
    return leaf.n if leaf.kind == "discrete" else math.prod(shape)


def _features(leaf: Leaf, x: tf.Tensor) -> tf.Tensor:
    """``[N, *stacked_shape]`` -> float32 ``[N, size]``."""
    if leaf.kind == "discrete":
        return tf.one_hot(tf.cast(x, tf.int64) - leaf.start, leaf.n)
    scaled = tf.cast(x, tf.float32)
    if x.dtype == tf.uint8:
        scaled *= _scale(x)
    return scaled if x.shape.rank == 2 else tf.reshape(scaled, [-1, math.prod(x.shape[1:])])


class NatureConvolutions(tf.Module):
    """32 filters 8x8 stride 4, 64 4x4 stride 2, 64 3x3 stride 1, relu (Mnih et al. 2015). Orthogonal, gain sqrt(2)."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
        super().__init__()
        height, width, channels = shape
        self.layers: list[Conv] = []
        for filters, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            conv = Conv(
                rng, channels, filters, size=size, stride=stride, padding="VALID", initializer=orthogonal(math.sqrt(2))
            )
            self.layers.append(conv)
            height, width, channels = (height - size) // stride + 1, (width - size) // stride + 1, filters
        if height < 1 or width < 1:
            raise ConfigError(
                f"network.name: nature_cnn needs pictures of at least {SMALLEST_PICTURE}x{SMALLEST_PICTURE}, "
                f"not {shape[0]}x{shape[1]}"
            )
        self.size = height * width * channels

    def __call__(self, x: tf.Tensor, scale: float) -> tf.Tensor:
        x = tf.nn.relu(self.layers[0](x, scale))
        for layer in self.layers[1:]:
            x = tf.nn.relu(layer(x))
        return tf.reshape(x, [-1, self.size])


class ResidualConvolutions(tf.Module):
    """IMPALA's deep torso (Espeholt et al. 2018, figure 3): 16, 32, 32 filters, two residual blocks each, relu.

    Each section: 3x3 convolution, 3x3 max pooling stride 2, two blocks of relu, conv, relu, conv and a skip. Glorot
    uniform, as in SEED.
    """

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
        super().__init__()
        height, width, channels = shape
        self.sections: list[list[Conv]] = []
        for filters in (16, 32, 32):
            inputs = (channels, filters, filters, filters, filters)
            section = [
                Conv(rng, n, filters, size=3, stride=1, padding="SAME", initializer=glorot_uniform) for n in inputs
            ]
            self.sections.append(section)
            height, width, channels = -(-height // 2), -(-width // 2), filters
        self.size = height * width * channels

    def __call__(self, x: tf.Tensor, scale: float) -> tf.Tensor:
        for i, (entry, *blocks) in enumerate(self.sections):
            x = tf.nn.max_pool2d(entry(x, scale if i == 0 else 1.0), 3, 2, "SAME")
            for inner, outer in (blocks[:2], blocks[2:]):
                x = x + outer(tf.nn.relu(inner(tf.nn.relu(x))))
        return tf.reshape(tf.nn.relu(x), [-1, self.size])
