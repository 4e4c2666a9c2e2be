"""Evaluation environments beside training: reported apart, in no book of training, and able to end the run."""

import json

import pytest

from tests.runs import PATIENT, settings

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
