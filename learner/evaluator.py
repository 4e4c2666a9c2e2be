"""What an evaluation decides: rounds of episodes under fixed weights, until one solves the task."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from learner.agent import NETWORK, Agent
from learner.evaluation import Evaluation
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
        self._fixed = fixed = agent.another_network()
        self.solved_weights: dict[str, npt.NDArray[Any]] = {}
        pairs = list(zip(named_variables(fixed), named_variables(agent.network), strict=True))

        def copy() -> None:
            for (_, mine), (_, theirs) in pairs:
                mine.assign(theirs)

        policy = agent.policy(config.slots, stream, fixed)
        self.evaluation = Evaluation(policy, copy, config.evaluation.episodes, config.slots)

    def look(self, roster: Roster, version: int) -> bool:
        """Takes a finished round and begins the next; whether the task is solved, with its weights kept."""
        evaluation, result = self.evaluation, self.evaluation.take()
        if result is not None:
            n, played = len(result.returns), result.version
            log.debug("evaluation: mean return %.2f of %d episodes of version %d", result.mean, n, played)
        if result is not None and self._target is not None and result.mean >= self._target:
            named = named_variables(self._fixed)
            self.solved_weights = {NETWORK + name: np.array(variable.numpy()) for name, variable in named}
            log.info("solved: mean return %.2f of %d episodes of fixed weights", result.mean, len(result.returns))
            return True
        slots = roster.table.evaluating()
        evaluation.keep_to(slots)
        if len(slots) and evaluation.idle and version != evaluation.version:
            self._inference.at_rest(lambda: evaluation.begin(roster.table.evaluating(), version), CUT_SECONDS)
        return False
