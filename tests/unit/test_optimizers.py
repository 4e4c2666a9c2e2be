"""Optimizer steps against numpy, and schedules."""

import numpy as np
import pytest
import tensorflow as tf

from learner.optimizers import make_optimizer, value_at
from pipeline.config.tree import OptimizerSection, ScheduleSection

pytestmark = pytest.mark.unit


def adam(weight, gradients, learning_rate, settings):
    m = v = np.zeros_like(weight)
    for t, gradient in enumerate(gradients, 1):
        m = settings.beta_1 * m + (1 - settings.beta_1) * gradient
        v = settings.beta_2 * v + (1 - settings.beta_2) * gradient**2
        rate = learning_rate * np.sqrt(1 - settings.beta_2**t) / (1 - settings.beta_1**t)
        weight = weight - rate * m / (np.sqrt(v) + settings.epsilon)
    return weight


def rmsprop(weight, gradients, learning_rate, settings):
    square, momentum = np.ones_like(weight), np.zeros_like(weight)
    for gradient in gradients:
        square = settings.decay * square + (1 - settings.decay) * gradient**2
        momentum = settings.momentum * momentum + learning_rate * gradient / np.sqrt(square + settings.epsilon)
        weight = weight - momentum
    return weight


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (adam, OptimizerSection(name="adam")),
        (adam, OptimizerSection(name="adam", beta_1=0.0, beta_2=0.95, epsilon=0.1)),
        (rmsprop, OptimizerSection(name="rmsprop", decay=0.9, epsilon=0.1)),
        (rmsprop, OptimizerSection(name="rmsprop", decay=0.99, momentum=0.5, epsilon=1e-3)),
    ],
)
def test_step_equals_the_formula(rule, settings):
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=(3, 2)), rng.normal(size=(5, 3, 2))
    weight = tf.Variable(start, dtype=tf.float32)
    optimizer = make_optimizer(settings, [("w", weight)])
    step = tf.function(lambda gradient: optimizer.apply([gradient], tf.constant(0.1)))
    for gradient in gradients:
        step(tf.constant(gradient, tf.float32))
    np.testing.assert_allclose(weight, rule(start, gradients, 0.1, settings), rtol=1e-4, atol=1e-5)
    assert int(dict(optimizer.variables)["step"]) == 5


def test_names_of_slots():
    weight = tf.Variable([0.0])
    assert [x for x, _ in make_optimizer(OptimizerSection(), [("a/b", weight)]).variables] == ["step", "m/a/b", "v/a/b"]
    names = [x for x, _ in make_optimizer(OptimizerSection(name="rmsprop"), [("a", weight)]).variables]
    assert names == ["step", "mean_square/a", "momentum/a"]


def test_constraint_is_applied_after_the_step():
    weight = tf.Variable(0.0, constraint=lambda x: tf.clip_by_value(x, -0.05, 0.05))
    make_optimizer(OptimizerSection(), [("w", weight)]).apply([tf.constant(1.0)], tf.constant(0.1))
    assert float(weight) == pytest.approx(-0.05)


def test_schedules():
    linear = ScheduleSection(kind="linear", final=0.2, frames=100)
    assert [value_at(1.0, linear, frames) for frames in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert value_at(0.5, ScheduleSection(), 10**9) == 0.5
