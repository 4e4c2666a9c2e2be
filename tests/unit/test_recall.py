"""The recall task: what is shown when, what pays, what a policy without memory earns; single and vectorized alike."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from pipeline.config.tree import EnvironmentSection
from pipeline.rows import FIRST, TERMINATED, TRUNCATED
from pipeline.streams import Lane, environment_seed, environment_seeds
from workers.environments import make_group
from workers.recall import RecallEnv, RecallVectorEnv

pytestmark = pytest.mark.unit

CUES, DELAY = 5, 4


def cue_of(observation):
    assert observation[..., :-1].sum() == len(np.atleast_2d(observation))
    return observation[..., :-1].argmax(-1)


@pytest.mark.parametrize("right", [True, False])
def test_an_episode_by_hand(right):
    environment = RecallEnv(CUES, DELAY)
    observation, _ = environment.reset(seed=3)
    cue = int(cue_of(observation))
    assert observation[-1] == 0
    for step in range(1, DELAY + 1):
        observation, reward, terminated, truncated, _ = environment.step(cue)
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert observation.tolist() == [0.0] * CUES + [float(step == DELAY)]
    observation, reward, terminated, truncated, _ = environment.step(cue if right else (cue + 1) % CUES)
    assert (reward, terminated, truncated) == (float(right), True, False)
    assert not observation.any()


def test_gymnasium_finds_nothing_wrong():
    check_env(gymnasium.make("workers.recall:Recall-v0", disable_env_checker=True).unwrapped, skip_render_check=True)


def test_cues_are_all_shown_about_equally_often_and_follow_the_seed():
    def cues(seed):
        return cue_of(RecallVectorEnv(4000, CUES, DELAY).reset(seed=seed)[0])

    assert np.bincount(cues(1), minlength=CUES).min() > 700
    np.testing.assert_array_equal(cues(1), cues(1))
    assert (cues(1) != cues(2)).any()


def test_only_memory_earns_more_than_chance():
    """Two policies side by side: one remembers the cue, the other answers at random."""
    n = 400
    vector, rng = RecallVectorEnv(n, CUES, DELAY), np.random.default_rng(0)
    observation, _ = vector.reset(seed=1)
    remembered, returns, ends = np.zeros(n, np.int64), np.zeros(n), np.zeros(n, np.int64)
    for _ in range(10 * (DELAY + 2)):
        shown = observation[:, :-1].any(1)
        remembered[shown] = observation[shown, :-1].argmax(1)
        action = np.where(np.arange(n) < n // 2, remembered, rng.integers(0, CUES, n))
        observation, reward, terminated, truncated, _ = vector.step(action)
        returns += reward
        ends += terminated
        assert not truncated.any()
    assert (ends == 10).all()
    assert (returns[: n // 2] == 10).all()
    assert abs(returns[n // 2 :].mean() / 10 - 1 / CUES) < 3 * np.sqrt(0.2 * 0.8 / (10 * n // 2))


def test_a_worker_steps_its_vector_version():
    section = EnvironmentSection(id="workers.recall:Recall-v0", kwargs={"cues": 3, "delay": 2})
    group = make_group(section, 4)
    assert isinstance(group.vector.environment.unwrapped, RecallVectorEnv)
    rows = group.reset(environment_seeds(1, 4))
    cue, flags = rows.leaves[0][:, :-1].argmax(1), []
    for _ in range(8):
        rows = group.step(cue.astype(np.int64).tobytes())
        flags.append(int(rows.records["flags"][0]))
        if flags[-1] & FIRST:
            cue = rows.leaves[0][:, :-1].argmax(1)
        elif flags[-1] & TERMINATED:
            assert (rows.records["episode_return"] == 1).all() and (rows.records["episode_length"] == 3).all()
    assert flags == [0, 0, TERMINATED, FIRST, 0, 0, TERMINATED, FIRST]
    assert not any(flag & TRUNCATED for flag in flags)
    group.close()


def cues_of(seeds, n, episodes):
    """Cues [episodes, n] of a group with these seeds; actions are random."""
    group = make_group(EnvironmentSection(id="workers.recall:Recall-v0", kwargs={"cues": 4, "delay": 1}), n)
    rng, rows, shown = np.random.default_rng(0), group.reset(seeds), []
    while len(shown) < episodes:
        if rows.records["flags"][0] & FIRST:
            shown.append(rows.leaves[0][:, :-1].argmax(1))
        rows = group.step(rng.integers(0, 4, n).tobytes())
    group.close()
    return np.array(shown)


def test_evaluation_draws_cues_evenly_and_apart_from_training():
    """No cue tells of the one before it, of a neighbour's, or of those that training drew."""
    n, episodes = 32, 300
    played = cues_of(environment_seeds(environment_seed(1, Lane.COMMAND, 0), n), n, episodes)
    trained = cues_of(environment_seeds(environment_seed(1, Lane.TRAINING, 0), n), n, episodes)
    count, error = played.size, np.sqrt(0.25 * 0.75 / played.size)
    assert np.abs(np.bincount(played.ravel(), minlength=4) / count - 0.25).max() < 4 * error
    for other in (np.roll(played, 1, 0), np.roll(played, 1, 1), trained):
        assert abs((played == other).mean() - 0.25) < 4 * error


@pytest.mark.parametrize("kwargs", [{"cues": 1}, {"delay": 0}])
def test_impossible_tasks_are_refused(kwargs):
    with pytest.raises(ValueError, match="recall needs"):
        RecallEnv(**kwargs)
