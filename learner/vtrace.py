"""V-trace targets and advantages from importance weights (Espeholt et al. 2018, arXiv 1802.01561, section 4.1).

Time-major: row i of T + 1 rows, transition i from row i to i + 1. A transition uses ``reward[i + 1]`` and
``discount[i] = gamma (1 - terminated[i + 1])``, so a truncated episode bootstraps and one that is both is terminated.
A lost life counts as terminated here and nowhere else: the row that it leads to begins the next transition.
A row whose ``valid`` is 0 (a final observation, the last row before a seam) begins no transition: it has no delta,
cuts the recursion and keeps ``vs = V``.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class VtraceReturns(NamedTuple):
    """What the losses need; gradients never flow through either.

    Attributes:
        vs: ``[T + 1, B]`` float32 value targets; the last row is the bootstrap V.
        advantage: ``[T, B]`` float32 policy gradient advantages, 0 where not valid.
    """

    vs: tf.Tensor
    advantage: tf.Tensor


def discounts(terminated: tf.Tensor, gamma: float, life_lost: tf.Tensor | None = None) -> tf.Tensor:
    """``[T, B]`` float32 discounts of the transitions.

    Args:
        terminated: ``[T + 1, B]`` of any numeric dtype, as all that follow.
        gamma: Where nothing ends.
        life_lost: ``[T + 1, B]``: what is learnt ends there as well, though the episode goes on.
    """
    goes_on = 1.0 - tf.cast(terminated[1:], tf.float32)
    return gamma * (goes_on if life_lost is None else goes_on * (1.0 - tf.cast(life_lost[1:], tf.float32)))


def vtrace(
    log_rho: tf.Tensor,
    discount: tf.Tensor,
    reward: tf.Tensor,
    value: tf.Tensor,
    valid: tf.Tensor,
    *,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VtraceReturns:
    """V-trace (equation 1 and remark 2; the policy gradient of section 4.2).

    Args:
        log_rho: ``[T, B]`` float32, log pi(a|x) - log mu(a|x); must be finite where not valid, too.
        discount: ``[T, B]`` float32, of ``discounts``.
        reward: ``[T, B]`` float32, scaled and clipped: ``reward[i + 1]`` of the rows.
        value: ``[T + 1, B]`` float32 V.
        valid: ``[T, B]`` float32, 0 or 1.
        lambda_: Mixes the traces: c = lambda min(c-bar, rho).
        clip_rho: rho-bar: which policy's value is learnt.
        clip_c: c-bar: how far corrections reach back.
        clip_pg_rho: rho-bar of the policy gradient.
    """
    rho = tf.exp(log_rho)
    value_t, value_tp1 = value[:-1], value[1:]
    delta = valid * tf.minimum(rho, clip_rho) * (reward + discount * value_tp1 - value_t)
    trace = valid * discount * lambda_ * tf.minimum(rho, clip_c)
    vs = value + tf.pad(backward_sum(delta, trace), [[0, 1], [0, 0]])
    advantage = valid * tf.minimum(rho, clip_pg_rho) * (reward + discount * vs[1:] - value_t)
    return VtraceReturns(tf.stop_gradient(vs), tf.stop_gradient(advantage))


def backward_sum(delta: tf.Tensor, trace: tf.Tensor) -> tf.Tensor:
    """``acc[i] = delta[i] + trace[i] acc[i + 1]`` with ``acc[T] = 0``, for ``[T, B]``, T static.

    By doubling: after round k a row holds its own next 2^k deltas and the product of their traces. It takes log2(T)
    rounds of whole-array operations; a loop takes T (measured at T = 100: 40 us, a static loop 85 us, ``tf.scan``
    760 us).
    """
    length, reach = delta.shape[0], 1
    while reach < length:
        delta += trace * _later(delta, reach)
        trace *= _later(trace, reach)
        reach *= 2
    return delta


def _later(rows: tf.Tensor, by: int) -> tf.Tensor:
    """``rows[i + by]`` at i, zero past the end."""
    return tf.pad(rows[by:], [[0, by], [0, 0]])
