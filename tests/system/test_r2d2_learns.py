"""R2D2 learns through everything: real processes, a prioritized replay in Redis, a recurrent network, an evaluation."""

import pytest

from tests.runs import PATIENT, settings, summary

pytestmark = pytest.mark.system

CUES, BATCH, PREFETCH = 4, 32, 2
LEARNT = 0.9
"""Share of cues that are named right; without memory, or without learning, it is about ``1 / CUES``."""
SETTINGS = settings(
    f"environment.kwargs={{cues: {CUES}, delay: 4}}",
    "network.lstm=32",
    "training.unroll_length=10",
    f"training.batch_size={BATCH}",
    f"training.prefetch_batches={PREFETCH}",
    "training.optimizer.learning_rate=3.0e-3",
    "r2d2.burn_in=5",
    "r2d2.n_steps=3",
    "r2d2.target_update_period=20",
    "replay.min_size=32",
    "run.max_steps=300000",  # ten times what it takes
    "evaluation.episodes=100",
    f"evaluation.solved_return={LEARNT}",
    PATIENT,
)


def test_a_cue_is_recalled(commands):
    result = commands.run("run", "memory_r2d2", *SETTINGS, "--run-dir", "run", timeout=120)
    assert result.returncode == 0, result.stdout
    figures = summary(commands.cwd / "run")
    assert figures["stop_reason"] == "solved", result.stdout
    assert abs(figures["first_episode_return_mean"] - 1 / CUES) < 0.2, "it began as a guess"
    assert figures["evaluation"]["last_return_mean"] >= LEARNT
    replay, ledger = figures["replay"], figures["ledger"]
    assert ledger["error"] == 0 and ledger["samples"] > ledger["inserted"] > 0
    prepared = replay["sampled_unrolls"] / BATCH - figures["updates"]
    assert 0 <= prepared <= 1 + PREFETCH, "what was sampled is trained on, or waits in a prepared batch"
