from __future__ import annotations

import pytest

from workers.restarts import FIRST_STEPS, LONGEST_DELAY_SECONDS, TRIES, WINDOW_SECONDS, FirstSteps, RestartBudget

pytestmark = pytest.mark.unit


def test_delays_grow_are_jittered_and_end_with_the_budget():
    budget = RestartBudget(10)
    delays = [budget.fault(float(i), 0.5) for i in range(10)]
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8] and delays[-1] == LONGEST_DELAY_SECONDS
    assert budget.fault(11.0, 0.5) is None
    assert (RestartBudget(1).fault(0, 0.0), RestartBudget(1).fault(0, 0.999)) == (0.05, pytest.approx(0.15, rel=0.01))


def test_faults_are_forgotten_after_ten_minutes():
    budget = RestartBudget(2)
    for i in range(50):
        assert budget.fault(i * (WINDOW_SECONDS / 2 + 1), 0.5) is not None


def test_no_budget_is_no_restart():
    assert RestartBudget(0).fault(0.0, 0.5) is None


def lost(number):
    return (
        f"RuntimeError: lost 0x{number:x} after {number} steps (corridor.py:21, in step; environment {number}, [1, 0])"
    )


def test_the_same_fault_in_the_first_steps_of_each_try_is_no_passing_one():
    tries = FirstSteps()
    assert [tries.fault(lost(i), 0, FIRST_STEPS) for i in range(TRIES)] == [False] * (TRIES - 1) + [True]


@pytest.mark.parametrize("come", [(1, 3), (0, FIRST_STEPS + 1)])
def test_where_an_environment_came_further_once_a_fault_may_pass(come):
    tries = FirstSteps()
    assert not tries.fault(lost(0), *come)
    assert not any(tries.fault(lost(i), 0, 0) for i in range(3 * TRIES))


@pytest.mark.parametrize("other", [lost(1).replace("Runtime", "Value"), lost(1).replace(":21", ":22, in reset; :")])
def test_other_faults_at_the_start_may_pass(other):
    tries = FirstSteps()
    assert not any(tries.fault(fault, 0, 0) for _ in range(TRIES) for fault in (lost(0), other))
