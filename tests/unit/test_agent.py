"""What ``run.seed`` decides of an agent: its weights, and what its policies draw."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.agent import Agent, build_agent
from learner.devices import choose_devices
from learner.incarnation import incarnation_of
from learner.networks.network import named_variables
from learner.policies import Acting
from pipeline.config.load import load
from pipeline.spaces import Leaf, Spaces
from pipeline.streams import Lane, Role, Stream

pytestmark = pytest.mark.unit

ACTION = Leaf("action", "box", "float32", (1,), low=(-1.0,), high=(1.0,))
SPACES = Spaces((Leaf("observation", "box", "float32", (4,)),), ACTION)
SLOTS = 8


def agent_of(*overrides: str, devices: int = 1) -> Agent:
    config = load("cartpole_vtrace", ["network.hidden=[8]", *overrides], {}).config
    chosen = choose_devices(["cpu:0"], ["cpu:0"])
    return build_agent(config, SPACES, chosen._replace(inference=chosen.inference * devices))


def weights(agent: Agent, network: Any = None) -> list[Any]:
    """Kernels alone: biases begin with zeros."""
    return [v.numpy() for name, v in named_variables(network or agent.network) if name.endswith("kernel")]


def drawn(policy: Acting, batches: int = 3) -> Any:
    """Actions ``[batches, SLOTS]`` of environments that see the same."""
    slots, first = np.arange(SLOTS, dtype=np.int32), np.ones(SLOTS, np.bool_)
    reward, observation = np.zeros(SLOTS, np.float32), [np.ones((SLOTS, 4), np.float32)]
    results = [policy.submit(slots, first, reward, observation, np.ones(SLOTS, np.float32)) for _ in range(batches)]
    return np.stack([pending.result().action[:, 0] for pending in results])


def test_weights_begin_by_the_seed_of_the_run_and_all_networks_of_a_run_alike() -> None:
    one, again, other = (agent_of(f"run.seed={seed}") for seed in (1, 1, 2))
    copy = weights(one, one.another_network())
    for a, b, c, d in zip(weights(one), weights(again), weights(other), copy, strict=True):
        assert (a == b).all() and (a == d).all()
        assert (a != c).mean() > 0.99


def test_a_policy_draws_by_run_seed_role_and_incarnation_and_repeats_by_them() -> None:
    agent = agent_of()
    streams = [Stream(*which) for which in itertools.product((1, 2), (Role.ACTION, Role.EVALUATION), (0, 1))]
    each = [drawn(agent.policy(SLOTS, stream)) for stream in streams]
    assert len(np.unique(each)) == np.size(each)
    np.testing.assert_array_equal(drawn(agent.policy(SLOTS, streams[0])), each[0])


def test_each_device_draws_for_itself_and_not_what_a_neighbouring_run_draws() -> None:
    agent = agent_of(devices=2)
    each = [drawn(agent.policy(SLOTS, Stream(seed, Role.ACTION))) for seed in (1, 2, 3)]
    assert len(np.unique(each)) == np.size(each)


def test_a_run_draws_by_its_seed(tmp_path: Path) -> None:
    def of(seed: int) -> tuple[list[int], int]:
        checkpoints = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        checkpoints.mkdir()
        incarnation = incarnation_of(load("cartpole_vtrace", [f"run.seed={seed}"], {}).config, checkpoints)
        return [incarnation.stream(role).key() for role in Role], incarnation.environments(Lane.TRAINING, 1)

    (keys, environment), (others, another) = of(1), of(2)
    assert not set(keys) & set(others) and environment != another
    assert of(1) == (keys, environment)
