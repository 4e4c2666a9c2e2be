"""Adam and RMSProp over variables of a strategy, and schedules by environment frames.

Gradients come in already reduced over replicas (Keras 3 optimizers do not reduce either) and the same update runs on
every device. One fused TensorFlow kernel per variable does the whole step; its formula, with step t = 1, 2, ...:

    Adam     m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)
    RMSProp  s = d s + (1 - d) g^2;  k = momentum k + lr g / sqrt(s + eps);  w -= k;  s starts at 1

Adam is the same as TensorFlow 1's and Keras 3's (epsilon outside the root; "epsilon hat" of the paper, arXiv
1412.6980, section 2). RMSProp is TensorFlow 1's, which IMPALA used: epsilon inside the root and s from 1. Keras 3 has
epsilon inside the root as well but starts s at 0; PyTorch's (TorchBeast) has it outside, so its epsilon does not
transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from pipeline.config.tree import OptimizerSection, ScheduleSection

Named = tuple[str, tf.Variable]


def value_at(initial: float, schedule: ScheduleSection, frames: int) -> float:
    """A scheduled value after ``frames`` environment frames: ``initial``, or on the line to ``final``, then that."""
    if schedule.kind == "constant" or schedule.frames is None:
        return initial
    progress = min(max(frames, 0) / schedule.frames, 1.0)
    return initial + (schedule.final - initial) * progress


class Optimizer(Protocol):
    """One update rule over a fixed list of variables.

    Attributes:
        variables: Slots and step counter, ``(name, variable)``: what a checkpoint needs.
    """

    variables: list[Named]

    def apply(self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor) -> None:
        """One step on every device; in cross-replica context.

        Args:
            gradients: Per variable, its reduced and scaled gradient.
            learning_rate: Scalar float32.
        """
        ...


class _Target(NamedTuple):
    weights: tf.Variable
    slots: tuple[tf.Variable, ...]


class Adam:
    """Adam; variables ``step`` (int64) and, per weight, ``m/<name>`` and ``v/<name>``."""

    def __init__(self, settings: OptimizerSection, weights: Sequence[Named]) -> None:
        self._settings, self._strategy = settings, tf.distribute.get_strategy()
        self._step = tf.Variable(0, trainable=False, dtype=tf.int64, name="step")
        self._targets = _targets(weights, {"m": 0.0, "v": 0.0})
        self.variables = [("step", self._step), *_slot_names(weights, ("m", "v"), self._targets)]

    def apply(self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor) -> None:
        """See ``Optimizer.apply``."""
        settings = self._settings
        self._step.assign_add(1)
        step = tf.cast(self._step, tf.float32)
        powers = settings.beta_1**step, settings.beta_2**step

        def kernel(weight: tf.Variable, m: tf.Variable, v: tf.Variable, gradient: tf.Tensor) -> None:
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=powers[0],
                beta2_power=powers[1],
                lr=learning_rate,
                beta1=settings.beta_1,
                beta2=settings.beta_2,
                epsilon=settings.epsilon,
                grad=gradient,
            )

        _everywhere(self._strategy, kernel, self._targets, gradients)


class RmsProp:
    """RMSProp; variables ``step`` (int64) and, per weight, ``mean_square/<name>`` and ``momentum/<name>``."""

    def __init__(self, settings: OptimizerSection, weights: Sequence[Named]) -> None:
        self._settings, self._strategy = settings, tf.distribute.get_strategy()
        self._step = tf.Variable(0, trainable=False, dtype=tf.int64, name="step")
        self._targets = _targets(weights, {"mean_square": 1.0, "momentum": 0.0})
        names = _slot_names(weights, ("mean_square", "momentum"), self._targets)
        self.variables = [("step", self._step), *names]

    def apply(self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor) -> None:
        """See ``Optimizer.apply``."""
        settings = self._settings
        self._step.assign_add(1)

        def kernel(weight: tf.Variable, mean_square: tf.Variable, momentum: tf.Variable, gradient: tf.Tensor) -> None:
            tf.raw_ops.ResourceApplyRMSProp(
                var=weight.handle,
                ms=mean_square.handle,
                mom=momentum.handle,
                lr=learning_rate,
                rho=settings.decay,
                momentum=settings.momentum,
                epsilon=settings.epsilon,
                grad=gradient,
            )

        _everywhere(self._strategy, kernel, self._targets, gradients)


def make_optimizer(settings: OptimizerSection, weights: Sequence[Named]) -> Optimizer:
    """The optimizer of the settings with fresh slots for ``weights``; call it in the strategy's scope."""
    return Adam(settings, weights) if settings.name == "adam" else RmsProp(settings, weights)


def _targets(weights: Sequence[Named], slots: dict[str, float]) -> list[_Target]:
    return [
        _Target(
            weight,
            tuple(
                tf.Variable(tf.fill(weight.shape, tf.cast(start, weight.dtype)), trainable=False, name=slot)
                for slot, start in slots.items()
            ),
        )
        for _, weight in weights
    ]


def _slot_names(weights: Sequence[Named], slots: Sequence[str], targets: Sequence[_Target]) -> list[Named]:
    return [
        (f"{slot}/{name}", variable)
        for (name, _), target in zip(weights, targets, strict=True)
        for slot, variable in zip(slots, target.slots, strict=True)
    ]


def _everywhere(
    strategy: tf.distribute.Strategy,
    kernel: Callable[..., None],
    targets: Sequence[_Target],
    gradients: Sequence[tf.Tensor],
) -> None:
    """Run ``kernel(weight, *slots, gradient)`` on each device for each target, then the weight's constraint."""

    def update(weight: tf.Variable, *arguments: tf.Variable | tf.Tensor) -> None:
        kernel(weight, *arguments)
        if weight.constraint is not None:
            weight.assign(weight.constraint(weight))

    for target, gradient in zip(targets, gradients, strict=True):
        strategy.extended.update(target.weights, update, args=(*target.slots, gradient), group=False)
