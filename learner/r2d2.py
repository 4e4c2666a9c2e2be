"""Targets and priorities of R2D2 (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed RL").

Time-major, rows and transitions as in ``learner.vtrace``: transition i uses ``reward[i + 1]`` and ``discount[i]``. A
row that is not valid (a final observation, the last row before a seam) begins no transition and holds its own Q-value,
from which the row before it bootstraps.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

MIN_PRIORITY = 1e-6
"""Added to every priority, so that no stored unroll is out of reach."""


def rescale(x: Any, epsilon: float | None) -> Any:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x (Pohlen et al. 2018, arXiv 1805.11593, proposition A.2).

    Args:
        x: Tensor or numpy array of floats: only operators are used, and none of them cancels near 0.
        epsilon: None or 0 leaves x as it is.
    """
    return x * (1.0 / ((abs(x) + 1.0) ** 0.5 + 1.0) + epsilon) if epsilon else x


def unscale(x: Any, epsilon: float | None) -> Any:
    """The inverse of ``rescale``.

    sign(x) (z^2 - 1), z = (sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon), rearranged so that float32 loses
    no digits where z is near 1 and the root is.
    """
    if not epsilon:
        return x
    size = abs(x)
    root = (1.0 + 4.0 * epsilon * (size + 1.0 + epsilon)) ** 0.5
    slope = 2.0 * (1.0 - 2.0 * epsilon / (root + 1.0 + 2.0 * epsilon)) / (root + 1.0)  # (z - 1) / |x|
    return x * slope * (size * slope + 2.0)


def n_step_targets(q: tf.Tensor, reward: tf.Tensor, discount: tf.Tensor, valid: tf.Tensor, n: int) -> tf.Tensor:
    """n-step returns that bootstrap from ``q``, ``[T, B]`` float32, of values that are not rescaled.

    bt = q; n times: bt[i] = reward[i + 1] + discount[i] bt[i + 1] where valid, else q[i]; bt[T] = q[T]. So a return
    is shorter at the unroll's end, and at an episode's end: there it takes q at the final observation, times a discount
    of 0 where the episode was terminated.

    Args:
        q: ``[T + 1, B]`` float32, the bootstrap value of each row.
        reward: ``[T, B]`` float32, scaled and clipped: ``reward[i + 1]`` of the rows.
        discount: ``[T, B]`` float32, of ``learner.vtrace.discounts``.
        valid: ``[T, B]`` bool.
        n: At least 1; more than T is T, for every return ends at the unroll's end.
    """
    returns = q
    for _ in range(min(n, reward.shape[0] or n)):
        backed_up = tf.where(valid, reward + discount * returns[1:], q[:-1])
        returns = tf.concat([backed_up, q[-1:]], 0)
    return returns[:-1]


def bootstrap(q_target: tf.Tensor, q_online: tf.Tensor, double_q: bool) -> tf.Tensor:
    """``[...]``: the target network's Q of the best action, chosen by the online network where ``double_q``.

    Args:
        q_target: float32 ``[..., A]``.
        q_online: float32 ``[..., A]``.
        double_q: van Hasselt et al. 2015 (arXiv 1509.06461, equation 4).
    """
    if not double_q:
        return tf.reduce_max(q_target, -1)
    return of_action(q_target, tf.argmax(q_online, -1, tf.int32))


def of_action(q: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
    """``q`` ``[..., A]`` at int32 ``action`` ``[...]``."""
    return tf.gather(q, action, axis=-1, batch_dims=action.shape.rank)


def priorities(td: tf.Tensor, valid: tf.Tensor, eta: float) -> tf.Tensor:
    """Priorities of unrolls, ``[B]`` float32: eta max |td| + (1 - eta) mean |td| over valid rows, plus 1e-6.

    A priority that is not finite is 1e-6, as is that of an unroll without valid rows: neither is worth sampling again.

    Args:
        td: ``[L, B]`` float32 TD errors of the learnt rows.
        valid: ``[L, B]`` bool.
        eta: Section 2.3 of the paper.
    """
    size = tf.where(valid, tf.abs(td), 0.0)
    count = tf.reduce_sum(tf.cast(valid, tf.float32), 0)
    mean = tf.math.divide_no_nan(tf.reduce_sum(size, 0), count)
    mixed = eta * tf.reduce_max(size, 0) + (1.0 - eta) * mean
    return tf.where(tf.math.is_finite(mixed), mixed, 0.0) + MIN_PRIORITY
