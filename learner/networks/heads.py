"""Heads: from features to a network's outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from learner.inputs import Outputs
from learner.networks.layers import Dense, DenseStack, glorot_uniform, orthogonal


class Sizes(NamedTuple):
    """What a head connects: features for the policy, features for the value, parameters of the distribution."""

    features: int
    value_features: int
    parameters: int


class Head(Protocol):
    """``[N, features]``, ``[N, value_features]`` -> outputs ``[N, ...]``, float32."""

    def __call__(self, features: tf.Tensor, value_features: tf.Tensor) -> Outputs: ...


MakeHead = Callable[[np.random.Generator, Sizes], Head]


class ActorCriticHead(tf.Module):
    """Two dense layers, policy and value; biases 0.

    Kernels are orthogonal with gain 0.01 (the first policy is nearly uniform) and with gain 1, or ``glorot``: both
    Glorot uniform, as SEED's networks have them.
    """

    def __init__(self, rng: np.random.Generator, sizes: Sizes, glorot: bool = False) -> None:
        super().__init__()
        policy, value = (glorot_uniform, glorot_uniform) if glorot else (orthogonal(0.01), orthogonal(1.0))
        self.policy = Dense(rng, sizes.features, sizes.parameters, policy)
        self.value = Dense(rng, sizes.value_features, 1, value)

    def __call__(self, features: tf.Tensor, value_features: tf.Tensor) -> Outputs:
        return Outputs(self.policy(features), self.value(value_features)[:, 0])


def actor_critic(initializer: str) -> MakeHead:
    """An actor-critic head with ``vtrace.head_initializer``."""
    return lambda rng, sizes: ActorCriticHead(rng, sizes, initializer == "glorot_uniform")


class DuelingHead(tf.Module):
    """Q = V + A - mean A (Wang et al. 2016, arXiv 1511.06581, equation 9), with a hidden relu layer for V and for A.

    Outputs are the Q-values and the largest of them. As in SEED's network for Atari: A has no bias, Glorot uniform.
    """

    def __init__(self, rng: np.random.Generator, sizes: Sizes, hidden: int) -> None:
        super().__init__()
        layers = [hidden] if hidden else []

        def stack(inputs: int) -> DenseStack:
            return DenseStack(rng, inputs, layers, activation=tf.nn.relu, initializer=glorot_uniform)

        self.value_hidden, self.advantage_hidden = stack(sizes.value_features), stack(sizes.features)
        self.value = Dense(rng, self.value_hidden.size, 1, glorot_uniform)
        self.advantage = Dense(rng, self.advantage_hidden.size, sizes.parameters, glorot_uniform, bias=False)

    def __call__(self, features: tf.Tensor, value_features: tf.Tensor) -> Outputs:
        value = self.value(self.value_hidden(value_features))
        advantage = self.advantage(self.advantage_hidden(features))
        q = value + advantage - tf.reduce_mean(advantage, -1, keepdims=True)
        return Outputs(q, tf.reduce_max(q, -1))


def dueling(hidden: int) -> MakeHead:
    """A duelling head with ``hidden`` units in each stream; 0 means no hidden layer."""
    return lambda rng, sizes: DuelingHead(rng, sizes, hidden)
