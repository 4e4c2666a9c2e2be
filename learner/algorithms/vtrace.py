"""The V-trace actor-critic loss (IMPALA, arXiv 1802.01561, section 4.2; SEED RL's agents/vtrace).

Policy gradient, value, entropy and optional KL terms, all summed over valid rows. Log-probabilities, ratios and
targets are float32 whatever the network computes in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy.typing as npt
import tensorflow as tf

from learner.algorithms import Terms, Variables
from learner.distributions import Stochastic
from learner.inputs import Inputs, Outputs, RewardTransform
from learner.networks.network import Network, State
from learner.optimizers import value_at
from learner.value_scale import ValueScale
from learner.vtrace import VtraceReturns, discounts, vtrace
from pipeline.config.tree import VtraceSection
from pipeline.errors import ConfigError

MAX_LOG_COST = 20.0
ENTROPY_COST, ENTROPY_COST_OF_PICTURES = 0.003, 0.01
"""``vtrace.entropy_cost`` where it is not set (docs/decisions/0006)."""


class Vtrace:
    """The algorithm object of ``training.algorithm: vtrace`` (see ``learner.algorithms.Algorithm``).

    Args:
        settings: Its section.
        distribution: Of the actions.
        pictures: The observations are pictures that are convolved.

    Raises:
        ConfigError: ``entropy_target`` with an ``entropy_cost`` of 0, whose logarithm cannot be learnt.
    """

    fields: tuple[str, ...] = ("action", "behaviour", "reward", "terminated", "life_lost", "valid")

    def __init__(self, settings: VtraceSection, distribution: Stochastic, pictures: bool = False) -> None:
        default = ENTROPY_COST_OF_PICTURES if pictures else ENTROPY_COST
        self.entropy_cost = default if settings.entropy_cost is None else settings.entropy_cost
        if settings.entropy_target is not None and self.entropy_cost == 0:
            raise ConfigError("vtrace.entropy_cost = 0 with vtrace.entropy_target: a learnt cost starts above 0")
        self.settings = settings
        self._distribution = distribution
        self.loss_reduction: Literal["mean", "sum"] = settings.loss_reduction
        self.rewards = RewardTransform(settings.reward_scale, settings.reward_clip)
        self._log_cost: tf.Variable | None = None
        self._scale: ValueScale | None = None

    def build(self, network: Network) -> Variables:
        """The scale of the values, and the log-multiplier of the entropy where there is a target: entropy cost =
        exp(speed * variable)."""
        self._scale = ValueScale(network) if self.settings.normalize_values else None
        kept = self._scale.variables if self._scale else []
        if self.settings.entropy_target is None:
            return Variables([], kept)
        speed = self.settings.entropy_adjustment_speed
        bound = MAX_LOG_COST / speed
        self._log_cost = tf.Variable(
            math.log(self.entropy_cost) / speed,
            name="entropy_multiplier",
            dtype=tf.float32,
            # Beyond this the cost no longer matters, and its gradient may round to 0 for good.
            constraint=lambda value: tf.clip_by_value(value, -bound, bound),
        )
        return Variables(trained=[("entropy_multiplier", self._log_cost)], kept=kept)

    def prepare(self, batch: Mapping[str, npt.NDArray[Any]]) -> Mapping[str, npt.NDArray[Any]]:
        """Nothing to do."""
        return batch

    def controls(self, frames: int) -> list[float]:
        """The entropy cost at ``frames`` environment frames (unused where it is learnt)."""
        return [value_at(self.entropy_cost, self.settings.entropy_cost_schedule, frames)]

    def terms(
        self,
        network: Network,
        inputs: Inputs,
        state: State,
        batch: Mapping[str, tf.Tensor],
        controls: tf.Tensor,
    ) -> Terms:
        """The loss of the network's outputs over the whole unroll."""
        outputs, _ = network.unroll(inputs, state)
        return self.loss(outputs, batch, controls)

    def loss(self, outputs: Outputs, batch: Mapping[str, tf.Tensor], controls: tf.Tensor) -> Terms:
        """Sums over valid rows.

        Args:
            outputs: Of the whole unroll: policy ``[T + 1, B, D]``, value ``[T + 1, B]``, float32.
            batch: ``fields``, time-major, as ``UnrollLayout.batch`` makes them.
            controls: ``[1]``: the entropy cost.
        """
        settings, distribution = self.settings, self._distribution
        scale = self._scale
        policy, value = outputs.policy[:-1], outputs.value if scale is None else scale.value(outputs.value)
        valid_rows = tf.cast(batch["valid"], tf.bool)
        valid = tf.cast(valid_rows, tf.float32)

        def total(rows: tf.Tensor) -> tf.Tensor:
            """Sum over valid rows; what stands in the others, even NaN, does not matter."""
            return tf.reduce_sum(tf.where(valid_rows, rows, 0.0))

        action, behaviour = batch["action"][:-1], batch["behaviour"][:-1]
        log_pi = distribution.log_prob(policy, action)
        log_mu_pi = tf.where(valid_rows, distribution.log_prob(behaviour, action) - log_pi, 0.0)
        log_rho = -tf.stop_gradient(log_mu_pi)
        returns = self._returns(log_rho, value, valid, batch)
        error = returns.vs[:-1] - value[:-1]
        unit = 1.0 if scale is None else 1.0 / scale.std
        entropy = distribution.entropy(policy)
        entropy_cost = controls[0] if self._log_cost is None else self._learnt_cost()
        losses = {
            "policy_loss": -total(log_pi * returns.advantage * unit),
            "value_loss": settings.baseline_cost * 0.5 * total(tf.square(error * unit)),
            "entropy_loss": -tf.stop_gradient(entropy_cost) * total(entropy),
        }
        if settings.kl_cost:
            losses["kl_loss"] = settings.kl_cost * total(log_mu_pi)
        if settings.entropy_target is not None:
            surplus = tf.stop_gradient(entropy) - settings.entropy_target
            losses["entropy_target_loss"] = entropy_cost * total(surplus)
        rho = tf.exp(log_rho)
        vs, error = returns.vs[:-1], tf.stop_gradient(error)
        count = tf.reduce_sum(valid)
        sums = {
            "entropy": total(tf.stop_gradient(entropy)),
            "entropy_cost": tf.stop_gradient(entropy_cost) * count,
            "kl": -total(log_rho),
            "rho": total(rho),
            "rho_clipped": total(tf.cast(rho > settings.clip_rho, tf.float32)),
            "advantage": total(returns.advantage),
            "vs": total(vs),
            "vs_squared": total(tf.square(vs)),
            "value_error": total(error),
            "value_error_squared": total(tf.square(error)),
        }
        if scale is not None:
            target = scale.normalized(vs)
            sums |= {"value_mean": scale.mean * count, "value_std": scale.std * count}
            sums |= {"value_target": total(target), "value_target_squared": total(tf.square(target))}
        return Terms(losses, count, sums)

    def after_update(self, updates: tf.Tensor, means: Mapping[str, tf.Tensor]) -> None:
        """The scale of the values follows their targets."""
        if self._scale is not None:
            self._scale.update(updates, means["value_target"], means["value_target_squared"])

    def summarize(self, means: dict[str, float]) -> dict[str, float]:
        """Replaces second moments by ``value_explained``: 1 - Var(vs - V) / Var(vs), 0 where vs does not vary."""
        summary = {name: mean for name, mean in means.items() if not name.startswith("value_target")}
        variance = summary.pop("vs_squared") - summary["vs"] ** 2
        unexplained = summary.pop("value_error_squared") - summary["value_error"] ** 2
        summary["value_explained"] = 1.0 - unexplained / variance if variance > 1e-8 else 0.0
        return summary

    def _returns(
        self, log_rho: tf.Tensor, value: tf.Tensor, valid: tf.Tensor, batch: Mapping[str, tf.Tensor]
    ) -> VtraceReturns:
        settings = self.settings
        return vtrace(
            log_rho,
            discounts(batch["terminated"], settings.discount, batch["life_lost"]),
            self.rewards(batch["reward"][1:]),
            tf.stop_gradient(value),
            valid,
            lambda_=settings.lambda_,
            clip_rho=settings.clip_rho,
            clip_c=settings.clip_c,
            clip_pg_rho=settings.clip_pg_rho,
        )

    def _learnt_cost(self) -> tf.Tensor:
        return tf.exp(self.settings.entropy_adjustment_speed * tf.convert_to_tensor(self._log_cost))
