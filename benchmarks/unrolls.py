"""Unrolls to measure with: real frames of Atari games under random play, and what else a record holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.spaces import Leaf
from pipeline.unrolls import OBSERVATION, UnrollLayout

GAMES = ("pong", "breakout", "seaquest")
WARM_UP_STEPS = 100
FIELD = OBSERVATION + "observation"


def layout_of(leaf: Leaf, unroll_length: int, stack: int) -> UnrollLayout:
    """The record of a policy with six actions and no recurrent state."""
    return UnrollLayout(unroll_length, stack, (leaf,), (), "int32", 6, ())


def fill(layout: UnrollLayout, observations: Any, rng: np.random.Generator) -> Any:
    """Records ``[N, nbytes]`` of observations ``[N, rows, ...]``; the other fields as a policy would leave them."""
    records = np.zeros((len(observations), layout.nbytes), np.uint8)
    fields = layout.view(records)
    fields[FIELD][...] = observations
    fields["behaviour"][...] = rng.normal(size=fields["behaviour"].shape)
    fields["action"][...] = rng.integers(0, 6, fields["action"].shape)
    fields["valid"][...] = 1
    return records


def atari_frames(game: str, unrolls: int, rows: int) -> Any:
    """Consecutive 84 x 84 grey frames, uint8 ``[unrolls, rows, 84, 84]``."""
    from ale_py.vector_env import AtariVectorEnv

    envs, rng = 8, np.random.default_rng(1)
    steps = -(-unrolls // envs) * rows
    vector = AtariVectorEnv(game, num_envs=envs, num_threads=1, stack_num=1)
    vector.reset(seed=1)
    actions = vector.single_action_space.n
    for _ in range(WARM_UP_STEPS):
        vector.step(rng.integers(0, actions, envs))
    frames = np.stack([vector.step(rng.integers(0, actions, envs))[0].reshape(envs, 84, 84) for _ in range(steps)], 1)
    vector.close()
    return frames.reshape(-1, rows, 84, 84)[:unrolls]
