"""Cases of ``docs/field-cases.md`` that belong to no other file: whole runs, as a user sees them."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.runs import settings, summary

pytestmark = pytest.mark.system

PRESET = "cartpole_vtrace"
FROZEN = settings("training.optimizer.learning_rate=1e-30")
ENDLESS = settings("run.solved_return=null", "run.log_interval_seconds=0.5", "run.max_seconds=1000")


@pytest.mark.timeout(500)
def test_a_run_that_plays_well_is_killed_and_plays_as_well_when_it_is_resumed(commands, until):
    """Weights and version come back: a mean return above 400 before, at least 350 after.

    The run that goes on updates with a learning rate of nothing, so that its mean is of the policy that came back, and
    not of what learning makes of it meanwhile, which on CartPole is worse for seconds now and then.
    """
    arguments = [*ENDLESS, *settings("checkpoint.interval_seconds=1", "run.solved_episodes=100")]
    run = commands.start("run", PRESET, *arguments, "--run-dir", "run")
    directory = commands.cwd / "run"
    until(lambda: (summary(directory).get("episode_return_mean") or 0) >= 450, 300, "a mean return of 450")
    run.send_signal(signal.SIGKILL)
    run.communicate()
    commands.forget_sockets()
    before = summary(directory)
    began = time.monotonic()
    run = commands.start("run", PRESET, *arguments, *FROZEN, "--run-dir", "run", "--resume")

    def again():
        """What the learner that goes on says of itself: its episodes and losses are its own."""
        found = summary(directory)
        return found if found["startup_seconds"] != before["startup_seconds"] else {}

    until(lambda: again().get("loss") is not None, 90, "the first update")
    print(f"first update {time.monotonic() - began:.1f} s after the start: 30 on a machine of its own")
    resumed = again()["episodes"]
    # Of the episodes that begin together the short ones end first: the last 100 of 300 are those that tell.
    until(lambda: again()["episodes"] >= resumed + 300, 120, "300 episodes")
    assert again()["episode_return_mean"] >= 350
    run.send_signal(signal.SIGTERM)
    output, _ = run.communicate(timeout=15)
    assert run.returncode == 143, output
    assert summary(directory)["ledger"]["error"] == 0


def test_eval_samples_as_training_did_with_the_same_weights(commands):
    """Weights that do not move: both means are of one policy, and differ by less than four standard errors."""
    short = settings("run.solved_episodes=100000", "run.max_steps=40000")
    result = commands.run("run", PRESET, *ENDLESS, *FROZEN, *short, "--run-dir", "run", timeout=200)
    assert result.returncode == 0, result.stdout
    trained = summary(commands.cwd / "run")
    played = commands.run("eval", "run", "--episodes", "300", "--mode", "sample", "--json", timeout=120)
    assert played.returncode == 0, played.stdout
    found = json.loads(played.stdout.splitlines()[-1])
    assert trained["episodes"] > 500 and found["mode"] == "sample"
    error = found["episode_return_std"] * (1 / 300 + 1 / trained["episodes"]) ** 0.5
    assert abs(found["episode_return_mean"] - trained["episode_return_mean"]) < 4 * error
