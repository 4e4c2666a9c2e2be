"""``training.max_lag``: which unrolls are stale, whose they are, and when that is said."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from learner.lineage import Lineage
from learner.staleness import WINDOW_SECONDS, Staleness
from pipeline.rows import environment_id

pytestmark = pytest.mark.unit


def unrolls(*rows: tuple[int, list[int], list[int]]) -> dict[str, Any]:
    """(worker, versions [T + 1], valid [T]) of each."""
    return {
        "environment": np.array([environment_id(worker, 3) for worker, _, _ in rows], np.int64),
        "version": np.array([versions for _, versions, _ in rows], np.int64),
        "valid": np.array([valid for _, _, valid in rows], np.uint8),
    }


def test_the_oldest_valid_row_decides() -> None:
    staleness = Staleness(5, Lineage(), 0.0)
    judged = staleness.judge(
        unrolls(
            (0, [5, 6, 7, 8], [1, 1, 1]),  # exactly five updates ago
            (0, [4, 6, 7, 8], [1, 1, 1]),
            (1, [4, 6, 7, 8], [0, 1, 1]),  # the old row is masked
            (1, [0, 0, 0, 0], [0, 0, 0]),  # nothing in it
            (2, [9, 9, 1, 1], [1, 1, 0]),  # padding holds what was there before
            (2, [4, 4, 0, 0], [1, 1, 0]),
            (2, [9, 9, 9, 1], [1, 1, 1]),  # the last row is for the bootstrap alone
        ),
        10,
        1.0,
    )
    assert judged.tolist() == [False, True, False, False, False, True, False]
    assert staleness.status() == {"dropped_by_worker": {"0": 3, "2": 2}, "skew": 1.0}


def play(staleness: Staleness, slow: int, now: float) -> None:
    """Twenty unrolls each of a fast worker 0 and of worker 7, ``slow`` of whose are stale."""
    for i in range(20):
        staleness.judge(unrolls((0, [100, 100], [1]), (7, [0 if i < slow else 100, 100], [1])), 100, now)


@pytest.mark.parametrize(
    ("slow", "skew", "warned"), [(0, 1.0, False), (10, 2.0, False), (15, 4.0, True), (20, 20.0, True)]
)
def test_uneven_drops_are_said(slow: int, skew: float, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    staleness = Staleness(5, Lineage(), 0.0)
    with caplog.at_level(logging.WARNING, "learner.staleness"):
        play(staleness, slow, 1.0)
        assert staleness.status()["skew"] == 1.0, "a window is compared at its end"
        staleness.judge(unrolls((9, [100, 100], [1])), 100, WINDOW_SECONDS)
    assert staleness.status()["skew"] == pytest.approx(skew)
    assert [("worker 7 keeps" in text and "worker 0 100 %" in text) for text in caplog.messages] == [True] * warned


def test_a_window_forgets_the_one_before_but_drops_add_up() -> None:
    staleness = Staleness(5, Lineage(), 0.0)
    for window in range(2):
        play(staleness, 15 if window == 0 else 0, window * WINDOW_SECONDS + 1.0)
        staleness.judge(unrolls((9, [100, 100], [1])), 100, (window + 1) * WINDOW_SECONDS)
    assert staleness.status() == {"dropped_by_worker": {"7": 15}, "skew": 1.0}


def test_a_worker_of_few_unrolls_is_not_compared() -> None:
    staleness = Staleness(5, Lineage(), 0.0)
    play(staleness, 0, 1.0)
    for _ in range(9):
        staleness.judge(unrolls((8, [0, 100], [1])), 100, 2.0)
    staleness.judge(unrolls((9, [100, 100], [1])), 100, WINDOW_SECONDS)
    assert staleness.status()["skew"] == 1.0
