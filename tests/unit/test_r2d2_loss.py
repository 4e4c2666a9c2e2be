"""The loss of R2D2 and the priorities of stored unrolls, row by row against a slow reference."""

import numpy as np
import pytest
import tensorflow as tf

from learner.algorithms.r2d2 import IMPORTANCE_WEIGHT, PRIORITY, R2d2
from learner.distributions import epsilon_greedy_for
from learner.inputs import Inputs, RewardTransform, unroll_inputs, unroll_state
from learner.networks import build_network, named_variables, state_shapes
from learner.networks.heads import dueling
from learner.priorities import initial_priorities
from pipeline.config.network import NetworkSection
from pipeline.config.r2d2 import R2d2Section
from pipeline.spaces import Leaf, Spaces
from pipeline.unrolls import UnrollLayout
from tests.unit.test_r2d2 import slow_target

pytestmark = pytest.mark.unit

ACTIONS, SIZE, BATCH, LEARNT = 3, 4, 6, 9
SPACES = Spaces((Leaf("observation", "box", "float32", (SIZE,)),), Leaf("action", "discrete", "int64", (), ACTIONS))
DISTRIBUTION = epsilon_greedy_for(SPACES.action)
CASES = [
    R2d2Section(burn_in=4, n_steps=3, discount=0.9),
    R2d2Section(burn_in=0, n_steps=1, discount=1.0, rescale_epsilon=None, eta=0.5),
    R2d2Section(burn_in=3, n_steps=20, double_q=False, reward_scale=3.0, reward_clip=1.5, rescale_epsilon=0.01),
]


def network_of(seed=1, lstm=5):
    settings = NetworkSection(hidden=[6], lstm=lstm, previous_action=True, previous_reward=True)
    return build_network(SPACES, DISTRIBUTION, settings, 1, seed, head=dueling(7))


def layout_of(settings, lstm=5):
    return UnrollLayout(
        settings.burn_in + LEARNT, 1, SPACES.observation, (), "int32", ACTIONS, state_shapes(network_of(lstm=lstm))
    )


def records_of(layout, seed=0, batch=BATCH):
    """Records in which episodes end, terminated, truncated and both, and seams occur."""
    rng = np.random.default_rng(seed)
    records = np.zeros((batch, layout.nbytes), np.uint8)
    view = layout.view(records)
    rows = layout.unroll_length + 1
    for name in (
        "observation/observation",
        "reward",
        "behaviour",
        *(f"state/{i}" for i in range(len(layout.state_shapes))),
    ):
        view[name][:] = rng.normal(size=view[name].shape) * 2
    view["action"][:] = rng.integers(0, ACTIONS, (batch, rows))
    view["previous_action"][:] = rng.integers(0, ACTIONS, batch)
    ended, kind = rng.random((batch, rows)) < 0.2, rng.integers(0, 3, (batch, rows))
    view["terminated"][:] = ended & (kind != 0)
    view["truncated"][:] = ended & (kind != 1)
    view["life_lost"][:] = rng.random((batch, rows)) < 0.2
    seam = rng.random((batch, rows)) < 0.05
    view["first"][:, 1:] = ended[:, :-1] | seam[:, :-1]
    view["valid"][:] = ~ended[:, :-1] & ~seam[:, :-1]
    assert (view["valid"][:, -LEARNT:].sum(1) > 0).all()
    return records


def batch_of(layout, seed=0, weight=None):
    batch = layout.batch(records_of(layout, seed))
    chosen = np.random.default_rng(seed).uniform(0.2, 1.0, BATCH) if weight is None else weight
    return {**batch, IMPORTANCE_WEIGHT: np.asarray(chosen, np.float32)}


def algorithm_of(settings, network, target_seed=1, lstm=5):
    """With a target network of another seed, where asked for: ``build`` makes it equal first."""
    algorithm = R2d2(settings, lambda: network_of(lstm=lstm))
    variables = algorithm.build(network)
    assert not variables.trained
    assert [name for name, _ in variables.kept] == [f"target/{name}" for name, _ in named_variables(network)]
    for (_, mine), (_, theirs) in zip(variables.kept, named_variables(network), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for (_, mine), (_, theirs) in zip(variables.kept, named_variables(network_of(target_seed, lstm)), strict=True):
        mine.assign(theirs)
    return algorithm


def run(algorithm, network, batch):
    tensors = {name: tf.convert_to_tensor(array) for name, array in algorithm.prepare(batch).items()}
    inputs = unroll_inputs(tensors, 1, "zero", algorithm.rewards)
    return algorithm.terms(network, inputs, unroll_state(tensors), tensors, tf.zeros([0]))


def stepped(network, batch, rewards):
    """Q-values ``[rows, B, A]``, one step after the other from the stored state."""
    tensors = {name: tf.convert_to_tensor(array) for name, array in batch.items()}
    inputs, state, q = unroll_inputs(tensors, 1, "zero", rewards), unroll_state(tensors), []
    for t in range(len(batch["reward"])):
        row = Inputs(*tf.nest.map_structure(lambda x, t=t: x[t], tuple(inputs)))
        outputs, state = network.step(row, state)
        q.append(outputs.policy.numpy())
    return np.stack(q).astype(np.float64)


def h(x, epsilon):
    return np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + epsilon * x if epsilon else x


def inverse(x, epsilon):
    if not epsilon:
        return x
    return np.sign(x) * (((np.sqrt(1 + 4 * epsilon * (abs(x) + 1 + epsilon)) - 1) / (2 * epsilon)) ** 2 - 1)


def slow(settings, online, target, batch):
    """Squared errors summed over each unroll, and priorities: the definition, one row at a time."""
    start, rows = settings.burn_in, len(batch["reward"])
    reward = batch["reward"] * settings.reward_scale
    if settings.reward_clip is not None:
        reward = np.clip(reward, -settings.reward_clip, settings.reward_clip)
    q = np.zeros((rows, BATCH))
    for i in range(rows):
        for b in range(BATCH):
            chooser = online if settings.double_q else target
            q[i, b] = inverse(target[i, b, np.argmax(chooser[i, b])], settings.rescale_epsilon)
    squares, found = np.zeros(BATCH), np.zeros(BATCH)
    for b in range(BATCH):
        errors = []
        for i in range(start, rows - 1):
            if batch["valid"][i, b]:
                ends = batch["terminated"] | batch["life_lost"]
                value = slow_target(i, b, q, reward, ends, batch["valid"], settings.discount, settings.n_steps)
                errors.append(abs(h(value, settings.rescale_epsilon) - online[i, b, batch["action"][i, b]]))
        squares[b] = np.sum(np.square(errors))
        found[b] = settings.eta * np.max(errors) + (1 - settings.eta) * np.mean(errors) + 1e-6
    return squares, found


@pytest.mark.parametrize("settings", CASES)
@pytest.mark.parametrize("target_seed", [1, 2], ids=["target is online", "target is another"])
def test_loss_and_priorities_equal_the_definition(settings, target_seed):
    network, batch = network_of(), batch_of(layout_of(settings))
    terms = run(algorithm_of(settings, network, target_seed), network, batch)
    rewards = RewardTransform(settings.reward_scale, settings.reward_clip)
    squares, found = slow(
        settings, stepped(network, batch, rewards), stepped(network_of(target_seed), batch, rewards), batch
    )
    weight = batch[IMPORTANCE_WEIGHT] / batch[IMPORTANCE_WEIGHT].max()
    assert float(terms.losses["q_loss"]) == pytest.approx(np.sum(weight * 0.5 * squares), rel=1e-4)
    assert float(terms.sums["td_squared"]) == pytest.approx(np.sum(squares), rel=1e-4)
    np.testing.assert_allclose(terms.per_unroll[PRIORITY], found, rtol=1e-3)
    assert float(terms.divisor) == BATCH
    assert float(terms.count) == batch["valid"][settings.burn_in :].sum()


@pytest.mark.parametrize("settings", CASES)
def test_initial_priorities_are_the_learners_where_target_is_online(settings):
    network, layout = network_of(), layout_of(settings)
    records = records_of(layout)
    batch = {**layout.batch(records), IMPORTANCE_WEIGHT: np.ones(BATCH, np.float32)}
    algorithm = algorithm_of(settings, network)
    fields = layout.view(records)
    fields["behaviour"][:] = stepped(network, batch, algorithm.rewards).swapaxes(0, 1)
    found = initial_priorities(fields, settings)
    assert found.dtype == np.float32 and found.shape == (BATCH,)
    np.testing.assert_allclose(found, run(algorithm, network, batch).per_unroll[PRIORITY], rtol=1e-4)


def test_initial_priorities_of_garbage_are_small_but_there():
    layout = layout_of(CASES[0])
    records = records_of(layout)
    fields = layout.view(records)
    fields["behaviour"][0, -2] = np.nan
    fields["valid"][0, -2:] = 1
    fields["valid"][1] = 0
    found = initial_priorities(fields, CASES[0])
    assert found[:2] == pytest.approx(1e-6) and (found[2:] > 1e-3).all()


def gradients(algorithm, network, batch):
    with tf.GradientTape() as tape:
        loss = run(algorithm, network, batch).losses["q_loss"]
    return tape.gradient(loss, [v for _, v in named_variables(network) if v.trainable])


def test_no_gradient_flows_into_the_burn_in():
    """The same as with no burn-in, from the state that stepping through it leaves."""
    settings = CASES[0]
    start, network, batch = settings.burn_in, network_of(), batch_of(layout_of(settings))
    algorithm = algorithm_of(settings, network)
    tensors = {name: tf.convert_to_tensor(array) for name, array in batch.items()}
    inputs = unroll_inputs(tensors, 1, "zero", algorithm.rewards)
    _, state = network.unroll(Inputs(*tf.nest.map_structure(lambda x: x[:start], tuple(inputs))), unroll_state(tensors))
    later = {name: x[start:] for name, x in batch.items() if x.ndim > 1 and not name.startswith("state/")}
    later |= {f"state/{i}": leaf.numpy() for i, leaf in enumerate(state)}
    later |= {IMPORTANCE_WEIGHT: batch[IMPORTANCE_WEIGHT], "previous_action": batch["action"][start - 1]}
    short = algorithm_of(settings.model_copy(update={"burn_in": 0}), network)
    for found, expected in zip(gradients(algorithm, network, batch), gradients(short, network, later), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_what_stands_in_rows_that_are_not_valid_does_not_matter():
    settings = CASES[0]
    network, batch = network_of(lstm=0), batch_of(layout_of(settings, lstm=0))
    algorithm = algorithm_of(settings, network, lstm=0)
    before = run(algorithm, network, batch)
    masked = batch["valid"] == 0
    changed = {name: array.copy() for name, array in batch.items()}
    changed["action"][:-1][masked] = 0
    changed["reward"][1:][masked] = 0  # the reward of a row that begins an episode
    after = run(algorithm, network, changed)
    assert float(before.losses["q_loss"]) == float(after.losses["q_loss"])
    np.testing.assert_array_equal(before.per_unroll[PRIORITY], after.per_unroll[PRIORITY])


def test_an_unroll_without_valid_rows_trains_nothing():
    network, batch = network_of(), batch_of(layout_of(CASES[0]))
    batch["valid"][:] = 0
    algorithm = algorithm_of(CASES[0], network)
    terms = run(algorithm, network, batch)
    assert float(terms.count) == float(terms.losses["q_loss"]) == 0
    np.testing.assert_allclose(terms.per_unroll[PRIORITY], 1e-6)


def test_importance_weights_are_normalised_by_the_largest_of_the_batch():
    network, settings = network_of(), CASES[0]
    layout, algorithm = layout_of(settings), algorithm_of(settings, network)
    small, large = (batch_of(layout, weight=np.linspace(0.1, 1, BATCH) * scale) for scale in (0.01, 50.0))
    assert algorithm.prepare(small)[IMPORTANCE_WEIGHT].max() == 1.0
    losses = [float(run(algorithm, network, batch).losses["q_loss"]) for batch in (small, large)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_value_explained():
    means = {"q_target": 1.0, "q_target_squared": 5.0, "td": 0.5, "td_squared": 1.25, "td_absolute": 0.7}
    algorithm = R2d2(CASES[0], network_of)
    assert algorithm.summarize(means)["value_explained"] == pytest.approx(1 - 1.0 / 4.0)
    assert algorithm.summarize(means | {"q_target_squared": 1.0})["value_explained"] == 0.0
