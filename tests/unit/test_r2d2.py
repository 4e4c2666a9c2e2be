"""R2D2's targets, rescaling, exploration and priorities against their definitions."""

import numpy as np
import pytest
import tensorflow as tf

from learner.exploration import SAMPLE, Exploration, epsilons
from learner.r2d2 import MIN_PRIORITY, bootstrap, n_step_targets, of_action, priorities, rescale, unscale
from learner.vtrace import discounts
from tests.unit.test_vtrace import rows_of

pytestmark = pytest.mark.unit

VALUES = np.concatenate([-np.logspace(-8, 5, 60)[::-1], [0.0], np.logspace(-8, 5, 60)])


def slow_target(i, b, q, reward, terminated, valid, gamma, n):
    """One return in float64, from its first reward to its bootstrap."""
    total, factor, j = 0.0, 1.0, i
    for _ in range(n):
        if j == len(valid) or not valid[j, b]:
            break
        total += factor * float(reward[j + 1, b])
        factor *= gamma * (1.0 - float(terminated[j + 1, b]))
        j += 1
    return total + factor * float(q[j, b])


@pytest.mark.parametrize("n", [1, 2, 5, 30, 10**12])
@pytest.mark.parametrize("length", [1, 4, 20])
def test_targets_equal_the_definition(n, length):
    _, terminated, reward, q, valid = rows_of(length, 16, seed=n + length)
    found = n_step_targets(
        tf.constant(q), tf.constant(reward[1:]), discounts(terminated, 0.9), tf.constant(valid > 0), n
    ).numpy()
    for i in range(length):
        for b in range(16):
            expected = slow_target(i, b, q, reward, terminated, valid, 0.9, n)
            assert found[i, b] == pytest.approx(expected, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize(
    ("terminated", "expected"),
    [(0, [2.0, 2.0, 2.0, 102.0, 101.0]), (1, [1.0, 0.0, 2.0, 102.0, 101.0])],
    ids=["truncated", "terminated or both"],
)
def test_an_episode_that_ends_inside(terminated, expected):
    """Rows A0 A1 F B0 B1 B2, gamma 1, n 2; rewards 1 with A1, 0 with F, 1 with B1 and B2; q 1, 1, 2, 9, 9, 100."""
    q = tf.constant([[1.0], [1.0], [2.0], [9.0], [9.0], [100.0]])
    reward = tf.constant([[1.0], [0.0], [0.0], [1.0], [1.0]])
    flags = np.array([[0], [0], [terminated], [0], [0], [0]])
    valid = tf.constant([[True], [True], [False], [True], [True]])
    found = n_step_targets(q, reward, discounts(flags, 1.0), valid, 2).numpy()[:, 0]
    expected = np.array(expected)
    expected[0] = 1.0 + (0.0 if terminated else 2.0)
    np.testing.assert_allclose(found[[0, 1, 3, 4]], expected[[0, 1, 3, 4]])


@pytest.mark.parametrize(("n", "expected"), [(1, [2, 1, 10, 11]), (2, [2, 1, 12, 11]), (5, [2, 1, 12, 11])])
def test_a_lost_life_ends_the_returns_that_lead_to_it(n, expected):
    """Rows A0 A1 L A3 A4 of one episode, rewards 1, gamma 1; q 1, 1, 9, 9, 10."""
    q = tf.constant([[1.0], [1.0], [9.0], [9.0], [10.0]])
    lost = np.array([[0], [0], [1], [0], [0]])
    discount = discounts(np.zeros((5, 1)), 1.0, lost)
    found = n_step_targets(q, tf.ones([4, 1]), discount, tf.ones([4, 1], tf.bool), n).numpy()[:, 0]
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 0.5])
def test_rescaling_equals_its_formula_and_has_an_inverse(epsilon):
    h = np.sign(VALUES) * (np.sqrt(np.abs(VALUES) + 1) - 1) + epsilon * VALUES
    np.testing.assert_allclose(rescale(VALUES, epsilon), h, rtol=1e-7, atol=1e-15)
    np.testing.assert_allclose(unscale(h, epsilon), VALUES, rtol=1e-7)
    x = tf.constant(VALUES, tf.float32)
    np.testing.assert_allclose(unscale(rescale(x, epsilon), epsilon), x, rtol=3e-6)
    with np.errstate(invalid="raise"):
        root = np.sqrt(1 + 4 * epsilon * (np.abs(h) + 1 + epsilon))
        np.testing.assert_allclose(
            unscale(h, epsilon), np.sign(h) * (((root - 1) / (2 * epsilon)) ** 2 - 1), rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("epsilon", [None, 0.0])
def test_rescaling_can_be_switched_off(epsilon):
    assert rescale(VALUES, epsilon) is VALUES and unscale(VALUES, epsilon) is VALUES


def test_double_q_asks_the_online_network_which_action():
    target, online = tf.constant([[1.0, 5.0, 2.0]]), tf.constant([[0.0, 1.0, 9.0]])
    assert bootstrap(target, online, double_q=True).numpy().tolist() == [2.0]
    assert bootstrap(target, online, double_q=False).numpy().tolist() == [5.0]
    assert of_action(target, tf.constant([0])).numpy().tolist() == [1.0]


def test_priorities_mix_the_largest_and_the_mean_of_valid_rows():
    td = tf.constant([[1.0, 9.0, np.nan], [-3.0, 9.0, 1.0], [100.0, 9.0, 1.0]])
    valid = tf.constant([[True, False, True], [True, False, True], [False, False, True]])
    found = priorities(td, valid, 0.9).numpy()
    np.testing.assert_allclose(found, [0.9 * 3 + 0.1 * 2 + MIN_PRIORITY, MIN_PRIORITY, MIN_PRIORITY], rtol=1e-6)


def test_epsilons_are_those_of_ape_x():
    np.testing.assert_allclose(epsilons(0.4, 7.0, 8), 0.4 ** np.linspace(1, 8, 8), rtol=1e-6)
    np.testing.assert_allclose(epsilons(0.4, 7.0, 1), [0.4], rtol=1e-6)
    assert epsilons(0.4, 7.0, 3).dtype == np.float32


def test_a_training_environment_explores_by_its_place():
    exploration = Exploration(epsilons(0.4, 7.0, 4), evaluation=0.01)
    found = exploration.of_training(np.array([5, 0, 3, 4], np.int32))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, exploration.training[[1, 0, 3, 0]])
    np.testing.assert_array_equal(exploration.of_evaluation(3), np.full(3, 0.01, np.float32))


def test_a_stochastic_policy_samples_in_training_and_takes_the_mode_in_evaluation():
    assert SAMPLE.of_training(np.arange(3)).tolist() == [1.0, 1.0, 1.0]
    assert SAMPLE.of_evaluation(2).tolist() == [0.0, 0.0]
    assert SAMPLE.in_mode("greedy") is SAMPLE
    assert SAMPLE.in_mode("sample").of_evaluation(3).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("ladder", [1, 8, 32, 640])
def test_those_that_evaluate_as_training_did_are_a_fair_sample_of_its_ladder(ladder):
    sampled = Exploration(epsilons(0.4, 7.0, ladder), evaluation=0.01).in_mode("sample")
    training = sampled.training
    np.testing.assert_array_equal(sampled.of_evaluation(ladder), training)
    assert len(sampled.of_evaluation(0)) == 0
    for count in (1, 4, 8, 20, 31, 33, 100):
        found = sampled.of_evaluation(count)
        assert found.dtype == np.float32 and (np.diff(found) <= 0).all()
        assert training[-1] <= found[-1] and found[0] <= training[0]
        quantiles = np.quantile(training, 1 - (np.arange(count) + 0.5) / count, method="hazen")
        np.testing.assert_allclose(found, quantiles, rtol=1e-5)
        if count >= 8:
            assert found.mean() == pytest.approx(training.mean(), rel=0.1)
