"""Faults of all workers, from what each counts of its own."""

from __future__ import annotations

from learner.faults import MAX_KINDS, OTHER, WorkerFaults
from pipeline.protocol import Report


def test_counts_of_workers_add_up_and_a_repeat_adds_nothing():
    faults = WorkerFaults()
    for worker_id, counts in (
        ("a", {"env_errors": 2}),
        ("b", {"env_errors": 1, "env_hangs": 1}),
        ("a", {"env_errors": 2}),
    ):
        faults.hear(worker_id, Report(faults=counts))
    assert faults.total() == {"env_errors": 3, "env_hangs": 1}
    faults.hear("a", Report(faults={"env_errors": 5}))
    assert faults.total() == {"env_errors": 6, "env_hangs": 1}


def test_a_worker_that_was_started_anew_counts_from_0():
    faults = WorkerFaults()
    for counts in ({"env_errors": 3}, {"env_errors": 1}, {}, {"env_errors": 1}):
        faults.hear("a", Report(faults=counts))
    assert faults.total() == {"env_errors": 5}


def test_kinds_are_bounded():
    faults = WorkerFaults()
    for i in range(3 * MAX_KINDS):
        faults.hear("a", Report(faults={f"kind{i}": 1}))
    total = faults.total()
    assert len(total) == MAX_KINDS + 1 and sum(total.values()) == 3 * MAX_KINDS and total[OTHER] == 2 * MAX_KINDS


def test_the_newest_fault_is_told_with_its_worker():
    faults = WorkerFaults()
    assert faults.newest == ""
    said = [("a", 1, "first"), ("b", 1, "second"), ("a", 1, "first"), ("b", 1, "second")]
    for worker_id, number, message in said:  # heartbeats repeat what was said before
        faults.hear(worker_id, Report(faults={"env_errors": number}, message=message))
    assert faults.newest == "b: second"
    faults.hear("a", Report(faults={"env_errors": 2}, message="third"))
    assert faults.newest == "a: third"
