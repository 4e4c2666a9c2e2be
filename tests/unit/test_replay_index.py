"""The sampling index: which ids it draws, how often, and what stale calls do."""

from __future__ import annotations

import random
import threading

import numpy as np
import psutil
import pytest

from learner.paths import _sampling
from learner.replay_index import INDEX_BYTES, ReplayIndex, importance_weights
from pipeline.config.tree import Config
from pipeline.errors import EXIT_USAGE, CapacityError
from pipeline.ledger import Ledger

pytestmark = pytest.mark.unit

BASE = 1_700_000_000_000_000  # ids begin anywhere


def index_of(priorities: list[float], capacity: int = 8, exponent: float = 1.0) -> ReplayIndex:
    index = ReplayIndex(capacity, exponent)
    index.add([BASE + i for i in range(len(priorities))], priorities)
    return index


def probabilities(index: ReplayIndex, rng: np.random.Generator) -> dict[int, float]:
    ids, found = index.sample(4000, rng)
    return dict(zip((ids - BASE).tolist(), found.tolist(), strict=True))


def test_it_draws_in_proportion_to_the_priority_to_the_exponent() -> None:
    rng = np.random.default_rng(0)
    index = index_of([1.0, 4.0, 9.0, 0.0], exponent=0.5)
    ids, shares = index.sample(6000, rng)
    assert np.bincount(ids - BASE) == pytest.approx([1000, 2000, 3000], abs=2), "stratified"
    assert shares == pytest.approx((ids - BASE + 1) / 6)


def test_exponent_0_is_uniform_whatever_the_priorities() -> None:
    assert probabilities(index_of([0.0, 5.0, 1e-9], exponent=0.0), np.random.default_rng(0)) == pytest.approx(
        {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}
    )


def test_strata_have_the_right_mean() -> None:
    rng = np.random.default_rng(0)
    index = index_of([0.3, 0.7, 0.05, 0.9])
    draws = np.concatenate([index.sample(3, rng)[0] for _ in range(20_000)]) - BASE
    expected = 60_000 * np.array([0.3, 0.7, 0.05, 0.9]) / 1.95
    assert np.bincount(draws) == pytest.approx(expected, abs=5 * np.sqrt(60_000) / 2)


def test_what_is_gone_is_not_drawn_and_updates_of_it_are_ignored() -> None:
    rng = np.random.default_rng(0)
    index = index_of([1.0, 1.0, 1.0])
    index.remove([BASE + 1, BASE + 1, BASE + 99])
    index.update([BASE + 1, BASE + 2, BASE + 99], [100.0, 3.0, 100.0])
    assert index.size == 2 and probabilities(index, rng) == pytest.approx({0: 0.25, 2: 0.75})
    index.update([BASE, BASE], [7.0, 1.0])
    assert probabilities(index, rng) == pytest.approx({0: 0.25, 2: 0.75}), "the last mention counts"


def test_a_newer_id_takes_the_leaf_of_an_older_one() -> None:
    rng = np.random.default_rng(0)
    index = index_of([1.0] * 4, capacity=4)
    index.add([BASE + 4], [1.0])
    index.remove([BASE])
    index.update([BASE], [100.0])
    assert index.size == 4 and probabilities(index, rng) == pytest.approx({1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25})
    index.add([BASE], [100.0])
    assert 0 not in probabilities(index, rng), "an older one that comes late is passed over"


def test_an_id_that_is_added_again_has_the_new_priority() -> None:
    """A Redis that lost its last second gives ids again."""
    index = index_of([1.0, 1.0])
    index.add([BASE + 1], [3.0])
    assert index.size == 2 and probabilities(index, np.random.default_rng(0)) == pytest.approx({0: 0.25, 1: 0.75})


def test_more_than_the_capacity_keeps_the_newest() -> None:
    index = ReplayIndex(3, 1.0)
    index.rebuild([BASE + i for i in range(8)], [1.0] * 8)
    index.remove([BASE + i for i in range(5)])
    assert index.size == 3 and set(probabilities(index, np.random.default_rng(0))) == {5, 6, 7}


def test_a_rebuild_forgets_what_was_there() -> None:
    index = index_of([1.0] * 8)
    index.rebuild([5, 6], [1.0, 3.0])
    ids, shares = index.sample(400, np.random.default_rng(0))
    assert index.size == 2 and set(zip(ids.tolist(), shares.tolist(), strict=True)) == {(5, 0.25), (6, 0.75)}
    index.rebuild([], [])
    assert index.size == 0
    with pytest.raises(ValueError, match="nothing to sample"):
        index.sample(1, np.random.default_rng(0))


@pytest.mark.parametrize("priority", [-0.1, float("nan"), float("inf")])
def test_impossible_priorities_are_refused(priority: float) -> None:
    index = index_of([1.0])
    for operation in (index.add, index.update, index.rebuild):
        with pytest.raises(ValueError, match="finite and not negative"):
            operation([BASE], [priority])
    with pytest.raises(ValueError, match="2 ids with 1"):
        index.add([1, 2], [1.0])
    assert index.size == 1


def test_an_index_beyond_this_hosts_memory_is_refused_with_the_arithmetic() -> None:
    index = ReplayIndex(100_000, 0.9)
    used = index._ids.nbytes + sum(level.nbytes for level in index._tree._levels)
    assert used == pytest.approx(INDEX_BYTES * 100_000, rel=0.06)

    def config(capacity: int) -> Config:
        training = {"algorithm": "r2d2", "unroll_length": 80}
        tree = {"environment": {"id": "x"}, "training": training, "replay": {"capacity": capacity}}
        return Config.model_validate(tree)

    _sampling(config(100_000), Ledger(replay=True))
    for capacity in (psutil.virtual_memory().total // 16, 10**30):
        with pytest.raises(
            CapacityError, match=rf"17 bytes .* x {capacity} unrolls .*set replay\.capacity to"
        ) as caught:
            _sampling(config(capacity), Ledger(replay=True))
        assert caught.value.exit_code == EXIT_USAGE


def test_importance_weights() -> None:
    shares = np.array([0.5, 0.25, 0.125])
    assert importance_weights(shares, 1.0, 4) == pytest.approx([0.5, 1.0, 2.0])
    assert importance_weights(shares, 0.5, 4) == pytest.approx(np.sqrt([0.5, 1.0, 2.0]))
    assert importance_weights(shares, 0.0, 4).tolist() == [1.0, 1.0, 1.0]
    ids, uniform = index_of([3.0, 1.0, 2.0], exponent=0.0).sample(5, np.random.default_rng(0))
    assert importance_weights(uniform, 0.6, 3) == pytest.approx(np.ones(len(ids)))


@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_a_model_after_any_operations(seed: int) -> None:
    rng, draws = random.Random(seed), np.random.default_rng(seed)
    capacity, first, following = 7, 0, 0
    index, model = ReplayIndex(capacity, 0.9), {}
    for _ in range(400):
        action = rng.choice(("add", "remove", "update", "rebuild"))
        some = [rng.randrange(max(1, following)) for _ in range(rng.randint(0, 3))]
        values = [rng.choice((0.0, 0.5, 2.0)) for _ in some]
        if action == "add":
            new = list(range(following, following + rng.randint(1, 10)))
            following, first = new[-1] + 1, max(first, new[-1] + 1 - capacity)
            index.add(new, [1.0] * len(new))
            model = {key: value for key, value in {**model, **dict.fromkeys(new, 1.0)}.items() if key >= first}
        elif action == "remove":
            index.remove(some)
            model = {key: value for key, value in model.items() if key not in some}
        elif action == "update":
            index.update(some, values)
            model |= {key: value for key, value in zip(some, values, strict=True) if key in model}
        elif rng.random() < 0.1:
            index.rebuild(list(model), list(model.values()))
        weights = {key: value**0.9 for key, value in model.items() if value}
        assert index.size == len(model)
        if weights:
            ids, shares = index.sample(2000, draws)
            assert set(ids.tolist()) == set(weights)
            assert np.allclose(shares * sum(weights.values()), [weights[key] for key in ids.tolist()])


def test_threads_share_it() -> None:
    index, failed, stop = index_of([1.0] * 8, capacity=64), [], threading.Event()

    def sample() -> None:
        rng = np.random.default_rng(0)
        while not stop.is_set():
            ids, shares = index.sample(32, rng)
            if ids.min() < BASE or not np.all(shares > 0):
                failed.append((ids, shares))
            index.update(ids, np.full(32, 2.0))

    thread = threading.Thread(target=sample)
    thread.start()
    for start in range(8, 4008, 8):
        index.add(range(BASE + start, BASE + start + 8), [1.0] * 8)
        index.remove(range(BASE + start - 56, BASE + start - 48))
    stop.set()
    thread.join(60)
    assert not thread.is_alive() and not failed and index.size <= 64
