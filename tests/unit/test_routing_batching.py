"""Batching by credit."""

from __future__ import annotations

import pytest

from pipeline.requests import StepRequest
from pipeline.routing.batching import Batcher

pytestmark = pytest.mark.unit


def request(run: int, rows: int = 4, group: int = 0, sequence: int = 0) -> StepRequest:
    return StepRequest(0, run, group, sequence, rows, rows, [])


def runs(batch: list[StepRequest]) -> list[int]:
    return [x.run for x in batch]


def test_what_waits_is_given_at_once_oldest_first_up_to_the_credit() -> None:
    batcher = Batcher()
    for run in (3, 1, 2):
        batcher.add(request(run), 0.0)
    assert runs(batcher.take(9, 32, 0.0)) == [3, 1]
    assert batcher.rows == 4
    assert runs(batcher.take(4, 32, 0.0)) == [2]
    assert batcher.take(32, 32, 0.0) == [] and batcher.rows == 0 and len(batcher) == 0


def test_five_rows_do_not_wait_for_a_full_batch() -> None:
    batcher = Batcher()
    batcher.add(request(1, rows=5), 0.0)
    assert runs(batcher.take(32, 32, 0.0)) == [1]


def test_nothing_younger_passes_a_request_that_waits_for_credit() -> None:
    batcher = Batcher()
    batcher.add(request(1, rows=8), 0.0)
    batcher.add(request(2, rows=1), 0.0)
    assert batcher.take(4, 32, 0.0) == []
    assert batcher.take(0, 32, 0.0) == []
    assert runs(batcher.take(9, 32, 0.0)) == [1, 2]


def test_a_request_larger_than_the_full_batch_is_given_alone() -> None:
    batcher = Batcher()
    batcher.add(request(1, rows=2), 0.0)
    batcher.add(request(2, rows=50), 0.0)
    batcher.add(request(3, rows=2), 0.0)
    assert runs(batcher.take(32, 32, 0.0)) == [1]
    assert batcher.take(31, 32, 0.0) == []
    assert runs(batcher.take(32, 32, 0.0)) == [2]
    assert runs(batcher.take(32, 32, 0.0)) == [3]


def test_it_waits_for_min_rows_but_not_longer_than_max_wait() -> None:
    batcher = Batcher(min_rows=8, max_wait_seconds=0.5)
    assert batcher.deadline() is None
    batcher.add(request(1), 10.0)
    assert batcher.take(32, 32, 10.4) == [] and batcher.deadline() == 10.5
    assert runs(batcher.take(32, 32, 10.5)) == [1]
    batcher.add(request(2), 11.0)
    batcher.add(request(3), 11.1)
    assert batcher.deadline() is None
    assert runs(batcher.take(32, 32, 11.1)) == [2, 3]
    batcher.add(request(4), 12.0)
    assert runs(batcher.take(4, 32, 12.0)) == [4], "less credit than min_rows: waiting gains nothing"


def test_a_repeat_adds_nothing_and_keeps_its_place() -> None:
    batcher = Batcher()
    assert batcher.add(request(1, sequence=7), 0.0)
    batcher.add(request(2), 0.0)
    assert not batcher.add(request(1, sequence=7), 5.0)
    assert len(batcher) == 2 and batcher.rows == 8 and batcher.oldest_seconds(6.0) == 6.0
    assert batcher.sequence_of(1, 0) == 7 and batcher.sequence_of(1, 1) is None
    assert runs(batcher.take(32, 32, 0.0)) == [1, 2]


def test_another_sequence_replaces_what_waits() -> None:
    batcher = Batcher()
    batcher.add(request(1, sequence=7), 0.0)
    batcher.add(request(2), 0.0)
    assert batcher.add(request(1, rows=2, sequence=8), 1.0)
    assert batcher.rows == 6
    assert [(x.run, x.sequence) for x in batcher.take(32, 32, 0.0)] == [(2, 0), (1, 8)]


def test_removed_requests_are_never_given() -> None:
    batcher = Batcher()
    batcher.add(request(1), 0.0)
    batcher.add(request(1, group=1), 0.0)
    waiting = batcher.remove(1, 0)
    assert waiting is not None and waiting.request.group == 0
    assert batcher.remove(1, 0) is None
    assert [x.group for x in batcher.take(32, 32, 0.0)] == [1]
