"""Programs that an environment has started end with it, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pipeline.config.load import dump
from tests.integration.peers import PATIENCE
from tests.integration.supervised import Running, config_of
from tests.runs import Stopwatch
from tests.simulators import WAYS, ended, started

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


def simulated(where, folder, **kwargs):
    """Of a worker with two environments, each in a group of its own."""
    config = config_of(where, {"pids": str(folder), **kwargs}, envs=2, limits={"step_timeout_seconds": 1.0})
    section = config.environment.model_copy(update={"id": "tests.simulators:Simulated-v0"})
    return config.model_copy(update={"environment": section})


@pytest.mark.parametrize("fault", ["exit", "hang", "hang_gil", "segfault"])
def test_they_are_gone_before_environments_start_anew_and_when_the_worker_ends(broker, tmp_path, fault):
    folder = tmp_path / "pids"
    folder.mkdir()
    kwargs = {"fault": fault, "episode": 3, "once": str(tmp_path / "once")}
    with Running(simulated(broker, folder, **kwargs)) as worker:
        first = started(folder, 2 * len(WAYS))
        broker.until(lambda: len(broker.hellos) == 2)
        assert not any(process.is_running() for process in first), "gone before the second HELLO"
        second = started(folder, 2 * len(WAYS))
        worker.stop.stop("test")
        assert worker.ended() == 0
    assert not any(process.is_running() for process in second), "gone with the worker"


@pytest.fixture
def process(broker, tmp_path):
    """``seedmq worker``, which has started."""
    (tmp_path / "pids").mkdir()
    (tmp_path / "worker.yaml").write_text(dump(simulated(broker, tmp_path / "pids")))
    command = [sys.executable, "-m", "pipeline.cli", "worker", "--config", str(tmp_path / "worker.yaml")]
    process = subprocess.Popen(command, cwd=ROOT)
    broker.until(lambda: broker.transitions > 20)
    yield process
    process.kill()
    process.wait(PATIENCE)


def test_they_end_with_a_worker_that_is_killed(process, tmp_path):
    there = started(tmp_path / "pids", 2 * len(WAYS))
    process.kill()
    assert ended(there)


@pytest.mark.parametrize("which", ["environments", "keeper", "both"])
def test_they_end_where_the_process_with_the_environments_or_its_keeper_is_killed(broker, process, tmp_path, which):
    there = started(tmp_path / "pids", 2 * len(WAYS))
    (keeper,) = [one for one in psutil.Process(process.pid).children() if one.children()]
    (environments,) = [one for one in keeper.children() if "spawn_main" in " ".join(one.cmdline())]
    chosen = {"environments": [environments], "keeper": [keeper], "both": [keeper, environments]}[which]
    for one in chosen:
        one.kill()
    broker.until(lambda: len(broker.hellos) == 2)
    assert ended(there, 0.1), "gone before the second HELLO"
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM, "drained"


EVALUATING = """
import sys, time
from pipeline import reaping
from tests.simulators import Simulated

def work():
    Simulated(sys.argv[1])
    print("made", flush=True)
    sys.stdin.readline()
    return 7

sys.exit(reaping.run_kept(work))
"""


@pytest.fixture
def kept(tmp_path):
    """A command that makes an environment itself, as ``seedmq eval`` does, and has made it."""
    (tmp_path / "pids").mkdir()
    command = [sys.executable, "-c", EVALUATING, str(tmp_path / "pids")]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"made\n"
    yield process
    process.kill()
    process.wait(PATIENCE)
    process.stdin.close()
    process.stdout.close()


def test_a_command_that_makes_environments_leaves_nothing_and_ends_as_its_work_did(kept, tmp_path):
    there = started(tmp_path / "pids", len(WAYS))
    kept.stdin.write(b"\n")
    kept.stdin.flush()
    assert kept.wait(PATIENCE) == 7
    assert ended(there, 0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_makes_environments_may_be_ended(kept, tmp_path, number):
    there = started(tmp_path / "pids", len(WAYS))
    watch = Stopwatch()
    os.kill(kept.pid, number)
    assert kept.wait(PATIENCE) == (-number if number == signal.SIGKILL else 128 + number)
    assert watch.seconds < 5, watch
    assert ended(there)
