"""What a chaos run says at the end, and when it fails."""

from __future__ import annotations

import json
import math

import pytest

from tests.chaos.report import Report

LEDGER = {"error": 0, "undelivered": 0, "dropped": {"learner_restart": 5, "store_lost": 2}}
BOTH = {"learner_restart": math.inf, "store_lost": math.inf}


def closed(report: Report, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object]]:
    code = report.close()
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_last_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(ledger=LEDGER, explained=BOTH, solved=True)
    report.by_kind.update(["store.kill", "learner.kill", "learner.kill"])
    report.recoveries += [("store.kill", 1.5), ("learner.kill", 12.25), ("learner.kill", 3.0)]
    code, line = closed(report, capsys)
    assert code == 0
    assert line == {
        "faults": 3,
        "by_kind": {"learner.kill": 2, "store.kill": 1},
        "steps_lost": 0,
        "ledger_closes": True,
        "solved": True,
        "longest_recovery_seconds": 12.25,
    }


def test_drops_that_no_fault_explains_are_lost_steps(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = closed(Report(ledger=LEDGER, explained={"learner_restart": math.inf}), capsys)
    assert code == 1 and line["steps_lost"] == 2 and line["ledger_closes"]


@pytest.mark.parametrize(("lost", "unexplained"), [(8, 0), (16, 0), (20, 4)])
@pytest.mark.parametrize("where", ["undelivered", "seam"])
def test_each_fault_explains_so_many_and_no_more(
    where: str, lost: int, unexplained: int, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(ledger={"error": 0, "undelivered": 0, "dropped": {}})
    for _ in range(2):
        report.injected("worker.kill", {where: 8.0})
    if where == "undelivered":
        report.ledger["undelivered"] = lost
    else:
        report.ledger["dropped"][where] = lost
    code, line = closed(report, capsys)
    assert line["steps_lost"] == unexplained and code == (unexplained > 0)
    assert report.unexplained == ({where: unexplained} if unexplained else {})


def test_what_is_undelivered_after_no_fault_that_explains_it_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(ledger={"error": 0, "undelivered": 4, "dropped": {}})
    report.injected("broker.kill", {})
    code, line = closed(report, capsys)
    assert code == 1 and line["steps_lost"] == 4 and line["ledger_closes"]


@pytest.mark.parametrize("error", [3, -3])
def test_an_error_of_the_ledger_counts_as_lost(error: int, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = closed(Report(ledger={"error": error, "dropped": {}}), capsys)
    assert code == 1 and line["steps_lost"] == 3 and not line["ledger_closes"]


def test_a_run_without_a_ledger_fails(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = closed(Report(), capsys)
    assert code == 1 and not line["ledger_closes"]


def test_a_bound_that_does_not_hold_fails(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(ledger=LEDGER, explained=BOTH)
    report.fail("learner.kill: not recovered within 60 s")
    assert closed(report, capsys)[0] == 1
