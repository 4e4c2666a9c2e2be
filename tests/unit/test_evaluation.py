"""Rounds of evaluation: which episodes count, and when a round is complete."""

import numpy as np
import pytest

from learner.evaluation import Evaluation
from pipeline.rows import FIRST, ROW, TERMINATED

pytestmark = pytest.mark.unit


class Stage:
    def __init__(self, episodes: int) -> None:
        self.copies = 0
        self.evaluation = Evaluation(None, self._copy, episodes, 8)  # type: ignore[arg-type]

    def _copy(self) -> None:
        self.copies += 1

    def first(self, *slots: int) -> None:
        rows = np.zeros(len(slots), ROW)
        rows["flags"] = FIRST
        self.evaluation.observe(np.array(slots), rows)

    def final(self, slot: int, value: float) -> None:
        rows = np.zeros(1, ROW)
        rows["flags"], rows["episode_return"] = TERMINATED, value
        self.evaluation.observe(np.array([slot]), rows)


def test_what_goes_on_when_a_round_begins_does_not_count() -> None:
    stage = Stage(2)
    stage.first(0, 1)
    stage.evaluation.begin(np.array([0, 1]), 7)
    stage.final(0, 1.0)
    stage.first(0)
    stage.final(0, 10.0)
    assert stage.evaluation.take() is None, "slot 1 has not played its share"
    stage.final(1, 1.0)
    stage.first(1)
    stage.final(1, 20.0)
    result = stage.evaluation.take()
    assert result is not None and (result.returns, result.version, result.mean) == ([10.0, 20.0], 7, 15.0)
    assert stage.evaluation.take() is None and stage.evaluation.idle and stage.copies == 1


def test_short_episodes_are_not_favoured() -> None:
    stage = Stage(4)
    stage.evaluation.begin(np.array([0, 1]), 1)
    for value in range(5):
        stage.first(0)
        stage.final(0, float(value))
    assert stage.evaluation.take() is None
    for value in (100.0, 200.0):
        stage.first(1)
        stage.final(1, value)
    result = stage.evaluation.take()
    assert result is not None and result.returns == [0.0, 1.0, 100.0, 200.0]


def test_episodes_between_rounds_and_of_strangers_are_ignored() -> None:
    stage = Stage(1)
    stage.first(0)
    stage.final(0, 1.0)
    stage.evaluation.begin(np.array([0]), 1)
    stage.first(5)
    stage.final(5, 3.0)
    assert stage.evaluation.take() is None and not stage.evaluation.idle
    stage.evaluation.keep_to(np.array([0, 5]))
    stage.first(0)
    stage.final(0, 1.0)
    assert stage.evaluation.take() is None and stage.evaluation.idle, "another environment came"
