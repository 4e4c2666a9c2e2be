"""The V-trace loss: sums over valid rows, against a slow numpy reference."""

import numpy as np
import pytest
import tensorflow as tf

from learner.algorithms.vtrace import Vtrace
from learner.distributions import distribution_for
from learner.inputs import Inputs, Outputs
from learner.networks.network import Network
from pipeline.config.tree import VtraceSection
from pipeline.errors import ConfigError
from pipeline.spaces import Leaf
from tests.unit.test_vtrace import reference, rows_of

pytestmark = pytest.mark.unit

ACTIONS = 3
DISTRIBUTION = distribution_for(Leaf("action", "discrete", "int64", (), ACTIONS))


class Nothing(Network):
    """Outputs are given to the loss by hand."""

    def step(self, inputs: Inputs, state):
        raise NotImplementedError


def case(batch=8, length=6, seed=0):
    """Outputs and batch ``[length + 1, batch, ...]`` in which episodes end."""
    rng = np.random.default_rng(seed)
    _, terminated, reward, value, valid = rows_of(length, batch, seed)
    logits = rng.normal(size=(2, length + 1, batch, ACTIONS)).astype(np.float32)
    fields = {
        "action": rng.integers(0, ACTIONS, (length + 1, batch)).astype(np.int32),
        "behaviour": logits[0],
        "reward": reward,
        "terminated": terminated,
        "life_lost": (rng.random(terminated.shape) < 0.2).astype(np.uint8),
        "valid": valid.astype(np.uint8),
    }
    return Outputs(tf.constant(logits[1]), tf.constant(value)), fields


def run(settings, outputs, fields, entropy_cost=0.01):
    algorithm = Vtrace(settings, DISTRIBUTION)
    algorithm.build(Nothing())
    tensors = {name: tf.convert_to_tensor(array) for name, array in fields.items()}
    return algorithm.loss(outputs, tensors, tf.constant([entropy_cost]))


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def slow(settings, outputs, fields, entropy_cost):
    """Every term, one row at a time."""
    log_pi, log_mu = log_softmax(outputs.policy.numpy()), log_softmax(fields["behaviour"])
    value, action, valid = outputs.value.numpy(), fields["action"], fields["valid"]
    length, batch = valid.shape
    chosen = [[(log_pi[i, b, action[i, b]], log_mu[i, b, action[i, b]]) for b in range(batch)] for i in range(length)]
    log_rho = np.array([[pi - mu for pi, mu in row] for row in chosen])
    reward = fields["reward"] * settings.reward_scale
    if settings.reward_clip is not None:
        reward = np.clip(reward, -settings.reward_clip, settings.reward_clip)
    vs, advantage = reference(
        log_rho, fields["terminated"] | fields["life_lost"], settings.discount, reward, value, valid,
        settings.lambda_, settings.clip_rho, settings.clip_c, settings.clip_pg_rho,
    )  # fmt: skip
    terms = dict.fromkeys(("policy_loss", "value_loss", "entropy_loss", "kl_loss", "entropy", "rho"), 0.0)
    for i in range(length):
        for b in range(batch):
            if valid[i, b]:
                entropy = -np.sum(np.exp(log_pi[i, b]) * log_pi[i, b])
                terms["policy_loss"] -= chosen[i][b][0] * advantage[i, b]
                terms["value_loss"] += settings.baseline_cost * 0.5 * (vs[i, b] - value[i, b]) ** 2
                terms["entropy_loss"] -= entropy_cost * entropy
                terms["kl_loss"] -= settings.kl_cost * log_rho[i, b]
                terms["entropy"] += entropy
                terms["rho"] += np.exp(log_rho[i, b])
    return terms


@pytest.mark.parametrize(
    "settings",
    [
        VtraceSection(kl_cost=0.3),
        VtraceSection(kl_cost=0.1, lambda_=0.9, clip_rho=2.0, reward_scale=3.0, reward_clip=0.5, discount=0.9),
    ],
)
def test_every_term_equals_the_definition(settings):
    outputs, fields = case()
    terms = run(settings, outputs, fields)
    expected = slow(settings, outputs, fields, 0.01)
    assert float(terms.count) == fields["valid"].sum()
    for name in ("policy_loss", "value_loss", "entropy_loss", "kl_loss"):
        assert float(terms.losses[name]) == pytest.approx(expected[name], rel=1e-4, abs=1e-4), name
    for name in ("entropy", "rho"):
        assert float(terms.sums[name]) == pytest.approx(expected[name], rel=1e-4), name


def test_rewards_in_another_unit_give_the_same_losses_where_values_are_learnt_in_that_unit():
    """The network's outputs and all costs stay as they are; without the scale both losses would be another."""
    outputs, fields = case()
    losses = []
    for unit in (1.0, 1000.0):
        algorithm = Vtrace(VtraceSection(), DISTRIBUTION)
        std = dict(algorithm.build(Nothing()).kept)["value_std"]
        std.assign(unit)
        tensors = {name: tf.convert_to_tensor(array) for name, array in fields.items()}
        terms = algorithm.loss(outputs, {**tensors, "reward": unit * tensors["reward"]}, tf.constant([0.01]))
        assert float(terms.sums["value_std"] / terms.count) == pytest.approx(unit)
        losses.append({name: float(loss) for name, loss in terms.losses.items()})
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_two_halves_equal_the_whole():
    outputs, fields = case()
    whole = run(VtraceSection(), outputs, fields)
    halves = [
        run(VtraceSection(), Outputs(*(x[:, s] for x in outputs)), {name: x[:, s] for name, x in fields.items()})
        for s in (slice(0, 3), slice(3, 8))
    ]
    assert float(whole.count) == sum(float(half.count) for half in halves)
    for name, loss in (whole.losses | whole.sums).items():
        parts = sum(float((half.losses | half.sums)[name]) for half in halves)
        assert float(loss) == pytest.approx(parts, rel=1e-4, abs=1e-4), name


def test_rows_that_are_not_valid_do_not_matter():
    outputs, fields = case()
    before = run(VtraceSection(kl_cost=0.1), outputs, fields)
    masked = fields["valid"] == 0
    assert masked.any()
    changed = {name: array.copy() for name, array in fields.items()}
    changed["action"][:-1][masked] = 0
    changed["behaviour"][:-1][masked] = np.nan
    after = run(VtraceSection(kl_cost=0.1), outputs, changed)
    for name, loss in (before.losses | before.sums).items():
        assert float(loss) == float((after.losses | after.sums)[name]), name


def test_an_episode_that_only_begins_again_trains_nothing():
    outputs, fields = case()
    fields["valid"][:] = 0
    terms = run(VtraceSection(), outputs, fields)
    assert float(terms.count) == 0
    assert all(float(loss) == 0 for loss in terms.losses.values())


@pytest.mark.parametrize(("target", "direction"), [(0.0, 1), (2.0, -1)])
def test_learnt_entropy_cost_falls_while_entropy_is_above_its_target(target, direction):
    algorithm = Vtrace(VtraceSection(entropy_target=target, entropy_cost=0.02), DISTRIBUTION)
    ((name, variable),) = algorithm.build(Nothing()).trained
    assert name == "entropy_multiplier"
    outputs, fields = case()
    tensors = {name: tf.convert_to_tensor(array) for name, array in fields.items()}
    with tf.GradientTape() as tape:
        terms = algorithm.loss(outputs, tensors, tf.constant([0.0]))
        loss = tf.add_n(list(terms.losses.values()))
    assert np.sign(tape.gradient(loss, variable)) == direction
    assert float(terms.sums["entropy_cost"] / terms.count) == pytest.approx(0.02)
    assert float(variable.constraint(tf.constant(9.0))) == 2.0


def test_learnt_entropy_cost_cannot_start_at_zero():
    with pytest.raises(ConfigError, match="entropy_cost"):
        Vtrace(VtraceSection(entropy_target=0.5, entropy_cost=0.0), DISTRIBUTION)


def test_value_explained():
    algorithm = Vtrace(VtraceSection(), DISTRIBUTION)
    means = {"vs": 1.0, "vs_squared": 5.0, "value_error": 0.5, "value_error_squared": 1.25}
    assert algorithm.summarize(means)["value_explained"] == pytest.approx(1 - 1.0 / 4.0)
    assert algorithm.summarize(means | {"vs_squared": 1.0})["value_explained"] == 0.0
