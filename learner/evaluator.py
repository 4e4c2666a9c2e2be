"""What an evaluation decides: rounds under fixed weights, until one solves the task and the next one confirms it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from learner.agent import NETWORK, Agent
from learner.evaluation import Evaluation, Result
from learner.inference import InferenceLoop
from learner.networks.network import named_variables
from learner.roster import Roster
from learner.saving import CUT_SECONDS
from pipeline.config.tree import Config
from pipeline.streams import Stream

log = logging.getLogger(__name__)


class Evaluator:
    """Begins rounds and takes their results. Training thread.

    Attributes:
        evaluation: The rounds.
        solved_weights: Name -> array, of the round that solved the task; empty before.
    """

    def __init__(self, config: Config, agent: Agent, inference: InferenceLoop, stream: Stream) -> None:
        self._target = config.evaluation.solved_return
        self._inference = inference
        self._reached: Result | None = None  # of the round that the next one is to confirm
        self._trained = False  # the weights of the round
        self._fixed = fixed = agent.another_network()
        self.solved_weights: dict[str, npt.NDArray[Any]] = {}
        pairs = list(zip(named_variables(fixed), named_variables(agent.network), strict=True))

        def copy() -> None:
            for (_, mine), (_, theirs) in pairs:
                mine.assign(theirs)

        policy = agent.policy(config.slots, stream, fixed)
        section = config.evaluation
        self.evaluation = Evaluation(policy, copy, section.episodes, config.slots, section.max_steps)

    def look(self, roster: Roster, version: int, trained: bool = True) -> bool:
        """Takes a finished round and begins the next; whether the task is solved, with its weights kept.

        Args:
            roster: Where the evaluation environments are.
            version: Of the weights as they are now.
            trained: The run has had an update.
        """
        evaluation, result = self.evaluation, self.evaluation.take()
        if result is not None and self._solved(result):
            return True
        if (endless := evaluation.take_endless()) is not None:
            self._reached = None
            log.warning("%s", endless)
        slots = roster.table.evaluating()
        evaluation.keep_to(slots)
        again = self._reached is not None  # the same weights play another round
        if len(slots) and evaluation.idle and (again or version != evaluation.version):
            self._trained = self._trained if again else trained
            played = evaluation.version if again else version
            self._inference.at_rest(
                lambda: evaluation.begin(roster.table.evaluating(), played, copies=not again), CUT_SECONDS
            )
        return False

    def _solved(self, result: Result) -> bool:
        """Whether a second round has confirmed the first: the best of many rounds is better than its weights are."""
        n, played = len(result.returns), result.version
        log.debug("evaluation: mean return %.2f of %d episodes of version %d", result.mean, n, played)
        first, self._reached = self._reached, None
        if self._target is None or result.mean < self._target or not self._trained:
            if first is not None:
                log.info("mean return %.2f, then %.2f of %d episodes: not confirmed", first.mean, result.mean, n)
            return False
        if first is None:
            self._reached = result
            log.info("mean return %.2f of %d episodes of fixed weights; they play as many again", result.mean, n)
            return False
        named = named_variables(self._fixed)
        self.solved_weights = {NETWORK + name: np.array(variable.numpy()) for name, variable in named}
        log.info("solved: mean return %.2f, then %.2f of %d episodes of fixed weights", first.mean, result.mean, n)
        return True
