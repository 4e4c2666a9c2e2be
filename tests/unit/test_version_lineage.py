"""Updates by version: a version that jumps where a learner goes on is no update."""

from __future__ import annotations

import numpy as np
import pytest

from learner.feed import Versions
from learner.lag import Lag
from learner.lineage import MAX_BRANCHES, Lineage
from learner.staleness import Staleness
from pipeline.rows import environment_id

pytestmark = pytest.mark.unit


def lineage_of(*branches: tuple[int, int]) -> Lineage:
    lineage = Lineage()
    lineage.restore(branches)
    return lineage


def test_a_run_that_nothing_befell_counts_by_version() -> None:
    assert Lineage().updates(7) == 7
    assert Lineage().updates(np.array([0, 7, 2**40])).tolist() == [0, 7, 2**40]


def test_versions_after_a_jump_and_those_that_were_rolled_back() -> None:
    """A checkpoint of version 100, a crash at 104, and the learner that goes on begins with 256."""
    lineage = lineage_of((100, 256))
    assert lineage.updates(np.array([[99, 100, 101], [255, 256, 300]])).tolist() == [[99, 100, 100], [100, 100, 144]]


def test_many_restarts_with_and_without_a_jump_against_a_slow_count() -> None:
    rng = np.random.default_rng(0)
    lineage, published, version, updates = Lineage(), {0: 0}, 0, 0
    for _ in range(100):
        saved, saved_updates = version, updates
        for _ in range(rng.integers(0, 20)):
            version, updates = version + 1, updates + 1
            published[version] = updates
        if rng.random() < 0.5:  # the last checkpoint has them
            saved, saved_updates = version, updates
        begun = version + int(rng.integers(0, 2)) * int(rng.integers(1, 256))
        lineage.branch(saved, begun)
        for rolled_back in [v for v in published if v > saved]:
            published[rolled_back] = saved_updates
        version, updates = begun, saved_updates
        published[version] = updates
    versions = np.array(sorted(published))
    assert len(lineage.branches) > 50
    assert lineage.updates(versions).tolist() == [published[v] for v in versions.tolist()]
    assert (np.diff(lineage.updates(np.arange(version))) >= 0).all()


def test_a_checkpoint_has_it_and_it_is_bounded() -> None:
    lineage, version = Lineage(), 0
    for _ in range(3 * MAX_BRANCHES):
        lineage.branch(version, version + 10)
        version += 12
    again = lineage_of(*lineage.branches)
    assert len(again.branches) == MAX_BRANCHES
    recent = np.arange(version - 12 * MAX_BRANCHES, version)
    assert (again.updates(recent) == lineage.updates(recent)).all()
    assert lineage.updates(version) - lineage.updates(version - 12) == 2


def test_lag_and_staleness_count_updates() -> None:
    """The staged fault: two updates after a crash rows of three updates ago were 191 old, and were dropped."""
    lineage = lineage_of((65, 256))
    lag = Lag(lineage)
    lag.add(258, Versions(np.array([64, 65, 66, 256, 258]), np.ones(5, np.int64)))
    assert lag.status()["policy_lag_histogram"] == {"0": 1, "2": 3, "3": 1}
    unrolls = {
        "environment": np.array([environment_id(0, i) for i in range(3)]),
        "version": np.array([[63, 256, 0], [64, 256, 0], [66, 256, 0]]),
        "valid": np.ones((3, 2), np.uint8),
    }
    assert Staleness(3, lineage, 0.0).judge(unrolls, lineage.updates(258), 0.0).tolist() == [True, False, False]
