"""A worker as a process of its own: signals, and what outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from pipeline.protocol import Kind
from tests.integration.peers import PATIENCE
from tests.integration.supervised import config_of
from tests.runs import Stopwatch

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]

WORKER = """
import sys
from pipeline.config.tree import Config
from pipeline.stopping import StopToken, install_signal_handlers
from workers.supervisor import supervise

if __name__ == "__main__":
    stop = StopToken()
    install_signal_handlers(stop)
    sys.exit(supervise(Config.model_validate_json(sys.argv[1]), stop))
"""


@pytest.fixture
def process(broker, tmp_path):
    """A worker as a process of its own."""
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    text = config_of(broker).model_dump_json(by_alias=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, str(script), text], cwd=ROOT, env=environment)
    yield process
    process.kill()
    process.wait(PATIENCE)


def child_of(process):
    """The process that steps environments: the child of the one that keeps it."""
    return next(c for c in psutil.Process(process.pid).children(recursive=True) if c.parent().ppid() == process.pid)


def test_sigterm_drains_a_worker_process(broker, process):
    broker.until(lambda: broker.transitions > 200)
    child = child_of(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert not child.is_running()
    (run,) = broker.runs.values()
    assert next(iter(broker.byes.values())).taken == run.transitions


def test_the_second_signal_ends_it_at_once(broker, process):
    broker.until(lambda: broker.transitions > 200)
    broker.mute.update(Kind)
    child = child_of(process)
    process.send_signal(signal.SIGTERM)
    watch = Stopwatch()
    while process.poll() is None and watch.elapsed < PATIENCE:
        process.send_signal(signal.SIGTERM)
        broker._stop.wait(0.05)
    assert process.wait(1) == 128 + signal.SIGTERM and watch.seconds < 3, watch
    assert psutil.wait_procs([child], timeout=PATIENCE)[1] == []


def test_an_interrupt_of_the_whole_process_group_drains_too(broker, process):
    broker.until(lambda: broker.transitions > 200)
    child_of(process).send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0
    assert next(iter(broker.byes.values())).taken == broker.transitions


def test_a_killed_supervisor_leaves_no_child(broker, process):
    broker.until(lambda: broker.transitions > 200)
    child = child_of(process)
    process.kill()
    assert psutil.wait_procs([child], timeout=PATIENCE)[1] == []
