"""Batched acting on one device, with everything an environment carries from row to row kept there, one slot each.

    submit(rows) ─> packed arrays, padded to a bucket ─> one traced function: read slots, network, sample, write slots
                                                          └─> Pending ─ result() ─> PolicyRows (numpy)

Only what the network needs is kept: no frames without a stack, no previous action for a network that does not look at
it. Weights are the network's own variables, read as they are when a batch runs. Owned by one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from learner.distributions import Distribution
from learner.inputs import Inputs, RewardTransform, step_inputs
from learner.networks.network import Network, named_variables
from pipeline.spaces import Spaces
from pipeline.streams import KEY_BITS

Array = npt.NDArray[Any]

# Rows of the packed input. float32, since int32 tensors of a GPU stay in host memory; exact for slots below 2^24.
_SLOT, _FIRST, _EXPLORATION, _REWARD = range(4)
_MAX_SLOTS = 2**24 - 1


class PolicyRows(NamedTuple):
    """What the policy did on n rows (numpy).

    Attributes:
        env_action: ``[n, ...]`` in the action leaf's dtype, for the environment.
        action: ``[n, *action_shape]``, raw, as an unroll stores it.
        behaviour: float32 ``[n, D]``, parameters of the distribution that acted.
        state: float32 ``[n, ...]`` per leaf, carried into the row BEFORE its reset by ``first``: what an unroll that
            starts at this row stores.
    """

    env_action: Array
    action: Array
    behaviour: npt.NDArray[np.float32]
    state: tuple[npt.NDArray[np.float32], ...]


class Pending:
    """A batch under way; ``result`` waits for the device."""

    def __init__(self, tensors: Sequence[tf.Tensor], rows: int, distribution: Distribution) -> None:
        self._tensors, self._rows, self._distribution = tensors, rows, distribution

    def result(self) -> PolicyRows:
        """The rows, in the order they were submitted."""
        action, behaviour, *state = (tensor.numpy()[: self._rows] for tensor in self._tensors)
        return PolicyRows(self._distribution.to_env(action), action, behaviour, tuple(state))


class _Bucket(NamedTuple):
    """A batch size: the traced function and the host buffers that rows are padded in."""

    function: Any
    packed: npt.NDArray[np.float32]
    observation: list[Array]


class Policy:
    """Acts for up to ``slots`` environments.

    A slot never stands twice in one batch (its rows are taken in order, one batch after the other); the state of a
    batch is written before the next one reads it. Padding rows work on one more slot that nothing else reads.
    Construct it outside any strategy's scope: the tables belong to ``device`` alone.

    Args:
        network: Built; under a strategy its replica on ``device`` is read.
        distribution: Of the action.
        spaces: Order, dtypes and shapes of the observation leaves.
        slots: Environments served at once.
        frame_stack: S.
        padding: ``zero`` or ``repeat``.
        rewards: How the loss transforms rewards; so the network sees the previous one.
        buckets: Batch sizes that are traced; the largest is the most rows of one batch.
        device: TensorFlow device name.
        key: Of its noise (64 bits, ``pipeline.streams``): with the number of batches so far it decides what is sampled.
        jit_compile: Compile with XLA.
    """

    def __init__(
        self,
        network: Network,
        distribution: Distribution,
        spaces: Spaces,
        *,
        slots: int,
        frame_stack: int,
        padding: str,
        rewards: RewardTransform,
        buckets: Sequence[int],
        device: str,
        key: int,
        jit_compile: bool = False,
    ) -> None:
        if not 0 < slots <= _MAX_SLOTS:
            raise ValueError(f"a policy has 1 to {_MAX_SLOTS} slots, not {slots}")
        self._network, self._distribution, self._spaces = network, distribution, spaces
        self._slots, self._frame_stack, self._padding, self._rewards = slots, frame_stack, padding, rewards
        self._device, self._key = device, key
        self._batches = 0
        with tf.device(device):
            self._tables = _Tables(network, distribution, spaces, slots, frame_stack)
        self._function = tf.function(self._step, jit_compile=jit_compile, autograph=False)
        self._buckets: dict[int, _Bucket | None] = dict.fromkeys(sorted(set(buckets)))

    @property
    def traces(self) -> int:
        """How many functions have been traced; at most one per bucket."""
        return int(self._function.experimental_get_tracing_count())

    def warm_up(self) -> None:
        """Traces and runs every bucket on padding rows; no slot changes, no batch is counted."""
        for size in self._buckets:
            bucket = self._bucket(size)
            self._pad(bucket, 0)
            self._run(bucket.function, bucket.packed, bucket.observation)

    def submit(
        self,
        slots: npt.NDArray[np.int32],
        first: npt.NDArray[np.bool_],
        reward: npt.NDArray[np.float32],
        observation: Sequence[Array],
        exploration: npt.NDArray[np.float32],
    ) -> Pending:
        """Acts on n rows; returns as soon as the device has the work.

        Args:
            slots: int32 ``[n]``, all different.
            first: bool ``[n]``.
            reward: float32 ``[n]``, raw.
            observation: ``[n, *shape]`` per leaf, in the order of ``spaces.observation``.
            exploration: float32 ``[n]`` from 0 to 1, see ``learner.distributions``.

        Raises:
            ValueError: no row, or more than the largest bucket.
        """
        rows = len(slots)
        size = next((size for size in self._buckets if size >= rows), 0)
        if not rows or not size:
            raise ValueError(f"a batch has 1 to {max(self._buckets)} rows, not {rows}")
        bucket = self._bucket(size)
        packed = bucket.packed
        packed[_SLOT, :rows] = slots
        packed[_FIRST, :rows] = first
        packed[_EXPLORATION, :rows] = exploration
        packed[_REWARD, :rows] = reward
        if rows < size:
            self._pad(bucket, rows)
            for buffer, leaf in zip(bucket.observation, observation, strict=True):
                buffer[:rows] = leaf
            observation = bucket.observation
        pending = Pending(self._run(bucket.function, packed, observation), rows, self._distribution)
        self._batches += 1
        return pending

    def _pad(self, bucket: _Bucket, rows: int) -> None:
        bucket.packed[_SLOT, rows:] = self._slots
        bucket.packed[_FIRST, rows:] = 1
        bucket.packed[_REWARD, rows:] = 0

    def _run(self, function: Any, packed: npt.NDArray[np.float32], observation: Sequence[Array]) -> list[tf.Tensor]:
        # tf.constant copies, so the buffers are free again when the call returns.
        with tf.device(self._device):
            seed = tf.constant(np.array([(self._key + self._batches) % 2**KEY_BITS], np.uint64).view(np.int32))
            return function(seed, tf.constant(packed), *(tf.constant(leaf) for leaf in observation))

    def _bucket(self, size: int) -> _Bucket:
        bucket = self._buckets[size]
        if bucket is None:
            observation = [np.zeros((size, *leaf.shape), leaf.dtype) for leaf in self._spaces.observation]
            packed = np.zeros((4, size), np.float32)
            specs = [tf.TensorSpec([2], tf.int32), *(tf.TensorSpec(x.shape, x.dtype) for x in (packed, *observation))]
            with ExitStack() as stack:
                # In cross-replica context alone does reading a mirrored variable give the replica on the device;
                # elsewhere it gives replica 0 and a copy across devices.
                for strategy in _strategies(self._network):
                    stack.enter_context(strategy.scope())
                stack.enter_context(tf.device(self._device))
                function = self._function.get_concrete_function(*specs)
            bucket = self._buckets[size] = _Bucket(function, packed, observation)
        return bucket

    def _step(self, seed: tf.Tensor, packed: tf.Tensor, *observation: tf.Tensor) -> list[tf.Tensor]:
        """The traced function: action, behaviour, carried state, in this order.

        Args:
            seed: int32 ``[2]``, in host memory.
            packed: float32 ``[4, B]``.
            observation: ``[B, ...]`` per leaf.
        """
        with tf.device(self._device):
            slots, first, exploration, reward = tf.unstack(packed)
            slots = tf.cast(slots, tf.int32)
            inputs = self._inputs(slots, tf.cast(first, tf.bool), reward, observation)
            carried = self._tables.read_state(slots)
            outputs, state = self._network.step(inputs, carried)
            action = self._distribution.sample(outputs.policy, seed, exploration)
            self._tables.write(slots, state, action)
            return [action, outputs.policy, *(tf.identity(leaf) for leaf in carried)]

    def _inputs(
        self, slots: tf.Tensor, first: tf.Tensor, reward: tf.Tensor, observation: Sequence[tf.Tensor]
    ) -> Inputs:
        windows, firsts = self._tables.push_frames(slots, first, observation)
        leaves = self._spaces.observation
        return step_inputs(
            {leaf.path: window for leaf, window in zip(leaves, windows, strict=True)},
            firsts,
            self._tables.read_action(slots),
            reward,
            padding=self._padding,
            rewards=self._rewards,
            ranks={leaf.path: len(leaf.shape) for leaf in leaves},
        )


class _Tables:
    """What slots carry, ``[slots + 1, ...]`` on one device; the last slot is scratch.

    dtypes are those of the leaves, but for int32, which TensorFlow keeps in host memory on a GPU: int64 stands for it.
    """

    def __init__(
        self, network: Network, distribution: Distribution, spaces: Spaces, slots: int, frame_stack: int
    ) -> None:
        rows, past = slots + 1, frame_stack - 1
        self._action_shape, self._action_dtype = (
            distribution.action_shape,
            tf.dtypes.as_dtype(distribution.action_dtype),
        )
        self._past = past
        self._state = [tf.Variable(leaf, trainable=False) for leaf in network.initial_state(rows)]
        self._action = self._frames = self._firsts = None
        if network.uses_previous_action:
            self._action = _table([rows, *distribution.action_shape], self._action_dtype)
        if past:
            self._frames = [
                _table([rows, past, *leaf.shape], tf.dtypes.as_dtype(leaf.dtype)) for leaf in spaces.observation
            ]
            self._firsts = _table([rows, past], tf.bool)

    def read_state(self, slots: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(tf.gather(table, slots) for table in self._state)

    def read_action(self, slots: tf.Tensor) -> tf.Tensor:
        """Previous raw actions ``[B, ...]``; zeros where none are kept."""
        if self._action is None:
            return tf.zeros([slots.shape[0], *self._action_shape], self._action_dtype)
        return tf.cast(tf.gather(self._action, slots), self._action_dtype)

    def push_frames(
        self, slots: tf.Tensor, first: tf.Tensor, observation: Sequence[tf.Tensor]
    ) -> tuple[list[list[tf.Tensor]], list[tf.Tensor]]:
        """The windows of S rows that end with this one, per leaf and of ``first``; the last S-1 rows are kept."""
        if self._frames is None:
            return [[frame] for frame in observation], [first]
        windows = [self._push(table, slots, frame) for table, frame in zip(self._frames, observation, strict=True)]
        return windows, self._push(self._firsts, slots, first)

    def _push(self, table: tf.Variable, slots: tf.Tensor, newest: tf.Tensor) -> list[tf.Tensor]:
        past = tf.gather(table, slots)
        frames = [*(tf.cast(x, newest.dtype) for x in tf.unstack(past, self._past, axis=1)), newest]
        _scatter(table, slots, tf.concat([past[:, 1:], tf.cast(newest, table.dtype)[:, None]], 1))
        return frames

    def write(self, slots: tf.Tensor, state: tuple[tf.Tensor, ...], action: tf.Tensor) -> None:
        for table, leaf in zip(self._state, state, strict=True):
            _scatter(table, slots, leaf)
        if self._action is not None:
            _scatter(self._action, slots, tf.cast(action, self._action.dtype))


def _table(shape: list[int], dtype: tf.DType) -> tf.Variable:
    return tf.Variable(tf.zeros(shape, tf.int64 if dtype == tf.int32 else dtype), trainable=False)


def _scatter(table: tf.Variable, slots: tf.Tensor, values: tf.Tensor) -> None:
    table.scatter_update(tf.IndexedSlices(values, slots))


def _strategies(network: tf.Module) -> list[tf.distribute.Strategy]:
    """The strategy that mirrors the network's variables, if there is one."""
    found = {
        id(s): s for _, v in named_variables(network) if (s := getattr(v, "distribute_strategy", None)) is not None
    }
    return list(found.values())
