"""Evaluation environments beside training: reported apart, in no book of training, and able to end the run."""

import json
from pathlib import Path

import numpy as np
import pytest

from learner.exploration import epsilons
from tests.runs import PATIENT, settings, summary

pytestmark = pytest.mark.system

TRAINING, EVALUATING, EPISODES, TARGET = 8, 4, 8, 60.0
SETTINGS = [
    f"workers.envs={TRAINING}",
    "run.solved_return=null",
    "run.solved_episodes=100000",  # means over all episodes
    "run.max_seconds=900",
    PATIENT,
    "evaluation.workers=1",
    f"evaluation.envs={EVALUATING}",
    f"evaluation.episodes={EPISODES}",
    f"evaluation.solved_return={TARGET}",
]


@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_vtrace_is_stopped_by_its_evaluation_environments(commands, mode):
    words = settings(*SETTINGS, f"evaluation.mode={mode}")
    result = commands.run("run", "cartpole_vtrace", *words, "--run-dir", "run", timeout=240)
    assert result.returncode == 0, result.stdout
    assert "solved after" in result.stdout
    figures = json.loads((commands.cwd / "run" / "summary.json").read_text())
    evaluation, ledger = figures["evaluation"], figures["ledger"]
    assert figures["stop_reason"] == "solved"
    assert evaluation["rounds"] >= 2, "one confirms the other"
    assert evaluation["last_return_mean"] >= TARGET
    assert evaluation["last_version"] <= figures["version"]
    assert evaluation["episodes"] >= EPISODES
    assert evaluation["episode_return_mean"] != figures["episode_return_mean"], "reported apart"

    # All rows that were acted on, but those of training: its transitions, valid and masked, and the first row of each
    # environment. What is left are the evaluation environments' episodes, finished ones and at most one open each.
    assert ledger["error"] == 0
    rows = figures["inference"]["rows"] - ledger["accepted"] - ledger["masked"] - TRAINING
    finished = evaluation["episodes"] + evaluation["episode_steps"]
    assert -TRAINING <= rows - finished <= EVALUATING * 501, (rows, finished)


def test_r2d2_explores_in_evaluation_as_in_training_whichever_worker_comes_first(commands):
    """Weights that do not move, and a return that the epsilon alone decides: three means are of one ladder."""
    values = settings(
        "environment.id=tests.repeat_env:Repeat-v0", "environment.kwargs={length: 20}", "network.lstm=0",
        "training.optimizer.learning_rate=1e-30", "workers.count=2", "workers.envs=8", "run.max_steps=30000",
        "run.max_seconds=600", "run.solved_episodes=100000", "evaluation.workers=1", "evaluation.envs=8",
        "evaluation.solved_return=null", "evaluation.mode=sample", "replay.samples_per_insert=0.5", PATIENT,
    )  # fmt: skip
    variables = {"PYTHONPATH": str(Path(__file__).parents[2])}
    result = commands.run("run", "cartpole_r2d2", *values, "--run-dir", "run", timeout=240, **variables)
    assert result.returncode == 0, result.stdout
    other = 0.5 * epsilons(0.4, 7.0, 16)  # how likely is the other action than the one that is always greedy
    expected = 1 + 19 * float(np.mean((1 - other) ** 2 + other**2))
    figures = summary(commands.cwd / "run")
    assert figures["episode_return_mean"] == pytest.approx(expected, abs=0.1)
    assert figures["evaluation"]["episodes"] > 100
    assert figures["evaluation"]["episode_return_mean"] == pytest.approx(expected, abs=0.2)
    played = commands.run("eval", "run", "--episodes", "800", "--mode", "sample", "--json", **variables)
    assert played.returncode == 0, played.stdout
    found = json.loads(played.stdout.splitlines()[-1])
    assert found["episode_return_mean"] == pytest.approx(expected, abs=0.2)
