"""Rounds of evaluation: which episodes count, and when a round is complete."""

import numpy as np
import pytest

from learner.evaluation import Evaluation
from pipeline.rows import FIRST, ROW, TERMINATED

pytestmark = pytest.mark.unit


MAX_STEPS = 50


class Stage:
    def __init__(self, episodes: int) -> None:
        self.copies = 0
        self.evaluation = Evaluation(None, self._copy, episodes, 8, MAX_STEPS)  # type: ignore[arg-type]

    def _copy(self) -> None:
        self.copies += 1

    def first(self, *slots: int) -> None:
        rows = np.zeros(len(slots), ROW)
        rows["flags"] = FIRST
        self.evaluation.observe(np.array(slots), rows)

    def steps(self, slots: list[int], index: int, flags: int = 0) -> None:
        """Rows of these environments, so many transitions after their start."""
        rows = np.zeros(len(slots), ROW)
        rows["index"], rows["flags"] = index, flags
        self.evaluation.observe(np.array(slots), rows)

    def final(self, slot: int, value: float, index: int = 0) -> None:
        rows = np.zeros(1, ROW)
        rows["flags"], rows["episode_return"], rows["index"] = TERMINATED, value, index
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


def test_the_weights_of_a_round_play_another() -> None:
    stage = Stage(1)
    stage.evaluation.begin(np.array([0]), 3)
    stage.first(0)
    stage.final(0, 1.0)
    assert stage.evaluation.take() is not None
    stage.first(0)
    stage.evaluation.begin(np.array([0]), 3, copies=False)
    assert stage.copies == 1
    stage.final(0, 5.0)
    assert stage.evaluation.take() is None, "it was going on when the round began"
    stage.first(0)
    stage.final(0, 2.0)
    result = stage.evaluation.take()
    assert result is not None and (result.returns, result.version) == ([2.0], 3)


def test_an_episode_without_an_end_voids_the_round_and_is_said() -> None:
    stage = Stage(2)
    stage.first(0, 1)
    stage.steps([0, 1], 1000)
    stage.evaluation.begin(np.array([0, 1]), 7)
    stage.steps([0, 1], 1001)  # they have gone on for long before it
    stage.steps([0, 1], 1001 + MAX_STEPS)
    assert not stage.evaluation.idle and stage.evaluation.take_endless() is None
    stage.final(0, 1.0)
    stage.steps([1], 1002 + MAX_STEPS)
    assert stage.evaluation.idle and stage.evaluation.take() is None
    said = stage.evaluation.take_endless()
    assert said is not None and "has not ended after 50 steps (evaluation.max_steps)" in said
    assert stage.evaluation.take_endless() is None and stage.evaluation.status()["voided_rounds"] == 1
    stage.evaluation.begin(np.array([0, 1]), 8)
    assert not stage.evaluation.idle, "the next one is tried"


def test_episodes_that_end_in_time_are_no_matter_how_many() -> None:
    stage = Stage(20)
    stage.evaluation.begin(np.array([0]), 7)
    for number in range(20):
        stage.steps([0], 40 * number, FIRST)
        stage.steps([0], 40 * number + 39)
        stage.final(0, 1.0, index=40 * number + 40)
    assert stage.evaluation.take() is not None and stage.evaluation.take_endless() is None
