"""Random streams: none is drawn from twice, and a run from scratch draws again what it drew."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from learner.incarnation import RESERVED_NUMBERS, Incarnation
from pipeline.errors import CheckpointError, ConfigError, UnwrittenError
from pipeline.streams import SEED_STEP, Lane, Role, Stream, environment_seed, environment_seeds, renewed_seed

pytestmark = pytest.mark.unit


def test_roles_devices_incarnations_and_run_seeds_share_no_stream() -> None:
    each = [
        Stream(seed, role, incarnation).generator(index).integers(2**63, size=4).tolist()
        for seed, role, incarnation, index in itertools.product(range(4), Role, range(4), range(4))
    ]
    assert len({number for numbers in each for number in numbers}) == 4 * len(each)
    keys = {Stream(seed, role, i).key(k) for seed, role, i, k in itertools.product(range(4), Role, range(4), range(4))}
    assert len(keys) == len(each) and max(keys).bit_length() > 60
    assert Stream(1, Role.REPLAY).generator().integers(9, size=5).tolist() == [
        *np.random.default_rng(np.random.SeedSequence(1, spawn_key=(2, 0, 0))).integers(9, size=5)
    ], "the definition"


def test_all_environments_of_a_run_have_seeds_of_their_own() -> None:
    """As many as a large run has, in both lanes and that of ``seedmq eval``, for two neighbouring run seeds."""
    seeds = [
        environment_seeds(environment_seed(run, lane, number), 256)
        for run in (1, 2)
        for lane in Lane
        for number in range(0, 4096 * 256, 256)
    ]
    found = np.concatenate(seeds)
    assert len(np.unique(found)) == len(found) and found.min() >= 0 and found.max() < 2**31


def test_the_wire_says_the_first_and_the_others_follow() -> None:
    first = environment_seed(7, Lane.EVALUATION, 11)
    following = [environment_seed(7, Lane.EVALUATION, 11 + i) for i in range(9)]
    assert environment_seeds(first, 9).tolist() == following
    assert environment_seeds(first, 4, 5).tolist() == following[5:]
    assert SEED_STEP == 2027808452


def test_an_environment_that_is_made_anew_by_itself_has_a_seed_that_no_number_has() -> None:
    for lane in (Lane.TRAINING, Lane.EVALUATION):
        first = environment_seed(1, lane, 0)
        renewed = [renewed_seed(seed, i) for seed in environment_seeds(first, 100).tolist() for i in range(1, 20)]
        assert len(set(renewed)) == len(renewed) and min(renewed) >= 0 and max(renewed) < 2**31
        # The place in the permutation that gives the seeds; its lane is what is left of a division by the lanes.
        inverse, base = pow(0x9E3779B1, -1, 2**31), environment_seed(1, Lane.TRAINING, 0)
        assert {(seed - base) * inverse % 2**31 % 4 for seed in renewed} == {lane + 2}


def taken(path: Path, seed: int, counts: list[int], lane: Lane = Lane.TRAINING) -> list[int]:
    """Seeds of environments that a learner process gives out, which then dies."""
    process = Incarnation(path, seed)
    process.begin()
    return [x for n in counts for x in environment_seeds(process.environments(lane, n), n).tolist()]


def test_no_environment_of_any_learner_process_repeats_one_and_a_run_from_scratch_repeats_all(tmp_path: Path) -> None:
    counts = [16, 1, RESERVED_NUMBERS + 5, 3]
    processes = [taken(tmp_path / "a", 1, counts) for _ in range(5)]
    every = [seed for seeds in processes for seed in seeds]
    assert len(set(every)) == len(every) == 5 * sum(counts)
    assert [taken(tmp_path / "b", 1, counts) for _ in range(5)] == processes
    assert not set(taken(tmp_path / "c", 2, counts)) & set(every), "the neighbouring run seed"
    assert not set(taken(tmp_path / "a", 1, counts, Lane.EVALUATION)) & set(every)


def test_who_evaluates_changes_no_stream_of_training(tmp_path: Path) -> None:
    alone, together = Incarnation(tmp_path / "a", 1), Incarnation(tmp_path / "b", 1)
    together.environments(Lane.EVALUATION, 7)
    assert alone.environments(Lane.TRAINING, 4) == together.environments(Lane.TRAINING, 4)


def test_each_start_draws_anew(tmp_path: Path) -> None:
    keys = []
    for number in range(4):
        process = Incarnation(tmp_path / "streams.json", 1)
        assert process.number == number
        assert process.stream(Role.ACTION).key() == Stream(1, Role.ACTION, number).key()
        process.begin()
        keys += [process.stream(role).key(device) for role in Role for device in range(2)]
    assert len(set(keys)) == len(keys)


def test_a_start_that_comes_to_nothing_leaves_nothing(tmp_path: Path) -> None:
    Incarnation(tmp_path / "streams.json", 1)
    assert not (tmp_path / "streams.json").exists()


def test_a_disk_that_refuses_is_said_before_a_stream_is_given(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    process = Incarnation(folder / "streams.json", 1)
    process.begin()
    (folder / "streams.json").unlink()
    folder.rmdir()
    first = process.environments(Lane.TRAINING, RESERVED_NUMBERS)
    for _ in range(2):
        with pytest.raises(UnwrittenError, match="random streams"):
            process.environments(Lane.TRAINING, 1)
    folder.mkdir()
    assert process.environments(Lane.TRAINING, 1) == environment_seeds(first, 1, RESERVED_NUMBERS)[0]


@pytest.mark.parametrize(
    "text", ["{}", '{"learners": 1}', '{"learners": 1, "environments": {"training": -1, "evaluation": 0}}']
)
def test_a_file_that_says_something_else_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "streams.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"streams\.json.*put back a copy"):
        Incarnation(path, 1)
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"cannot read .*streams\.json"):
        Incarnation(path, 1)
