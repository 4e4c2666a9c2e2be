"""The networks that seedmq brings: torso, optional previous action and reward, optional LSTM core, head.

As in SEED, previous action and previous reward join behind the torso, in front of the core (or the head). The algorithm
chooses the head: policy and value, or duelling Q-values. Torsos with convolutions may compute in bfloat16; core and
head are always float32, as are all weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from learner.distributions import Distribution
from learner.inputs import Inputs, Outputs
from learner.networks.heads import ActorCriticHead, MakeHead, Sizes
from learner.networks.layers import ACTIVATIONS, Initializer, LstmCore, glorot_uniform, orthogonal
from learner.networks.network import Network, State
from learner.networks.normalizer import Normalizer, make_normalizer
from learner.networks.torso import MakeConvolutions, NatureConvolutions, ResidualConvolutions, Torso, is_image
from pipeline.errors import ConfigError
from pipeline.spaces import Spaces


class TorsoNetwork(Network):
    """Core and head on a torso; a second torso, where there is one, serves the value alone."""

    def __init__(
        self,
        rng: np.random.Generator,
        distribution: Distribution,
        torso: Torso,
        value_torso: Torso | None = None,
        *,
        lstm: int = 0,
        previous_action: bool = False,
        previous_reward: bool = False,
        head: MakeHead = ActorCriticHead,
        normalizer: Normalizer | None = None,
    ) -> None:
        super().__init__()
        self.normalizer = normalizer
        self._distribution = distribution
        self.uses_previous_action = previous_action
        self._uses_previous_reward = previous_reward
        extra = distribution.features_size * previous_action + previous_reward
        self.torso, self.value_torso = torso, value_torso
        size, value_size = torso.size + extra, (value_torso or torso).size + extra
        self.core = LstmCore(rng, size, lstm) if lstm else None
        if lstm:
            size = value_size = lstm
        self.head = head(rng, Sizes(size, value_size, distribution.parameters))

    @property
    def value_output(self) -> tuple[tf.Variable, tf.Variable] | None:
        value = self.head.value if isinstance(self.head, ActorCriticHead) else None
        return None if value is None or value.bias is None else (value.kernel, value.bias)

    def initial_state(self, batch: int) -> State:
        return self.core.initial_state(batch) if self.core else ()

    def step(self, inputs: Inputs, state: State) -> tuple[Outputs, State]:
        features, value_features = self._features(inputs)
        if self.core:
            features, state = self.core.step(features, inputs.first, state)
            value_features = features
        return self.head(features, value_features), state

    def unroll(self, inputs: Inputs, state: State) -> tuple[Outputs, State]:
        rows, batch = inputs.first.shape[0], tf.shape(inputs.first)[1]
        flat = tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), tuple(inputs))
        features, value_features = self._features(Inputs(*flat))
        if self.core:
            by_row = tf.reshape(features, [rows, batch, features.shape[-1]])
            by_row, state = self.core.unroll(by_row, inputs.first, state)
            features = value_features = tf.reshape(by_row, [-1, by_row.shape[-1]])
        outputs = self.head(features, value_features)
        policy = tf.reshape(outputs.policy, [rows, batch, outputs.policy.shape[-1]])
        return Outputs(policy, tf.reshape(outputs.value, [rows, batch])), state

    def _features(self, inputs: Inputs) -> tuple[tf.Tensor, tf.Tensor]:
        """``[N, ...]`` inputs -> features for the policy and for the value (the same where they share a torso)."""
        extra = self._extra(inputs)
        observation = self.normalizer(inputs.observation) if self.normalizer else inputs.observation
        features = tf.concat([self.torso(observation), *extra], -1)
        if self.value_torso is None:
            return features, features
        return features, tf.concat([self.value_torso(observation), *extra], -1)

    def _extra(self, inputs: Inputs) -> list[tf.Tensor]:
        extra = []
        if self.uses_previous_action:
            action = self._distribution.features(inputs.previous_action)
            extra.append(tf.where(inputs.first[:, None], tf.zeros_like(action), action))
        if self._uses_previous_reward:
            extra.append(inputs.previous_reward[:, None])
        return extra


class Mlp(TorsoNetwork):
    """Dense layers over all leaves, flattened; orthogonal, gain sqrt(2)."""

    def __init__(
        self,
        spaces: Spaces,
        distribution: Distribution,
        frame_stack: int,
        seed: int,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
        separate_value: bool = False,
        normalize: bool = False,
        **core: Any,
    ) -> None:
        if separate_value and core.get("lstm"):
            raise ConfigError("network.separate_value: an LSTM core is shared by policy and value; set one of the two")
        rng = np.random.default_rng(seed)
        torsos = [
            Torso(
                rng,
                spaces,
                frame_stack,
                hidden=hidden,
                activation=ACTIVATIONS[activation],
                initializer=orthogonal(math.sqrt(2)),
            )
            for _ in range(1 + separate_value)
        ]
        normalizer = make_normalizer(spaces.observation, frame_stack) if normalize else None
        super().__init__(rng, distribution, *torsos, normalizer=normalizer, **core)


CONVOLUTIONS: dict[str, tuple[MakeConvolutions, Initializer]] = {
    "nature_cnn": (NatureConvolutions, orthogonal(math.sqrt(2))),  # of DQN
    "impala_deep": (ResidualConvolutions, glorot_uniform),  # of IMPALA, initialized as in SEED
}
"""``network.name`` -> convolutions, initializer of the dense layers."""


class Convolutional(TorsoNetwork):
    """One of ``CONVOLUTIONS`` and relu dense layers."""

    def __init__(
        self,
        spaces: Spaces,
        distribution: Distribution,
        frame_stack: int,
        seed: int,
        name: str,
        *,
        hidden: Sequence[int],
        precision: str = "float32",
        normalize: bool = False,
        **core: Any,
    ) -> None:
        rng = np.random.default_rng(seed)
        convolutions, initializer = CONVOLUTIONS[name]
        torso = Torso(
            rng,
            spaces,
            frame_stack,
            hidden=hidden,
            activation=tf.nn.relu,
            initializer=initializer,
            convolutions=convolutions,
            dtype=tf.dtypes.as_dtype(precision),
        )
        others = [leaf for leaf in spaces.observation if not is_image(leaf)]
        normalizer = make_normalizer(others, frame_stack) if normalize else None
        super().__init__(rng, distribution, torso, normalizer=normalizer, **core)
