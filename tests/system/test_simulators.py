"""Programs that environments start end with the command that ran the environments, also where it is killed."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.runs import END_SECONDS, settings, summary
from tests.simulators import WAYS, ended, started

pytestmark = pytest.mark.system
WORKERS = 2
ROOT = str(Path(__file__).parents[2])
CONFIG = """
environment:
  id: tests.simulators:Simulated-v0
  kwargs: {{pids: {pids}}}
workers: {{count: 2, envs: 1, groups: 1}}
training: {{batch_size: 1, unroll_length: 5}}
store: {{backend: memory}}
"""


@pytest.fixture
def pids(commands):
    """The folder of the simulators' ids; ``simulated.yaml`` stands beside it."""
    folder = commands.cwd / "pids"
    folder.mkdir()
    (commands.cwd / "simulated.yaml").write_text(CONFIG.format(pids=folder))
    return folder


def test_those_of_a_run_that_is_killed_and_of_an_evaluation(commands, until, pids):
    run = commands.start("run", "simulated.yaml", "--run-dir", "run", PYTHONPATH=ROOT)
    there = started(pids, WORKERS * len(WAYS))
    until(lambda: summary(commands.cwd / "run").get("updates", 0) > 5, 120, "training")
    until(lambda: any((commands.cwd / "run" / "checkpoints").glob("*")), 60, "a checkpoint")
    run.kill()
    run.communicate(timeout=END_SECONDS)
    assert ended(there), there
    commands.forget_sockets()

    played = commands.run("eval", "run", "--episodes", "2", PYTHONPATH=ROOT)
    assert played.returncode == 0, played.stdout
    assert not [process for process in started(pids, 0) if process.is_running()]


def test_those_of_a_run_whose_processes_are_killed_together_and_of_one_that_stops(commands, pids):
    words = settings("workers.restart_budget=0")
    run = commands.start("run", "simulated.yaml", *words, "--run-dir", "run", PYTHONPATH=ROOT)
    there = started(pids, WORKERS * len(WAYS))
    for pid in commands.find("spawn_main") + commands.find("worker --config"):
        with contextlib.suppress(ProcessLookupError):  # it went with one of the others
            os.kill(pid, signal.SIGKILL)
    output, _ = run.communicate(timeout=END_SECONDS)
    assert run.returncode == 3, output
    assert ended(there, 0.1), there

    run = commands.start("run", "simulated.yaml", "--run-dir", "again", PYTHONPATH=ROOT)
    there = started(pids, WORKERS * len(WAYS))
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=END_SECONDS)
    assert ended(there, 0.1), there
