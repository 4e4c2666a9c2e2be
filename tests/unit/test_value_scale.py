"""Values in units of their own spread: what a value is does not depend on the units, which follow the targets."""

import numpy as np
import pytest
import tensorflow as tf

from learner.distributions import distribution_for
from learner.networks import build_network
from learner.networks.build import example_inputs
from learner.value_scale import SLOWEST, SMALLEST, ValueScale
from pipeline.config.network import NetworkSection
from pipeline.spaces import Leaf, Spaces

pytestmark = pytest.mark.unit

SPACES = Spaces((Leaf("observation", "box", "float32", (3,)),), Leaf("action", "discrete", "int64", (), n=2))


def network_of(**settings):
    return build_network(SPACES, distribution_for(SPACES.action), NetworkSection(**settings), 1)


def values(network, scale):
    inputs = example_inputs(SPACES, distribution_for(SPACES.action), 1, 8)
    observation = tf.random.stateless_normal([8, 3], [1, 2])
    return scale.value(network.step(inputs._replace(observation={"observation": observation}), ())[0].value).numpy()


def see(scale, updates, targets):
    normalized = scale.normalized(tf.constant(targets, tf.float32))
    scale.update(tf.constant(updates, tf.int64), tf.reduce_mean(normalized), tf.reduce_mean(normalized**2))


@pytest.mark.parametrize("settings", [{}, {"separate_value": False}], ids=["own torso", "shared torso"])
def test_values_stay_what_they_were_when_the_scale_moves(settings):
    network = network_of(**settings)
    scale = ValueScale(network)
    before = values(network, scale)
    for updates, targets in enumerate(([-500.0, -300.0], [0.0, 2000.0], [1e-3, 2e-3]), 1):
        see(scale, updates, targets)
        np.testing.assert_allclose(values(network, scale), before, rtol=1e-3, atol=2e-2)
    assert float(scale.std) > 100


def test_mean_and_deviation_are_those_of_all_targets_at_first_and_follow_later_ones():
    rng = np.random.default_rng(0)
    batches = rng.normal(10_000.0, 3.0, (50, 64)).astype(np.float32)
    scale = ValueScale(network_of())
    for updates, batch in enumerate(batches, 1):
        see(scale, updates, batch)
    assert float(scale.mean) == pytest.approx(batches.mean(), rel=1e-5)
    assert float(scale.std) == pytest.approx(batches.std(), rel=0.02)
    for _ in range(5 * round(1 / SLOWEST)):
        see(scale, 10_000, [-1.0, 1.0])
    assert abs(float(scale.mean)) < 100 and float(scale.std) < 2000


def test_targets_that_are_all_equal_leave_a_deviation_above_0():
    scale = ValueScale(network_of())
    see(scale, 1, [0.0, 0.0])
    assert float(scale.std) == pytest.approx(SMALLEST)
    see(scale, 2, [1.0, 1.0])
    assert np.isfinite(float(scale.std)) and float(scale.std) > SMALLEST


def test_a_network_that_names_no_value_layer_is_left_alone():
    network = network_of()
    network.__class__ = type("Unnamed", (network.__class__,), {"value_output": None})
    before = [v.numpy() for v in network.variables]
    scale = ValueScale(network)
    see(scale, 1, [-500.0, 500.0])
    assert float(scale.std) == pytest.approx(500.0)
    for variable, array in zip(network.variables, before, strict=True):
        np.testing.assert_array_equal(variable, array)
