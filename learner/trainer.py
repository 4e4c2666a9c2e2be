"""One optimizer step from a batch: forward, loss, gradient, reduction, clipping, update, as one TensorFlow function.

Each training replica has an equal share of the batch and sums its loss; replicas that only infer add zeros. Sums of
gradients and of terms are all-reduced first; only then is the gradient divided by the count of all replicas (of valid
rows, or what the algorithm divides by), clipped by its global norm and applied on every device, so the weights stay
bit-equal. What an algorithm says of single unrolls is not reduced, but joined in the order of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from learner.algorithms import Algorithm
from learner.devices import Devices
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
    """A batch on its way into an update.

    Attributes:
        shards: One ``[rows, B / replicas, ...]`` per training device.
        observed: What the network's normalizer takes of the whole batch; empty where it has none.
    """

    shards: tuple[Shard, ...]
    observed: dict[str, tf.Tensor]


class Metrics(NamedTuple):
    """Results of one update, still on the device.

    Attributes:
        values: ``[K]`` float32.
        names: K names.
        algorithm: Turns means into what is reported.
        unrolls: Name -> float32 ``[B]``, what the algorithm says of each unroll, in the order of the batch.
    """

    values: tf.Tensor
    names: tuple[str, ...]
    algorithm: Algorithm
    unrolls: Mapping[str, tf.Tensor]

    def fetch(self) -> dict[str, float]:
        """Wait for the update, and report it: means over valid rows, 0 where there was none."""
        return self.algorithm.summarize(dict(zip(self.names, self.values.numpy().tolist(), strict=True)))

    def fetch_unrolls(self) -> dict[str, Array]:
        """Wait for the update; ``unrolls`` as numpy."""
        return {name: values.numpy() for name, values in self.unrolls.items()}


class Trainer:
    """Owns optimizer slots and the update function. ``prepare`` may run in any thread, the rest in one thread.

    Args:
        network: Made in the scope of ``devices.strategy``, with all its variables (call ``step`` once before).
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
        self._network, self._algorithm = network, algorithm
        self._settings, self._devices = optimizer, devices
        self._frame_stack, self._padding, self._rewards = frame_stack, padding, rewards
        self._fields = frozenset((*INPUT_FIELDS, *algorithm.fields))
        self._all_weights = named_variables(network)
        self._weights = [(name, variable) for name, variable in self._all_weights if variable.trainable]
        if not self._weights:
            raise ConfigError("network.name: the network has no trainable variables")
        with devices.strategy.scope():
            self._extra, self._kept = algorithm.build(network)
            self._optimizer = make_optimizer(optimizer, self._weights + self._extra)
            self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates")
            self._nonfinite = tf.Variable(0, trainable=False, dtype=tf.int64, name="nonfinite_updates")
        self._trained = [variable for _, variable in self._weights + self._extra]
        self._names: tuple[str, ...] = ()
        self._unroll_names: tuple[str, ...] = ()
        self._loss_count = 0
        self._differentiate = self._terms_and_gradients
        if jit_compile:
            self._differentiate = tf.function(self._terms_and_gradients, jit_compile=True, autograph=False)
        self._update: Callable[..., list[tf.Tensor]] | None = None

    def prepare(self, batch: Mapping[str, Array]) -> Prepared:
        """Put the fields that the update reads on the training devices.

        Args:
            batch: As ``UnrollLayout.batch`` makes it, with what else the algorithm reads of each unroll. Its arrays
                must not be written afterwards: on a CPU a tensor may share their memory.
        """
        parts, batch = len(self._devices.training), self._algorithm.prepare(batch)
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
        normalizer = self._network.normalizer
        observed = normalizer.observed(batch) if normalizer else {}
        return Prepared(tuple(shards), {name: tf.convert_to_tensor(array) for name, array in observed.items()})

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
            self._update = tf.function(self._step, autograph=False).get_concrete_function(*prepared, controls)
        values, *unrolls = self._update(*prepared, controls)
        return Metrics(values, self._names, self._algorithm, dict(zip(self._unroll_names, unrolls, strict=True)))

    def variables(self) -> list[tuple[str, tf.Variable]]:
        """All that a checkpoint needs, under unique names that do not depend on devices."""
        return [
            *((f"network/{name}", variable) for name, variable in self._all_weights),
            *((f"algorithm/{name}", variable) for name, variable in self._extra + self._kept),
            *((f"optimizer/{name}", variable) for name, variable in self._optimizer.variables),
            ("trainer/updates", self._updates),
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

    def _step(self, shards: tuple[Shard, ...], observed: dict[str, tf.Tensor], controls: tf.Tensor) -> list[tf.Tensor]:
        """Cross-replica: the normalizer, gradients and sums of all replicas, then one update everywhere.

        Returns:
            Metrics ``[K]``, then what the algorithm says of each unroll, ``[B]`` each.
        """
        strategy = self._devices.strategy
        if self._network.normalizer:
            self._network.normalizer.update(observed)

        def replica() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            context = tf.distribute.get_replica_context()
            summed, unrolls = self._contribution(context, shards, controls)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, summed), unrolls

        summed, unrolls = strategy.run(replica)
        *gradients, sums = [strategy.experimental_local_results(x)[0] for x in summed]
        count, divisor = sums[0], sums[1]
        # Scalars are computed once, from one replica's copy, so that all replicas multiply by the same bits.
        mean = self._algorithm.loss_reduction == "mean"
        by_count = tf.math.divide_no_nan(1.0, divisor) if mean else tf.ones([])
        norm = by_count * tf.linalg.global_norm(gradients[: len(self._weights)])
        finite = tf.reduce_all(tf.math.is_finite(tf.stack([norm, *gradients[len(self._weights) :]])))
        losses = 2 + self._loss_count
        means = tf.math.divide_no_nan(sums[losses:], count)
        named = dict(zip(self._names[self._loss_count :], tf.unstack(means), strict=False))
        skipped = tf.cond(
            finite & (count > 0),
            lambda: self._apply(gradients, by_count, norm, controls[0], named),
            lambda: tf.cast(~finite, tf.int64),
        )
        self._nonfinite.assign_add(skipped)
        own = tf.stack([count, norm, controls[0], tf.cast(self._nonfinite, tf.float32)])
        return [
            tf.concat([tf.math.divide_no_nan(sums[2:losses], divisor), means, own], 0),
            *map(self._joined, unrolls),
        ]

    def _apply(
        self,
        gradients: list[tf.Tensor],
        by_count: tf.Tensor,
        norm: tf.Tensor,
        learning_rate: tf.Tensor,
        means: Mapping[str, tf.Tensor],
    ) -> tf.Tensor:
        """Clips and applies; 0: nothing was skipped."""
        clip = self._settings.clip_norm
        by_norm = by_count if clip is None else by_count * clip / tf.maximum(norm, clip)
        scales = [by_norm] * len(self._weights) + [by_count] * len(self._extra)
        self._optimizer.apply([x * scale for x, scale in zip(gradients, scales, strict=True)], learning_rate)
        self._updates.assign_add(1)
        self._algorithm.after_update(self._updates, means)
        return tf.zeros([], tf.int64)

    def _joined(self, values: tf.Tensor) -> tf.Tensor:
        """``[B]`` of all training replicas' ``[B / parts]``."""
        parts = self._devices.strategy.experimental_local_results(values)
        if len(parts) == 1:
            return parts[0]
        return tf.concat([parts[self._devices.replicas.index(device)] for device in self._devices.training], 0)

    def _contribution(
        self, context: tf.distribute.ReplicaContext, shards: tuple[Shard, ...], controls: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """What is summed over replicas: gradients and term sums ``[2 + K]``, counts first; and what is not."""
        training = self._devices.training
        device = self._devices.replicas[int(tf.get_static_value(context.replica_id_in_sync_group))]
        if device in training:
            return self._differentiate(shards[training.index(device)], controls[1:])
        # Replica 0 trains and is traced before the others, so the names are known.
        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in self._trained]
        sums = tf.zeros([2 + len(self._names) - len(OWN_NAMES)])
        return [*zeros, sums], [tf.zeros([0]) for _ in self._unroll_names]

    def _terms_and_gradients(self, shard: Shard, controls: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for variable in self._trained:
                tape.watch(variable)
            inputs = unroll_inputs(shard, self._frame_stack, self._padding, self._rewards)
            terms = self._algorithm.terms(self._network, inputs, unroll_state(shard), shard, controls)
            loss = tf.add_n(list(terms.losses.values()))
        gradients = tape.gradient(loss, self._trained, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        losses = {"loss": loss, **terms.losses}
        self._loss_count = len(losses)
        self._names = (*losses, *terms.sums, *OWN_NAMES)
        self._unroll_names = tuple(terms.per_unroll)
        divisor = terms.count if terms.divisor is None else terms.divisor
        sums = tf.stack([terms.count, divisor, *losses.values(), *terms.sums.values()])
        return [*map(tf.convert_to_tensor, gradients), sums], list(terms.per_unroll.values())


def _share(name: str, array: Array, part: int, parts: int) -> Array:
    """Part of the batch: columns of ``[rows, B, ...]``, rows of ``[B, ...]``."""
    if parts == 1:
        return array
    if name == "previous_action" or name.startswith(STATE) or array.ndim == 1:
        size = array.shape[0] // parts
        return array[part * size : (part + 1) * size]
    size = array.shape[1] // parts
    return np.ascontiguousarray(array[:, part * size : (part + 1) * size])


def _way(name: str) -> str:
    """How a run goes on whose checkpoints are older than what has this variable."""
    if name.startswith("network/normalizer/"):
        return "; a run that began without it goes on with network.normalize_observations=false"
    if name.startswith("algorithm/value_"):
        return "; a run that began without it goes on with vtrace.normalize_values=false"
    return ""


def _check_same(variables: Mapping[str, tf.Variable], arrays: Mapping[str, Array]) -> None:
    for name, variable in variables.items():
        if name not in arrays:
            raise CheckpointError(
                f"the checkpoint lacks {name}: it belongs to another network or optimizer{_way(name)}"
            )
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
