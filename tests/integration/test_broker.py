"""The broker process: restarts under load, takeovers under load, signals, silence."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zmq

from broker.service import serve
from pipeline.config.tree import BrokerSection, Config, EnvironmentSection, LearnerSection
from pipeline.protocol import Kind
from pipeline.requests import Joined, Left
from pipeline.sources import BrokerSource
from tests.integration.peers import PATIENCE, EchoLearner, FakeWorker, finish, in_thread, pause, until
from tests.runs import Stopwatch

pytestmark = pytest.mark.integration

SCRIPT = """
import logging, sys
from broker.service import serve
from pipeline.config.tree import Config
from pipeline.stopping import StopToken, install_signal_handlers
logging.basicConfig(level=logging.INFO)
stop = StopToken()
install_signal_handlers(stop)
sys.exit(serve(Config.model_validate_json(sys.argv[1]), stop))
"""


def make_config(folder: Path, **broker: Any) -> Config:
    endpoints = {"bind": f"ipc://{folder}/w", "learner_bind": f"ipc://{folder}/l", "placement": "process"}
    return Config(
        environment=EnvironmentSection(id="none"),
        broker=BrokerSection(**{"heartbeat_seconds": 0.2, "lease_seconds": 3.0, **endpoints, **broker}),
        learner=LearnerSection(inference_batch=32),
    )


def start_broker(config: Config) -> Any:
    return in_thread("broker", lambda stop: _serve(config, stop))


def _serve(config: Config, stop: Any) -> None:
    assert serve(config, stop) == 0


def start_process(config: Config) -> subprocess.Popen[str]:
    """A broker process that has said that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, config.model_dump_json(by_alias=True)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "broker ready" in line and config.broker.bind in line, line
    return process


def advance(learner: EchoLearner, workers: list[FakeWorker]) -> None:
    for worker in workers:
        worker.advance()
    learner.advance()


def test_five_kills_under_load_each_resumed_and_nothing_is_lost_or_answered_twice(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    context = zmq.Context()
    process = start_process(config)
    learner = EchoLearner(BrokerSource(config, context, "learner", 64))
    workers = [FakeWorker(context, config, f"w{i}", i + 1, [2, 1], steps=10**9) for i in range(4)]
    longest = 0.0
    for _ in range(5):
        marks = [min(worker.sequence.values()) + 20 for worker in workers]
        until(
            lambda: all(min(w.sequence.values()) >= m for w, m in zip(workers, marks, strict=True)),  # noqa: B023
            lambda: advance(learner, workers),
        )
        process.kill()
        process.communicate()
        process = start_process(config)
        marks, watch = [max(worker.sequence.values()) + 3 for worker in workers], Stopwatch()
        until(
            lambda: all(min(w.sequence.values()) >= m for w, m in zip(workers, marks, strict=True)),  # noqa: B023
            lambda: advance(learner, workers),
        )
        longest = max(longest, watch.seconds)
    assert longest < 10.0
    for worker in workers:
        assert worker.wrong == [] and not worker.refused
        assert all(answers == list(range(len(answers))) for answers in worker.answers.values())
    assert sorted(worker.index for worker in workers) == [0, 1, 2, 3]
    assert all(worker.seed == worker.index for worker in workers), "as the learner said to the first broker"
    assert [x for x in learner.events if isinstance(x, Left)] == []
    assert len([x for x in learner.events if isinstance(x, Joined)]) == 4, "what was admitted is not asked again"
    process.terminate()
    process.communicate(timeout=PATIENCE)
    for worker in workers:
        worker.close()
    learner.source.close()
    context.destroy(linger=0)


def test_a_worker_that_dies_while_the_broker_is_away_is_reported_as_left(tmp_path: Path) -> None:
    config = make_config(tmp_path, lease_seconds=1.0)
    context = zmq.Context()
    broker = start_broker(config)
    learner = EchoLearner(BrokerSource(config, context, "learner", 64))
    workers = [FakeWorker(context, config, f"w{i}", i + 1, [1], steps=5) for i in range(2)]
    until(lambda: all(worker.done for worker in workers), lambda: advance(learner, workers))
    finish(*broker)
    workers.pop().close()
    broker = start_broker(config)
    until(lambda: any(isinstance(x, Left) for x in learner.events), lambda: advance(learner, workers))
    assert [(x.run, x.reason) for x in learner.events if isinstance(x, Left)] == [(2, "lease")]
    workers[0].close()
    learner.source.close()
    finish(*broker)
    context.destroy(linger=0)


def test_twenty_restarts_of_one_worker_under_load_are_served_twenty_times(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    context = zmq.Context()
    broker = start_broker(config)
    learner = EchoLearner(BrokerSource(config, context, "learner", 64))
    other = FakeWorker(context, config, "other", 1000, [2, 2], steps=10**9)
    old: list[FakeWorker] = []
    for run in range(1, 21):
        worker = FakeWorker(context, config, "same", run, [1], steps=3)
        until(lambda: worker.done, lambda: advance(learner, [other, worker]))  # noqa: B023
        old.append(worker)
    until(
        lambda: all(any(x.kind == Kind.REFUSED for x in worker.said) for worker in old[:-1]),
        lambda: [worker.advance() for worker in old] and pause(),  # type: ignore[func-returns-value, arg-type, return-value]
    )
    assert not old[-1].refused and {worker.index for worker in old} == {old[-1].index}
    assert other.wrong == [] and min(other.sequence.values()) > 20
    for worker in [*old, other]:
        worker.close()
    learner.source.close()
    finish(*broker)
    context.destroy(linger=0)


def test_workers_are_told_when_no_learner_is_there_and_when_it_is_back(tmp_path: Path) -> None:
    config = make_config(tmp_path, lease_seconds=1.0)
    context = zmq.Context()
    broker = start_broker(config)
    learner = EchoLearner(BrokerSource(config, context, "learner", 64))
    worker = FakeWorker(context, config, "w", 1, [1], steps=3)
    until(lambda: worker.done, lambda: advance(learner, [worker]))
    learner.source.close()
    worker.said.clear()
    until(lambda: any(x.fields[1] == "no_learner" for x in worker.said if x.kind == Kind.ALIVE), lambda: _turn(worker))
    learner = EchoLearner(BrokerSource(config, context, "learner", 64))
    worker.steps = 6
    until(lambda: worker.done, lambda: advance(learner, [worker]))
    assert worker.wrong == []
    worker.close()
    learner.source.close()
    finish(*broker)
    context.destroy(linger=0)


def _turn(worker: FakeWorker) -> None:
    worker.advance()
    pause()


@pytest.mark.parametrize("peers", [False, True])
def test_a_signal_ends_it_and_frees_the_port(tmp_path: Path, peers: bool) -> None:
    config = make_config(tmp_path)
    context = zmq.Context()
    process = start_process(config)
    learner = EchoLearner(BrokerSource(config, context, "learner", 64)) if peers else None
    workers = [FakeWorker(context, config, "w", 1, [1], steps=3)] if peers else []
    if learner is not None:
        until(lambda: workers[0].done, lambda: advance(learner, workers))
    watch = Stopwatch()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE)
    assert watch.seconds < 5.0 and process.returncode == 128 + signal.SIGTERM, errors
    again = start_process(config)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=PATIENCE)
    assert again.returncode == 128 + signal.SIGINT
    for worker in workers:
        worker.close()
    if learner is not None:
        learner.source.close()
    context.destroy(linger=0)


def test_two_learners_each_serve_their_own_workers(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    context = zmq.Context()
    broker = start_broker(config)
    learners = [EchoLearner(BrokerSource(config, context, f"learner{i}", 4)) for i in range(2)]
    workers = [FakeWorker(context, config, f"w{i}", i + 1, [1, 1], steps=20) for i in range(4)]

    def step() -> None:
        for worker in workers:
            worker.advance()
        for learner in learners:
            learner.advance()

    until(lambda: all(worker.done for worker in workers), step)
    assert [learner.source.workers() for learner in learners] == [2, 2]
    assert all(worker.wrong == [] for worker in workers) and [x.errors for x in learners] == [[], []]
    for worker in workers:
        worker.close()
    for learner in learners:
        learner.source.close()
    finish(*broker)
    context.destroy(linger=0)
