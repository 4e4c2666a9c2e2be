"""Algorithms: one file each. An algorithm turns a network's outputs and a batch into sums over valid rows.

Sums, never means: replicas add them up, and the trainer divides by the valid count of all replicas together.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import tensorflow as tf

from learner.distributions import Distribution
from learner.inputs import Outputs


class Terms(NamedTuple):
    """What one replica found in its part of the batch; scalars, float32.

    Attributes:
        losses: name -> weighted loss, summed over valid rows; their sum is minimised.
        count: Valid rows.
        sums: name -> diagnostic, summed over valid rows; no gradient flows through it.
    """

    losses: dict[str, tf.Tensor]
    count: tf.Tensor
    sums: dict[str, tf.Tensor]


class Algorithm(Protocol):
    """What the trainer needs of an algorithm.

    Attributes:
        loss_reduction: ``mean`` divides loss and gradient by the global valid count, ``sum`` does not.
        fields: Batch fields that ``loss`` reads (``pipeline.unrolls``); others may be missing from ``batch``.
    """

    loss_reduction: Literal["mean", "sum"]
    fields: tuple[str, ...]

    def build(self) -> list[tuple[str, tf.Variable]]:
        """Make and return the algorithm's own trainable variables, stable names; called once, in the strategy's scope.

        A variable's ``constraint`` is applied after each update. They are left out of gradient clipping.
        """
        ...

    def controls(self, frames: int) -> list[float]:
        """Scheduled values at ``frames`` environment frames."""
        ...

    def loss(
        self, outputs: Outputs, batch: dict[str, tf.Tensor], distribution: Distribution, controls: tf.Tensor
    ) -> Terms:
        """Losses and diagnostics of one replica's part of the batch.

        Args:
            outputs: Of the whole unroll, ``[T + 1, B, ...]``.
            batch: Name -> tensor, as ``UnrollLayout.batch`` makes them.
            distribution: Of the actions.
            controls: ``[n]`` float32, what ``controls`` returned.
        """
        ...

    def summarize(self, means: dict[str, float]) -> dict[str, Any]:
        """From the global means of losses and diagnostics, on the host, to what is reported."""
        ...
