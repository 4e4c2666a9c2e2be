"""Networks: step against unroll, resets, names, seeds, refusals."""

import numpy as np
import pytest
import tensorflow as tf
from pydantic import ValidationError

from learner.distributions import distribution_for
from learner.inputs import Inputs, Outputs
from learner.networks import Network, build_network, named_variables, state_shapes
from learner.networks.build import example_inputs
from learner.networks.heads import dueling
from learner.networks.layers import orthogonal
from learner.networks.torso_network import Convolutional, Mlp
from pipeline.config.network import NetworkSection
from pipeline.errors import ConfigError, SpaceError
from pipeline.spaces import Leaf, Spaces

pytestmark = pytest.mark.unit

DISCRETE = Leaf("action", "discrete", "int64", (), n=3)
BOX = Leaf("action", "box", "float32", (2,), low=(-1.0, -2.0), high=(1.0, 2.0))
NESTED = Spaces(
    (
        Leaf("camera", "box", "uint8", (40, 36, 3)),
        Leaf("depth", "box", "uint8", (36, 36)),
        Leaf("goal", "discrete", "int64", (), n=5, start=2),
        Leaf("speed", "box", "float64", (2, 3)),
    ),
    DISCRETE,
)
VECTOR = Spaces((Leaf("observation", "box", "float32", (4,)),), BOX)


def network_for(spaces, stack=1, seed=1, **settings):
    return build_network(spaces, distribution_for(spaces.action), NetworkSection(**settings), stack, seed)


def random_inputs(spaces, rows, batch, seed=0):
    rng = np.random.default_rng(seed)
    example = example_inputs(spaces, distribution_for(spaces.action), 1, 1)

    def draw(x):
        values = rng.integers(0, 3, (rows, batch, *x.shape[1:])) if x.dtype.is_integer else None
        return tf.cast(rng.normal(size=(rows, batch, *x.shape[1:])) if values is None else values, x.dtype)

    observation = {path: draw(x) for path, x in example.observation.items()}
    first = tf.constant(rng.random((rows, batch)) < 0.3)
    return Inputs(observation, draw(example.previous_action), draw(example.previous_reward), first)


def row(inputs, t):
    return Inputs(*tf.nest.map_structure(lambda x: x[t], tuple(inputs)))


@pytest.mark.parametrize("name", ["mlp", "nature_cnn", "impala_deep"])
@pytest.mark.parametrize("lstm", [0, 8])
def test_unroll_equals_steps_with_episode_ends_inside(name, lstm):
    network = network_for(NESTED, name=name, hidden=[16], lstm=lstm, previous_action=True, previous_reward=True)
    inputs = random_inputs(NESTED, 6, 4)
    state = tuple(tf.random.stateless_normal(x.shape, [1, i]) for i, x in enumerate(network.initial_state(4)))
    unrolled, last = network.unroll(inputs, state)
    assert unrolled.policy.shape == (6, 4, 3) and unrolled.value.shape == (6, 4)
    assert unrolled.policy.dtype == unrolled.value.dtype == tf.float32
    for t in range(6):
        outputs, state = network.step(row(inputs, t), state)
        np.testing.assert_allclose(outputs.policy, unrolled.policy[t], atol=1e-5)
        np.testing.assert_allclose(outputs.value, unrolled.value[t], atol=1e-5)
    for found, wanted in zip(last, state, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_first_forgets_everything_before_it():
    network = network_for(VECTOR, hidden=[8], lstm=8, previous_action=True, previous_reward=True)
    inputs = random_inputs(VECTOR, 5, 3)
    inputs = inputs._replace(first=tf.constant(np.arange(5)[:, None] == [2, 2, 2]))
    garbage = inputs.previous_action.numpy()
    garbage[2] = np.nan
    other = random_inputs(VECTOR, 5, 3, seed=9)
    mixed = Inputs(
        {k: tf.concat([other.observation[k][:2], x[2:]], 0) for k, x in inputs.observation.items()},
        tf.constant(garbage),
        inputs.previous_reward,
        inputs.first,
    )
    state = network.initial_state(3)
    fed = tuple(x + 5.0 for x in state)
    a, b = network.unroll(inputs, state)[0], network.unroll(mixed, fed)[0]
    np.testing.assert_allclose(a.policy[2:], b.policy[2:], atol=1e-6)
    assert (np.abs(a.policy[:2] - b.policy[:2]) > 1e-6).any()


def test_without_first_the_state_and_the_previous_action_matter():
    network = network_for(VECTOR, hidden=[8], lstm=8, previous_action=True)
    inputs = random_inputs(VECTOR, 1, 2)
    inputs = inputs._replace(first=tf.zeros([1, 2], tf.bool))
    state = network.initial_state(2)
    base = network.unroll(inputs, state)[0].value
    assert (base != network.unroll(inputs, tuple(x + 1 for x in state))[0].value).numpy().all()
    moved = inputs._replace(previous_action=inputs.previous_action + 1)
    assert (base != network.unroll(moved, state)[0].value).numpy().all()


def test_variables_depend_on_the_seed_alone_and_have_stable_names():
    first, again, other = (
        named_variables(network_for(VECTOR, seed=s, lstm=4, previous_action=True)) for s in (1, 1, 2)
    )
    names = [name for name, _ in first]
    assert names == [name for name, _ in again]
    assert names == [
        "normalizer/count",
        "normalizer/mean/0",
        "normalizer/variance/0",
        "torso/dense/layers/0/kernel",
        "torso/dense/layers/0/bias",
        "torso/dense/layers/1/kernel",
        "torso/dense/layers/1/bias",
        "core/kernel",
        "core/recurrent_kernel",
        "core/bias",
        "head/policy/kernel",
        "head/policy/bias",
        "head/value/kernel",
        "head/value/bias",
    ]
    for (name, a), (_, b), (_, c) in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        if "kernel" in name:
            assert (a.numpy() != c.numpy()).any()


@pytest.mark.parametrize("name", ["mlp", "nature_cnn", "impala_deep"])
@pytest.mark.parametrize("hidden", [0, 6])
def test_the_duelling_head_gives_q_values_on_every_torso(name, hidden):
    """Q = V + A - mean A: the mean over actions is V, and no constant of A matters."""
    settings = NetworkSection(name=name, hidden=[8], lstm=4, previous_action=True, previous_reward=True)
    q_network = build_network(NESTED, distribution_for(NESTED.action), settings, 1, head=dueling(hidden))
    inputs = random_inputs(NESTED, 3, 2)
    outputs, _ = q_network.unroll(inputs, q_network.initial_state(2))
    np.testing.assert_array_equal(outputs.value, outputs.policy.numpy().max(-1))
    names = [name for name, _ in named_variables(q_network) if name.startswith("head/")]
    assert ("head/value_hidden/layers/0/kernel" in names) == (hidden > 0)
    assert "head/advantage/kernel" in names and "head/advantage/bias" not in names
    q_network.head.value.bias.assign_add([5.0])
    q_network.head.advantage.kernel.assign_add(tf.ones_like(q_network.head.advantage.kernel))
    raised, _ = q_network.unroll(inputs, q_network.initial_state(2))
    np.testing.assert_allclose(raised.policy, outputs.policy + 5.0, atol=1e-4)


@pytest.mark.parametrize("name", ["mlp", "nature_cnn", "impala_deep"])
def test_every_variable_is_named_once_and_trained(name):
    network = network_for(NESTED, name=name, hidden=[8], lstm=4, separate_value=False)
    named = named_variables(network)
    assert len({n for n, _ in named}) == len(named) == len(network.variables)
    trained = [(n, v) for n, v in named if v.trainable]
    assert [n for n, v in named if not v.trainable] == [n for n, _ in named if n.startswith("normalizer/")]
    inputs = random_inputs(NESTED, 3, 2)
    with tf.GradientTape() as tape:
        outputs, _ = network.unroll(inputs, network.initial_state(2))
        loss = tf.reduce_sum(outputs.policy**2) + tf.reduce_sum(outputs.value)
    gradients = tape.gradient(loss, [v for _, v in trained])
    assert all(g is not None and np.isfinite(g).all() for g in gradients)


SMALL_PICTURES = Spaces((Leaf("observation", "box", "uint8", (35, 36, 3)), NESTED.observation[0]), DISCRETE)


@pytest.mark.parametrize(
    ("spaces", "name", "last"),
    [(VECTOR, "mlp", 64), (NESTED, "nature_cnn", 512), (SMALL_PICTURES, "mlp", 64)],
    ids=["numbers", "pictures", "a picture that is too small"],
)
def test_the_network_is_chosen_by_the_observations(spaces, name, last):
    network = network_for(spaces)
    assert isinstance(network, Mlp) == (name == "mlp")
    assert isinstance(network, Convolutional) == (name == "nature_cnn")
    assert network.torso.size == last
    assert (network.value_torso is not None) == (name == "mlp")


def test_an_lstm_is_shared_by_policy_and_value_unless_it_is_refused():
    assert network_for(VECTOR, lstm=4).value_torso is None


def test_initial_policy_is_nearly_uniform():
    network = network_for(VECTOR, separate_value=True)
    outputs, _ = network.step(row(random_inputs(VECTOR, 1, 5), 0), ())
    assert np.abs(outputs.policy).max() < 0.1
    assert "value_torso/dense/layers/0/kernel" in dict(named_variables(network))


def test_orthogonal_kernels():
    for shape in ((8, 5), (5, 8), (3, 3, 4, 6)):
        kernel = orthogonal(2.0)(np.random.default_rng(0), shape).reshape(-1, shape[-1])
        gram = kernel.T @ kernel if kernel.shape[0] >= kernel.shape[1] else kernel @ kernel.T
        np.testing.assert_allclose(gram, 4.0 * np.eye(min(kernel.shape)), atol=1e-5)


def test_uint8_is_divided_by_255():
    spaces = Spaces((Leaf("observation", "box", "uint8", (3,)),), DISCRETE)
    plain = {"hidden": [4], "normalize_observations": False}
    network = network_for(spaces, **plain)
    scaled = network_for(Spaces((Leaf("observation", "box", "float32", (3,)),), DISCRETE), **plain)
    inputs = example_inputs(spaces, distribution_for(DISCRETE), 1, 2)
    pixels = tf.constant([[0, 128, 255], [1, 2, 3]], tf.uint8)
    a, _ = network.step(inputs._replace(observation={"observation": pixels}), ())
    b, _ = scaled.step(inputs._replace(observation={"observation": tf.cast(pixels, tf.float32) / 255}), ())
    np.testing.assert_allclose(a.value, b.value, atol=1e-6)


def test_stacked_pictures_arrive_with_the_frames_as_channels():
    spaces = Spaces((Leaf("observation", "box", "uint8", (84, 84)),), DISCRETE)
    network = network_for(spaces, stack=4, name="nature_cnn", hidden=[8])
    assert dict(named_variables(network))["torso/images/0/layers/0/kernel"].shape == (8, 8, 4, 32)
    assert dict(named_variables(network))["torso/dense/layers/0/kernel"].shape == (7 * 7 * 64, 8)


@pytest.mark.parametrize(
    ("spaces", "settings", "message"),
    [
        (VECTOR, {"name": "nature_cnn"}, "picture"),
        (VECTOR, {"name": "no.such.module:Class"}, "cannot be imported"),
        (VECTOR, {"name": "pipeline.spaces:Leaf"}, "subclass"),
        (VECTOR, {"name": "tests.unit.test_networks:WrongSize"}, "float32"),
    ],
)
def test_settings_that_are_refused(spaces, settings, message):
    with pytest.raises(ConfigError, match=message):
        network_for(spaces, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "mpl"}, "not one of auto, mlp"),
        ({"kwargs": {"a": 1}}, "network.kwargs"),
        ({"separate_value": True, "lstm": 4}, "separate_value"),
        ({"name": "impala_deep", "separate_value": True}, "separate_value"),
    ],
)
def test_settings_that_no_spaces_go_with_are_refused_before(settings, message):
    with pytest.raises(ValidationError, match=message):
        NetworkSection(**settings)


def test_a_value_of_its_own_is_for_dense_layers():
    spaces = Spaces((Leaf("observation", "box", "uint8", (84, 84, 3)),), DISCRETE)
    with pytest.raises(ConfigError, match="separate_value is for mlp, not for 'nature_cnn'"):
        network_for(spaces, name="auto", separate_value=True)


def test_small_pictures_are_refused():
    spaces = Spaces((Leaf("observation", "box", "uint8", (20, 20, 3)),), DISCRETE)
    with pytest.raises(ConfigError, match="36x36"):
        network_for(spaces, name="nature_cnn")


def test_discrete_observations_are_not_stacked():
    spaces = Spaces((Leaf("goal", "discrete", "int64", (), n=5),), DISCRETE)
    assert network_for(spaces).step(example_inputs(spaces, distribution_for(DISCRETE), 1, 2), ())
    with pytest.raises(SpaceError, match="goal"):
        network_for(spaces, stack=2)


class KerasNetwork(Network):
    """A network of one's own with Keras layers that make their variables late."""

    def __init__(self, spaces, distribution, frame_stack, seed, units=3):
        super().__init__()
        self.hidden = tf.keras.layers.Dense(units, activation="tanh")
        self.heads = [tf.keras.layers.Dense(distribution.parameters), tf.keras.layers.Dense(1)]

    def step(self, inputs, state):
        x = self.hidden(inputs.observation["observation"])
        return Outputs(self.heads[0](x), self.heads[1](x)[:, 0]), state


class WrongSize(Network):
    def __init__(self, spaces, distribution, frame_stack, seed):
        super().__init__()

    def step(self, inputs, state):
        return Outputs(tf.zeros([2, 1]), tf.zeros([2])), state


class NoState(WrongSize):
    def step(self, inputs, state):
        return Outputs(tf.zeros([2, 1]), tf.zeros([2]))


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("NoState", {}, r"network NoState: step returns \(Outputs, state\), both, not Outputs alone"),
        (
            "WrongSize",
            {"unit": 3},
            r"WrongSize' is made with .* network.kwargs = \{'unit': 3\}, which it does not take",
        ),
    ],
)
def test_slips_in_a_network_of_ones_own_are_named(name, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        network_for(VECTOR, name=f"tests.unit.test_networks:{name}", kwargs=kwargs)


def test_a_network_of_ones_own():
    def build():
        return network_for(VECTOR, name="tests.unit.test_networks:KerasNetwork", kwargs={"units": 7})

    network, again = build(), build()
    names = [name for name, _ in named_variables(network)]
    assert names == [name for name, _ in named_variables(again)]
    assert names == [f"{x}/{w}" for x in ("hidden", "heads/0", "heads/1") for w in ("0_kernel", "1_bias")]
    for (_, a), (_, b) in zip(named_variables(network), named_variables(again), strict=True):
        np.testing.assert_array_equal(a, b)
    outputs, state = network.unroll(random_inputs(VECTOR, 4, 2), ())
    assert outputs.policy.shape == (4, 2, 4) and outputs.value.shape == (4, 2) and state == ()
    assert state_shapes(network) == ()
    assert state_shapes(network_for(VECTOR, lstm=6)) == ((6,), (6,))


def test_a_network_without_step_and_unroll_is_refused():
    with pytest.raises(TypeError, match="neither"):
        type("Empty", (Network,), {})


def test_a_huge_discrete_observation_is_refused_by_name() -> None:
    leaf = Leaf("where", "discrete", "int64", (), n=10**6)
    spaces = Spaces((leaf,), Leaf("action", "discrete", "int64", (), n=2))
    with pytest.raises(SpaceError, match=r"'where': Discrete\(1000000\) is fed one-hot"):
        build_network(spaces, distribution_for(spaces.action), NetworkSection(), 1)
