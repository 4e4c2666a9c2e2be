"""The short form of ``make chaos``: faults of every role on a whole pipeline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

REPOSITORY = Path(__file__).parents[2]
SHORT = (
    "learner.kill_while_saving",
    "broker.kill",
    "worker.kill",
    "environments.kill",
    "environment.exit",
    "store.kill",
    "store.cut_connections",
)
GENTLE = (
    "environment.leak",
    "join.storm",
    "messages.drop",
    "messages.duplicate",
    "messages.late",
    "messages.reorder",
    "store.misconf",
)
"""Nothing is killed by them."""
KEYS = {"faults", "by_kind", "steps_lost", "ledger_closes", "solved", "longest_recovery_seconds"}


def chaos(*arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, object]]:
    command = [sys.executable, "-m", "tests.chaos", *arguments]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=1100, check=False)
    return result, json.loads(result.stdout.splitlines()[-1])


def test_every_role_dies_and_nothing_is_lost():
    """The faults come in the order of the seed; most of them at least, more than once where the time is enough."""
    result, line = chaos("--seconds", "30", "--least", "5", "--seed", "7", "--faults", ",".join(SHORT))
    assert result.returncode == 0, result.stdout + result.stderr
    assert set(line) == KEYS
    assert line["faults"] == sum(line["by_kind"].values()) >= 5
    assert line["steps_lost"] == 0 and line["ledger_closes"]
    assert line["longest_recovery_seconds"] > 0, "and no bound was exceeded, says the exit code"


def test_lost_messages_leaks_and_a_crowd():
    """Each once: what happens between worker and broker, to the store's snapshots, and what no process dies of."""
    result, line = chaos("--once", "--seed", "7", "--faults", ",".join(GENTLE))
    assert result.returncode == 0, result.stdout + result.stderr
    assert set(line) == KEYS
    assert line["by_kind"] == dict.fromkeys(sorted(GENTLE), 1)
    assert line["steps_lost"] == 0 and line["ledger_closes"]
