"""A run whose weights never rest: its evaluation is played by fixed ones, its schedules go by frames."""

import signal
from pathlib import Path

import pytest

from tests.runs import PATIENT, settings, summary

pytestmark = pytest.mark.system

REPOSITORY = str(Path(__file__).parents[2])
LENGTH, ROUNDS, FRAME_SKIP = 100, 8, 3
RATE, FRAMES = 0.3, 3_000_000
SETTINGS = settings(
    "environment.id=tests.wavering_env:Wavering-v0",
    f"environment.kwargs={{length: {LENGTH}}}",
    f"environment.frame_skip={FRAME_SKIP}",
    "workers.envs=8",
    "network.hidden=[4]",
    "training.unroll_length=5",
    "training.batch_size=4",
    "training.optimizer.clip_norm=null",
    f"training.optimizer.learning_rate={RATE}",
    "training.optimizer.learning_rate_schedule.kind=linear",
    f"training.optimizer.learning_rate_schedule.frames={FRAMES}",
    "vtrace.entropy_cost=1.0",  # whichever action is preferred, the next updates prefer the other
    "evaluation.workers=1",
    "evaluation.envs=1",
    "evaluation.episodes=1",
    "run.solved_return=null",
    "run.max_seconds=2000",
    "run.log_interval_seconds=0.1",
    PATIENT,
)


def test_an_evaluation_is_played_by_fixed_weights_and_schedules_go_by_frames(commands, until):
    run = commands.start("run", "cartpole_vtrace", *SETTINGS, "--run-dir", "run", PYTHONPATH=REPOSITORY)
    directory, returns = commands.cwd / "run", {}

    def enough():
        assert run.poll() is None, run.communicate()[0]
        found = summary(directory).get("evaluation", {})
        if found.get("rounds"):
            returns[found["rounds"]] = found["last_return_mean"]
        return len(returns) >= ROUNDS

    until(enough, 120, f"{ROUNDS} rounds of evaluation")
    run.send_signal(signal.SIGTERM)
    output, _ = run.communicate()
    assert run.returncode == 143, output
    assert {abs(value) for value in returns.values()} == {LENGTH}, f"one action in each round: {returns}"
    figures = summary(directory)
    training = figures["episode_return_mean"]
    assert abs(training) < LENGTH / 2, "and not because training had settled for one"
    assert figures["frames"] == FRAME_SKIP * figures["agent_steps"] > 0
    expected = RATE * (1 - figures["frames"] / FRAMES)
    update = RATE * FRAME_SKIP * 5 * 4 / FRAMES
    assert figures["metrics"]["learning_rate"] == pytest.approx(expected, abs=3 * update)
