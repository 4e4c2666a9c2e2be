"""Slots, repeats and stale requests."""

import pytest

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
