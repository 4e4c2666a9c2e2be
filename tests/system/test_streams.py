"""No environment and no policy of a run ever draws again what was drawn, whatever died; a run from scratch repeats."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from tests.runs import PATIENT, settings

pytestmark = pytest.mark.system

REPOSITORY = str(Path(__file__).parents[2])
ENVIRONMENTS = 8
LONG = 40
"""Actions of an episode that by chance no other one has."""


def recorded(path):
    """(seeds, observations of resets, actions of long episodes)."""
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    seeds, resets, played = zip(*lines, strict=True) if lines else ((), (), ())
    return [x for x in seeds if x != "-"], list(resets), [x for x in played if len(x) >= LONG]


def test_nothing_is_drawn_twice_over_restarts_and_a_resume_and_a_run_from_scratch_repeats(commands, until):
    """The environments' process, its worker, the learner and the whole run end in turn; weights do not move."""
    values = settings(
        "environment.wrappers=[tests.recorded:Recorded]", "training.optimizer.learning_rate=1e-30",
        f"workers.envs={ENVIRONMENTS}", "workers.count=1", "run.solved_return=null", "run.max_seconds=2000",
        "checkpoint.interval_seconds=1", PATIENT,
    )  # fmt: skip

    def start(*more, file="first"):
        variables = {"PYTHONPATH": REPOSITORY, "RECORDED": str(commands.cwd / file)}
        return commands.start("run", "cartpole_vtrace", *values, *more, **variables)

    def goes_on(file="first"):
        wanted = len(recorded(commands.cwd / file)[1]) + 100
        until(lambda: len(recorded(commands.cwd / file)[1]) > wanted, 120, "100 episodes")

    def end(run):
        run.send_signal(signal.SIGTERM)
        output, _ = run.communicate()
        assert run.returncode == 143, output

    run = start("--run-dir", "run")
    goes_on()
    for words in ("spawn_main", "worker --config", "learner --config"):
        youngest = max(map(psutil.Process, commands.find(words)), key=psutil.Process.create_time)
        youngest.kill()  # of the environments' processes: not their keeper
        goes_on()
    end(run)
    run = start("--run-dir", "run", "--resume")
    goes_on()
    end(run)
    seeds, resets, played = recorded(commands.cwd / "first")
    assert len(seeds) == 4 * ENVIRONMENTS, "those that go on, while the learner is another, are not seeded anew"
    assert len(set(seeds)) == len(seeds)
    assert len(set(resets)) == len(resets) > 500
    assert len(set(played)) == len(played) > 20

    run = start("--run-dir", "again", file="second")
    goes_on("second")
    end(run)
    assert sorted(recorded(commands.cwd / "second")[0]) == sorted(seeds[:ENVIRONMENTS])
