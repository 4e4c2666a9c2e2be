"""What an environment that hangs costs the workers beside it: nothing."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

import pytest

from pipeline.config.tree import SecuritySection
from pipeline.launch.status import ask
from tests.chaos.environment import FLAGS
from tests.runs import END_SECONDS, PATIENT, Stopwatch, settings, summary

pytestmark = pytest.mark.system

STEP_SECONDS = 0.15
"""Environments sleep: what a worker can make depends on little else of the machine."""
STEP_TIMEOUT_SECONDS = 24.0
WINDOW_SECONDS = 16.0
KEPT, KEPT_BUSY = 0.9, 0.5
"""Of what was possible; the second where others have the machine for all but a tenth of the time."""
WORKERS = {"worker-0", "worker-1", "worker-2"}


CONTROL, FREE = "control", "free"
"""Somebody who only sleeps; and the share of the time in which nobody waited for the machine."""


class Control:
    """Somebody who only sleeps, as often as an environment: what other load on the machine costs everybody."""

    def __init__(self):
        self.steps, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._ended.wait(STEP_SECONDS):
            self.steps += 1

    def close(self):
        self._ended.set()
        self._thread.join(10)


@pytest.fixture
def control():
    made = Control()
    yield made
    made.close()


class Taken:
    """Transitions that workers have taken, by their heartbeats, and the steps of the control."""

    def __init__(self, endpoint, until, control):
        self._endpoint, self._until, self._control = endpoint, until, control

    def workers(self):
        """What the broker says of each worker that has reported."""
        return [one for one in ask(self._endpoint, SecuritySection(), END_SECONDS)["workers"] if one["report"]]

    def now(self):
        """Worker -> transitions of its present run; and ``CONTROL``."""
        return {one["worker_id"]: one["report"]["taken"] for one in self.workers()} | {CONTROL: self._control.steps}

    def rates(self, seconds, over=lambda: True):
        """Worker -> transitions per second, over at least ``seconds`` and until ``over``; and ``FREE``."""
        looks, watch = [], Stopwatch()

        def look():
            looks.append((time.monotonic(), self.now()))
            return looks[-1][0] >= looks[0][0] + seconds and over()

        self._until(look, seconds + 60, "the end of the time over which rates are taken")
        (began, first), (ended, last) = looks[0], looks[-1]
        rates = {name: (last[name] - first[name]) / (ended - began) for name in first.keys() & last.keys()}
        return rates | {FREE: watch.seconds / watch.elapsed}


@pytest.mark.parametrize("fault", ["hang", "hang_gil"])
def test_other_workers_keep_their_rate_while_an_environment_hangs_and_is_made_anew(commands, until, control, fault):
    flags = commands.cwd / "flags"
    flags.mkdir()
    endpoint = f"ipc://{commands.cwd}/b"
    values = settings(
        "environment.id=tests.counter_env:Counter-v0", f"environment.kwargs={{step_seconds: {STEP_SECONDS}}}",
        "environment.wrappers=[tests.chaos.environment:Faulty]",
        f"environment.step_timeout_seconds={STEP_TIMEOUT_SECONDS}", f"workers.count={len(WORKERS)}", "workers.envs=4",
        f"broker.bind={endpoint}", "broker.placement=process", "broker.heartbeat_seconds=0.1", "broker.lease_seconds=5",
        "training.batch_size=32", "training.unroll_length=8", "store.backend=memory", "run.solved_return=null",
        "run.max_seconds=1000", PATIENT,
    )  # fmt: skip
    variables = {"PYTHONPATH": str(Path(__file__).parents[2]), FLAGS: str(flags)}
    run = commands.start("run", "cartpole_vtrace", *values, "--run-dir", "run", **variables)
    directory = commands.cwd / "run"
    until(lambda: summary(directory).get("updates", 0) > 0, 120, "training")
    taken = Taken(endpoint, until, control)
    until(lambda: {name for name, number in taken.now().items() if number > 20} >= WORKERS, 60, "three workers")
    before = taken.rates(WINDOW_SECONDS)

    (flags / fault).touch()
    until(lambda: not any(flags.iterdir()), 10, "the fault")
    hung, hung_since = Stopwatch(), time.monotonic()
    during = taken.rates(WINDOW_SECONDS)
    assert time.monotonic() < hung_since + STEP_TIMEOUT_SECONDS, "all of that was during the hang"
    # What the sick one has taken is told with its next heartbeat.
    others = {name for name in WORKERS if during.get(name, 0.0) > 0.2 * before[name]}
    (sick,) = WORKERS - others
    log = directory / "logs" / f"{sick}.log"
    while_made_anew = taken.rates(0, lambda: log.read_text().count("admitted as worker") == 2)
    held_up = hung.held_up
    for when, rate in (("the hang", during), ("the new start", while_made_anew)):
        least = KEPT if min(rate[FREE], before[FREE]) > 0.1 else KEPT_BUSY
        possible = min(1.0, rate[CONTROL] / before[CONTROL]) * min(1.0, rate[FREE] / before[FREE])
        kept = {name: round(rate[name] / before[name], 3) for name in sorted(others)}
        print(f"{when}: {kept} of the rates before; of the machine: {possible:.3f}")
        # The start of an interpreter needs a processor; a hang needs none.
        assert min(kept.values()) >= least * possible, kept
    until(lambda: taken.now().get(sick, 0) > 10, 30, "the sick one steps again")
    (faults,) = [one["report"]["faults"] for one in taken.workers() if one["worker_id"] == sick]
    assert faults == {"env_hangs": 1}

    text = log.read_text()
    told = r"hung for ([\d.]+) s in step of environment \d+ \(.*\), step \d+, seed \d+, last actions \["
    seconds = re.findall(told, text)[0]  # said with the stack, and again with the new start
    assert STEP_TIMEOUT_SECONDS <= float(seconds) <= STEP_TIMEOUT_SECONDS + 1 + held_up
    assert "its stack:" in text and "in misbehave" in text
    assert all("starting anew" not in (log.parent / f"{name}.log").read_text() for name in others)
    run.terminate()
    output, _ = run.communicate(timeout=END_SECONDS)
    assert run.returncode == 143, output
    assert summary(directory)["ledger"]["error"] == 0, os.linesep.join((output, text))
