"""What ``benchmarks/recall.py`` calls right, and what chance."""

import pytest

from benchmarks import recall

pytestmark = pytest.mark.unit


def judged(right, memory):
    returns = [1.0] * right + [0.0] * (1000 - right)
    return recall.judged(returns, 4, memory)


@pytest.mark.parametrize(("right", "holds"), [(950, False), (951, True), (1000, True), (250, False)])
def test_with_memory_more_than_95_percent_must_be_right(right, holds):
    result = judged(right, memory=True)
    assert result["holds"] is holds and result["right"] == right / 1000


@pytest.mark.parametrize(
    ("right", "holds"), [(250, True), (291, True), (292, False), (209, True), (208, False), (0, False)]
)
def test_without_the_share_must_be_within_three_errors_of_chance(right, holds):
    result = judged(right, memory=False)
    assert result["holds"] is holds and result["chance"] == 0.25
    assert result["error"] == pytest.approx(0.013693, abs=1e-6)
