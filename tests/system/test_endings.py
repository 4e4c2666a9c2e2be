"""How a run ends that comes to nothing, and one that has had its time."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.runs import PATIENT, Stopwatch, settings, summary

pytestmark = pytest.mark.system

PRESET = "cartpole_vtrace"
REPOSITORY = str(Path(__file__).parents[2])
SMALL = settings("workers.envs=8", "run.log_interval_seconds=0.2", "run.solved_return=null", PATIENT)


def errors(result):
    return [line for line in result.stdout.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize("words", ["told to fail at step 1 (", "(4,), its space says (3,) ("])
def test_a_broken_environment_ends_the_run_at_once_with_type_message_and_place(commands, words):
    fault = "raise" if words.startswith("told") else "shape"
    broken = settings("environment.id=tests.counter_env:Counter-v0", f"environment.kwargs={{fault: {fault}, at: 1}}")
    watch = Stopwatch()
    result = commands.run("run", PRESET, *SMALL, *broken, "--run-dir", "run", PYTHONPATH=REPOSITORY)
    print(f"ended after {watch}")
    assert result.returncode == 3, result.stdout
    (line,) = errors(result)
    assert words in line and f"({REPOSITORY}/tests/counter_env.py:" in line and "the same in 3 tries" in line
    assert "faults of environments" in result.stdout
    assert "evaluate it" not in result.stdout
    figures = summary(commands.cwd / "run")
    assert figures["stop_reason"] == "error" and words in figures["newest_fault"]
    assert watch.seconds < 45, "ten times the delays and the budget of passing faults would take longer"


def test_without_a_worker_the_time_is_bounded_and_it_is_no_success(commands):
    result = commands.run("run", PRESET, *SMALL, *settings("workers.count=0", "run.max_seconds=1"), "--run-dir", "run")
    assert result.returncode == 3, result.stdout
    (line,) = errors(result)
    assert "run.max_seconds = 1 is over, no worker has come: the learner waits for workers: none is connected" in line
    assert "evaluate it" not in result.stdout


def test_the_time_bounds_a_run_over_a_crash_and_a_resume(commands, until):
    arguments = ["run", PRESET, *SMALL, *settings("checkpoint.interval_seconds=1000", "run.max_seconds=8")]
    process = commands.start(*arguments, "--run-dir", "run")
    until(lambda: summary(commands.cwd / "run").get("elapsed_seconds", 0) > 4, 90, "half of the time")
    (learner,) = commands.find("learner --config")
    os.kill(learner, signal.SIGKILL)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0 and "max_seconds after" in output, output
    figures = summary(commands.cwd / "run")
    print(f"the run had {figures['elapsed_seconds']:.1f} s, {figures['updates']} updates")
    assert 8 <= figures["elapsed_seconds"] < 8 + 20, "an update and the drain may come late on a busy machine"
    assert output.splitlines()[-1] == "go on with it: seedmq run run --resume --set run.max_seconds=null", output
    kept = {name: (commands.cwd / "run" / name).read_bytes() for name in ("config.yaml", "source.json", "summary.json")}
    again = commands.run(*arguments, "--run-dir", "run", "--resume", *settings("vtrace.discount=0.5"))
    assert again.returncode == 2, again.stdout
    assert {name: (commands.cwd / "run" / name).read_bytes() for name in kept} == kept, (
        "what is refused changes nothing"
    )
    assert again.stdout.startswith("error: run.max_seconds = 8: the run has had "), again.stdout
    assert "--set run.max_seconds=null" in again.stdout


def test_an_environment_that_never_ends_an_episode(commands):
    """A run ends at its limit, without a mean; its evaluation is bounded, and says why."""
    endless = settings("environment.id=tests.counter_env:Counter-v0", "environment.kwargs={length: 1000000000}")
    evaluated = settings("evaluation.workers=1", "evaluation.envs=2", "evaluation.max_steps=20", "run.max_steps=20000")
    arguments = [*SMALL, *endless, *evaluated, "--run-dir", "run"]
    result = commands.run("run", PRESET, *arguments, PYTHONPATH=REPOSITORY)
    assert result.returncode == 0 and "no episode finished" in result.stdout, result.stdout
    evaluation = summary(commands.cwd / "run")["evaluation"]
    assert evaluation["voided_rounds"] >= 1 and evaluation["rounds"] == 0
    assert "has not ended after 20 steps (evaluation.max_steps)" in (commands.cwd / "run/logs/learner.log").read_text()
    played = commands.run("eval", "run", "--episodes", "4", "--max-steps", "100", PYTHONPATH=REPOSITORY)
    assert played.returncode == 3, played.stdout
    (line,) = errors(played)
    assert line == "error: no episode has ended after 100 steps (--max-steps): does the environment ever end one?"
