"""What ``environment.id`` and nothing else learns. Larger tasks: ``python -m benchmarks.defaults``."""

import inspect

import pytest

from tests import far_goal
from tests.runs import PATIENT, settings, summary

pytestmark = pytest.mark.system

STEPS = 150_000
"""Solved after 25 000 to 50 000; the defaults before were at -284 after 200 000."""


def test_defaults_learn_a_task_whose_observations_and_rewards_are_large(commands):
    (commands.cwd / "far_goal.py").write_text(inspect.getsource(far_goal))
    (commands.cwd / "only_the_id.yaml").write_text("environment:\n  id: far_goal:FarGoal-v0\n")
    ends = settings("run.solved_return=-75", f"run.max_steps={STEPS}", PATIENT)
    result = commands.run("run", "only_the_id.yaml", *ends, "--run-dir", "run")
    assert result.returncode == 0, result.stdout
    figures = summary(commands.cwd / "run")
    assert figures["stop_reason"] == "solved", result.stdout
    assert figures["ledger"]["error"] == 0
    assert figures["metrics"]["value_mean"] < -5.0 < 0.0 < figures["metrics"]["value_std"]
