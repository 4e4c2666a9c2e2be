"""R2D2 in the trainer: replicas, per-unroll outputs, the target network, checkpoints; and tasks that must be solved."""

import numpy as np
import pytest
import tensorflow as tf

import tests.unit.two_cpus  # noqa: F401
from learner.algorithms.r2d2 import IMPORTANCE_WEIGHT, PRIORITY, R2d2
from learner.devices import choose_devices
from learner.distributions import epsilon_greedy_for
from learner.inputs import Outputs, RewardTransform
from learner.networks import Network, build_network, state_shapes
from learner.networks.heads import dueling
from learner.policy import Policy
from learner.priorities import initial_priorities
from learner.trainer import Trainer
from pipeline.config.network import NetworkSection
from pipeline.config.r2d2 import R2d2Section
from pipeline.config.tree import OptimizerSection
from pipeline.errors import CheckpointError
from pipeline.spaces import Leaf, Spaces
from pipeline.unrolls import UnrollLayout
from tests.unit.test_r2d2_loss import ACTIONS, BATCH, CASES, LEARNT, SIZE, SPACES, batch_of, run

pytestmark = pytest.mark.unit

ONE, BOTH, APART = (["cpu:0"], ["cpu:0"]), (["cpu:0"], ["cpu:0", "cpu:1"]), (["cpu:0"], ["cpu:1"])
SETTINGS = CASES[0].model_copy(update={"target_update_period": 3})
LAYOUT = UnrollLayout(SETTINGS.burn_in + LEARNT, 1, SPACES.observation, (), "int32", ACTIONS, ((ACTIONS,),))


class Linear(Network):
    """Q-values linear in the observation, plus a learnt share of a state that fades: quick to trace."""

    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(np.random.default_rng(0).normal(size=(SIZE, ACTIONS)), dtype=tf.float32)
        self.share = tf.Variable(0.5)

    def unroll(self, inputs, state):
        q = tf.tensordot(inputs.observation["observation"], self.kernel, 1) + self.share * state[0]
        return Outputs(q, tf.reduce_max(q, -1)), (0.5 * self.share * state[0],)


def algorithm_of(network):
    algorithm = R2d2(SETTINGS, Linear)
    algorithm.build(network)
    return algorithm


def make(devices=ONE, jit_compile=False, **optimizer):
    chosen = choose_devices(*devices)
    with chosen.strategy.scope():
        network = Linear()
    algorithm = R2d2(SETTINGS, Linear)
    return Trainer(
        network,
        algorithm,
        OptimizerSection(**optimizer),
        chosen,
        1,
        "zero",
        algorithm.rewards,
        batch_size=BATCH,
        jit_compile=jit_compile,
    )


def update(trainer, seed):
    return trainer.update(trainer.prepare(batch_of(LAYOUT, seed)), 0)


@pytest.mark.parametrize(
    ("devices", "jit_compile"),
    [(BOTH, False), (APART, False), (BOTH, True)],
    ids=["two train", "one infers, one trains", "compiled"],
)
def test_two_devices_equal_one(devices, jit_compile):
    one, two = make(clip_norm=1.0), make(devices, clip_norm=1.0, jit_compile=jit_compile)
    start = one.snapshot()
    for seed in range(4):
        expected, found = update(one, seed), update(two, seed)
        assert found.fetch() == pytest.approx(expected.fetch(), rel=1e-4, abs=1e-4)
        priority = found.fetch_unrolls()[PRIORITY]
        assert priority.shape == (BATCH,) and priority.dtype == np.float32
        np.testing.assert_allclose(priority, expected.fetch_unrolls()[PRIORITY], rtol=1e-3)
    for name, variable in two.variables():
        first, second = (copy.numpy() for copy in variable.values)
        assert first.tobytes() == second.tobytes(), name
    reference = one.snapshot()
    for name, array in two.snapshot().items():
        np.testing.assert_allclose(array, reference[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert not np.array_equal(reference["network/kernel"], start["network/kernel"])


def test_priorities_stand_in_the_order_of_the_batch():
    batch = batch_of(LAYOUT, 5)
    found = make(BOTH)
    network = Linear()
    expected = run(algorithm_of(network), network, batch).per_unroll[PRIORITY]
    metrics = found.update(found.prepare(batch), 0)
    np.testing.assert_allclose(metrics.fetch_unrolls()[PRIORITY], expected, rtol=1e-3)


def test_the_loss_is_the_mean_over_unrolls_and_diagnostics_over_valid_rows():
    batch = batch_of(LAYOUT, 5)
    trainer, network = make(BOTH), Linear()
    terms = run(algorithm_of(network), network, batch)
    metrics = trainer.update(trainer.prepare(batch), 0).fetch()
    assert metrics["loss"] == metrics["q_loss"] == pytest.approx(float(terms.losses["q_loss"]) / BATCH, rel=1e-4)
    assert metrics["td_absolute"] == pytest.approx(float(terms.sums["td_absolute"] / terms.count), rel=1e-4)
    assert metrics["valid"] == float(terms.count)


@pytest.mark.parametrize("devices", [ONE, BOTH])
def test_the_target_network_is_copied_every_period_updates(devices):
    trainer = make(devices)
    target = trainer.snapshot()
    names = [name.removeprefix("network/") for name in target if name.startswith("network/")]
    for count in range(1, 8):
        update(trainer, count)
        arrays = trainer.snapshot()
        if count % 3 == 0:
            target = {f"algorithm/target/{name}": arrays[f"network/{name}"] for name in names}
        for name in names:
            np.testing.assert_array_equal(arrays[f"algorithm/target/{name}"], target[f"algorithm/target/{name}"])
        assert count % 3 == 0 or (arrays["algorithm/target/kernel"] != arrays["network/kernel"]).any()


def test_a_skipped_update_does_not_count_towards_the_copy():
    trainer = make()
    bad = batch_of(LAYOUT, 0)
    bad["reward"][:] = np.inf
    update(trainer, 1), update(trainer, 2)
    before = trainer.snapshot()
    metrics = trainer.update(trainer.prepare(bad), 0)
    assert metrics.fetch()["nonfinite_updates"] == 1
    assert np.isfinite(metrics.fetch_unrolls()[PRIORITY]).all()
    after = trainer.snapshot()
    for name, array in before.items():
        assert name == "trainer/nonfinite_updates" or np.array_equal(after[name], array), name


@pytest.mark.parametrize("devices", [ONE, APART])
def test_a_restored_trainer_goes_on_alike(devices):
    first, second = make(devices), make(devices)
    for seed in range(4):
        update(first, seed)
    second.load(first.snapshot())
    for seed in range(4, 8):
        update(first, seed), update(second, seed)
    found = second.snapshot()
    for name, array in first.snapshot().items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_a_checkpoint_without_the_target_network_is_refused():
    trainer = make()
    arrays = {name: x for name, x in trainer.snapshot().items() if not name.startswith("algorithm/target/kernel")}
    with pytest.raises(CheckpointError, match="lacks algorithm/target/kernel"):
        trainer.load(arrays)


class Recall:
    """One slot per environment: a cue at the first row, then blanks; the reward comes with the answer at the end."""

    def __init__(self, environments, cues, delay, seed):
        self.rng, self.n, self.cues, self.delay = np.random.default_rng(seed), environments, cues, delay
        self.cue, self.row = self.rng.integers(0, cues, environments), np.zeros(environments, np.int64)
        self.spaces = Spaces(
            (Leaf("observation", "box", "float32", (cues,)),), Leaf("action", "discrete", "int64", (), cues)
        )

    def observe(self):
        """Observation, first, terminated: rows 0 .. delay of an episode, the last one final."""
        shown = np.eye(self.cues, dtype=np.float32)[self.cue] * (self.row == 0)[:, None]
        return shown, self.row == 0, self.row == self.delay + 1

    def step(self, action):
        """Rewards of the next row."""
        final = self.row == self.delay + 1
        correct = (self.row == self.delay) & (action == self.cue)
        self.row = np.where(final, 0, self.row + 1)
        self.cue = np.where(final, self.rng.integers(0, self.cues, self.n), self.cue)
        return correct.astype(np.float32)


def played(task, policy, layout, epsilon, unrolls):
    """``unrolls`` consecutive, not overlapping records of every environment, from the beginning of episodes."""
    rows, slots = layout.unroll_length + 1, np.arange(task.n, dtype=np.int32)
    records = np.zeros((unrolls, task.n, layout.nbytes), np.uint8)
    fields = layout.view(records)
    reward, previous = np.zeros(task.n, np.float32), np.zeros(task.n, np.int32)
    exploration = np.full(task.n, epsilon, np.float32)
    for i in range(unrolls):
        fields["previous_action"][i] = previous
        for t in range(rows):
            shown, first, terminated = task.observe()
            acted = policy.submit(slots, first, reward, [shown], exploration).result()
            if t == 0:
                for k, leaf in enumerate(acted.state):
                    fields[f"state/{k}"][i] = leaf
            fields["observation/observation"][i, :, t], fields["first"][i, :, t] = shown, first
            fields["terminated"][i, :, t], fields["reward"][i, :, t] = terminated, reward
            fields["action"][i, :, t], fields["behaviour"][i, :, t] = acted.action, acted.behaviour
            previous = acted.action
            reward = task.step(acted.action)
    fields["valid"][:] = 1 - fields["terminated"][:, :, :-1]
    return records.reshape(-1, layout.nbytes)


def success(task, policy, episodes):
    """Share of right answers, greedily, from the start of an episode of each environment."""
    paid, played_rows = 0.0, episodes * (task.delay + 2)
    reward, slots = np.zeros(task.n, np.float32), np.arange(task.n, dtype=np.int32)
    for _ in range(played_rows):
        shown, first, _ = task.observe()
        acted = policy.submit(slots, first, reward, [shown], np.zeros(task.n, np.float32)).result()
        reward = task.step(acted.action)
        paid += reward.sum()
    return paid / (episodes * task.n)


def solve(delay, lstm, updates=150, cues=3, environments=32):
    """Learns from a list as replay, prioritized by initial and updated priorities; returns the final success."""
    settings = R2d2Section(
        burn_in=2, n_steps=3, discount=0.95, target_update_period=10, dueling_hidden=16, rescale_epsilon=1e-3
    )
    task = Recall(environments, cues, delay, seed=1)
    distribution, devices = epsilon_greedy_for(task.spaces.action), choose_devices(*ONE)

    def network_like():
        network = NetworkSection(hidden=[16], lstm=lstm)
        return build_network(task.spaces, distribution, network, 1, head=dueling(settings.dueling_hidden))

    network, algorithm = network_like(), R2d2(settings, network_like)
    policy = Policy(
        network, distribution, task.spaces, slots=environments, frame_stack=1, padding="zero",
        rewards=RewardTransform(), buckets=[environments], device="cpu:0", key=1,
    )  # fmt: skip
    layout = UnrollLayout(10, 1, task.spaces.observation, (), "int32", cues, state_shapes(network))
    optimizer = OptimizerSection(learning_rate=0.01)
    trainer = Trainer(network, algorithm, optimizer, devices, 1, "zero", algorithm.rewards, batch_size=32)
    rng, records = np.random.default_rng(0), np.zeros((0, layout.nbytes), np.uint8)
    weights = np.zeros(0)
    for step in range(updates):
        if step % 5 == 0:
            new = played(task, policy, layout, 0.3, 1)
            records = np.concatenate([records, new])[-1000:]
            weights = np.concatenate([weights, initial_priorities(layout.view(new), settings)])[-1000:]
        chance = weights**0.6 / np.sum(weights**0.6)
        picked = rng.choice(len(records), 32, p=chance)
        batch = layout.batch(records[picked])
        batch[IMPORTANCE_WEIGHT] = ((len(records) * chance[picked]) ** -0.4).astype(np.float32)
        metrics = trainer.update(trainer.prepare(batch), 0)
        weights[picked] = metrics.fetch_unrolls()[PRIORITY]
    return success(Recall(environments, cues, delay, seed=2), policy, episodes=8)


def test_solves_a_recall_task():
    assert solve(delay=3, lstm=16) > 0.95


def test_without_recurrence_recall_is_a_guess():
    assert abs(solve(delay=3, lstm=0) - 1 / 3) < 0.15
