"""What environments return beside what they should: taken where it is one thing only, refused by name elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from pipeline.config.tree import EnvironmentSection
from pipeline.errors import ConfigError, EnvironmentFailure, SpaceError
from pipeline.rows import FIRST, LIFE_LOST, NO_REPLY, TERMINATED, TRUNCATED
from pipeline.spaces import INTEGERS
from pipeline.streams import environment_seeds
from tests.odd_env import OddEnv
from workers.environments import make_group
from workers.scalars import BadObservation, BadResult
from workers.singles import Singles
from workers.watched import Watched

pytestmark = pytest.mark.unit
ODD, ODD_VECTOR = "tests.odd_env:Odd-v0", "tests.odd_env:OddVector-v0"
MODES = [mode.value for mode in AutoresetMode]
LENGTH = 7


def group_of(environment, n=2, wrappers=(), **kwargs):
    group = make_group(EnvironmentSection(id=environment, kwargs=kwargs, wrappers=list(wrappers)), n)
    return group, group.reset(environment_seeds(1, n))


def actions_of(group):
    action = group.spaces.action
    return np.full((group.n, *action.shape), action.start, action.numpy_dtype).tobytes()


def stepped(group, steps):
    return [group.step(actions_of(group)).records.copy() for _ in range(steps)]


@pytest.mark.parametrize("reward", ["list", "array", "array11", "array0", "float32", "int", "bool"])
def test_a_reward_of_one_element_is_a_number(reward):
    group, _ = group_of(ODD, reward=reward)
    assert [rows["reward"].tolist() for rows in stepped(group, 2)] == [[1, 1]] * 2


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ("two", r"reward is an array of shape \(2,\) and dtype float64, not one real number"),
        ("ragged", "reward is a list of 2, not one real number"),
        ("empty", "reward is a list of 0, not one real number"),
        ("none", "reward is None, not one real number"),
        ("text", "reward is a value of type str, not one real number"),
        ("bytes", "reward is a value of type bytes, not one real number"),
        ("complex", "reward is a value of type complex, not one real number"),
        ("object", "reward is a value of type object, not one real number"),
        ("mapping", "reward is a value of type dict, not one real number"),
    ],
)
def test_any_other_reward_is_refused_by_name_shape_and_type(reward, words):
    group, _ = group_of(ODD, reward=reward)
    with pytest.raises(BadResult, match=words):
        stepped(group, 1)


@pytest.mark.parametrize("flagged", ["terminated", "truncated"])
@pytest.mark.parametrize("flags", ["bool", "numpy", "int", "int8", "list", "array"])
def test_a_flag_of_one_element_is_true_or_false(flags, flagged):
    group, _ = group_of(ODD, flags=flags, flagged=flagged, ends=flagged)
    found = [rows["flags"].tolist() for rows in stepped(group, LENGTH)]
    assert found == [[0, 0]] * (LENGTH - 1) + [[TERMINATED if flagged == "terminated" else TRUNCATED] * 2]


@pytest.mark.parametrize("flagged", ["terminated", "truncated"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("two", r"is an array of shape \(2,\) and dtype bool, not True or False"),
        ("none", "is None, not True or False"),
        ("text", "is a value of type str, not True or False"),
        ("seven", "is 7, not True or False"),
        ("half", "is a value of type float, not True or False"),
    ],
)
def test_any_other_flag_is_refused_by_name(flags, words, flagged):
    group, _ = group_of(ODD, flags=flags, flagged=flagged)
    with pytest.raises(BadResult, match=f"{flagged} {words}"):
        stepped(group, 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("info", ["lengths", "types", "none", "final", "raising", "list"])
def test_no_info_fails_a_step(info, mode):
    group, _ = group_of(ODD, 3, info=info, autoreset_mode=mode)
    rows = [row for step in stepped(group, 3 * LENGTH) for row in step]
    assert sum(bool(row["flags"] & TERMINATED) for row in rows) >= 6


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("info", ["lengths", "types", "none", "final", "raising", "list"])
def test_no_info_of_a_vector_environment_fails_a_step(info, mode):
    group, _ = group_of(ODD_VECTOR, 3, info=info, autoreset_mode=mode)
    rows = [row for step in stepped(group, 3 * LENGTH) for row in step]
    assert sum(bool(row["flags"] & TERMINATED) for row in rows) >= 6


@pytest.mark.parametrize(
    ("interface", "words"),
    [
        ("old_reset", r"OddEnv.reset returned an array of shape \(2,\).*reset returns \(observation, info\)"),
        ("old_step", r"OddEnv.step returned a tuple of 4 .*step returns five values"),
        ("nothing", "OddEnv.step returned None|cannot unpack non-iterable NoneType"),
    ],
)
@pytest.mark.parametrize("limited", [True, False], ids=["with TimeLimit", "without"])
def test_the_old_interface_is_refused_by_the_name_of_the_new_one(interface, words, limited):
    environment = OddEnv(interface=interface)
    singles = Singles(lambda index: Watched(environment, index, None), 1)
    with pytest.raises((EnvironmentFailure, TypeError), match=words):
        if limited:
            stepped(group_of(ODD, interface=interface)[0], 1)
        singles.reset(np.zeros(1, np.int64))
        singles.step(np.zeros(1, np.int64))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ends", ["terminated", "truncated"])
@pytest.mark.parametrize("environment", [ODD, ODD_VECTOR])
def test_an_environment_may_return_its_own_buffers(environment, ends, mode):
    own = {"buffer": True} if environment == ODD else {}
    group, rows = group_of(environment, 3, ends=ends, autoreset_mode=mode, **own)
    finals = []
    for _ in range(4 * (LENGTH + 1)):
        for record, (episode, step) in zip(rows.records, rows.leaves[0].tolist(), strict=True):
            assert record["reward"] == step
            assert bool(record["flags"] & FIRST) == (step == 0)
            if record["flags"] & (TERMINATED | TRUNCATED):
                finals.append(episode)
                assert step == LENGTH and record["episode_return"] == sum(range(LENGTH + 1))
                assert bool(record["flags"] & NO_REPLY) == (mode != "NextStep")
        rows = group.step(actions_of(group))
    assert finals[:12] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_a_final_observation_in_the_buffer_of_the_next_one_is_refused():
    group, _ = group_of(ODD_VECTOR, autoreset_mode="SameStep", final="alias")
    stepped(group, LENGTH - 1)
    with pytest.raises(BadObservation, match=r"final_obs is the array that the observation is returned in.*copy"):
        stepped(group, 1)


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ("object", r"reward is an array of shape \(2,\) and dtype object, not one real number"),
        ("text", r"reward is an array of shape \(2,\) and dtype <U"),
        ("short", r"reward is an array of shape \(1,\) and dtype float64, not one real number for each of 2"),
    ],
)
def test_rewards_of_a_vector_environment_are_refused_by_name(reward, words):
    group, _ = group_of(ODD_VECTOR, reward=reward)
    with pytest.raises(BadResult, match=words):
        stepped(group, 1)


def test_a_column_of_rewards_is_one_for_each_environment():
    group, _ = group_of(ODD_VECTOR, reward="column")
    assert stepped(group, 2)[1]["reward"].tolist() == [2, 2]


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_discrete_actions_come_as_sample_gives_them(dtype, start):
    group, _ = group_of(ODD, action=dtype, start=start)  # the environment compares type and dtype
    assert group.spaces.action.dtype == dtype
    for action in range(3):
        group.step(np.full(2, start + action, dtype).tobytes())


def test_an_action_without_a_shape_comes_as_an_array():
    group, _ = group_of(ODD, action="box")
    assert group.spaces.action.shape == ()
    stepped(group, 2)


class TakesItsAction(OddEnv):
    """Keeps what it was given, and writes into it."""

    def step(self, action):
        action[...] = 7
        return super().step(self.action_space.sample())


def test_environments_may_write_into_their_actions():
    singles = Singles(lambda index: Watched(TakesItsAction(action="box"), index, None), 2)
    singles.reset(np.zeros(2, np.int64))
    actions = np.zeros(2, np.float32)
    singles.step(actions.copy())
    assert actions.tolist() == [0, 0]


def test_environments_of_a_group_that_differ_are_refused():
    with pytest.raises(SpaceError, match=r"same spaces: action: Discrete\(3, start=1\) in environment 1"):
        Singles(lambda index: Watched(OddEnv(start=index), index, None), 2)


def ends_with_lives(environment):
    environment.terminal_on_life_loss = True
    return environment


def test_a_wrapper_that_makes_episodes_of_lives_is_refused():
    with pytest.raises(ConfigError, match=r"terminal_on_life_loss.*environment.life_loss = terminal"):
        group_of(ODD, wrappers=[f"{__name__}:ends_with_lives"])


def lives_group(environment, mode, n=2, **kwargs):
    section = EnvironmentSection(
        id=environment, kwargs={"lives": 3, "autoreset_mode": mode, **kwargs}, life_loss="terminal"
    )
    group = make_group(section, n)
    return group, group.reset(environment_seeds(1, n))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ends", ["terminated", "truncated"])
@pytest.mark.parametrize("environment", [ODD, ODD_VECTOR])
def test_a_lost_life_is_a_flag_of_its_row_and_the_episode_goes_on(environment, ends, mode):
    """Three lives, of which every second step loses one: at steps 2, 4 and 6 of 7."""
    own = {"buffer": True} if environment == ODD else {}
    group, rows = lives_group(environment, mode, ends=ends, **own)
    seen, finals = {}, 0
    for _ in range(3 * (LENGTH + 1)):
        for record, (_, step) in zip(rows.records, rows.leaves[0].tolist(), strict=True):
            seen.setdefault(int(step), set()).add(bool(record["flags"] & LIFE_LOST))
            if record["flags"] & (TERMINATED | TRUNCATED):
                finals += 1
                assert (record["episode_return"], record["episode_length"]) == (28, LENGTH)
        rows = group.step(actions_of(group))
    assert seen == {step: {step in (2, 4, 6)} for step in range(LENGTH + 1)} and finals >= 6
    assert group.rows.masked <= finals, "nothing else is masked"


@pytest.mark.parametrize("mode", MODES)
def test_a_life_that_is_lost_in_the_last_step_is_a_flag_too(mode):
    group, _ = lives_group(ODD, mode, length=2, ends="truncated")
    found = [int(flags) for step in stepped(group, 4) for flags in step["flags"] if flags & TRUNCATED]
    assert found and all(flags & LIFE_LOST for flags in found)


@pytest.mark.parametrize("environment", [ODD, ODD_VECTOR])
def test_lives_that_are_asked_for_and_not_told_are_missed_by_name(environment):
    group, _ = lives_group(environment, "NextStep", lives=None)
    with pytest.raises(
        BadResult, match=r"info\['lives'\] is not there, which environment.life_loss = terminal goes by"
    ):
        stepped(group, 1)


def test_without_the_setting_lives_are_not_looked_at():
    group, _ = group_of(ODD, lives=3)
    assert not any((step["flags"] & LIFE_LOST).any() for step in stepped(group, LENGTH))


@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_lives_of_atari_are_lost_within_an_episode(vectorization):
    pytest.importorskip("ale_py")
    section = EnvironmentSection(
        id="ALE/Breakout-v5", frame_skip=4, vectorization=vectorization, life_loss="terminal", kwargs={}
    )
    group = make_group(section, 2)
    group.reset(environment_seeds(1, 2))
    lost, ended, generator = np.zeros(2, int), np.zeros(2, int), np.random.default_rng(1)
    for _ in range(2000):
        records = group.step(generator.integers(0, 4, 2).tobytes()).records
        flags = records["flags"]
        counts = ended == 0
        lost += ((flags & LIFE_LOST) != 0) & counts
        assert not (flags & FIRST).any() or ended.any(), "a lost life begins no episode"
        ended += (flags & (TERMINATED | TRUNCATED)) != 0
        if ended.all():
            break
    assert lost.tolist() == [5, 5] and ended.min() >= 1


@pytest.mark.parametrize("name", ["episodic_life", "life_loss_info"])
def test_settings_of_atari_that_make_episodes_of_lives_are_refused(name):
    pytest.importorskip("ale_py")
    with pytest.raises(ConfigError, match=rf"environment.kwargs.{name} .*environment.life_loss = terminal"):
        make_group(EnvironmentSection(id="ALE/Breakout-v5", kwargs={name: True}), 1)
