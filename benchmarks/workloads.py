"""What presets compute, to be measured alone: frames of their environments, the acting policy, the update."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from learner.agent import Agent, build_agent, prepare_devices
from learner.policies import Acting
from learner.policy import Policy
from pipeline.config.load import load
from pipeline.config.tree import Config
from pipeline.spaces import Leaf, Spaces
from pipeline.unrolls import OBSERVATION

SPACES = {
    "atari": Spaces((Leaf("observation", "box", "uint8", (84, 84)),), Leaf("action", "discrete", "int64", (), n=6)),
    "cartpole": Spaces((Leaf("observation", "box", "float32", (4,)),), Leaf("action", "discrete", "int64", (), n=2)),
}


PRESETS = {"cartpole": "cartpole_throughput", "pong": "atari_pong_vtrace"}


class Part(NamedTuple):
    """A preset at work on this machine.

    Attributes:
        config: The preset.
        agent: Its network, on its devices.
        rows: Environments of one env group: rows of a request.
        frames: ``[unroll_length + 1, environments, ...]`` of random play, enough for a training and an inference batch.
    """

    config: Config
    agent: Agent
    rows: int
    frames: np.ndarray[Any, Any]


@functools.cache
def part(name: str) -> Part:
    """The preset that ``PRESETS`` names so; made once."""
    config = load(PRESETS[name]).config
    kind = "cartpole" if name == "cartpole" else "atari"
    environments = max(config.training.batch_size, config.learner.inference_batch)
    frames = frames_of(kind, environments, config.training.unroll_length + 1)
    agent = build_agent(config, SPACES[kind], prepare_devices(config))
    return Part(config, agent, config.workers.envs // config.workers.groups, frames)


def frames_of(kind: str, envs: int, rows: int) -> np.ndarray[Any, Any]:
    """``[rows, envs, ...]`` of random play."""
    rng = np.random.default_rng(1)
    if kind == "cartpole":
        return rng.normal(size=(rows, envs, 4)).astype(np.float32)
    from ale_py.vector_env import AtariVectorEnv

    vector = AtariVectorEnv("pong", num_envs=envs, num_threads=1, stack_num=1)
    vector.reset(seed=1)
    steps = [vector.step(rng.integers(0, 6, envs))[0].reshape(envs, 84, 84) for _ in range(rows + 60)]
    vector.close()
    return np.stack(steps[60:])


def policy_of(agent: Agent, slots: int, rows: tuple[int, ...]) -> Policy:
    config = agent.config
    return Policy(
        agent.network,
        agent.distribution,
        agent.spaces,
        slots=slots,
        frame_stack=config.environment.frame_stack,
        padding=config.environment.stack_padding,
        rewards=agent.rewards,
        buckets=rows,
        device=agent.devices.inference[0],
        key=1,
        jit_compile=config.learner.jit_compile,
    )


def acted_batch(agent: Agent, frames: np.ndarray[Any, Any], rows: int) -> dict[str, Any]:
    """A training batch of all ``frames`` that the policy acted out, at most ``rows`` environments at a time."""
    layout, envs = agent.layout, frames.shape[1]
    records = np.zeros((envs, layout.nbytes), np.uint8)
    fields, past = layout.view(records), layout.frame_stack - 1
    fields["valid"][...] = 1
    fields["first"][:, past] = 1
    fields["reward"][...] = np.random.default_rng(2).integers(-1, 2, fields["reward"].shape)
    fields[OBSERVATION + agent.spaces.observation[0].path][:, past:] = frames.swapaxes(0, 1)
    policy = policy_of(agent, envs, (min(rows, envs),))
    for t, begin in ((t, b) for t in range(len(frames)) for b in range(0, envs, rows)):
        group = np.arange(begin, min(begin + rows, envs), dtype=np.int32)
        first, all_of_it = np.full(len(group), t == 0), np.ones(len(group), np.float32)
        acted = policy.submit(group, first, fields["reward"][group, t], [frames[t, group]], all_of_it).result()
        fields["action"][group, t], fields["behaviour"][group, t] = acted.action, acted.behaviour
    return layout.batch(records)


def update_of(agent: Agent, batch: dict[str, Any]) -> Callable[[], Any]:
    """One update with ``batch`` that waits for its result."""
    trainer = agent.trainer()
    prepared = trainer.prepare(batch)

    def update() -> Any:
        return trainer.update(prepared, 0).fetch()

    return update


def inference_of(policy: Acting, frames: np.ndarray[Any, Any]) -> Callable[[], Any]:
    """One inference batch of ``frames`` ``[rows, ...]`` that waits for its result."""
    rows = len(frames)
    slots, no, zero = np.arange(rows, dtype=np.int32), np.zeros(rows, np.bool_), np.zeros(rows, np.float32)
    return lambda: policy.submit(slots, no, zero, [frames], zero).result()
