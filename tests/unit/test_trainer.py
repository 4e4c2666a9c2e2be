"""The trainer: replicas, reduction, clipping, guards, checkpoints, and a task that must be solved."""

import numpy as np
import pytest
import tensorflow as tf

import tests.unit.two_cpus  # noqa: F401
from learner.algorithms.vtrace import Vtrace
from learner.devices import choose_devices
from learner.distributions import distribution_for
from learner.inputs import Inputs, Outputs, RewardTransform
from learner.networks import build_network
from learner.networks.network import Network
from learner.trainer import Trainer
from pipeline.config.network import NetworkSection
from pipeline.config.tree import OptimizerSection, ScheduleSection, VtraceSection
from pipeline.errors import CheckpointError, ConfigError
from pipeline.spaces import Leaf, Spaces
from pipeline.unrolls import UnrollLayout

pytestmark = pytest.mark.unit

ACTIONS, UNROLL, BATCH, SIZE = 3, 4, 8, 5
DISTRIBUTION = distribution_for(Leaf("action", "discrete", "int64", (), ACTIONS))
LAYOUT = UnrollLayout(UNROLL, 1, (Leaf("observation", "box", "float32", (SIZE,)),), (), "int32", ACTIONS, ((1,),))
ONE, BOTH, APART = (["cpu:0"], ["cpu:0"]), (["cpu:0"], ["cpu:0", "cpu:1"]), (["cpu:0"], ["cpu:1"])


class Linear(Network):
    """Linear policy and value of the observation; a state that is carried on and added to the value."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.policy = tf.Variable(rng.normal(size=(SIZE, ACTIONS)), dtype=tf.float32)
        self.value = tf.Variable(rng.normal(size=(SIZE, 1)), dtype=tf.float32)
        self.frozen = tf.Variable(1.0, trainable=False)

    def step(self, inputs: Inputs, state):
        observation = inputs.observation["observation"]
        return Outputs(observation @ self.policy, (observation @ self.value + state[0])[:, 0]), state


def make(devices=ONE, optimizer=None, batch_size=BATCH, jit_compile=False, **settings):
    chosen = choose_devices(*devices)
    with chosen.strategy.scope():
        network = Linear()
    return Trainer(
        network,
        Vtrace(VtraceSection(**settings), DISTRIBUTION),
        optimizer or OptimizerSection(),
        chosen,
        frame_stack=1,
        padding="zero",
        rewards=RewardTransform(),
        batch_size=batch_size,
        jit_compile=jit_compile,
    )


def batch_of(seed=0, batch=BATCH):
    """Unrolls of which the first half has far fewer valid rows than the second."""
    rng = np.random.default_rng(seed)
    records = np.zeros((batch, LAYOUT.nbytes), np.uint8)
    view = LAYOUT.view(records)
    view["observation/observation"][:] = rng.normal(size=(batch, UNROLL + 1, SIZE))
    view["reward"][:] = rng.normal(size=(batch, UNROLL + 1))
    view["action"][:] = rng.integers(0, ACTIONS, (batch, UNROLL + 1))
    view["behaviour"][:] = rng.normal(size=(batch, UNROLL + 1, ACTIONS))
    view["state/0"][:] = rng.normal(size=(batch, 1))
    view["state/0"][:] = rng.normal(size=(batch, 1))
    view["state/0"][:] = rng.normal(size=(batch, 1))
    view["state/0"][:] = rng.normal(size=(batch, 1))
    view["state/0"][:] = rng.normal(size=(batch, 1))
    view["state/0"][:] = rng.normal(size=(batch, 1))
    view["state/0"][:] = rng.normal(size=(batch, 1))
    view["valid"][:] = 1
    view["valid"][: batch // 2, 1:] = 0
    view["terminated"][: batch // 2, 1] = 1
    return LAYOUT.batch(records)


def train(trainer, updates=5):
    return [trainer.update(trainer.prepare(batch_of(seed)), 0).fetch() for seed in range(updates)]


def replicas_equal(trainer):
    for name, variable in trainer.variables():
        first, second = (copy.numpy() for copy in variable.values)
        assert first.tobytes() == second.tobytes(), name


@pytest.mark.parametrize("devices", [BOTH, APART], ids=["two train", "one infers, one trains"])
@pytest.mark.parametrize(
    ("settings", "optimizer"),
    [
        ({}, OptimizerSection()),
        ({"loss_reduction": "sum"}, OptimizerSection(name="rmsprop", epsilon=0.1, clip_norm=1.0)),
        ({"entropy_target": 0.5}, OptimizerSection()),
    ],
    ids=["mean", "sum", "entropy target"],
)
def test_two_devices_equal_one(devices, settings, optimizer):
    one, two = make(optimizer=optimizer, **settings), make(devices, optimizer=optimizer, **settings)
    expected, found = train(one), train(two)
    replicas_equal(two)
    start, reference = make(**settings).snapshot(), one.snapshot()
    for name, array in two.snapshot().items():
        np.testing.assert_allclose(array, reference[name], rtol=1e-6, atol=1e-6, err_msg=name)
    assert not np.array_equal(reference["network/policy"], start["network/policy"])
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-4)


def made_of_defaults(devices):
    """A trainer of the network that seedmq brings, which normalizes observations and values."""
    chosen = choose_devices(*devices)
    spaces = Spaces((Leaf("observation", "box", "float32", (SIZE,)),), Leaf("action", "discrete", "int64", (), ACTIONS))
    with chosen.strategy.scope():
        network = build_network(spaces, DISTRIBUTION, NetworkSection(hidden=[8]), 1)
    algorithm = Vtrace(VtraceSection(), DISTRIBUTION)
    return Trainer(network, algorithm, OptimizerSection(), chosen, 1, "zero", algorithm.rewards, batch_size=BATCH)


@pytest.mark.parametrize("devices", [BOTH, APART], ids=["two train", "one infers, one trains"])
def test_what_is_normalized_is_the_same_on_two_devices(devices):
    one, two = made_of_defaults(ONE), made_of_defaults(devices)
    expected, found = train(one), train(two)
    replicas_equal(two)
    reference = one.snapshot()
    for name, array in two.snapshot().items():
        np.testing.assert_allclose(array, reference[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    seen = [b["observation/observation"][:-1][b["valid"] == 1] for b in (batch_of(seed) for seed in range(5))]
    np.testing.assert_allclose(reference["network/normalizer/mean/0"], np.concatenate(seen).mean(0), atol=1e-5)
    assert reference["algorithm/value_std"] != 1.0
    assert found[-1]["value_mean"] != 0.0 and "value_target" not in found[-1]


def test_what_is_normalized_is_part_of_a_checkpoint():
    trainer, other = made_of_defaults(ONE), made_of_defaults(ONE)
    train(trainer)
    other.load(trainer.snapshot())
    assert train(other, 1) == train(trainer, 1)
    old = {name: array for name, array in trainer.snapshot().items() if "value_std" not in name}
    with pytest.raises(CheckpointError, match=r"lacks algorithm/value_std.*vtrace\.normalize_values"):
        other.load(old)


def test_the_larger_half_counts_more():
    """Means of replicas would weigh 4 and 16 valid rows alike."""
    trainer = make(BOTH)
    assert train(trainer, 1)[0]["valid"] == BATCH // 2 * (1 + UNROLL)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradient_is_clipped_after_the_reduction(reduction):
    """With momentum 0 and m after one step = 0.1 g, the slot shows the gradient that was applied."""
    free, tight = (
        make(BOTH, OptimizerSection(clip_norm=None), loss_reduction=reduction),
        make(BOTH, OptimizerSection(clip_norm=0.01), loss_reduction=reduction),
    )
    norm = train(free, 1)[0]["gradient_norm"]
    assert train(tight, 1)[0]["gradient_norm"] == pytest.approx(norm)
    assert norm > 0.02
    assert applied_norm(free) == pytest.approx(norm, rel=1e-4)
    assert applied_norm(tight) == pytest.approx(0.01, rel=1e-4)
    direction = free.snapshot()["optimizer/m/policy"] * (0.01 / norm)
    np.testing.assert_allclose(tight.snapshot()["optimizer/m/policy"], direction, rtol=1e-4, atol=1e-7)


def applied_norm(trainer):
    arrays = trainer.snapshot()
    return 10 * np.sqrt(sum(np.sum(arrays[f"optimizer/m/{name}"] ** 2) for name in ("policy", "value")))


@pytest.mark.parametrize("devices", [ONE, BOTH])
def test_a_batch_without_valid_rows_changes_nothing(devices):
    trainer = make(devices)
    train(trainer, 2)
    before, batch = trainer.snapshot(), batch_of()
    batch["valid"][:] = 0
    metrics = trainer.update(trainer.prepare(batch), 0).fetch()
    assert (metrics["valid"], metrics["loss"], metrics["nonfinite_updates"]) == (0, 0, 0)
    assert_same(trainer.snapshot(), before)


@pytest.mark.parametrize("devices", [ONE, BOTH])
def test_a_gradient_that_is_not_finite_is_skipped_and_counted(devices):
    trainer = make(devices)
    train(trainer, 2)
    before, batch = trainer.snapshot(), batch_of()
    batch["reward"][2, -1] = np.inf
    for expected in (1, 2):
        assert trainer.update(trainer.prepare(batch), 0).fetch()["nonfinite_updates"] == expected
    after = trainer.snapshot()
    assert before.pop("trainer/nonfinite_updates") == 0
    assert after.pop("trainer/nonfinite_updates") == 2
    assert_same(after, before)
    assert train(trainer, 1)[0]["gradient_norm"] > 0


def assert_same(after, before):
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)


def test_schedules_follow_frames():
    halved = ScheduleSection(kind="linear", final=0.0, frames=100)
    trainer = make(
        optimizer=OptimizerSection(learning_rate=0.5, learning_rate_schedule=halved),
        entropy_cost=0.2,
        entropy_cost_schedule=halved,
    )
    metrics = trainer.update(trainer.prepare(batch_of()), 50).fetch()
    assert (metrics["learning_rate"], metrics["entropy_cost"]) == (pytest.approx(0.25), pytest.approx(0.1))


def test_batch_that_does_not_divide_is_refused():
    with pytest.raises(ConfigError, match=r"training\.batch_size = 7"):
        make(BOTH, batch_size=7)


@pytest.mark.parametrize("devices", [ONE, BOTH])
def test_xla_gives_the_same(devices):
    plain, compiled = make(), make(devices, jit_compile=True)
    train(plain), train(compiled)
    for name, array in compiled.snapshot().items():
        np.testing.assert_allclose(array, plain.snapshot()[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("devices", [ONE, APART])
def test_a_restored_trainer_goes_on_alike(devices):
    first, second = make(devices, entropy_target=0.5), make(devices, entropy_target=0.5)
    train(first)
    second.load(first.snapshot())
    train(first, 3), train(second, 3)
    assert_same(second.snapshot(), first.snapshot())


def test_names_are_unique_and_complete():
    names = [name for name, _ in make(entropy_target=0.5).variables()]
    assert len(set(names)) == len(names)
    assert {"network/policy", "network/frozen", "algorithm/entropy_multiplier", "optimizer/step"} < set(names)
    assert {"optimizer/m/policy", "optimizer/v/entropy_multiplier", "trainer/nonfinite_updates"} < set(names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.pop("network/value"), "lacks network/value"),
        (lambda x: x.update(other=np.zeros(1)), "has other"),
        (lambda x: x.update({"network/value": np.zeros((2, 1), np.float32)}), r"network/value has shape \(2, 1\)"),
        (lambda x: x.update({"network/value": np.zeros((SIZE, 1))}), "network/value is float64"),
    ],
)
def test_a_checkpoint_of_another_network_is_refused_untouched(change, message):
    trainer = make()
    before = trainer.snapshot()
    arrays = {name: array + 1 for name, array in before.items()}
    change(arrays)
    with pytest.raises(CheckpointError, match=message):
        trainer.load(arrays)
    assert_same(trainer.snapshot(), before)


def test_solves_a_contextual_bandit():
    """Each observation names the one arm that pays; episodes of one step, sampled from the policy of the moment."""
    trainer = make(optimizer=OptimizerSection(learning_rate=0.05), batch_size=32, entropy_cost=0.001)
    rng = np.random.default_rng(1)
    paid = []
    for _ in range(200):
        batch, reward = bandit_batch(trainer.snapshot()["network/policy"], rng)
        trainer.update(trainer.prepare(batch), 0)
        paid.append(reward)
    assert np.mean(paid[:5]) < 0.6
    assert np.mean(paid[-20:]) > 0.95


def bandit_batch(policy, rng, batch=32):
    """Rows alternate: the context, then the final observation with the reward."""
    records = np.zeros((batch, LAYOUT.nbytes), np.uint8)
    view = LAYOUT.view(records)
    context = rng.integers(0, ACTIONS, (batch, UNROLL + 1))
    observation = np.eye(SIZE, dtype=np.float32)[context]
    logits = observation @ policy
    action = np.argmax(logits + rng.gumbel(size=logits.shape), -1)
    view["observation/observation"][:], view["behaviour"][:], view["action"][:] = observation, logits, action
    correct = (action == context).astype(np.float32)
    view["first"][:, ::2] = 1
    view["valid"][:, ::2] = 1
    view["terminated"][:, 1::2] = 1
    view["reward"][:, 1::2] = correct[:, :-1:2]
    return LAYOUT.batch(records), correct[:, :-1:2].mean()
