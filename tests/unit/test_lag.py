"""Policy lag by valid row: buckets, quantiles, and what TensorBoard gets."""

from __future__ import annotations

import numpy as np
import pytest

from learner.feed import Versions
from learner.lag import EXACT, LIMITS, Lag, buckets

pytestmark = pytest.mark.unit


def versions(*values: int) -> Versions:
    """One valid row of each, in any order."""
    batch = {
        "valid": np.ones((len(values), 1), np.uint8),
        "version": np.array([*values, 0], np.int64)[:, None],
    }
    return Versions.of(batch, 0)


def test_rows_that_are_not_valid_or_not_learnt_do_not_count() -> None:
    batch = {
        "valid": np.array([[1, 1], [1, 0], [0, 1]], np.uint8),
        "version": np.array([[1, 2], [3, 4], [5, 3], [9, 9]], np.int64),
    }
    found = Versions.of(batch, 1)
    assert found.values.tolist() == [3] and found.rows.tolist() == [2]
    found = Versions.of(batch, 0)
    assert found.values.tolist() == [1, 2, 3] and found.rows.tolist() == [1, 1, 2]


def test_it_is_as_if_every_row_were_counted_alone() -> None:
    rng = np.random.default_rng(0)
    lag, alone = Lag(), []
    for version in range(100, 2000, 100):
        acted = version - rng.geometric(0.02, 500)
        lag.add(version, versions(*acted.tolist()))
        alone += (version - acted).tolist()
    status = lag.status()
    assert status["policy_lag_mean"] == pytest.approx(np.mean(alone))
    assert status["policy_lag_max"] == max(alone)
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        exact = np.quantile(alone, share, method="inverted_cdf")
        limit = next(int(x) for x in LIMITS if x >= exact)
        assert status[f"policy_lag_{name}"] == min(limit, max(alone))
    counted = status["policy_lag_histogram"]
    assert sum(counted.values()) == len(alone)
    assert all(counted.get(str(k), 0) == alone.count(k) for k in range(EXACT + 1))


def test_it_is_bounded() -> None:
    lag = Lag()
    lag.add(2**40, versions(0, 2**40, 2**40 + 5))
    lag.add(7, Versions(np.zeros(0, np.int64), np.zeros(0, np.int64)))
    assert len(lag.rows) == len(LIMITS) + 1 and lag.rows.sum() == 3
    assert lag.status()["policy_lag_histogram"] == {"0": 2, str(2**40): 1}
    assert lag.status()["policy_lag_p99"] == 2**40


def test_nothing_trained_yet() -> None:
    assert Lag().status() == {
        "policy_lag_mean": 0.0,
        "policy_lag_max": 0,
        "policy_lag_p50": 0,
        "policy_lag_p95": 0,
        "policy_lag_p99": 0,
        "policy_lag_histogram": {},
    }


def test_buckets_of_tensorboard_hold_all_rows_and_touch() -> None:
    lag = Lag()
    lag.add(100, versions(100, 99, 99, 97, 50))
    found = buckets(lag.rows, lag.max)
    assert found[:4].tolist() == [[-0.5, 0.5, 1], [0.5, 1.5, 2], [1.5, 2.5, 0], [2.5, 3.5, 1]]
    assert found[-1].tolist() == [EXACT + 0.5, 64.5, 1]
    assert (found[1:, 0] == found[:-1, 1]).all() and found[:, 2].sum() == 5
