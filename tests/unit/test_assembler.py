"""Unroll assembly by arithmetic: counted rows, every autoreset shape, seams, padding."""

import itertools

import numpy as np
import pytest

from learner.assembler import Acted, Assembler
from pipeline.rows import FIRST, LIFE_LOST, ROW, TERMINATED, TRUNCATED
from pipeline.spaces import Leaf
from pipeline.unrolls import UnrollLayout

pytestmark = pytest.mark.unit

OBSERVATION = Leaf("observation", "box", "int64", (3,))


def layout(length: int, stack: int = 1) -> UnrollLayout:
    return UnrollLayout(length, stack, (OBSERVATION,), (), "int32", 2, ((1,),))


class CountingEnvironment:
    """Rows of one environment with episodes of ``length`` steps: the observation is (environment, episode, step)."""

    def __init__(self, environment: int, length: int, lives_lost_at: tuple[int, ...] = ()) -> None:
        self.environment, self.length, self.lives_lost_at = environment, length, lives_lost_at
        self.episode, self.step, self.index = 0, -1, 0

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        row = np.zeros(1, ROW)
        if self.step == self.length:
            self.episode, self.step = self.episode + 1, -1
        self.step += 1
        if self.step == 0:
            row["flags"] = FIRST
        else:
            self.index += 1
            row["reward"] = self.step
        if self.step == self.length:
            row["flags"] |= TERMINATED if self.episode % 2 else TRUNCATED
        if self.step in self.lives_lost_at:
            row["flags"] |= LIFE_LOST
        row["index"] = self.index
        return row, np.array([[self.environment, self.episode, self.step]])


def drive(assembler: Assembler, environments: list[CountingEnvironment], rows: int, start: int = 0):
    """Appends ``rows`` rows of each environment; the action is the row number, the state counts 10 per row."""
    unrolls, accepted, masked = [], 0, 0
    slots = np.arange(len(environments))
    for number in range(start, start + rows):
        pairs = [environment.next() for environment in environments]
        block = np.concatenate([row for row, _ in pairs])
        acted = Acted(
            np.full(len(slots), number, np.int32),
            np.full((len(slots), 2), number, np.float32),
            [np.full((len(slots), 1), 10 * number, np.float32)],
            number,
        )
        done = assembler.append(
            slots, np.full(len(slots), number), block, [np.concatenate([o for _, o in pairs])], acted
        )
        unrolls += done.unrolls
        accepted += done.accepted
        masked += done.masked
    return unrolls, accepted, masked


def opened(length: int, environments: int, stack: int = 1) -> Assembler:
    assembler = Assembler(layout(length, stack), environments)
    assembler.open(np.arange(environments), 100 + np.arange(environments), 7, np.zeros(environments, np.int64))
    return assembler


def fields(record: np.ndarray, length: int, stack: int = 1):
    return layout(length, stack).view(record)


def test_the_example_of_semantics() -> None:
    unrolls, accepted, masked = drive(opened(5, 1), [CountingEnvironment(0, 3)], 6)
    (unroll,) = unrolls
    got = fields(unroll.record, 5)
    assert got["valid"].tolist() == [1, 1, 1, 0, 1]
    assert got["first"].tolist() == [1, 0, 0, 0, 1, 0]
    assert got["reward"].tolist() == [0, 1, 2, 3, 0, 1]
    assert (unroll.valid, unroll.next_index, accepted, masked) == (4, 4, 4, 1)
    assert got["state/0"].tolist() == [0]


def test_a_lost_life_is_a_mark_on_a_row_and_masks_nothing() -> None:
    plain, marked = opened(5, 1), opened(5, 1)
    environments = CountingEnvironment(0, 8), CountingEnvironment(0, 8, lives_lost_at=(2, 5))
    (unmarked, once), (first, second) = (
        drive(a, [e], 11)[0] for a, e in zip((plain, marked), environments, strict=True)
    )
    got, follows = fields(first.record, 5), fields(second.record, 5)
    assert got["life_lost"].tolist() == [0, 0, 1, 0, 0, 1] and follows["life_lost"].tolist() == [1, 0, 0, 0, 0, 0]
    assert got["valid"].tolist() == [1] * 5 and got["first"].tolist() == [1, 0, 0, 0, 0, 0]
    for mine, theirs in ((first, unmarked), (second, once)):
        assert mine[:-1] == theirs[:-1], "counts, indices and states are those of an episode that went on"


def test_episodes_of_seven_count_exactly() -> None:
    """One environment, 1 000 episodes of 7: 7 999 row transitions, 7 000 valid, 999 masked, each once."""
    assembler = opened(20, 1)
    unrolls, accepted, masked = drive(assembler, [CountingEnvironment(0, 7)], 8000)
    assert (accepted, masked) == (7000, 999)
    unrolls += assembler.flush(np.arange(1))
    assert sum(u.valid for u in unrolls) == 7000
    seen = set()
    for unroll in unrolls:
        got = fields(unroll.record, 20)
        for i in np.flatnonzero(got["valid"]):
            before, after = got["observation/observation"][i], got["observation/observation"][i + 1]
            assert before[1] == after[1] and before[2] + 1 == after[2] == got["reward"][i + 1]
            seen.add((int(before[1]), int(before[2])))
    assert len(seen) == 7000


def test_unrolls_overlap_by_one_and_carry_the_state_fed_at_row_0() -> None:
    unrolls, _, _ = drive(opened(4, 2), [CountingEnvironment(0, 6), CountingEnvironment(1, 3)], 13)
    mine = [fields(u.record, 4) for u in unrolls if u.environment == 100]
    for k, (a, b) in enumerate(itertools.pairwise(mine)):
        for name in ("version", "reward", "action", "behaviour", "first", "terminated", "life_lost"):
            assert np.array_equal(a[name][4], b[name][0]), name
        assert b["state/0"].tolist() == [10 * 4 * (k + 1)]
        assert b["previous_action"] == a["action"][3]
        assert b["row"] == 4 * (k + 1)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_the_frames_before_row_0_are_the_real_ones(length: int) -> None:
    unrolls, _, _ = drive(opened(length, 1, stack=4), [CountingEnvironment(0, 2)], 12)
    for unroll in unrolls:
        got = fields(unroll.record, length, stack=4)
        history = CountingEnvironment(0, 2)
        rows = [history.next()[1][0] for _ in range(unroll.row + length + 1)]
        for i, frame in enumerate(got["observation/observation"]):
            at = unroll.row - 3 + i
            if at >= 0:
                assert frame.tolist() == rows[at].tolist()
                assert got["first"][i] == (rows[at][2] == 0)


def test_a_flushed_unroll_is_masked_after_its_last_row() -> None:
    assembler = opened(20, 1)
    drive(assembler, [CountingEnvironment(0, 3)], 6)
    (unroll,) = assembler.flush(np.arange(1))
    assert fields(unroll.record, 20)["valid"].tolist() == [1, 1, 1, 0, 1] + [0] * 15
    assert assembler.flush(np.arange(1)) == []


def test_a_seam_begins_with_first_and_owns_nothing_across() -> None:
    assembler = opened(20, 1)
    environment = CountingEnvironment(0, 50)
    drive(assembler, [environment], 4)
    assembler.flush(np.arange(1))
    assembler.open(np.arange(1), np.array([100]), 8, np.array([3]))
    unrolls, accepted, masked = drive(assembler, [environment], 21, start=4)
    got = fields(unrolls[0].record, 20)
    assert got["first"][0] == 1 and got["run"] == 8 and got["index"] == 4
    assert (accepted, masked) == (20, 0)


def test_a_lone_row_is_no_unroll() -> None:
    assembler = opened(5, 1)
    drive(assembler, [CountingEnvironment(0, 3)], 1)
    assert assembler.flush(np.arange(1)) == []


@pytest.mark.parametrize(("learnt", "burn_in"), [(5, 4), (4, 2), (5, 1), (20, 10)])
@pytest.mark.parametrize("stack", [1, 4])
def test_burn_in_rows_are_copies_and_each_transition_is_owned_once(learnt: int, burn_in: int, stack: int) -> None:
    length = learnt + burn_in
    assembler = Assembler(layout(length, stack), 1, burn_in)
    assembler.open(np.arange(1), np.array([100]), 7, np.zeros(1, np.int64))
    unrolls, accepted, _ = drive(assembler, [CountingEnvironment(0, 3)], 10 * learnt + 1)
    unrolls += assembler.flush(np.arange(1))
    assert sum(u.valid for u in unrolls) == accepted
    owned = []
    for k, unroll in enumerate(unrolls):
        got = fields(unroll.record, length, stack)
        frames = got["observation/observation"][stack - 1 :]
        for i in burn_in + np.flatnonzero(got["valid"][burn_in:]):
            owned.append(tuple(frames[i][1:]))
        begins = learnt * k - burn_in  # row 0 in the environment's own counting
        environment = CountingEnvironment(0, 3)
        history = [environment.next()[1][0] for _ in range(begins + length + 1)]
        for i in range(length + 1):
            if 0 <= begins + i < 10 * learnt + 1:
                assert frames[i].tolist() == history[begins + i].tolist()
                assert got["version"][i] == begins + i
        if k:
            assert unroll.row == begins and got["state/0"].tolist() == [10 * begins]
            assert begins == 0 or got["previous_action"] == begins - 1
        else:
            assert got["first"][stack - 1 : stack + burn_in].all() and not got["valid"][:burn_in].any()
    assert len(owned) == len(set(owned)) == accepted
