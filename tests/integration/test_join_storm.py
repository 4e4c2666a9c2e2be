"""Five hundred workers that join a broker process at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from pipeline.config.tree import Config
from pipeline.protocol import Hello
from pipeline.requests import Joined, Left, Reply, StepRequest
from pipeline.rows import FIRST, ROW
from pipeline.sources import BrokerSource
from pipeline.spaces import Spaces
from tests.integration.peers import PATIENCE, until
from tests.integration.test_broker import make_config, start_process
from tests.runs import Stopwatch

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
CLIENTS, STEPS, BATCH = 500, 10, 32
JOIN_SECONDS = 30.0


class Learner:
    """Admits everybody, always takes the first action, and counts valid transitions as the assembler does."""

    def __init__(self, source: BrokerSource) -> None:
        self.source = source
        self.hellos: dict[int, Hello] = {}
        self.joins: Counter[int] = Counter()
        self.left: dict[int, Left] = {}
        self.transitions: Counter[int] = Counter()
        self.last: dict[tuple[int, int], int] = {}
        self.errors: list[str] = []

    def advance(self) -> None:
        requests, events = self.source.poll(BATCH, 0.01)
        for event in events:
            if isinstance(event, Joined):
                self.joins[event.run] += event.run not in self.hellos
                self.hellos[event.run] = event.hello
                self.source.admit(event.worker, event.run, event.worker, False)
            elif isinstance(event, Left):
                self.left[event.run] = event
        self.source.reply([self._answer(request) for request in requests])

    def _answer(self, request: StepRequest) -> Reply:
        key = (request.run, request.group)
        if request.sequence > self.last.get(key, -1):
            if request.sequence != self.last.get(key, -1) + 1:
                self.errors.append(f"{request.sequence} after {self.last.get(key)}")
            self.last[key] = request.sequence
            rows = np.frombuffer(request.buffers[0], ROW)
            self.transitions[request.run] += int(np.count_nonzero(rows["flags"] & FIRST == 0))
        action = Spaces.from_wire(self.hellos[request.run].spaces).action
        return Reply(*request[:4], np.zeros((request.replies, *action.shape), action.numpy_dtype).tobytes())


def play(config: Config, learner: Learner, clients: int) -> dict[str, Any]:
    """A fleet from its start to its end; what it says."""
    settings = [f"broker.bind={config.broker.bind}", "workers.envs=2", "workers.groups=2"]
    command = [sys.executable, "-m", "benchmarks.fleet", "--config", "cartpole_vtrace", "--clients", str(clients)]
    command += ["--steps", str(STEPS), "--deadline", "240", *(word for value in settings for word in ("--set", value))]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as fleet:
        try:
            until(lambda: fleet.poll() is not None, learner.advance, 260.0)
            until(lambda: len(learner.left) == clients, learner.advance)
        finally:
            fleet.kill()
        assert fleet.stdout is not None
        line: dict[str, Any] = json.loads(fleet.stdout.read().splitlines()[-1])
        assert fleet.returncode == 0, line
    return line


def test_five_hundred_workers_join_at_once(tmp_path: Path) -> None:
    config = make_config(tmp_path, lease_seconds=60.0, heartbeat_seconds=1.0)
    broker = start_process(config)
    context = zmq.Context()
    learner = Learner(BrokerSource(config, context, "learner", 2 * CLIENTS))
    watch = Stopwatch()
    try:
        line = play(config, learner, CLIENTS)
        held_up = watch.held_up
    finally:
        learner.source.close()
        context.destroy(linger=0)
        broker.terminate()
        broker.communicate(timeout=PATIENCE)
    print(line)
    assert line["joined"] == line["together"] == line["left"] == CLIENTS, "an index for each"
    assert line["join_seconds"] - held_up < JOIN_SECONDS, watch
    assert line["failures"] == {} and line["replies"] >= 2 * STEPS * CLIENTS
    assert not learner.errors
    assert set(learner.joins.values()) == {1} and len({hello.worker_id for hello in learner.hellos.values()}) == CLIENTS
    for run, left in learner.left.items():
        assert left.reason == "bye" and left.report is not None
        assert left.report.taken == learner.transitions[run], "what it took is what was delivered"
    assert sum(learner.transitions.values()) == line["steps"]
