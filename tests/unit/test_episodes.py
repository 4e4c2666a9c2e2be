"""What the mean return is over, and when there is one."""

from __future__ import annotations

import numpy as np
import pytest

from learner.episodes import Episodes
from pipeline.rows import FIRST, ROW, TERMINATED, TRUNCATED

pytestmark = pytest.mark.unit


class Play:
    """Environments by slot, and what they play."""

    def __init__(self, window=100, slots=1024):
        self.episodes = Episodes(window, slots)
        self.episodes.trained = True

    def join(self, *slots, begin=True):
        self.episodes.join(np.array(slots, np.int32))
        if begin:
            self.begin(slots)

    def begin(self, slots):
        self._rows(slots, FIRST)

    def end(self, returns, length=1, how=TERMINATED):
        """slot -> return of the episode that ends; the next one begins."""
        self._rows(list(returns), how, list(returns.values()), length)
        self.begin(list(returns))

    @property
    def mean(self):
        return self.episodes.snapshot()["episode_return_mean"]

    def _rows(self, slots, flags, returns=0.0, length=0):
        rows = np.zeros(len(slots), ROW)
        rows["flags"], rows["episode_return"], rows["episode_length"] = flags, returns, length
        self.episodes.observe(np.array(slots, np.int32), rows)


def test_short_episodes_solve_nothing():
    """512 environments with episodes of 1 to 100 steps, at -1 a step: the mean is -50.5, of those that end first -8."""
    rng, n = np.random.default_rng(1), 512
    play = Play()
    for worker in range(8):
        play.join(*range(64 * worker, 64 * worker + 64))
    lengths, age, seen = rng.integers(1, 101, n), np.zeros(n, np.int64), []
    for _ in range(1000):
        age += 1
        ended = np.flatnonzero(age == lengths)
        play.end({int(slot): -float(lengths[slot]) for slot in ended})
        lengths[ended], age[ended] = rng.integers(1, 101, len(ended)), 0
        assert not play.episodes.solved(-42.0)
        seen.append(play.mean)
    assert seen[:50] == [None] * 50, "some environment has not had its turn"
    assert seen[150:] == pytest.approx([-50.5] * 850, abs=6.0)


def test_environments_count_equally():
    play = Play()
    play.join(0, 1)
    for _ in range(60):
        play.end({0: 1.0})
    assert play.mean is None and play.episodes.snapshot()["episode_environments_waited_for"] == 1
    play.end({1: 3.0}, length=5, how=TRUNCATED)
    found = play.episodes.snapshot()
    assert (found["episode_return_mean"], found["episode_return_std"], found["episode_length_mean"]) == (2.0, 1.0, 3.0)
    assert (found["episodes"], found["episode_steps"]) == (61, 65)
    assert not play.episodes.solved(2.0), "the window is not full"
    for _ in range(39):
        play.end({0: 1.0})
    assert play.episodes.solved(2.0) and not play.episodes.solved(2.1)


def test_an_environment_whose_episodes_are_longer_than_the_window_counts_with_its_last():
    play = Play(window=10)
    play.join(0, 1)
    play.end({0: 0.0, 1: 10.0})
    for _ in range(100):
        play.end({0: 4.0})
    assert play.mean == 7.0
    play.end({1: 20.0})
    assert play.mean == 12.0


def test_never_before_an_update():
    play = Play(window=1)
    play.episodes.trained = False
    play.join(0)
    play.end({0: 5.0})
    assert play.mean is None and not play.episodes.solved(5.0)
    play.episodes.trained = True
    assert play.mean == 5.0 and play.episodes.solved(5.0)


def test_an_episode_that_was_going_on_at_the_learners_start_does_not_count():
    play = Play()
    play.join(0, begin=False)
    play._rows([0], TERMINATED, 100.0, 3)
    assert play.mean is None and play.episodes.count == 1
    play.begin([0])
    play.end({0: 7.0})
    assert play.mean == 7.0


def test_an_environment_that_never_ends_an_episode_is_waited_for():
    play = Play(window=2)
    play.join(0, 1, 2)
    for _ in range(50):
        play.end({0: 1.0, 1: 1.0})
    assert play.mean is None and not play.episodes.solved(0.0)
    found = play.episodes.snapshot()
    assert (found["episode_environments"], found["episode_environments_waited_for"]) == (3, 1)


def test_who_joins_late_is_not_waited_for_and_counts_when_all_of_the_worker_had_a_turn():
    play = Play()
    play.join(0, 1, 2, 3)
    play.end(dict.fromkeys(range(4), 8.0))
    play.join(4, 5)
    assert play.mean == 8.0 and play.episodes.snapshot()["episode_environments_waited_for"] == 0
    play.end({4: -100.0})
    assert play.mean == 8.0
    play.end({5: 2.0})
    assert play.mean == pytest.approx((4 * 8.0 - 100.0 + 2.0) / 6)


def test_a_majority_of_newcomers_is_waited_for():
    play = Play()
    play.join(0)
    play.end({0: 8.0})
    play.join(*range(1, 5))
    assert play.mean is None
    play.end(dict.fromkeys(range(1, 5), 3.0))
    assert play.mean == 4.0


def test_who_leaves_takes_its_episodes_along():
    play = Play(window=6)
    play.join(0, 1)
    play.join(2)
    for _ in range(2):
        play.end({0: 1.0, 1: 2.0, 2: 9.0})
    assert play.mean == 4.0 and play.episodes.solved(4.0)
    play.episodes.leave(np.array([2], np.int32))
    assert play.mean == 1.5 and not play.episodes.solved(1.5), "the window is not full any more"
    play.end({0: 1.0, 1: 2.0})
    assert play.episodes.solved(1.5)
    play.join(2)
    assert play.mean == 1.5, "another environment in the same slot has played nothing yet"
    play.episodes.leave(np.array([0, 1], np.int32))
    assert play.mean is None
    play.end({2: 5.0})
    assert play.mean == 5.0


def test_at_the_end_nobody_leaves():
    play = Play()
    play.join(0, 1)
    play.end({0: 1.0, 1: 3.0})
    play.episodes.stay()
    play.episodes.leave(np.array([0, 1], np.int32))
    assert play.mean == 2.0


def test_the_first_mean_is_kept():
    play = Play()
    play.join(0, 1)
    play.end({0: 1.0})
    play.end({0: 1.0, 1: 3.0})
    play.end({0: 9.0, 1: 9.0})
    found = play.episodes.snapshot()
    assert (found["first_episode_return_mean"], found["first_episode_return_std"]) == (2.0, 1.0)


@pytest.mark.parametrize("window", [1, 3, 7, 5000])
def test_the_window_is_that_of_a_list(window):
    rng, last = np.random.default_rng(window), dict.fromkeys(range(6), 0.0)
    play, order = Play(window, slots=6), []
    play.join(0, 1, 2)
    play.join(3, 4, 5)
    play.end(dict.fromkeys(range(6), 0.0))
    order += [(slot, 0.0) for slot in range(6)]
    for i in range(400):
        slots = rng.permutation(6)[: rng.integers(0, 7)].tolist()
        returns = {slot: float(rng.normal()) for slot in slots}
        play.end(returns)
        order += returns.items()
        last |= returns
        if i in (100, 250):
            play.episodes.leave(np.array([3, 4, 5], np.int32))
            play.join(3, 4, 5)
            order = [one for one in order[-window:] if one[0] < 3]
            play.end(dict.fromkeys(range(3, 6), 1.0))
            order += [(slot, 1.0) for slot in range(3, 6)]
            last |= dict.fromkeys(range(3, 6), 1.0)
        means = []
        for slot in range(6):
            own = [value for s, value in order[-window:] if s == slot]
            means.append(np.mean(own or last[slot]))
        assert play.mean == pytest.approx(np.mean(means), abs=1e-9), i
