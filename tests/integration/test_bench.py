"""The benchmark of transport over real processes and sockets: every side serves all clients and ends."""

from __future__ import annotations

import pytest

from benchmarks import lockstep, transport

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
