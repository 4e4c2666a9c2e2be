"""The sum tree against a cumulative sum over all values."""

from __future__ import annotations

import time

import numpy as np
import pytest

from learner.sum_tree import FAN_OUT, TOP, SumTree

pytestmark = pytest.mark.unit

CAPACITIES = [1, 2, 63, 64, 65, TOP, TOP + 1, 100_000, TOP * FAN_OUT + 1]


def reference(values: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Where each point lies when the values stand end to end."""
    line = values.cumsum()
    return np.searchsorted(line, uniforms * line[-1], side="right")


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_it_samples_what_a_cumulative_sum_samples(capacity: int) -> None:
    """Whole numbers, so that both sums are exact."""
    rng = np.random.default_rng(capacity)
    tree, values = SumTree(capacity), np.zeros(capacity)
    for count in (capacity, 1, capacity // 2 + 1, 1000, 64, 64):
        indices = rng.integers(0, capacity, count)
        new = rng.integers(0, 4, count).astype(float)
        new[:1] = 1.0
        tree.set(indices, new)
        values[indices] = new
        assert tree.total == values.sum() and np.array_equal(tree.get(np.arange(capacity)), values)
        if values.any():
            uniforms = np.concatenate([rng.random(500), [0.0, np.nextafter(1.0, 0.0)]])
            assert np.array_equal(tree.sample(uniforms), reference(values, uniforms))


def test_the_last_of_equal_indices_counts() -> None:
    tree = SumTree(10)
    tree.set(np.array([3, 4, 3]), np.array([1.0, 2.0, 5.0]))
    assert tree.total == 7.0 and tree.get(np.array([3, 4])).tolist() == [5.0, 2.0]


def test_errors_do_not_grow() -> None:
    """A million changes between magnitudes far apart; corrections by differences would leave about 1e-2 behind."""
    rng = np.random.default_rng(0)
    tree = SumTree(100_000)
    for _ in range(1000):
        tree.set(rng.integers(0, 100_000, 1000), 10.0 ** rng.uniform(-12, 12, 1000))
    for indices in np.array_split(np.arange(100_000), 1000):
        tree.set(indices, np.full(100, 1e-9))
    assert tree.total == pytest.approx(1e-4, rel=1e-12)
    tree.set(np.array([5]), np.array([1e12]))
    tree.set(np.array([5]), np.array([0.0]))
    assert tree.total == pytest.approx(99_999e-9, rel=1e-12)


def test_what_has_no_value_is_never_sampled() -> None:
    rng = np.random.default_rng(3)
    tree = SumTree(70_000)
    indices = rng.permutation(70_000)[:700]
    tree.set(indices, 10.0 ** rng.uniform(-15, 15, 700))
    edges = np.concatenate([np.arange(20_000) / 20_000, rng.random(20_000), np.full(3, np.nextafter(1.0, 0.0))])
    assert set(tree.sample(edges).tolist()) <= set(indices.tolist())
    tree.clear()
    assert tree.total == 0.0
    with pytest.raises(ValueError, match="nothing to sample"):
        tree.sample(edges)


def test_samples_are_in_proportion() -> None:
    """Pearson's chi-square over 200 cells: mean 199, standard deviation 20."""
    rng = np.random.default_rng(7)
    values = rng.random(200) + 0.1
    tree = SumTree(50_000)
    indices = rng.permutation(50_000)[:200]
    tree.set(indices, values)
    draws = tree.sample(rng.random(200_000))
    found = np.bincount(draws, minlength=50_000)[indices]
    expected = 200_000 * values / values.sum()
    assert found.sum() == 200_000
    assert ((found - expected) ** 2 / expected).sum() < 199 + 5 * 20


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_impossible_values_are_refused(value: float) -> None:
    tree = SumTree(4)
    with pytest.raises(ValueError, match="finite and not negative"):
        tree.set(np.array([0]), np.array([value]))
    assert tree.total == 0.0


@pytest.mark.parametrize("index", [-1, 4, 64])
def test_indices_out_of_bounds_are_refused(index: int) -> None:
    with pytest.raises(IndexError):
        SumTree(4).set(np.array([index]), np.array([1.0]))


def test_64_of_100_000_are_sampled_at_once() -> None:
    """It takes about 40 us, of 300 us without a tree; the fastest of many, since others share the machine."""
    rng = np.random.default_rng(1)
    tree, priorities = SumTree(100_000), rng.random(100_000)
    tree.set(np.arange(100_000), priorities)
    uniforms, best, plain = rng.random(64), 1.0, 1.0
    for _ in range(500):
        began = time.perf_counter()
        tree.sample(uniforms)
        sampled = time.perf_counter()
        np.cumsum(priorities).searchsorted(uniforms)
        best, plain = min(best, sampled - began), min(plain, time.perf_counter() - sampled)
    assert best < max(100e-6, plain / 3), "the second where the machine is slow"
