"""Where every random number of a run comes from: the only place that derives seeds and generators. Pure.

A stream is ``numpy.random.SeedSequence(entropy=run.seed, spawn_key=(role, index, incarnation))``: the role says what it
is for, the index which device draws from it, the incarnation which of the run's learner processes. That one is counted
in the run's directory (``learner.incarnation``), so neither a restart nor a resume ever draws again what was drawn
before, and a run from scratch with the same seed still repeats.

Environments take integers below 2^31 as seeds. A run numbers all environments that are ever made for it, those that are
made again too, and each number has a seed of its own: for one run seed the numbers are permuted, not hashed, so that no
two are equal. Evaluation numbers its own, and so does ``seedmq eval``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

SEED_BITS = 31
KEY_BITS = 64
_STRIDE = 0x9E3779B1  # odd: multiplying by it permutes the seeds
_LANES = 4


class Role(IntEnum):
    """What a stream is for."""

    ENVIRONMENT = 0
    ACTION = 1  # noise of the policy that acts in training, exploration included
    REPLAY = 2  # draws from the replay
    EVALUATION = 3  # noise of the policy that evaluates while a run trains
    COMMAND = 4  # noise of the policy of ``seedmq eval``
    RENEWAL = 5  # an environment that is made anew by itself


class Lane(IntEnum):
    """Who numbers environments."""

    TRAINING = 0
    EVALUATION = 1
    COMMAND = 2  # ``seedmq eval``


class Stream(NamedTuple):
    """One role's streams of one incarnation; indices tell them apart.

    Attributes:
        seed: The run's.
        role: What they are for.
        incarnation: Learner processes of the run before this one.
    """

    seed: int
    role: Role
    incarnation: int = 0

    def sequence(self, index: int = 0) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(self.role, index, self.incarnation))

    def generator(self, index: int = 0) -> np.random.Generator:
        return np.random.default_rng(self.sequence(index))

    def key(self, index: int = 0) -> int:
        """Of a counter-based generator: ``0 <= key < 2^KEY_BITS``."""
        return int(self.sequence(index).generate_state(1, np.uint64)[0])


def environment_seed(run_seed: int, lane: Lane, number: int) -> int:
    """The seed of a run's environment, ``0 <= seed < 2^SEED_BITS``; distinct for all lanes and numbers below 2^29."""
    base = int(Stream(run_seed, Role.ENVIRONMENT).sequence().generate_state(1)[0])
    return (base + (_LANES * number + lane) * _STRIDE) & (1 << SEED_BITS) - 1


def environment_seeds(first: int, n: int, offset: int = 0) -> npt.NDArray[Any]:
    """Seeds of ``n`` environments from the ``offset``-th on, int64 ``[n]``, where ``first`` is that of the 0th.

    They belong to the numbers after that of ``first``: ``(first + i * 2027808452) mod 2^31`` for the i-th.
    """
    seeds: npt.NDArray[Any] = (first + np.arange(offset, offset + n, dtype=np.int64) * SEED_STEP) % 2**SEED_BITS
    return seeds


def renewed_seed(seed: int, renewals: int) -> int:
    """The seed of an environment that is made anew by itself, from the one it had at first, and how often that was.

    Nobody numbers these: it is hashed, into lanes in which a run numbers none. So no environment that is numbered has
    it, and another one that was made anew has it with a probability of 2^-29.
    """
    hashed = int(np.random.SeedSequence(seed, spawn_key=(Role.RENEWAL, renewals)).generate_state(1)[0])
    renewed: int = (seed + Lane.COMMAND * _STRIDE + hashed * SEED_STEP) & (1 << SEED_BITS) - 1
    return renewed


SEED_STEP = _LANES * _STRIDE % 2**SEED_BITS
"""From an environment's seed to that of the next number; part of the wire protocol."""
