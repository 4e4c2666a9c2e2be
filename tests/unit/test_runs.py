"""What tests measure and listen with."""

from __future__ import annotations

import socket
import threading

import pytest

from tests import runs


def test_seconds_in_which_the_machine_was_busy_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    held_up = [100.0]
    monkeypatch.setattr(runs, "_held_up", lambda: held_up[0])
    watch = runs.Stopwatch()
    threading.Event().wait(0.2)
    assert watch.held_up == 0.0 and watch.seconds >= 0.2, "a wait counts in full"
    held_up[0] += 0.1
    assert watch.elapsed >= 0.2 and watch.held_up == pytest.approx(0.1)
    held_up[0] += 1000.0
    assert 0.0 < watch.seconds < 0.1 * watch.elapsed, "several may have waited at once"


def test_the_kernel_s_figures_grow() -> None:
    before = runs._held_up()
    assert runs._held_up() >= before >= 0.0


def test_ports_are_free_and_given_once() -> None:
    ports = runs.free_ports(50)
    assert len(set(ports)) == 50 and not set(ports) & set(runs.free_ports(50))
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass
