"""V-trace against a slow numpy reference and the check values of SEMANTICS."""

import numpy as np
import pytest
import tensorflow as tf

from learner.vtrace import backward_sum, discounts, vtrace

pytestmark = pytest.mark.unit

TRUNCATED = np.array([[0], [0], [1], [0], [0], [0]])  # rows A0 A1 F B0 B1 B2
NEVER = np.zeros((6, 1), np.int64)
CASES = {
    "truncated": (NEVER, [0, 0, 0, 0, 0]),
    "terminated": (TRUNCATED, [-1, -1, 0, 0, 0]),
    "both": (TRUNCATED, [-1, -1, 0, 0, 0]),  # truncated as well: terminated wins, truncation is not even an input
}


def reference(log_rho, terminated, gamma, reward, value, valid, lambda_, clip_rho, clip_c, clip_pg_rho):
    """The definition, one transition at a time, in float64."""
    length, batch = log_rho.shape
    vs, advantage = value.astype(np.float64), np.zeros((length, batch))
    for b in range(batch):
        accumulated = 0.0
        for i in reversed(range(length)):
            if not valid[i, b]:
                accumulated = 0.0
                continue
            rho = np.exp(np.float64(log_rho[i, b]))
            discount = gamma * (1.0 - terminated[i + 1, b])
            following = value[i + 1, b] + accumulated  # vs of the next row
            delta = min(rho, clip_rho) * (reward[i + 1, b] + discount * value[i + 1, b] - value[i, b])
            advantage[i, b] = min(rho, clip_pg_rho) * (reward[i + 1, b] + discount * following - value[i, b])
            accumulated = delta + discount * lambda_ * min(rho, clip_c) * accumulated
            vs[i, b] = value[i, b] + accumulated
    return vs, advantage


def rows_of(length, batch, seed):
    """Random rows in which episodes end, terminated, truncated and both, and seams occur."""
    rng = np.random.default_rng(seed)
    ended = rng.random((length + 1, batch)) < 0.2
    terminated = ended & (rng.random((length + 1, batch)) < 0.6)
    valid = ~ended[:-1] & (rng.random((length, batch)) < 0.95)
    log_rho = rng.normal(size=(length, batch)).astype(np.float32)
    reward = rng.normal(size=(length + 1, batch)).astype(np.float32)
    value = (10 * rng.normal(size=(length + 1, batch))).astype(np.float32)
    return log_rho, terminated.astype(np.uint8), reward, value, valid.astype(np.float32)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 20])
@pytest.mark.parametrize(("lambda_", "clip_rho", "clip_c", "clip_pg_rho"), [(1, 1, 1, 1), (0.9, 2.0, 1.5, 0.7)])
def test_equals_the_definition(length, lambda_, clip_rho, clip_c, clip_pg_rho):
    log_rho, terminated, reward, value, valid = rows_of(length, 16, length)
    clips = {"lambda_": lambda_, "clip_rho": clip_rho, "clip_c": clip_c, "clip_pg_rho": clip_pg_rho}
    found = vtrace(tf.constant(log_rho), discounts(terminated, 0.97), reward[1:], tf.constant(value), valid, **clips)
    vs, advantage = reference(log_rho, terminated, 0.97, reward, value, valid, **clips)
    np.testing.assert_allclose(found.vs, vs, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found.advantage, advantage, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_no_value_leaks_across_an_episode_end(case):
    terminated, expected = CASES[case]
    found = check_values(terminated, 1.0)
    np.testing.assert_allclose(found.advantage[:, 0], expected, atol=1e-5)


def test_lambda_shortens_the_reach_of_a_termination():
    assert float(check_values(TRUNCATED, 0.95).vs[0, 0]) - 1.0 == pytest.approx(-0.95)


def check_values(terminated, lambda_):
    value = tf.constant([[1.0], [1.0], [1.0], [100.0], [100.0], [100.0]])
    valid = tf.constant([[1.0], [1.0], [0.0], [1.0], [1.0]])
    zeros = tf.zeros([5, 1])
    return vtrace(zeros, discounts(terminated, 1.0), zeros, value, valid, lambda_=lambda_)


def test_a_lost_life_ends_what_is_learnt_and_its_row_goes_on():
    """Rows A0 A1 L A3 A4 A5 of one episode, rewards 0, on-policy, gamma 1: V(L) enters no target before L."""
    value = tf.constant([[1.0], [1.0], [5.0], [5.0], [5.0], [5.0]])
    lost, valid, zeros = np.array([[0], [0], [1], [0], [0], [0]]), tf.ones([5, 1]), tf.zeros([5, 1])
    found = vtrace(zeros, discounts(NEVER, 1.0, lost), zeros, value, valid)
    np.testing.assert_allclose(found.advantage[:, 0], [-1, -1, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(found.vs[:, 0], [0, 0, 5, 5, 5, 5], atol=1e-6)


def test_invalid_rows_keep_their_value():
    log_rho, terminated, reward, value, valid = rows_of(20, 16, 3)
    found = vtrace(tf.constant(log_rho), discounts(terminated, 0.9), reward[1:], tf.constant(value), valid)
    np.testing.assert_array_equal(found.vs[:-1][valid == 0], value[:-1][valid == 0])
    np.testing.assert_array_equal(found.vs[-1], value[-1])
    np.testing.assert_array_equal(found.advantage[valid == 0], 0)


def test_on_policy_target_is_the_n_step_return():
    reward, value = np.arange(5, dtype=np.float32)[:, None], np.full((5, 1), 7.0, np.float32)
    discount, valid = discounts(np.zeros((5, 1)), 0.5), np.ones((4, 1), np.float32)
    found = vtrace(tf.zeros([4, 1]), discount, reward[1:], tf.constant(value), valid)
    assert float(found.vs[0, 0]) == pytest.approx(1 + 0.5 * 2 + 0.25 * 3 + 0.125 * 4 + 0.0625 * 7)


def test_no_gradient_flows_through_targets():
    value = tf.Variable(tf.ones([4, 1]))
    with tf.GradientTape() as tape:
        found = vtrace(tf.zeros([3, 1]), tf.ones([3, 1]), tf.ones([3, 1]), value, tf.ones([3, 1]))
        total = tf.reduce_sum(found.vs) + tf.reduce_sum(found.advantage)
    assert tape.gradient(total, value) is None


@pytest.mark.parametrize("length", [1, 2, 5, 8, 100])
def test_backward_sum_is_the_recursion(length):
    rng = np.random.default_rng(length)
    delta, trace = rng.normal(size=(length, 3)).astype(np.float32), rng.random((length, 3)).astype(np.float32)
    expected = np.zeros((length + 1, 3))
    for i in reversed(range(length)):
        expected[i] = delta[i] + trace[i] * expected[i + 1]
    found = backward_sum(tf.constant(delta), tf.constant(trace))
    np.testing.assert_allclose(found, expected[:-1], rtol=1e-5, atol=1e-5)
