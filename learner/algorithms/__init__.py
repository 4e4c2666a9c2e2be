"""Algorithms: one file each. An algorithm runs the network over a batch and gives sums that the trainer descends.

Sums, never means: replicas add them up, and the trainer divides by the counts of all replicas together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

import numpy.typing as npt
import tensorflow as tf

from learner.inputs import Inputs
from learner.networks.network import Network

Named = tuple[str, tf.Variable]


class Terms(NamedTuple):
    """What one replica found in its part of the batch; float32, scalars but for ``per_unroll``.

    Attributes:
        losses: name -> weighted loss, summed; their sum is minimised.
        count: Valid rows.
        sums: name -> diagnostic, summed over valid rows; no gradient flows through it.
        divisor: What the global mean of the losses divides by; None is ``count``.
        per_unroll: name -> ``[B]``, returned as it is, in the order of the batch; no gradient flows through it.
    """

    losses: dict[str, tf.Tensor]
    count: tf.Tensor
    sums: dict[str, tf.Tensor]
    divisor: tf.Tensor | None = None
    per_unroll: Mapping[str, tf.Tensor] = {}


class Variables(NamedTuple):
    """An algorithm's own variables under stable names; all of them are part of checkpoints.

    Attributes:
        trained: The optimizer updates them, unclipped; a variable's ``constraint`` is applied after each update.
        kept: The algorithm changes them itself, in ``after_update``.
    """

    trained: list[Named]
    kept: list[Named]


class Algorithm(Protocol):
    """What the trainer needs of an algorithm.

    Attributes:
        loss_reduction: ``mean`` divides loss and gradient by the global ``Terms.divisor``, ``sum`` does not.
        fields: Batch fields that ``terms`` reads beside the network's inputs.
    """

    loss_reduction: Literal["mean", "sum"]
    fields: tuple[str, ...]

    def build(self, network: Network) -> Variables:
        """Make the algorithm's own variables; called once, in the strategy's scope."""
        ...

    def prepare(self, batch: Mapping[str, npt.NDArray[Any]]) -> Mapping[str, npt.NDArray[Any]]:
        """On the host, before the whole batch is split over replicas: add or change fields. Any thread."""
        ...

    def controls(self, frames: int) -> list[float]:
        """Scheduled values at ``frames`` environment frames."""
        ...

    def terms(
        self,
        network: Network,
        inputs: Inputs,
        state: tuple[tf.Tensor, ...],
        batch: Mapping[str, tf.Tensor],
        controls: tf.Tensor,
    ) -> Terms:
        """Losses and diagnostics of one replica's part of the batch. Traced, under a gradient tape.

        Args:
            network: Whose weights are trained.
            inputs: Of all rows, ``[rows, B, ...]``.
            state: Recurrent state carried into row 0, ``[B, ...]`` per leaf.
            batch: Name -> tensor: ``fields``.
            controls: ``[n]`` float32, what ``controls`` returned.
        """
        ...

    def after_update(self, updates: tf.Tensor, means: Mapping[str, tf.Tensor]) -> None:
        """Traced, in cross-replica context, after the weights have changed: update the ``kept`` variables.

        Args:
            updates: int64 scalar, updates applied so far, this one included.
            means: ``Terms.sums`` of all replicas, divided by the count of all.
        """
        ...

    def summarize(self, means: dict[str, float]) -> dict[str, Any]:
        """From the global means of losses and diagnostics, on the host, to what is reported."""
        ...
