"""A network that takes its time: ``network.name: tests.slow_network:SlowNetwork``."""

from __future__ import annotations

import time

import numpy as np
import tensorflow as tf

from learner.distributions import Distribution
from learner.inputs import Inputs, Outputs
from learner.networks.network import Network, State
from pipeline.spaces import Spaces


class SlowNetwork(Network):
    """Two dense layers; each call of ``step`` takes ``step_seconds`` longer, each of ``unroll`` ``unroll_seconds``."""

    def __init__(
        self,
        spaces: Spaces,
        distribution: Distribution,
        frame_stack: int,
        seed: int,
        *,
        step_seconds: float = 0.0,
        unroll_seconds: float = 0.0,
    ) -> None:
        super().__init__()
        self.step_seconds, self.unroll_seconds = step_seconds, unroll_seconds
        self.policy, self.value = tf.keras.layers.Dense(distribution.parameters), tf.keras.layers.Dense(1)

    def step(self, inputs: Inputs, state: State) -> tuple[Outputs, State]:
        return self._outputs(inputs.observation["observation"], self.step_seconds), state

    def unroll(self, inputs: Inputs, state: State) -> tuple[Outputs, State]:
        return self._outputs(inputs.observation["observation"], self.unroll_seconds), state

    def _outputs(self, observation: tf.Tensor, seconds: float) -> Outputs:
        if seconds:
            zero = tf.ensure_shape(tf.numpy_function(lambda: _zero_after(seconds), [], tf.float32), [])
            observation += zero
        return Outputs(self.policy(observation), self.value(observation)[..., 0])


def _zero_after(seconds: float) -> np.float32:
    time.sleep(seconds)
    return np.float32(0.0)
