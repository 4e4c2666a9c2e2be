"""Acting, proved by counting: a network whose outputs say what it was fed, against a slot-by-slot reference."""

import numpy as np
import pytest
import tensorflow as tf

import tests.unit.two_cpus  # noqa: F401
from learner.distributions import distribution_for
from learner.inputs import Outputs, RewardTransform, unroll_inputs, unroll_state
from learner.networks import Network, build_network, state_shapes
from learner.policy import Policy
from pipeline.config.network import NetworkSection
from pipeline.spaces import Leaf, Spaces
from pipeline.unrolls import UnrollLayout

pytestmark = pytest.mark.unit

REWARDS = RewardTransform(scale=0.5, clip=2.0)
BUCKETS = (1, 4, 8)


def unbounded(size):
    return Leaf("action", "box", "float32", (size,), low=(-np.inf,) * size, high=(np.inf,) * size)


class CountingNetwork(Network):
    """Counts the rows of an episode; the greedy action is [count, previous action's count, previous reward, frames]."""

    def __init__(self, spaces, distribution, frame_stack, seed):
        super().__init__()
        self._size = distribution.parameters // 2

    def initial_state(self, batch):
        return (tf.zeros([batch, 1]),)

    def step(self, inputs, state):
        keep = tf.cast(~inputs.first, tf.float32)[:, None]
        count = state[0] * keep + 1.0
        previous = tf.where(inputs.first[:, None], 0.0, inputs.previous_action[:, :1])
        shown = tf.cast(inputs.observation["observation"], tf.float32)
        mean = tf.concat([count, previous, inputs.previous_reward[:, None], shown], -1)
        return Outputs(tf.concat([mean, tf.zeros_like(mean)], -1), count[:, 0]), (count,)


class Reference:
    """One slot, row by row."""

    def __init__(self, stack, padding):
        self.stack, self.padding = stack, padding
        self.carried, self.frames, self.previous = 0.0, [], 0.0

    def row(self, first, reward, frame):
        before = self.carried
        if first:
            self.carried, self.frames, self.previous = 0.0, [], 0.0
        self.carried += 1
        self.frames.append(float(frame))
        shown = self.frames[-self.stack :]
        missing = self.stack - len(shown)
        shown = [0.0 if self.padding == "zero" else shown[0]] * missing + shown
        transformed = 0.0 if first else float(np.clip(reward * 0.5, -2, 2))
        action = [self.carried, self.previous, transformed, *shown]
        self.previous = self.carried
        return action, before


def counting_policy(stack, padding, slots=5, buckets=BUCKETS, **settings):
    spaces = Spaces((Leaf("observation", "box", "uint8", (1,)),), unbounded(3 + stack))
    distribution = distribution_for(spaces.action)
    return Policy(
        CountingNetwork(spaces, distribution, stack, 1),
        distribution,
        spaces,
        slots=slots,
        frame_stack=stack,
        padding=padding,
        rewards=REWARDS,
        buckets=buckets,
        device="cpu:0",
        key=1,
        **settings,
    )


def act(policy, slots, first, reward, *observation, greedy=True):
    n = len(slots)
    return policy.submit(
        np.asarray(slots, np.int32),
        np.asarray(first, bool),
        np.asarray(reward, np.float32),
        observation,
        np.full(n, not greedy, np.float32),
    ).result()


@pytest.mark.parametrize("padding", ["zero", "repeat"])
@pytest.mark.parametrize("stack", [1, 2, 4])
def test_counts(stack, padding):
    """Resets, frame stacks, previous action and reward, slots apart, padding harmless: in any batches, any order."""
    policy = counting_policy(stack, padding)
    policy.warm_up()
    rng = np.random.default_rng(stack)
    references = [Reference(stack, padding) for _ in range(5)]
    started = np.zeros(5, bool)
    for batch in range(60):
        slots = rng.permutation(5)[: rng.integers(1, 6)]
        # Episodes of one to three rows at the start of each slot's life, longer ones later.
        first = ~started[slots] | (rng.random(len(slots)) < (0.5 if batch < 12 else 0.15))
        started[slots] = True
        reward, frames = rng.normal(size=len(slots)) * 4, rng.integers(1, 255, (len(slots), 1)).astype(np.uint8)
        found = act(policy, slots, first, reward, frames)
        for i, slot in enumerate(slots):
            action, before = references[slot].row(first[i], np.float32(reward[i]), frames[i, 0])
            np.testing.assert_allclose(found.action[i], action, rtol=1e-6)
            np.testing.assert_allclose(found.behaviour[i, : len(action)], action, rtol=1e-6)
            assert found.state[0][i, 0] == before  # before the reset: what an unroll from this row stores
    assert policy.traces == len(BUCKETS)


def test_ends_in_the_first_three_rows_by_hand():
    policy = counting_policy(4, "zero")
    rows = [(1, 10), (0, 20), (1, 30), (1, 40), (0, 50), (0, 60), (0, 70), (0, 80)]
    found = [
        act(policy, [2], [first], [4.0], np.array([[frame]], np.uint8)).action[0].tolist() for first, frame in rows
    ]
    assert found == [
        [1, 0, 0, 0, 0, 0, 10],
        [2, 1, 2, 0, 0, 10, 20],
        [1, 0, 0, 0, 0, 0, 30],
        [1, 0, 0, 0, 0, 0, 40],
        [2, 1, 2, 0, 0, 40, 50],
        [3, 2, 2, 0, 40, 50, 60],
        [4, 3, 2, 40, 50, 60, 70],
        [5, 4, 2, 50, 60, 70, 80],
    ]


def test_traces_are_one_per_bucket_and_the_rest_is_refused():
    policy = counting_policy(2, "zero", slots=20)
    policy.warm_up()
    policy.warm_up()
    assert policy.traces == 3
    for n in (1, 2, 3, 4, 5, 8, 1):
        found = act(policy, np.arange(n), np.ones(n), np.zeros(n), np.ones((n, 1), np.uint8))
        assert len(found.env_action) == len(found.action) == len(found.behaviour) == len(found.state[0]) == n
    assert policy.traces == 3
    for n in (0, 9):
        with pytest.raises(ValueError, match="1 to 8 rows"):
            act(policy, np.arange(n), np.ones(n), np.zeros(n), np.ones((n, 1), np.uint8))


def test_several_batches_in_flight_keep_their_order():
    policy = counting_policy(1, "zero")
    frames = np.ones((2, 1), np.uint8)
    slots, reward, greedy = np.array([0, 3], np.int32), np.zeros(2, np.float32), np.zeros(2, np.float32)
    pending = [policy.submit(slots, np.full(2, t == 0), reward, [frames], greedy) for t in range(5)]
    slots[:] = 4  # the caller may use its arrays again
    assert [p.result().action[:, 0].tolist() for p in pending] == [[t, t] for t in range(1, 6)]


ACTIONS = {
    "discrete": Leaf("action", "discrete", "int64", (), n=4, start=-2),
    "box": Leaf("action", "box", "float32", (2,), low=(-2.0, 0.0), high=(0.0, 10.0)),
}
NESTED = (
    Leaf("camera", "box", "uint8", (6, 5)),
    Leaf("speed", "box", "float64", (3,)),
)


def lstm_policy(action, stack=4, padding="zero", device="cpu:0", seed=1, network=None, slots=4, **settings):
    spaces = Spaces(NESTED, action)
    distribution = distribution_for(action)
    core = NetworkSection(hidden=[16], lstm=8, previous_action=True, previous_reward=True)
    network = network or build_network(spaces, distribution, core, stack, seed=3)
    policy = Policy(
        network,
        distribution,
        spaces,
        slots=slots,
        frame_stack=stack,
        padding=padding,
        rewards=REWARDS,
        buckets=BUCKETS,
        device=device,
        key=seed,
        **settings,
    )
    return policy, network, distribution, spaces


def sharpen(network):
    """Weights far from the nearly uniform start, so that every input matters."""
    for i, variable in enumerate(network.variables):
        variable.assign_add(0.5 * tf.random.stateless_normal(variable.shape, [7, i]))


def rows(rng, n):
    camera = rng.integers(0, 256, (n, 6, 5)).astype(np.uint8)
    return rng.random(n) < 0.25, (rng.normal(size=n) * 3).astype(np.float32), camera, rng.normal(size=(n, 3))


@pytest.mark.parametrize("padding", ["zero", "repeat"])
@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
@pytest.mark.parametrize("start", [0, 5])
def test_recomputed_log_probabilities_equal_those_of_acting(action, padding, start):
    """Mava#1006, DI-engine#52: weights frozen, LSTM, stack 4, episode ends inside, unroll assembled by hand."""
    policy, network, distribution, spaces = lstm_policy(action, padding=padding)
    sharpen(network)
    rng = np.random.default_rng(5)
    slots, length, stack = np.array([3, 0, 1]), 7, 4
    history = []
    for t in range(start + length + 1):
        first, reward, *observation = rows(rng, 3)
        if t == 0:
            first[:] = True
        order = rng.permutation(3)
        done = act(policy, slots[order], first[order], reward[order], *(x[order] for x in observation), greedy=False)
        back = np.argsort(order)
        acted = (done.action, done.behaviour, *done.state)
        history.append((first, reward, observation, *(x[back] for x in acted)))
    layout = UnrollLayout(
        length,
        stack,
        spaces.observation,
        distribution.action_shape,
        distribution.action_dtype,
        distribution.parameters,
        state_shapes(network),
    )
    records = np.full((3, layout.nbytes), 255, np.uint8)  # what is not written is garbage (NaN), as in a used buffer
    fields = layout.view(records)
    for i, t in enumerate(range(start - (stack - 1), start + length + 1)):
        if t < 0:
            continue
        first, reward, observation, raw, behaviour, *_ = history[t]
        fields["first"][:, i] = first
        for leaf, value in zip(spaces.observation, observation, strict=True):
            fields[f"observation/{leaf.path}"][:, i] = value
        if t >= start:
            fields["reward"][:, t - start], fields["action"][:, t - start] = reward, raw
            fields["behaviour"][:, t - start] = behaviour
    fields["state/0"][:], fields["state/1"][:] = history[start][5:]
    if start:
        fields["previous_action"][:] = history[start - 1][3]
    batch = {name: tf.constant(value) for name, value in layout.batch(records).items()}

    inputs = unroll_inputs(batch, stack, padding, REWARDS)
    outputs, _ = tf.function(network.unroll)(inputs, unroll_state(batch))
    np.testing.assert_allclose(outputs.policy, batch["behaviour"], atol=1e-4)
    acting = distribution.log_prob(batch["behaviour"], batch["action"])
    np.testing.assert_allclose(distribution.log_prob(outputs.policy, batch["action"]), acting, atol=1e-4)
    assert np.std(outputs.policy.numpy(), axis=(0, 1)).min() > 1e-2  # the inputs do matter
    assert fields["first"][:, stack:].any()


@pytest.mark.parametrize("jit_compile", [False, True])
def test_batches_in_any_slot_order_equal_rows_one_by_one(jit_compile):
    together, network, *_ = lstm_policy(ACTIONS["box"], jit_compile=jit_compile)
    alone, *_ = lstm_policy(ACTIONS["box"], network=network)
    sharpen(network)
    rng = np.random.default_rng(0)
    for t in range(8):
        first, reward, *observation = rows(rng, 4)
        first |= t == 0
        order = rng.permutation(4)
        batch = act(together, order, first[order], reward[order], *(x[order] for x in observation))
        for i, slot in enumerate(order):
            s = slice(slot, slot + 1)
            single = act(alone, [slot], first[s], reward[s], *(x[s] for x in observation))
            for a, b in zip(tf.nest.flatten(tuple(single)), tf.nest.flatten(tuple(batch)), strict=True):
                np.testing.assert_allclose(a[0], b[i], atol=1e-5)


def test_sampling_repeats_from_the_seed_and_differs_between_batches():
    def actions(seed, warm=False):
        policy, *_ = lstm_policy(ACTIONS["box"], seed=seed)
        if warm:
            policy.warm_up()
        rng = np.random.default_rng(0)
        first, reward, *observation = rows(rng, 4)
        first[:] = True
        args = (np.arange(4), first, reward, *observation)
        return np.stack([act(policy, *args, greedy=False).action for _ in range(3)])

    base = actions(1)
    np.testing.assert_array_equal(base, actions(1, warm=True))
    assert (base != actions(2)).all()
    assert (base[0] != base[1]).all() and len(np.unique(base)) == base.size


def test_environment_actions_are_of_the_space():
    for action in ACTIONS.values():
        policy, *_ = lstm_policy(action)
        first, reward, *observation = rows(np.random.default_rng(0), 4)
        found = act(policy, np.arange(4), first, reward, *observation, greedy=False)
        assert found.env_action.dtype == action.numpy_dtype
        if action.kind == "discrete":
            assert found.action.dtype == np.int32
            np.testing.assert_array_equal(found.env_action, found.action - 2)
        else:
            assert (found.env_action >= action.low).all() and (found.env_action <= action.high).all()


def test_nothing_is_kept_that_the_network_does_not_need():
    spaces = Spaces((Leaf("observation", "box", "float32", (4,)),), ACTIONS["discrete"])
    distribution = distribution_for(spaces.action)
    network = build_network(spaces, distribution, NetworkSection(hidden=[4]), 1)
    policy = Policy(
        network,
        distribution,
        spaces,
        slots=2,
        frame_stack=1,
        padding="zero",
        rewards=REWARDS,
        buckets=[2],
        device="cpu:0",
        key=1,
    )
    found = act(policy, [0, 1], [1, 1], [0, 0], np.ones((2, 4), np.float32), greedy=False)
    assert found.state == ()
    kept = [v for v in vars(policy._tables).values() if isinstance(v, tf.Variable)]
    assert not kept and not policy._tables._state and policy._tables._frames is None


def test_weights_are_read_as_they_are():
    policy, network, *_ = lstm_policy(ACTIONS["box"])
    args = ([0], [True], [0.0], np.ones((1, 6, 5), np.uint8), np.ones((1, 3)))
    before = act(policy, *args).behaviour
    sharpen(network)
    assert (act(policy, *args).behaviour != before).all()


def test_a_policy_reads_the_replica_of_its_own_device():
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    spaces = Spaces(NESTED, ACTIONS["box"])
    core = NetworkSection(hidden=[4], lstm=2)
    with strategy.scope():
        network = build_network(spaces, distribution_for(spaces.action), core, 2)
    copies = strategy.experimental_local_results(network.head.policy.bias)
    copies[0].assign([1.0] * 4)
    copies[1].assign([2.0] * 4)
    args = ([0], [True], [0.0], np.ones((1, 6, 5), np.uint8), np.ones((1, 3)))
    found = []
    for device in ("cpu:0", "cpu:1"):
        policy, *_ = lstm_policy(ACTIONS["box"], stack=2, device=device, network=network)
        found.append(act(policy, *args).behaviour)
        (function,) = [b.function for b in policy._buckets.values() if b is not None]
        assert all(device.upper() in x.device for x in function.captured_inputs)
    np.testing.assert_allclose(found[1] - found[0], 1.0, atol=1e-5)
