from __future__ import annotations

import logging
import sys
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym

from learner.incarnation import Incarnation
from pipeline.config.tree import EnvironmentSection
from pipeline.errors import ConfigError, MissingExtraError, SpaceError
from pipeline.streams import Lane, environment_seeds
from workers import watched
from workers.environments import make_group
from workers.spaces import flatten, leaf_paths, spaces_of
from workers.watched import BadObservation

pytestmark = pytest.mark.unit
COUNTER = "tests.counter_env:Counter-v0"


def group_of(environment, n=2, threads=1, mark=None, **settings):
    return make_group(EnvironmentSection(id=environment, **settings), n, threads, mark)


def no_actions(group):
    return np.zeros((group.n, *group.spaces.action.shape), group.spaces.action.numpy_dtype).tobytes()


def test_nested_spaces_become_leaves_in_order_of_their_keys():
    space = gym.Dict(
        {
            "z": gym.MultiBinary(4),
            "a": gym.Tuple((gym.Discrete(3, start=2), gym.Dict({"y": gym.MultiDiscrete([2, 3]), "b": gym.Box(0, 1)}))),
        }
    )
    spaces = spaces_of(space, gym.Box(np.array([-2, 0], np.float32), np.array([0, 10], np.float32)))
    assert [(leaf.path, leaf.kind) for leaf in spaces.observation] == [
        ("a/0", "discrete"), ("a/1/b", "box"), ("a/1/y", "multi_discrete"), ("z", "multi_binary"),
    ]  # fmt: skip
    assert (spaces.observation[0].n, spaces.observation[0].start, spaces.observation[0].dtype) == (3, 2, "int64")
    assert spaces.action.low == (-2, 0) and spaces.action.high == (0, 10)
    value = {"z": 4, "a": (1, {"y": 3, "b": 2})}
    assert flatten(value, leaf_paths(space)) == [1, 2, 3, 4]
    assert spaces.from_wire(spaces.to_wire()) == spaces


def test_a_flat_space_is_one_leaf():
    spaces = spaces_of(gym.Box(0, 255, (4, 4), np.uint8), gym.Discrete(3, start=1))
    assert [leaf.path for leaf in spaces.observation] == ["observation"]
    assert spaces.action.start == 1 and spaces.action.n == 3


@pytest.mark.parametrize(
    "space", [gym.Sequence(gym.Discrete(2)), gym.Text(3), gym.Graph(gym.Box(0, 1), None), gym.OneOf([gym.Discrete(2)])]
)
def test_a_space_that_is_not_supported_is_refused_with_what_works(space):
    with pytest.raises(SpaceError, match=r"'x'.*not supported.*MultiBinary"):
        spaces_of(gym.Dict({"x": space}), gym.Discrete(2))
    with pytest.raises(SpaceError, match=r"action.*not supported.*Discrete, Box"):
        spaces_of(gym.Discrete(2), space)


class Mission(gym.Space):
    """As MiniGrid has one, derived from no other kind."""


@pytest.mark.parametrize(
    ("space", "way_out"),
    [
        (gym.Text(3), "that leaves it out, or encodes the text as numbers in a Box"),
        (gym.Sequence(gym.Discrete(2)), "that leaves it out, or pads it to a Box of fixed shape"),
        (gym.Graph(gym.Box(0, 1), None), "that leaves it out, or pads it to a Box of fixed shape"),
        (gym.OneOf([gym.Discrete(2)]), "that leaves it out, or turns it into a Box"),
        (Mission(), "that leaves it out, or turns it into a Box"),
    ],
)
def test_the_way_out_of_an_observation_stands_in_the_refusal(space, way_out):
    with pytest.raises(SpaceError) as caught:
        spaces_of(gym.Dict({"x": space}), gym.Discrete(2))
    assert f"not supported: set environment.wrappers to one ([package.module:callable]) {way_out}; " in str(
        caught.value
    )


def test_an_observation_of_minigrid_names_its_own_wrapper(monkeypatch):
    monkeypatch.setattr(Mission, "__module__", "minigrid.core.mission")
    with pytest.raises(SpaceError, match=r"'mission'.*\[minigrid\.wrappers:ImgObsWrapper\], which leaves it out; "):
        spaces_of(gym.Dict({"image": gym.Box(0, 255, (7, 7, 3), np.uint8), "mission": Mission()}), gym.Discrete(7))


@pytest.mark.parametrize(
    ("space", "way_out"),
    [
        (gym.MultiDiscrete([3, 2, 2]), "takes a Discrete(12), one value for each combination"),
        (gym.MultiDiscrete([[3, 2], [2, 2]]), "takes a Discrete(24), one value for each combination"),
        (gym.MultiBinary(4), "takes a Discrete(16), one value for each combination"),
        (gym.MultiDiscrete([100] * 40), "takes a Box of 40 numbers and rounds them, or a Discrete of"),
        (gym.MultiBinary((10, 10)), "takes a Box of 100 numbers and rounds them, or a Discrete of"),
        (gym.Dict({"a": gym.Discrete(2)}), "takes one Discrete or one Box for all its parts"),
        (gym.Tuple([gym.Discrete(2)]), "takes one Discrete or one Box for all its parts"),
        (gym.Text(3), "takes a Discrete or a Box"),
    ],
)
def test_the_way_out_of_an_action_stands_in_the_refusal(space, way_out):
    with pytest.raises(SpaceError) as caught:
        spaces_of(gym.Discrete(2), space)
    assert f"environment.wrappers to one ([package.module:callable]) that {way_out}" in str(caught.value)


def test_keys_that_make_one_path_of_two_are_refused():
    with pytest.raises(SpaceError, match="a/b"):
        spaces_of(gym.Dict({"a/b": gym.Discrete(2), "a": gym.Dict({"b": gym.Discrete(2)})}), gym.Discrete(2))


def test_sixteen_environments_begin_differently_and_alike_in_a_rerun():
    def first():
        found = []
        for worker in range(4):
            group = group_of("CartPole-v1", 4, vectorization="sync")
            found.append(group.reset(environment_seeds(1, 4, 4 * worker)).leaves[0].copy())
        return np.concatenate(found)

    once, again = first(), first()
    assert len(np.unique(once, axis=0)) == 16
    assert (once == again).all()


def test_seeds_differ_over_workers_groups_and_generations(tmp_path):
    def given():
        """A learner process and its 64 workers, each made anew once."""
        process = Incarnation(tmp_path / "streams.json", 1)
        process.begin()
        firsts = [process.environments(Lane.TRAINING, 4 * 128) for _ in range(2 * 64)]
        return [environment_seeds(first, 128, 128 * group) for first in firsts for group in range(4)]

    seeds = np.concatenate([*given(), *given()])
    assert len(np.unique(seeds)) == len(seeds) and seeds.min() >= 0 and seeds.max() < 2**31


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("NoSuchThing-v0", "NoSuchThing"),
        ("no.such.module:Thing-v0", "no"),
        ("tests.counter_env:Missing-v0", "Missing"),
        ("CartPole-v99", "CartPole"),
    ],
)
def test_an_unknown_environment_is_a_config_error(environment, message):
    with pytest.raises(ConfigError, match=message):
        group_of(environment)


def test_arguments_that_an_environment_does_not_take_are_a_config_error():
    with pytest.raises(ConfigError, match="colour"):
        group_of(COUNTER, kwargs={"colour": 1})


def test_without_ale_py_the_install_line_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingExtraError, match=r'pip install "seedmq\[atari\]"'):
        group_of("ALE/Pong-v5")


def test_native_vectorization_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="no vector version"):
        group_of(COUNTER, vectorization="native")


def double(environment):
    return gymnasium.wrappers.TransformReward(environment, lambda reward: 2 * reward)


def test_wrappers_by_import_path_are_applied_in_order_to_single_environments():
    name = f"{__name__}:double"
    sys.modules.setdefault(__name__, sys.modules[double.__module__])
    group = group_of("CartPole-v1", wrappers=[name, name])
    group.reset(environment_seeds(1, 2))
    assert group.step(no_actions(group)).records["reward"].tolist() == [4, 4]
    with pytest.raises(ConfigError, match="has no nothing"):
        group_of("CartPole-v1", wrappers=["tests.counter_env:nothing"])


def refusing(environment):
    raise ValueError("frames are skipped already")


def test_an_environment_that_refuses_its_settings_is_a_config_error():
    with pytest.raises(ConfigError, match="frames are skipped already"):
        group_of("CartPole-v1", wrappers=[f"{__name__}:refusing"])


def test_a_wrong_shape_names_leaf_and_both_shapes():
    group = group_of(COUNTER, kwargs={"fault": "shape", "at": 1})
    group.reset(environment_seeds(1, 2))
    with pytest.raises(BadObservation, match=r"'observation' has shape \(4,\), its space says \(3,\)"):
        group.step(no_actions(group))


def test_float64_at_reset_is_cast_with_one_warning(caplog):
    watched._warned.clear()
    with caplog.at_level(logging.WARNING):
        group = group_of(COUNTER, kwargs={"float64_reset": True, "length": 2})
        rows = group.reset(environment_seeds(1, 2))
        for _ in range(7):
            assert rows.leaves[0].dtype == np.float32
            rows = group.step(no_actions(group))
    assert [record.message for record in caplog.records] == [
        "observation 'observation' comes as float64 and is cast to its space's float32"
    ]


def test_the_environment_that_runs_is_marked():
    marks = []
    group = group_of(COUNTER, 3, mark=lambda index, resets: marks.append((index, resets)))
    assert marks == [(0, True), (1, True), (2, True)]
    group.reset(environment_seeds(1, 3))
    group.step(no_actions(group))
    assert marks[6:] == [(0, False), (1, False), (2, False)]


def test_box_actions_reach_the_environment():
    group = group_of(COUNTER, kwargs={"action": "box"})
    group.reset(environment_seeds(1, 2))
    assert len(group.step(no_actions(group)).records) == 2


def test_atari_gives_single_grey_frames_and_true_rewards():
    pytest.importorskip("ale_py")
    group = group_of("ALE/Pong-v5", 2, frame_skip=4)
    rows = group.reset(environment_seeds(1, 2))
    assert rows.leaves[0].shape == (2, 84, 84) and rows.leaves[0].dtype == np.uint8
    assert group.spaces.observation[0].shape == (84, 84)
    with pytest.raises(ConfigError, match="frame_stack"):
        group_of("ALE/Pong-v5", kwargs={"stack_num": 4})
    with pytest.raises(ConfigError, match="frame_skip"):
        group_of("ALE/Pong-v5", kwargs={"frameskip": 4})


@pytest.mark.parametrize("skip", [1, 2, 4])
@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_atari_frames_move_by_the_skip_and_only_once(skip, vectorization):
    pytest.importorskip("ale_py")
    group = group_of("ALE/Breakout-v5", 1, frame_skip=skip, vectorization=vectorization)
    group.reset(environment_seeds(1, 1))
    single = vectorization == "sync"
    environment = group.vector.environments[0].environment if single else group.vector.environment
    generator, frames, seen = np.random.default_rng(1), [], set()
    for _ in range(200):
        action = generator.integers(0, group.spaces.action.n, 1, np.int64)
        observation, _, terminated, truncated, info = environment.step(action[0] if single else action)
        if np.any(terminated | truncated):
            break
        frames.append(int(np.ravel(info["episode_frame_number"])[0]))
        seen.add(observation.tobytes())
    assert set(np.diff(frames).tolist()) == {skip}
    assert len(seen) >= 30


def test_what_stands_around_a_vectorized_step_costs_under_100_microseconds():
    group = group_of("CartPole-v1", 256)
    group.reset(environment_seeds(1, 256))
    actions = no_actions(group)
    group.step(actions)

    array, around, alone = np.zeros(256, np.int64), float("inf"), float("inf")
    for _ in range(300):  # the least of many, taken in turn: other load only adds
        begin = time.perf_counter()
        group.step(actions)
        middle = time.perf_counter()
        group.vector.environment.step(array)
        around, alone = min(around, middle - begin), min(alone, time.perf_counter() - middle)
    assert around - alone < 100e-6
