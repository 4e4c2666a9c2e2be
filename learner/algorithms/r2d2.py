"""R2D2: n-step double Q-learning of a recurrent network from replayed unrolls, with a target network.

The loss of an unroll is 0.5 sum TD^2 over its valid learnt rows, times its importance weight; the loss of a batch is
the mean over its unrolls. The first ``burn_in`` rows only bring the recurrent state of both networks up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from learner.algorithms import Terms, Variables
from learner.inputs import Inputs, RewardTransform
from learner.networks.network import Network, State, named_variables
from learner.r2d2 import bootstrap, n_step_targets, of_action, priorities, rescale, unscale
from learner.vtrace import discounts
from pipeline.config.r2d2 import R2d2Section

IMPORTANCE_WEIGHT = "importance_weight"
"""Batch field, float32 ``[B]``: (1 / (N p))^beta of each unroll, as sampled."""
PRIORITY = "priority"
"""Per-unroll output, float32 ``[B]``: each unroll's new priority."""


class R2d2:
    """The algorithm object of ``training.algorithm: r2d2`` (see ``learner.algorithms.Algorithm``).

    Args:
        settings: Of the loss.
        make_network: Makes a network like the one that is trained, for the target network.
    """

    loss_reduction: Literal["mean", "sum"] = "mean"
    fields: tuple[str, ...] = ("action", "reward", "terminated", "life_lost", "valid", IMPORTANCE_WEIGHT)

    def __init__(self, settings: R2d2Section, make_network: Callable[[], Network]) -> None:
        self.settings = settings
        self.rewards = RewardTransform(settings.reward_scale, settings.reward_clip)
        self._make_network = make_network
        self._target: Network
        self._strategy: tf.distribute.Strategy
        self._pairs: list[tuple[tf.Variable, tf.Variable]] = []  # target, online

    def build(self, network: Network) -> Variables:
        """The target network's variables, equal to the network's."""
        self._strategy = tf.distribute.get_strategy()
        self._target = self._make_network()
        kept = named_variables(self._target)
        self._pairs = [(mine, theirs) for (_, mine), (_, theirs) in zip(kept, named_variables(network), strict=True)]
        for target, online in self._pairs:
            target.assign(online)
        return Variables(trained=[], kept=[(f"target/{name}", variable) for name, variable in kept])

    def prepare(self, batch: Mapping[str, npt.NDArray[Any]]) -> Mapping[str, npt.NDArray[Any]]:
        """Importance weights divided by the largest of the whole batch, so that they only scale losses down."""
        weight = batch[IMPORTANCE_WEIGHT]
        return {**batch, IMPORTANCE_WEIGHT: np.asarray(weight / weight.max(), np.float32)}

    def controls(self, frames: int) -> list[float]:
        """None."""
        del frames
        return []

    def terms(
        self,
        network: Network,
        inputs: Inputs,
        state: State,
        batch: Mapping[str, tf.Tensor],
        controls: tf.Tensor,
    ) -> Terms:
        """Sums over learnt valid rows; ``per_unroll`` has the new priorities."""
        del controls
        settings, start = self.settings, self.settings.burn_in
        action = batch["action"][start:-1]
        valid = tf.cast(batch["valid"][start:], tf.bool)
        online = self._q(network, inputs, state)
        q = of_action(online[:-1], action)
        target = tf.stop_gradient(self._targets(online, self._q(self._target, inputs, state), batch, valid))
        td = tf.where(valid, target - q, 0.0)
        weight = batch[IMPORTANCE_WEIGHT]
        td_fixed = tf.stop_gradient(td)

        def total(rows: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(tf.where(valid, tf.stop_gradient(rows), 0.0))

        return Terms(
            losses={"q_loss": tf.reduce_sum(weight * 0.5 * tf.reduce_sum(tf.square(td), 0))},
            count=tf.reduce_sum(tf.cast(valid, tf.float32)),
            sums={
                "q": total(q),
                "q_target": total(target),
                "q_target_squared": total(tf.square(target)),
                "td": total(td),
                "td_squared": total(tf.square(td)),
                "td_absolute": total(tf.abs(td)),
                "importance_weight": total(weight * tf.ones_like(td)),
            },
            divisor=tf.cast(tf.shape(weight)[0], tf.float32),
            per_unroll={PRIORITY: priorities(td_fixed, valid, settings.eta)},
        )

    def after_update(self, updates: tf.Tensor, means: Mapping[str, tf.Tensor]) -> None:
        """Copies the network to the target network every ``target_update_period`` updates."""
        del means

        def assign(target: tf.Variable, online: tf.Variable) -> None:
            target.assign(online)

        def copy() -> tf.Tensor:
            for target, online in self._pairs:
                self._strategy.extended.update(target, assign, args=(online,), group=False)
            return tf.constant(True)

        tf.cond(updates % self.settings.target_update_period == 0, copy, lambda: tf.constant(False))

    def summarize(self, means: dict[str, float]) -> dict[str, Any]:
        """Replaces second moments by ``value_explained``: 1 - Var(TD) / Var(target), 0 where it does not vary."""
        summary = dict(means)
        variance = summary.pop("q_target_squared") - summary["q_target"] ** 2
        unexplained = summary.pop("td_squared") - summary.pop("td") ** 2
        summary["value_explained"] = 1.0 - unexplained / variance if variance > 1e-8 else 0.0
        return summary

    def _q(self, network: Network, inputs: Inputs, state: State) -> tf.Tensor:
        """Q-values of the learnt rows and the one after them, ``[L + 1, B, A]``."""
        start = self.settings.burn_in
        if start and state:
            _, state = network.unroll(_rows(inputs, 0, start), state)
            state = tuple(tf.stop_gradient(leaf) for leaf in state)
        outputs, _ = network.unroll(_rows(inputs, start, None), state)
        return outputs.policy

    def _targets(
        self, online: tf.Tensor, target: tf.Tensor, batch: Mapping[str, tf.Tensor], valid: tf.Tensor
    ) -> tf.Tensor:
        """Rescaled targets of the learnt rows, ``[L, B]``."""
        settings, start = self.settings, self.settings.burn_in
        q = unscale(bootstrap(target, online, settings.double_q), settings.rescale_epsilon)
        reward = self.rewards(batch["reward"][start + 1 :])
        discount = discounts(batch["terminated"][start:], settings.discount, batch["life_lost"][start:])
        return rescale(n_step_targets(q, reward, discount, valid, settings.n_steps), settings.rescale_epsilon)


def _rows(inputs: Inputs, start: int, stop: int | None) -> Inputs:
    return Inputs(*tf.nest.map_structure(lambda x: x[start:stop], tuple(inputs)))
