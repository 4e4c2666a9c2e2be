"""Slots, repeats and stale requests."""

import itertools

import numpy as np
import pytest

from learner.exploration import Exploration, epsilons
from learner.slots import SlotTable, Verdict

pytestmark = pytest.mark.unit


def test_slots_are_given_lowest_first_and_come_back() -> None:
    table = SlotTable(6)
    a = table.admit(0, "a", 11, [2, 2], False)
    assert a is not None and a.slots().tolist() == [0, 1, 2, 3]
    assert table.admit(1, "b", 12, [3], False) is None and table.used == 4
    table.release(0, 11)
    b = table.admit(1, "b", 12, [3], False)
    assert b is not None and b.slots().tolist() == [0, 1, 2]
    assert b.groups[0].environments.tolist() == [1 << 16, (1 << 16) + 1, (1 << 16) + 2]


def test_a_repeat_is_answered_and_an_old_one_is_stale() -> None:
    table = SlotTable(2)
    table.admit(0, "a", 11, [2], False)
    verdict, group = table.judge(0, 11, 0, 5)
    assert verdict is Verdict.SERVE and group is not None
    assert table.judge(0, 11, 0, 5)[0] is Verdict.IN_FLIGHT
    assert table.judge(0, 11, 0, 6)[0] is Verdict.STALE, "one request of a group at a time"
    table.answered(group, b"reply")
    assert table.judge(0, 11, 0, 5) == (Verdict.REPEAT, group) and group.reply == b"reply"
    assert table.judge(0, 11, 0, 4)[0] is Verdict.STALE
    assert table.judge(0, 11, 0, 7)[0] is Verdict.GAP
    assert table.judge(0, 11, 0, 6)[0] is Verdict.SERVE


@pytest.mark.parametrize(("worker", "run", "group"), [(1, 11, 0), (0, 12, 0), (0, 11, 1), (0, 11, -1)])
def test_strangers_are_unknown(worker: int, run: int, group: int) -> None:
    table = SlotTable(2)
    table.admit(0, "a", 11, [2], False)
    assert table.judge(worker, run, group, 0) == (Verdict.UNKNOWN, None)


LADDER = Exploration(epsilons(0.4, 7.0, 6), evaluation=None)


def test_the_ladder_of_training_has_neither_holes_nor_doubles_wherever_evaluation_stands() -> None:
    for order in itertools.permutations(["train a", "train b", "eval"]):
        table = SlotTable(16, LADDER)
        joined = {}
        for worker, name in enumerate(order):
            sizes = [2] if name == "eval" else [1, 2]
            joined[name] = table.admit(worker, name, worker, sizes, name == "eval")
        training = np.concatenate([joined["train a"].slots(), joined["train b"].slots()])
        assert sorted(table.explores[training].tolist()) == sorted(LADDER.training.tolist()), order
        np.testing.assert_array_equal(table.explores[joined["eval"].slots()], LADDER.of_evaluation(2))


def test_places_come_back_and_others_keep_theirs() -> None:
    table = SlotTable(16, LADDER)
    a = table.admit(0, "a", 10, [3], False)
    first = table.admit(1, "e", 11, [2], True)
    b = table.admit(2, "b", 12, [3], False)
    assert a is not None and b is not None and first is not None
    np.testing.assert_array_equal(table.explores[b.slots()], LADDER.training[3:])
    second = table.admit(3, "f", 13, [1], True)
    assert second is not None
    both = np.concatenate([first.slots(), second.slots()])
    np.testing.assert_array_equal(table.explores[both], LADDER.of_evaluation(3))
    table.release(1, 11)
    table.release(0, 10)
    np.testing.assert_array_equal(table.explores[second.slots()], LADDER.of_evaluation(1))
    again = table.admit(4, "a", 14, [2, 2], False)
    assert again is not None
    np.testing.assert_array_equal(table.explores[again.slots()], LADDER.training[[0, 1, 2, 0]])
    np.testing.assert_array_equal(table.explores[b.slots()], LADDER.training[3:])


def test_others_than_that_explore_as_evaluation_does() -> None:
    table = SlotTable(4, Exploration(epsilons(0.4, 7.0, 2), evaluation=0.25))
    table.admit(0, "e", 1, [1], True)
    table.admit(1, "a", 2, [2], False)
    np.testing.assert_array_equal(table.explores[:3], np.float32([0.25, *epsilons(0.4, 7.0, 2)]))
