from __future__ import annotations

import pytest

from workers.restarts import LONGEST_DELAY_SECONDS, WINDOW_SECONDS, RestartBudget

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
