"""Proof by counting: every transition once, none across an episode's end, whatever the autoreset mode."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from pipeline.config.tree import EnvironmentSection
from pipeline.rows import FIRST, NO_REPLY, TERMINATED, TRUNCATED
from pipeline.streams import environment_seeds
from tests.mini_broker import Tally
from workers.environments import make_group
from workers.group import NonFinite
from workers.rows import RowBuilder
from workers.vector import Stepped

pytestmark = pytest.mark.unit
MODES = [mode.value for mode in AutoresetMode]
SINGLE, VECTOR = "tests.counter_env:Counter-v0", "tests.counter_env:CounterVector-v0"


def group_of(environment, n, non_finite="error", **kwargs):
    section = EnvironmentSection(id=environment, kwargs=kwargs, non_finite=non_finite)
    group = make_group(section, n)
    return group, group.reset(environment_seeds(1, n))


def no_actions(group):
    return np.zeros((group.n, *group.spaces.action.shape), group.spaces.action.numpy_dtype).tobytes()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("environment", [SINGLE, VECTOR])
@pytest.mark.parametrize("n", [1, 3])
def test_a_thousand_episodes_of_seven_are_7000_transitions(environment, mode, n):
    group, rows = group_of(environment, n, autoreset_mode=mode)
    tallies = [Tally() for _ in range(n)]
    seen = [set() for _ in range(n)]
    actions = no_actions(group)
    while min(tally.episodes for tally in tallies) < 1000:
        assert (rows.records["environment"][-n:] == np.arange(n)).all()
        for record, observation in zip(rows.records, rows.leaves[0], strict=True):
            which = int(record["environment"])
            if tallies[which].episodes == 1000:
                continue
            tallies[which].add(record)
            assert record["index"] == tallies[which].valid
            name = (int(observation[1]), int(observation[2]))
            assert name not in seen[which]
            seen[which].add(name)
            assert record["reward"] == observation[2]
            assert bool(record["flags"] & FIRST) == (observation[2] == 0)
            assert bool(record["flags"] & TERMINATED) == (observation[2] == 7)
            ended = observation[2] == 7
            assert record["episode_return"] == (28 if ended else 0) and record["episode_length"] == (7 if ended else 0)
        rows = group.step(actions)
    for tally in tallies:
        assert (tally.valid + tally.masked, tally.valid, tally.masked) == (7999, 7000, 999)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("ends", "flags"), [("terminated", 1), ("truncated", 2), ("both", 3)])
def test_terminated_and_truncated_stay_apart(mode, ends, flags):
    group, _ = group_of(VECTOR, 2, autoreset_mode=mode, ends=ends)
    found = [record["flags"] for _ in range(8) for record in group.step(no_actions(group)).records]
    assert {int(x) & (TERMINATED | TRUNCATED) for x in found} == {0, flags}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("environment", [SINGLE, VECTOR])
def test_the_worker_counts_what_the_rows_say(environment, mode):
    group, rows = group_of(environment, 3, autoreset_mode=mode)
    tallies = [Tally() for _ in range(3)]
    for _ in range(50):
        for record in rows.records:
            tallies[record["environment"]].add(record)
        rows = group.step(no_actions(group))
    for record in rows.records:
        tallies[record["environment"]].add(record)
    assert group.rows.taken == sum(tally.valid for tally in tallies)
    assert group.rows.masked == sum(tally.masked for tally in tallies)
    assert (group.rows.index == [tally.valid for tally in tallies]).all()


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_final_rows_stand_before_the_reset_rows_and_need_no_reply(mode):
    group, _ = group_of(VECTOR, 2, autoreset_mode=mode)
    for _ in range(6):
        assert len(group.step(no_actions(group)).records) == 2
    rows = group.step(no_actions(group))
    assert rows.records["flags"].tolist() == [NO_REPLY | TERMINATED] * 2 + [FIRST] * 2
    assert rows.records["reward"].tolist() == [7, 7, 0, 0]
    assert rows.leaves[0][:, 2].tolist() == [7, 7, 0, 0]


@pytest.mark.parametrize("kind", ["CounterDict-v0", "CounterTuple-v0"])
@pytest.mark.parametrize("mode", MODES)
def test_nested_leaves_are_matched_by_key(kind, mode):
    n = 3
    group, rows = group_of(f"tests.counter_env:{kind}", n, autoreset_mode=mode)
    numbers = environment_seeds(1, n) % 2**20
    for _ in range(20):
        leaves = {leaf.path: value for leaf, value in zip(group.spaces.observation, rows.leaves, strict=True)}
        box = leaves["z" if "z" in leaves else "0"]
        step = leaves["a/step" if "z" in leaves else "1"]
        assert (box[:, 0] == numbers[rows.records["environment"]].astype(np.float32)).all()
        assert (box[:, 2] == step).all()
        if "z" in leaves:
            assert (leaves["a/deep"][:, 0, 2] == step).all() and (leaves["a/deep"][:, 1, 1] == box[:, 1]).all()
        rows = group.step(no_actions(group))


@pytest.mark.parametrize("fault", ["nan", "nan_reward"])
@pytest.mark.parametrize("mode", MODES)
def test_a_value_that_is_not_finite_abandons_the_episode_or_fails(fault, mode):
    group, _ = group_of(SINGLE, 2, non_finite="drop", fault=fault, at=3, episode=1, autoreset_mode=mode)
    group.step(no_actions(group))
    before = group.step(no_actions(group)).records["index"].copy()
    rows = group.step(no_actions(group))
    assert rows.records["flags"].tolist() == [FIRST, FIRST] and rows.records["reward"].tolist() == [0, 0]
    assert (rows.records["index"] == before).all() and np.isfinite(rows.leaves[0]).all()
    assert (group.rows.dropped, group.rows.taken, group.rows.masked) == (2, 6, 2)
    final = [group.step(no_actions(group)) for _ in range(7)][-1]
    assert final.records["episode_return"][:2].tolist() == [28, 28]

    group, _ = group_of(SINGLE, 2, fault=fault, at=3, episode=1, autoreset_mode=mode)
    group.step(no_actions(group))
    group.step(no_actions(group))
    with pytest.raises(NonFinite, match=r"(the reward is inf|an observation is not finite), 2 transitions") as caught:
        group.step(no_actions(group))
    assert caught.value.environment == 0


def test_only_the_environment_that_is_not_finite_is_abandoned():
    group, _ = group_of(VECTOR, 3, non_finite="drop", autoreset_mode="Disabled", nan=(2, 1))
    group.step(no_actions(group))
    rows = group.step(no_actions(group))
    assert rows.records["flags"].tolist() == [0, FIRST, 0]
    assert rows.records["index"].tolist() == [2, 1, 2]
    assert rows.leaves[0][:, 2].tolist() == [2, 0, 2]


def test_a_vector_environment_that_cannot_reset_some_is_reset_whole():
    group, _ = group_of(VECTOR, 3, non_finite="drop", nan=(2, 1))
    group.step(no_actions(group))
    rows = group.step(no_actions(group))
    assert rows.records["flags"].tolist() == [FIRST] * 3
    assert (group.rows.dropped, group.rows.taken, group.rows.masked) == (3, 6, 3)


def test_abandoned_episodes_begin_anew_and_the_index_goes_on():
    builder = RowBuilder(2)
    leaves = [np.zeros((2, 1))]
    builder.reset(leaves)
    nobody = np.zeros(2, np.bool_)
    for _ in range(3):
        builder.next_step(Stepped(leaves, np.ones(2), nobody, nobody))
    records = builder.abandon(leaves).records
    assert records["flags"].tolist() == [FIRST, FIRST] and records["index"].tolist() == [3, 3]
    assert records["reward"].tolist() == records["episode_return"].tolist() == [0, 0]
    ended = builder.next_step(Stepped(leaves, np.ones(2), ~nobody, nobody)).records
    assert ended["episode_return"].tolist() == [1, 1] and (builder.taken, builder.masked) == (8, 2)
