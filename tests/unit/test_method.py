"""What ``training.algorithm`` decides, from a preset to an agent."""

import numpy as np
import pytest
import tensorflow as tf

from learner.agent import build_agent
from learner.algorithms.r2d2 import R2d2
from learner.algorithms.vtrace import Vtrace
from learner.devices import choose_devices
from learner.distributions import Categorical, EpsilonGreedy
from learner.method import method_of
from learner.networks.build import convolves
from pipeline.config.load import load
from pipeline.errors import SpaceError
from pipeline.spaces import Leaf, Spaces
from pipeline.streams import Role, Stream

pytestmark = pytest.mark.unit

PICTURES = Spaces((Leaf("observation", "box", "uint8", (84, 84, 3)),), Leaf("action", "discrete", "int64", (), n=3))
NUMBERS = Spaces((Leaf("observation", "box", "float32", (4,)),), Leaf("action", "discrete", "int64", (), n=3))


@pytest.mark.parametrize(
    ("spaces", "said", "cost"),
    [
        (NUMBERS, [], 0.003),
        (PICTURES, [], 0.01),
        (PICTURES, ["network.name=mlp"], 0.003),
        (PICTURES, ["network.name=own.module:Network"], 0.01),
        (PICTURES, ["vtrace.entropy_cost=0.003"], 0.003),
        (NUMBERS, ["vtrace.entropy_cost=0.0"], 0.0),
    ],
)
def test_the_default_entropy_cost_is_larger_where_pictures_are_convolved(spaces, said, cost, tmp_path):
    file = tmp_path / "only_the_id.yaml"
    file.write_text("environment: {id: CartPole-v1}\n")
    config = load(file, said, {}).config
    method = method_of(config, spaces.action, convolves(config.network, spaces, config.environment.frame_stack))
    assert method.algorithm(None).controls(0) == [cost]


ACTION = Leaf("action", "discrete", "int64", (), 2)
SPACES = Spaces((Leaf("observation", "box", "float32", (4,)),), ACTION)


def agent_of(preset, *overrides):
    return build_agent(load(preset, overrides, {}).config, SPACES, choose_devices(["cpu:0"], ["cpu:0"]))


def test_r2d2_adds_burn_in_to_the_unroll_and_stores_q_values():
    agent = agent_of("cartpole_r2d2", "network.lstm=4")
    config = agent.config
    assert agent.layout.unroll_length == config.r2d2.burn_in + config.training.unroll_length
    assert agent.layout.behaviour_size == ACTION.n
    assert isinstance(agent.distribution, EpsilonGreedy)
    assert agent.rewards.scale == config.r2d2.reward_scale
    assert isinstance(agent.trainer()._algorithm, R2d2)


def test_the_target_network_begins_equal():
    arrays = agent_of("cartpole_r2d2", "network.lstm=4").trainer().snapshot()
    names = [name.removeprefix("network/") for name in arrays if name.startswith("network/")]
    assert "core/kernel" in names
    for name in names:
        np.testing.assert_array_equal(arrays[f"algorithm/target/{name}"], arrays[f"network/{name}"])


def test_epsilons_are_spread_over_the_configured_environments():
    config = load("cartpole_r2d2", ["workers.count=2", "workers.envs=4", "r2d2.eval_epsilon=0.25"], {}).config
    exploration = method_of(config, ACTION).exploration
    assert len(exploration.training) == 8 and exploration.evaluation == 0.25
    np.testing.assert_allclose(exploration.training[[0, -1]], [0.4, 0.4**8], rtol=1e-5)
    fixed = load("cartpole_r2d2", ["r2d2.epsilon_count=3"], {}).config
    assert len(method_of(fixed, ACTION).exploration.training) == 3
    none = load("cartpole_r2d2", ["workers.count=0"], {}).config
    assert len(method_of(none, ACTION).exploration.training) == 1


def test_vtrace_stays_what_it_was():
    agent = agent_of("cartpole_vtrace")
    assert agent.layout.unroll_length == agent.config.training.unroll_length
    assert isinstance(agent.distribution, Categorical) and isinstance(agent.trainer()._algorithm, Vtrace)
    assert agent.exploration.of_training(np.arange(2)).tolist() == [1.0, 1.0]
    assert agent.exploration.of_evaluation(2).tolist() == [0.0, 0.0]


def test_r2d2_refuses_continuous_actions():
    box = Leaf("action", "box", "float32", (1,), low=(-1.0,), high=(1.0,))
    with pytest.raises(SpaceError, match=r"Q-values of discrete actions only: set training\.algorithm to vtrace"):
        method_of(load("cartpole_r2d2", [], {}).config, box)


def test_each_row_acts_with_its_own_epsilon():
    agent = agent_of("cartpole_r2d2", "network.lstm=0", "learner.inference_batch=64")
    policy, slots = agent.policy(64, Stream(1, Role.ACTION)), np.arange(64, dtype=np.int32)
    agent.network.head.advantage.kernel.assign(tf.random.stateless_normal([64, 2], [1, 2]))
    observation, seen = np.tile(np.float32([1.0, -2.0, 3.0, 0.5]), (64, 1)), []
    for _ in range(20):
        explored = np.where(slots < 32, 0.0, 1.0).astype(np.float32)
        acted = policy.submit(slots, np.ones(64, bool), np.zeros(64, np.float32), [observation], explored).result()
        seen.append(acted.action)
    greedy, random = np.stack(seen)[:, :32], np.stack(seen)[:, 32:]
    assert (greedy == acted.behaviour[0].argmax()).all()
    assert 0.4 < random.mean() < 0.6


@pytest.mark.parametrize("initializer", ["orthogonal", "glorot_uniform"])
def test_the_heads_of_vtrace_begin_as_they_are_told(initializer):
    agent = agent_of("cartpole_vtrace", "network.hidden=[64]", f"vtrace.head_initializer={initializer}")
    arrays = agent.trainer().snapshot()
    for head, gain, outputs in (("policy", 0.01, ACTION.n), ("value", 1.0, 1)):
        kernel = arrays[f"network/head/{head}/kernel"]
        assert kernel.shape == (64, outputs)
        if initializer == "orthogonal":
            np.testing.assert_allclose(kernel.T @ kernel, gain**2 * np.eye(outputs), atol=1e-6)
        else:
            bound = np.sqrt(6 / (64 + outputs))
            assert 0.8 * bound < np.abs(kernel).max() <= bound
