"""What the supervisor reads in the shared memory of a child."""

from __future__ import annotations

import multiprocessing
import time

import pytest

from workers.block import ACTION_BYTES, At, Block, Phase
from workers.supervisor import Patience
from workers.tally import Tally

pytestmark = pytest.mark.unit


@pytest.fixture
def block() -> Block:
    return Block(multiprocessing.get_context("spawn"))


def place(block: Block) -> list[int]:
    return [int(block.numbers[at]) for at in (At.GROUP, At.ENVIRONMENT, At.SEED, At.STEP)]


def test_a_new_block_says_that_environments_are_made(block: Block) -> None:
    assert block.phase is Phase.MAKING
    assert block.numbers[At.WORKER] == block.numbers[At.ENVIRONMENT] == -1
    assert abs(time.monotonic() - block.since_seconds) < 10.0
    assert block.action() == b"" and block.text() == "" and block.error() is None


def test_a_step_says_where_and_with_which_actions(block: Block) -> None:
    others = [int(x) for x in block.numbers[At.WORKER :]]
    before = time.monotonic_ns()
    begun = block.begin(Phase.STEP, 2, 2**31 - 1, 7, b"abc")
    assert before <= begun <= time.monotonic_ns() and block.numbers[At.SINCE] == begun
    assert block.phase is Phase.STEP and place(block) == [2, -1, 2**31 - 1, 7] and block.action() == b"abc"
    marked = block.mark(Phase.RESET, 3, 40, 5)
    assert marked >= begun and block.numbers[At.SINCE] == marked
    assert block.phase is Phase.RESET and place(block) == [3, 40, 5, 7] and block.action() == b"abc"
    waits = block.wait()
    assert block.phase is Phase.WAITING and block.numbers[At.SINCE] == waits >= marked
    assert [int(x) for x in block.numbers[At.WORKER :]] == others


def test_long_actions_are_cut_and_a_reset_leaves_the_last_ones(block: Block) -> None:
    actions = bytes(i % 251 for i in range(2 * ACTION_BYTES))
    block.begin(Phase.STEP, 0, 0, 0, actions)
    assert block.action() == actions[:ACTION_BYTES]
    block.set_text("a text")
    block.begin(Phase.RESET, 1, 0, 0)
    assert place(block) == [1, -1, 0, 0] and block.action() == actions[:ACTION_BYTES] and block.text() == "a text"
    block.begin(Phase.STEP, 1, 0, 1, b"xy")
    assert block.action() == b"xy"


def test_a_child_hangs_where_it_is_seen_twice_in_a_row_at_one_place() -> None:
    patience = Patience()
    assert not patience.ends(1.0, 5.0, 7.0)
    assert not patience.ends(6.9, 5.0, 7.1) and not patience.ends(1.0, 5.0, 7.2)  # the first look was at a half
    assert patience.ends(1.0, 5.0, 7.3)


def test_a_time_that_is_being_written_is_no_hang() -> None:
    patience = Patience()
    assert not any(patience.ends(0.0, 5.0, 50_000.0 + look) for look in range(9))


def test_a_phase_whose_time_is_being_written_has_just_begun(block: Block) -> None:
    tally = Tally()
    tally.begins(block)
    block.numbers[At.SINCE] = 0
    assert tally.read().phase == (Phase.MAKING, 0.0)
