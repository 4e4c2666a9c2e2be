"""The benchmarks of transport and scale over real processes and sockets: every side serves all clients and ends."""

from __future__ import annotations

import pytest

from benchmarks import lockstep, scale, transport

pytestmark = pytest.mark.integration
SMALL = transport.CASES[1]


@pytest.mark.parametrize("placement", ["embedded", "process"])
def test_workers_are_served(placement: str) -> None:
    assert transport._seedmq(SMALL, placement, 0.2) > 0


@pytest.mark.parametrize("relayed", [False, True])
def test_raw_clients_are_served(relayed: bool) -> None:
    request, reply = SMALL.ours.frames
    assert lockstep.measure(request, reply, 2, relayed=relayed, seconds=0.2) > 0


def test_a_client_that_ends_early_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "ask", print)  # prints its arguments and ends
    monkeypatch.setattr(lockstep, "START_SECONDS", 30.0)
    with pytest.raises(RuntimeError, match="ended early with"):
        lockstep.measure([1], [1], 1, relayed=False, seconds=0.2)


@pytest.mark.parametrize("at", [scale.Point(2, "embedded", False), scale.Point(20, "process", True)])
def test_what_a_step_costs_is_measured_and_none_is_lost(at: scale.Point) -> None:
    found = scale.measure(at, 0.5)
    assert found.learner > 0 and found.clients > 0 and found.steps_per_second > 0
    assert scale.ENVIRONMENTS <= found.rows_per_batch <= scale.BATCH
    assert (found.broker > 0) == (found.broker_bytes > 1e6) == (at.placement == "process")
