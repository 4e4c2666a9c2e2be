"""What ``training.algorithm`` decides: one function per algorithm. Everything else is the same for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from learner.algorithms import Algorithm
from learner.algorithms.r2d2 import R2d2
from learner.algorithms.vtrace import Vtrace
from learner.distributions import Distribution, distribution_for, epsilon_greedy_for
from learner.exploration import SAMPLE, Exploration, epsilons
from learner.inputs import RewardTransform
from learner.networks.heads import MakeHead, actor_critic, dueling
from learner.networks.network import Network
from pipeline.config.tree import Config
from pipeline.spaces import Leaf

MakeNetwork = Callable[[], Network]


class Method(NamedTuple):
    """An algorithm and what goes with it.

    Attributes:
        distribution: Of the actions; its parameters are the network's policy output.
        head: Of the networks that seedmq brings.
        rewards: As the loss and the previous-reward input see them.
        exploration: How much each environment explores.
        rows_before: Rows of an unroll before those that are learnt.
        algorithm: Makes the algorithm, given what makes one more network like the one that is trained.
    """

    distribution: Distribution
    head: MakeHead
    rewards: RewardTransform
    exploration: Exploration
    rows_before: int
    algorithm: Callable[[MakeNetwork], Algorithm]


def method_of(config: Config, action: Leaf, pictures: bool = False) -> Method:
    """The method that ``training.algorithm`` names.

    Args:
        config: The configuration.
        action: Of the environment.
        pictures: The observations are pictures that are convolved, which decides defaults.

    Raises:
        SpaceError: it has no distribution for this action.
        ConfigError: its settings do not go together.
    """
    return {"vtrace": _vtrace, "r2d2": _r2d2}[config.training.algorithm](config, action, pictures)


def _vtrace(config: Config, action: Leaf, pictures: bool) -> Method:
    distribution = distribution_for(action)
    algorithm = Vtrace(config.vtrace, distribution, pictures)
    head = actor_critic(config.vtrace.head_initializer)
    return Method(distribution, head, algorithm.rewards, SAMPLE, 0, lambda _: algorithm)


def _r2d2(config: Config, action: Leaf, pictures: bool) -> Method:
    del pictures  # none of its defaults
    settings = config.r2d2
    count = settings.epsilon_count or max(1, config.workers.count * config.workers.envs)
    training = epsilons(settings.epsilon_base, settings.epsilon_alpha, count)
    return Method(
        epsilon_greedy_for(action),
        dueling(settings.dueling_hidden),
        RewardTransform(settings.reward_scale, settings.reward_clip),
        Exploration(training, settings.eval_epsilon),
        settings.burn_in,
        lambda make_network: R2d2(settings, make_network),
    )
