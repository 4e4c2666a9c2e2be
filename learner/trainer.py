"""One optimizer step from a batch: forward, loss, gradient, reduction, clipping, update, as one TensorFlow function.

Each training replica has an equal share of the batch and sums its loss over valid rows; replicas that only infer add
zeros. Sums of gradients and of terms are all-reduced first; only then is the gradient divided by the valid count of
all replicas, clipped by its global norm and applied on every device, so the weights stay bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from learner.algorithms import Algorithm, Terms
from learner.devices import Devices
from learner.distributions import Distribution
from learner.inputs import RewardTransform, unroll_inputs, unroll_state
from learner.networks.network import Network, named_variables
from learner.optimizers import make_optimizer, value_at
from pipeline.config.tree import OptimizerSection
from pipeline.errors import CheckpointError, ConfigError
from pipeline.unrolls import OBSERVATION, STATE

Array = npt.NDArray[Any]
Shard = dict[str, tf.Tensor]

INPUT_FIELDS = ("first", "reward", "action", "previous_action")
OWN_NAMES = ("valid", "gradient_norm", "learning_rate", "nonfinite_updates")


class Prepared(NamedTuple):
    """A batch on its way into an update: one shard ``[rows, B / replicas, ...]`` per training device."""

    shards: tuple[Shard, ...]


class Metrics(NamedTuple):
    """Results of one update, still on the device.

    Attributes:
        values: ``[K]`` float32.
        names: K names.
        algorithm: Turns means into what is reported.
    """

    values: tf.Tensor
    names: tuple[str, ...]
    algorithm: Algorithm

    def fetch(self) -> dict[str, float]:
        """Wait for the update, and report it: means over valid rows, 0 where there was none."""
        return self.algorithm.summarize(dict(zip(self.names, self.values.numpy().tolist(), strict=True)))


class Trainer:
    """Owns optimizer slots and the update function. ``prepare`` may run in any thread, the rest in one thread.

    Args:
        network: Made in the scope of ``devices.strategy``, with all its variables (call ``step`` once before).
        distribution: Of the actions.
        algorithm: The loss.
        optimizer: Its settings.
        devices: Where.
        frame_stack: S.
        padding: Of the frame stack, ``zero`` or ``repeat``.
        rewards: Of the previous-reward input.
        batch_size: B, unrolls per update over all training devices.
        jit_compile: Compile forward and backward pass with XLA.

    Raises:
        ConfigError: ``batch_size`` cannot be split evenly over the training devices, or the network has no variables.
    """

    def __init__(  # noqa: PLR0917
        self,
        network: Network,
        distribution: Distribution,
        algorithm: Algorithm,
        optimizer: OptimizerSection,
        devices: Devices,
        frame_stack: int,
        padding: str,
        rewards: RewardTransform,
        *,
        batch_size: int,
        jit_compile: bool = False,
    ) -> None:
        if batch_size % len(devices.training):
            raise ConfigError(
                f"training.batch_size = {batch_size} cannot be split evenly over the {len(devices.training)} devices "
                f"of learner.training_devices"
            )
        self._network, self._distribution, self._algorithm = network, distribution, algorithm
        self._settings, self._devices = optimizer, devices
        self._frame_stack, self._padding, self._rewards = frame_stack, padding, rewards
        self._fields = frozenset((*INPUT_FIELDS, *algorithm.fields))
        self._all_weights = named_variables(network)
        self._weights = [(name, variable) for name, variable in self._all_weights if variable.trainable]
        if not self._weights:
            raise ConfigError("network.name: the network has no trainable variables")
        with devices.strategy.scope():
            self._extra = algorithm.build()
            self._optimizer = make_optimizer(optimizer, self._weights + self._extra)
            self._nonfinite = tf.Variable(0, trainable=False, dtype=tf.int64, name="nonfinite_updates")
        self._trained = [variable for _, variable in self._weights + self._extra]
        self._names: tuple[str, ...] = ()
        self._differentiate = self._terms_and_gradients
        if jit_compile:
            self._differentiate = tf.function(self._terms_and_gradients, jit_compile=True, autograph=False)
        self._update: Callable[..., tf.Tensor] | None = None

    def prepare(self, batch: Mapping[str, Array]) -> Prepared:
        """Put the fields that the update reads on the training devices.

        Args:
            batch: As ``UnrollLayout.batch`` makes it. Its arrays must not be written afterwards: on a CPU a tensor may
                share their memory.
        """
        parts = len(self._devices.training)
        shards: list[Shard] = []
        for i, device in enumerate(self._devices.training):
            with tf.device(device):
                shards.append(
                    {
                        name: tf.convert_to_tensor(_share(name, array, i, parts))
                        for name, array in batch.items()
                        if name in self._fields or name.startswith((OBSERVATION, STATE))
                    }
                )
        return Prepared(tuple(shards))

    def update(self, prepared: Prepared, frames: int) -> Metrics:
        """One optimizer step; returns before the device is done.

        A batch without valid rows, or whose gradient is not finite, changes no weight and no slot; the latter counts in
        the metric ``nonfinite_updates``.

        Args:
            prepared: Of ``prepare``; the shapes of the first one bind all later ones.
            frames: Environment frames so far, for the schedules.
        """
        learning_rate = value_at(self._settings.learning_rate, self._settings.learning_rate_schedule, frames)
        controls = tf.constant([learning_rate, *self._algorithm.controls(frames)], tf.float32)
        if self._update is None:
            # Shapes never change within a run: calling the one trace directly saves its look-up, 0.4 ms of Python.
            self._update = tf.function(self._step, autograph=False).get_concrete_function(prepared.shards, controls)
        values = self._update(prepared.shards, controls)
        return Metrics(values, self._names, self._algorithm)

    def variables(self) -> list[tuple[str, tf.Variable]]:
        """All that a checkpoint needs, under unique names that do not depend on devices."""
        return [
            *((f"network/{name}", variable) for name, variable in self._all_weights),
            *((f"algorithm/{name}", variable) for name, variable in self._extra),
            *((f"optimizer/{name}", variable) for name, variable in self._optimizer.variables),
            ("trainer/nonfinite_updates", self._nonfinite),
        ]

    def snapshot(self) -> dict[str, Array]:
        """Copies of all ``variables``; waits for the updates so far."""
        return {name: np.array(variable.numpy()) for name, variable in self.variables()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Set all ``variables``, or none.

        Raises:
            CheckpointError: one is missing, unexpected, or of another shape or dtype; the message names the first.
        """
        variables = dict(self.variables())
        _check_same(variables, arrays)
        for name, variable in variables.items():
            variable.assign(arrays[name])

    def _step(self, shards: tuple[Shard, ...], controls: tf.Tensor) -> tf.Tensor:
        """Cross-replica: gradients and sums of all replicas, then one update everywhere; returns metrics ``[K]``."""
        strategy = self._devices.strategy

        def replica() -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, self._contribution(context, shards, controls))

        *gradients, sums = [strategy.experimental_local_results(x)[0] for x in strategy.run(replica)]
        count = sums[0]
        # Scalars are computed once, from one replica's copy, so that all replicas multiply by the same bits.
        by_count = tf.math.divide_no_nan(1.0, count) if self._algorithm.loss_reduction == "mean" else tf.ones([])
        norm = by_count * tf.linalg.global_norm(gradients[: len(self._weights)])
        clip = self._settings.clip_norm
        by_norm = by_count if clip is None else by_count * clip / tf.maximum(norm, clip)
        scales = [by_norm] * len(self._weights) + [by_count] * len(self._extra)
        finite = tf.reduce_all(tf.math.is_finite(tf.stack([norm, *gradients[len(self._weights) :]])))

        def apply() -> tf.Tensor:
            self._optimizer.apply([x * scale for x, scale in zip(gradients, scales, strict=True)], controls[0])
            return tf.zeros([], tf.int64)

        skipped = tf.cond(finite & (count > 0), apply, lambda: tf.cast(~finite, tf.int64))
        self._nonfinite.assign_add(skipped)
        own = tf.stack([count, norm, controls[0], tf.cast(self._nonfinite, tf.float32)])
        return tf.concat([tf.math.divide_no_nan(sums[1:], count), own], 0)

    def _contribution(
        self, context: tf.distribute.ReplicaContext, shards: tuple[Shard, ...], controls: tf.Tensor
    ) -> list[tf.Tensor]:
        """Gradients of this replica's summed loss, and its term sums ``[1 + K]``, valid count first."""
        training = self._devices.training
        device = self._devices.replicas[int(tf.get_static_value(context.replica_id_in_sync_group))]
        if device in training:
            return self._differentiate(shards[training.index(device)], controls[1:])
        # Replica 0 trains and is traced before the others, so the names are known.
        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in self._trained]
        return [*zeros, tf.zeros([1 + len(self._names) - len(OWN_NAMES)])]

    def _terms_and_gradients(self, shard: Shard, controls: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for variable in self._trained:
                tape.watch(variable)
            terms = self._terms(shard, controls)
            loss = tf.add_n(list(terms.losses.values()))
        gradients = tape.gradient(loss, self._trained, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        sums = {"loss": loss, **terms.losses, **terms.sums}
        self._names = (*sums, *OWN_NAMES)
        return [*map(tf.convert_to_tensor, gradients), tf.stack([terms.count, *sums.values()])]

    def _terms(self, shard: Shard, controls: tf.Tensor) -> Terms:
        inputs = unroll_inputs(shard, self._frame_stack, self._padding, self._rewards)
        outputs, _ = self._network.unroll(inputs, unroll_state(shard))
        return self._algorithm.loss(outputs, shard, self._distribution, controls)


def _share(name: str, array: Array, part: int, parts: int) -> Array:
    """Part of the batch: columns of ``[rows, B, ...]``, rows of ``[B, ...]``."""
    if parts == 1:
        return array
    if name == "previous_action" or name.startswith(STATE):
        size = array.shape[0] // parts
        return array[part * size : (part + 1) * size]
    size = array.shape[1] // parts
    return np.ascontiguousarray(array[:, part * size : (part + 1) * size])


def _check_same(variables: Mapping[str, tf.Variable], arrays: Mapping[str, Array]) -> None:
    for name, variable in variables.items():
        if name not in arrays:
            raise CheckpointError(f"the checkpoint lacks {name}: it belongs to another network or optimizer")
        array, dtype = arrays[name], variable.dtype.as_numpy_dtype
        if tuple(array.shape) != tuple(variable.shape):
            raise CheckpointError(
                f"{name} has shape {tuple(array.shape)} in the checkpoint and {tuple(variable.shape)} in this run"
            )
        if array.dtype != dtype:
            raise CheckpointError(f"{name} is {array.dtype} in the checkpoint and {np.dtype(dtype)} in this run")
    for name in arrays:
        if name not in variables:
            raise CheckpointError(f"the checkpoint has {name}, which this run does not: it is of another network")
