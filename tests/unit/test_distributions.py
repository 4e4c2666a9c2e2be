"""Action distributions against numpy, numerical integration and sampling."""

import math

import numpy as np
import pytest
import tensorflow as tf

from learner.distributions import distribution_for, epsilon_greedy_for
from pipeline.errors import SpaceError
from pipeline.spaces import INTEGERS, Leaf

pytestmark = pytest.mark.unit

SEED = np.array([3, 4], np.int32)  # no tensor: importing must not start TensorFlow
INF = math.inf


def box(low, high, dtype="float32", shape=None):
    return Leaf("action", "box", dtype, shape or (len(low),), low=tuple(low), high=tuple(high))


def categorical(n=4, start=0, dtype="int64"):
    return distribution_for(Leaf("action", "discrete", dtype, (), n=n, start=start))


def test_categorical_equals_numpy():
    d = categorical()
    p, q = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype(np.float32) * 3
    prob_p, prob_q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (p, q))
    raw = np.random.default_rng(1).integers(0, 4, (3, 5)).astype(np.int32)
    np.testing.assert_allclose(d.log_prob(p, raw), np.log(np.take_along_axis(prob_p, raw[..., None], -1)[..., 0]), 1e-5)
    np.testing.assert_allclose(d.entropy(p), -(prob_p * np.log(prob_p)).sum(-1), 1e-5)
    np.testing.assert_allclose(d.kl(p, q), (prob_p * np.log(prob_p / prob_q)).sum(-1), 1e-4)
    np.testing.assert_array_equal(d.mode(p), p.argmax(-1))
    np.testing.assert_array_equal(d.features(raw), np.eye(4)[raw])


def test_categorical_samples_have_the_right_frequencies_and_repeat():
    d = categorical()
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    params = tf.constant(np.tile(logits, (40_000, 1)))
    samples = d.sample(params, SEED).numpy()
    assert samples.dtype == np.int32
    np.testing.assert_allclose(np.bincount(samples, minlength=4) / 40_000, [0.1, 0.2, 0.3, 0.4], atol=0.01)
    np.testing.assert_array_equal(samples, d.sample(params, SEED))
    assert (samples != d.sample(params, SEED + 1).numpy()).any()


def test_greedy_rows_take_the_mode():
    exploration = (np.arange(2000) % 2).astype(np.float32)
    greedy = exploration == 0
    for d in (categorical(), distribution_for(box([-1, -INF], [1, INF]))):
        params = tf.constant(np.random.default_rng(0).normal(size=(2000, d.parameters)).astype(np.float32) * 0.1)
        found, mode = d.sample(params, SEED, tf.constant(exploration)).numpy(), d.mode(params).numpy()
        np.testing.assert_array_equal(found[greedy], mode[greedy])
        assert (found[~greedy] != mode[~greedy]).mean() > 0.5


def test_epsilon_greedy_acts_at_random_as_often_as_each_row_says():
    n, epsilon = 40_000, np.float32([0.0, 0.1, 0.5, 1.0])
    d = epsilon_greedy_for(Leaf("action", "discrete", "int64", (), n=4))
    q = tf.constant(np.tile(np.float32([1.0, 5.0, 2.0, -1.0]), (n, 1)))
    rows = np.arange(n) % 4
    found = d.sample(q, SEED, tf.constant(epsilon[rows])).numpy()
    assert found.dtype == np.int32
    np.testing.assert_array_equal(d.mode(q), 1)
    for k, e in enumerate(epsilon):
        share = np.bincount(found[rows == k], minlength=4) / (n / 4)
        np.testing.assert_allclose(share, np.where(np.arange(4) == 1, 1 - 0.75 * e, 0.25 * e), atol=0.02)
    assert (found[rows == 0] == 1).all()
    np.testing.assert_array_equal(d.sample(q, SEED), d.sample(q, SEED, tf.ones(n)))


def test_epsilon_greedy_needs_discrete_actions_and_says_which_algorithm_does_not():
    with pytest.raises(
        SpaceError, match=r"Q-values of discrete actions only: set training\.algorithm to vtrace, which takes both$"
    ):
        epsilon_greedy_for(box([-1.0], [1.0]))


def test_discrete_actions_start_where_the_space_does():
    action = categorical(n=3, start=-1).to_env(np.array([0, 2], np.int32))
    assert action.dtype == np.int64 and action.tolist() == [-1, 1]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_discrete_actions_have_the_dtype_of_the_space(dtype):
    bounds = np.iinfo(dtype)
    size = min(300, int(bounds.max) - int(bounds.min) + 1)
    for start in (int(bounds.min), 0, int(bounds.max) - size + 1):
        n = min(size, int(bounds.max) - start + 1)
        action = categorical(n=n, start=start, dtype=dtype).to_env(np.arange(n, dtype=np.int32))
        assert action.dtype == np.dtype(dtype) and action.tolist() == list(range(start, start + n))


def test_a_box_without_a_shape_has_one_action():
    d = distribution_for(Leaf("action", "box", "float32", (), low=(-1.0,), high=(1.0,)))
    params = tf.constant(np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32))
    raw = d.sample(params, SEED)
    action = d.to_env(raw.numpy())
    assert raw.shape == action.shape == (5,) and action.dtype == np.float32 and (np.abs(action) <= 1).all()
    assert d.log_prob(params, raw).shape == (5,) and d.features(raw).shape == (5, 1)


def test_squashed_density_integrates_to_one_and_has_the_entropy():
    d = distribution_for(box([-2.0], [10.0]))
    raw = np.linspace(-12, 12, 200_001)
    squashed = np.tanh(raw)
    for mean, std in ((0.0, 0.5), (1.0, -1.0), (-0.7, 1.5)):
        params = tf.constant(np.tile(np.array([mean, std], np.float32), (raw.size, 1)))
        log_p = d.log_prob(params, tf.constant(raw[:, None], tf.float32)).numpy().astype(np.float64)
        assert abs(np.trapezoid(np.exp(log_p), squashed) - 1) < 1e-3
        entropy = np.trapezoid(-np.exp(log_p) * log_p, squashed)
        assert abs(float(d.entropy(params[:1])[0]) - entropy) < 0.01


def test_unbounded_dimensions_are_plain_normals():
    d = distribution_for(box([-INF], [INF]))
    params = tf.constant([[0.3, 0.0]])
    std = 1.0 + 1e-3
    raw = tf.constant([[1.7]])
    wanted = -0.5 * ((1.7 - 0.3) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(d.log_prob(params, raw), [wanted], rtol=1e-5)
    np.testing.assert_allclose(d.entropy(params), [0.5 * math.log(2 * math.pi * math.e * std**2)], rtol=1e-5)
    assert d.to_env(np.array([[123.0]], np.float32)).tolist() == [[123.0]]
    assert d.features(raw).numpy().tolist() == raw.numpy().tolist()


def test_kl_equals_the_mean_log_ratio():
    d = distribution_for(box([-1, -INF], [1, INF]))
    p, q = tf.constant([[0.2, -0.3, 0.1, 0.4]]), tf.constant([[-0.1, 0.5, 0.6, -0.2]])
    tiled = tf.tile(p, [100_000, 1])
    raw = d.sample(tiled, SEED)
    estimate = tf.reduce_mean(d.log_prob(tiled, raw) - d.log_prob(tf.tile(q, [100_000, 1]), raw))
    assert abs(float(d.kl(p, q)[0]) - float(estimate)) < 0.02
    assert abs(float(d.kl(p, p)[0])) < 1e-6


def test_box_actions_are_inside_and_log_probabilities_agree():
    """ray#1862, #2965: Box([-2, 0], [0, 10])."""
    leaf = box([-2, 0], [0, 10])
    d = distribution_for(leaf)
    params = tf.constant(np.random.default_rng(0).normal(size=(10_000, 4)).astype(np.float32) * 5)
    raw = d.sample(params, SEED)
    action = d.to_env(raw.numpy())
    assert action.dtype == np.float32 and action.shape == (10_000, 2)
    assert (action >= leaf.low).all() and (action <= leaf.high).all()
    behaviour = d.log_prob(params, raw)
    assert np.isfinite(behaviour).all()
    stored = tf.constant(raw.numpy().astype("<f4"))
    np.testing.assert_allclose(d.log_prob(params, stored), behaviour, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int32"])
def test_no_rounding_leaves_the_bounds(dtype):
    low, high = ([0, 3], [255, 7]) if dtype in ("uint8", "int32") else ([-0.1, 0.3], [0.7, 0.3])
    low, high = np.asarray(low, dtype), np.asarray(high, dtype)
    d = distribution_for(box(low.astype(float).tolist(), high.astype(float).tolist(), dtype))
    raw = np.random.default_rng(0).normal(size=(5000, 2)).astype(np.float32) * 10
    raw[:2] = [[1e30, -1e30], [-np.inf, np.inf]]
    action = d.to_env(raw)
    assert action.dtype == np.dtype(dtype) and (action >= low).all() and (action <= high).all()


def test_extreme_raw_actions_have_finite_log_probabilities_and_gradients():
    d = distribution_for(box([-1], [1]))
    params = tf.constant([[0.0, -50.0], [300.0, 2.0], [0.0, 80.0]])
    with tf.GradientTape() as tape:
        tape.watch(params)
        raw = tf.constant([[0.01], [300.0], [-200.0]])
        total = tf.reduce_sum(d.log_prob(params, raw) + d.entropy(params))
    assert np.isfinite(float(total)) and np.isfinite(tape.gradient(total, params)).all()


def test_action_shapes_of_higher_rank():
    d = distribution_for(box([-1] * 6, [1] * 6, shape=(2, 3)))
    params = tf.zeros([5, 12])
    raw = d.sample(params, SEED)
    assert raw.shape == (5, 2, 3) and d.to_env(raw.numpy()).shape == (5, 2, 3)
    assert d.log_prob(params, raw).shape == (5,) and d.features(raw).shape == (5, 6)
    assert d.log_prob(tf.zeros([4, 5, 12]), tf.zeros([4, 5, 2, 3])).shape == (4, 5)


@pytest.mark.parametrize(("low", "high"), [([0.0], [INF]), ([-INF], [1.0]), ([2.0], [1.0]), ([math.nan], [1.0])])
def test_bounds_that_are_refused(low, high):
    with pytest.raises(SpaceError, match="dimension 0"):
        distribution_for(box(low, high))


def test_other_kinds_are_refused():
    with pytest.raises(SpaceError, match="multi_binary"):
        distribution_for(Leaf("action", "multi_binary", "int8", (3,)))
