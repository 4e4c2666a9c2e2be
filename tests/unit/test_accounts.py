"""A run's account at its end: the worker's word against what came, and what no event explains is an error."""

from __future__ import annotations

from typing import Any

import pytest

from learner.accounts import Arrived, Settled, settle
from pipeline.protocol import GroupReport, Hello, Report
from pipeline.requests import Joined, Left, Reported
from tests.unit.test_lineage import SPACES, Learner, Store, Worker

pytestmark = pytest.mark.unit


def said(taken: int, *groups: tuple[int, int, int], **more: Any) -> Report:
    return Report(taken=taken, groups=tuple(GroupReport(*group) for group in groups), **more)


def came(*sent: int, unheard: bool = False) -> list[Arrived]:
    return [Arrived(number, unheard) for number in (*sent, 0)]


def found(settled: Settled) -> dict[str, int]:
    names = ("undelivered", "inherited", "missing", "surplus")
    return {name: number for name in names if (number := getattr(settled, name))}


@pytest.mark.parametrize(
    ("what", "report", "arrived", "expected"),
    [
        ("all has come", said(20, (2, 12, 2), (2, 8, 2)), came(12, 8), {}),
        ("a STEP was under way", said(20, (2, 12, 2), (2, 8, 2)), came(10, 8), {"undelivered": 2}),
        ("both were", said(20, (2, 12, 2), (2, 8, 1)), came(10, 7), {"undelivered": 3}),
        ("a step that did not end", said(21, (2, 12, 2), (2, 8, 2), unsent=1), came(12, 8), {"undelivered": 1}),
        ("it claims 50 more", said(70, (2, 12, 2), (2, 8, 2)), came(12, 8), {"missing": 50}),
        ("it claims 50 more of a group", said(70, (2, 62, 2), (2, 8, 2)), came(12, 8), {"missing": 50}),
        ("it claims 50 more, all of one step", said(70, (2, 62, 50), (2, 8, 2)), came(12, 8), {"missing": 50}),
        ("it claims 50 unsent ones", said(70, (2, 12, 2), (2, 8, 2), unsent=50), came(12, 8),
         {"undelivered": 4, "missing": 46}),
        ("it claims 5 fewer", said(15, (2, 12, 2), (2, 8, 2)), came(12, 8), {"surplus": 5}),
        ("it delivers more than it says", said(20, (2, 12, 2), (2, 8, 2)), came(17, 8), {"surplus": 5}),
        ("more of one, less of another", said(20, (2, 12, 2), (2, 8, 2)), came(17, 3), {"surplus": 5, "missing": 5}),
        ("half a STEP came", said(20, (2, 12, 2), (2, 8, 2)), came(11, 8), {"missing": 1}),
        ("a STEP before the last did not come", said(20, (2, 12, 1), (2, 8, 2)), came(10, 8), {"missing": 2}),
        ("nothing was said, and rows came", said(0), [Arrived(6, False)], {"surplus": 6}),
        ("a predecessor had what was not stored", said(20, (2, 20, 2)), came(11, unheard=True),
         {"inherited": 7, "undelivered": 2}),
        ("the last STEP came to it", said(20, (2, 20, 2)), came(19, unheard=True), {"inherited": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_a_run_comes_to(what: str, report: Report, arrived: list[Arrived], expected: dict[str, int]) -> None:
    assert found(settle(report, arrived, final=True)) == expected, what


def test_rows_may_overtake_a_word_that_is_not_the_last() -> None:
    assert found(settle(said(20, (2, 12, 2), (2, 8, 2)), came(30, 6), final=False)) == {"undelivered": 2}


def test_a_settled_run_is_kept_as_it_is() -> None:
    settled = settle(said(20, (2, 12, 2), dropped={"non_finite": 8}), came(10), final=True)
    assert Settled.from_json(settled.to_json()) == settled


class Stage:
    """One worker of two environments at a real roster, and what became of it."""

    def __init__(self, steps: int = 7) -> None:
        self.store = Store()
        self.learner = Learner(self.store, None)
        self.worker = Worker(1, {})
        self.steps(steps)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.learner.serve(self.worker, 0)
            self.worker.answered()

    def left(self, reason: str, report: Report | None = None) -> None:
        self.learner.submit(self.learner.roster.leave(Left(0, 1, reason, report)))

    @property
    def books(self) -> dict[str, Any]:
        return self.learner.ledger.snapshot()


@pytest.mark.parametrize(("more", "error"), [(50, 50), (-5, 5)])
def test_a_worker_s_word_that_is_not_what_came_is_an_error(more: int, error: int) -> None:
    stage = Stage()
    report = stage.worker.report()
    stage.left("bye", report._replace(taken=report.taken + more))
    assert stage.books["error"] == error and stage.books["undelivered"] == stage.worker.last == 2


def test_a_lease_that_ends_with_a_step_under_way_is_not_the_end() -> None:
    """The last heartbeat says what is under way; the STEP comes when the worker is back, and is counted once."""
    stage = Stage()
    stage.learner.roster.report(Reported(0, 1, stage.worker.report()))
    assert stage.books["in_flight"] == 2
    stage.left("lease", stage.worker.report())
    away = stage.books
    assert (away["undelivered"], away["in_flight"], away["error"]) == (2, 0, 0)
    assert away["taken"] == stage.worker.taken
    stage.steps(3)
    back = stage.books
    assert (back["undelivered"], back["error"]) == (0, 0)
    assert back["dropped"] == {"seam": 2}, "the transitions to the first rows after it"
    stage.left("bye", stage.worker.report())
    assert stage.books["error"] == 0 and stage.books["taken"] == stage.worker.taken


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_last_word_of_a_superseded_run_counts_its_late_steps(order: str) -> None:
    """It was stepping when another took over: what came of that is in no STEP, and its supervisor says so."""
    stage = Stage()
    heartbeat = stage.worker.report()
    last_word = heartbeat._replace(taken=heartbeat.taken + 2, unsent=2)
    if order == "before":  # as its successor's HELLO says it
        hello = Hello("w", 2, "train", SPACES.to_wire(), [2], "", -1, {"1": last_word.to_wire()}, {})
        assert stage.learner.roster.join(Joined(1, 2, hello)) is None
        stage.left("replaced", heartbeat)
    else:
        stage.left("replaced", heartbeat)
        stage.left("bye", last_word)
    for _ in range(2):
        assert stage.books["taken"] == heartbeat.taken + 2 and stage.books["error"] == 0
        assert stage.books["undelivered"] == 4
        stage.left("bye", last_word)


def test_who_is_here_when_the_learner_ends_is_settled_by_what_he_said_and_may_come_back() -> None:
    stage = Stage()
    stage.learner.roster.report(Reported(0, 1, stage.worker.report()))
    stage.learner.submit(stage.learner.roster.flush())
    assert (stage.books["undelivered"], stage.books["in_flight"], stage.books["error"]) == (2, 0, 0)
    while stage.learner._queue:
        stage.learner.put()
    stage.learner = Learner(stage.store, stage.learner.save())
    assert stage.books["undelivered"] == 2
    stage.steps(2)
    assert (stage.books["undelivered"], stage.books["error"]) == (0, 0)
    stage.left("bye", stage.worker.report())
    assert stage.books["taken"] == stage.worker.taken and stage.books["error"] == 0


def test_a_run_that_another_learner_served_is_in_no_book() -> None:
    learner = Learner(Store(), None)
    learner.roster.leave(Left(5, 77, "bye", said(100, (2, 100, 2))))
    assert learner.ledger.snapshot()["taken"] == 0
    learner.roster.leave(Left(5, 78, "bye", said(2, (2, 2, 2))))
    got = learner.ledger.snapshot()
    assert (got["taken"], got["undelivered"], got["error"]) == (2, 2, 0), "it died before its first rows came"


def test_a_checkpoint_of_before_settles_for_good() -> None:
    settled = Settled.from_json([20, {"non_finite": 2}])
    assert settled.final and settled.dropped == {"non_finite": 2} and settled.said > 10**15
