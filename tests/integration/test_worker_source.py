"""A supervised worker against the real router: the inference loop's request source, with a policy of zeros."""

from __future__ import annotations

import threading
import time

import numpy as np
import psutil
import pytest

from learner.accounts import Arrived, settle
from pipeline.config.tree import Config
from pipeline.protocol import Report
from pipeline.requests import Joined, Left, Reply, Reported
from pipeline.rows import ROW
from pipeline.sources import EmbeddedSource
from pipeline.stopping import StopToken
from tests.integration.supervised import Running
from workers.supervisor import supervise

pytestmark = pytest.mark.integration


class Policy:
    """Serves an ``EmbeddedSource`` and counts what arrives."""

    def __init__(self, config):
        self.source = EmbeddedSource(config, None, "learner", slots=64)
        self.delivered: dict[int, dict[tuple[int, int], int]] = {}
        self.left: dict[int, tuple[str, Report | None]] = {}
        self.reported: dict[int, Report] = {}
        self.sequences: dict[tuple[int, int], int] = {}
        self.joins: list[Joined] = []

    def serve(self, until, seconds=120.0):
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, "not reached in time"
            requests, events = self.source.poll(64, 0.05)
            for event in events:
                self._event(event)
            self.source.reply([self._answer(request) for request in requests])

    def _event(self, event):
        if isinstance(event, Joined):
            self.joins.append(event)
            self.delivered.setdefault(event.run, {})
            self.source.admit(event.worker, event.run, event.worker, False)
        elif isinstance(event, Left):
            self.left[event.run] = (event.reason, event.report)
        elif isinstance(event, Reported):
            self.reported[event.run] = event.report

    def _answer(self, request):
        records = np.frombuffer(request.buffers[0], ROW)
        last = self.sequences.get((request.run, request.group))
        if request.sequence != last:
            assert last is None or request.sequence == last + 1
            self.sequences[request.run, request.group] = request.sequence
            for record in records:
                self.delivered[request.run][request.group, int(record["environment"])] = int(record["index"])
        buffer = np.zeros(request.replies, np.int64).tobytes()
        return Reply(request.worker, request.run, request.group, request.sequence, buffer)

    @property
    def transitions(self):
        return sum(sum(run.values()) for run in self.delivered.values())


@pytest.fixture
def config(tmp_path):
    return Config.model_validate(
        {
            "environment": {"id": "tests.counter_env:Counter-v0"},
            "workers": {"envs": 4, "groups": 2, "id": "w"},
            "broker": {"bind": f"ipc://{tmp_path}/b", "heartbeat_seconds": 0.2},
            "run": {"drain_timeout_seconds": 60.0},
        }
    )


@pytest.fixture
def policy(config):
    policy = Policy(config)
    yield policy
    policy.source.close()


@pytest.fixture
def worker(config):
    stop, codes = StopToken(), []
    thread = threading.Thread(target=lambda: codes.append(supervise(config, stop)), daemon=True)
    thread.start()
    yield stop, codes
    stop.stop("test")
    thread.join(120)
    assert not thread.is_alive()


def found(policy, run, report):
    """What the learner would book of a run by its last word."""
    sent = [sum(n for (group, _), n in policy.delivered[run].items() if group == g) for g in range(len(report.groups))]
    return settle(report, [*(Arrived(number, False) for number in sent), Arrived(0, False)], final=True)


def stepped(tally, join):
    """Steps that came back in the process of a run's environments, by their own count."""
    return tally.with_suffix(f".{join.hello.info['pid']}").stat().st_size


def tallied(config, monkeypatch, tmp_path, fault="", **workers):
    monkeypatch.setenv("TALLY", str(tmp_path / "tally"))
    monkeypatch.setenv("TALLY_FAULT", fault)
    limits = {"wrappers": ["tests.counter_env:Tallied"], "step_timeout_seconds": 5.0}
    return config.model_copy(
        update={
            "environment": config.environment.model_copy(update=limits),
            "workers": config.workers.model_copy(update=workers),
        }
    )


def finish(policy, running):
    """Stops a worker, and serves it until it has said all."""
    running.stop.stop("test")
    policy.serve(lambda: running.code is not None)


def closes(policy, run):
    """What the run took is what was delivered: nothing is under way after a drain."""
    reason, report = policy.left[run]
    assert reason == "bye" and report is not None
    return report.taken == sum(policy.delivered[run].values())


def test_a_dismissed_worker_delivers_all_and_says_bye(policy, worker):
    policy.serve(lambda: policy.transitions > 500)
    policy.source.dismiss("solved")
    policy.serve(lambda: worker[1] == [0])
    (run,) = policy.delivered
    assert closes(policy, run)


def test_a_stopped_worker_delivers_all_and_says_bye(policy, worker):
    policy.serve(lambda: policy.transitions > 500)
    worker[0].stop("test")
    policy.serve(lambda: worker[1] == [0])
    (run,) = policy.delivered
    assert closes(policy, run)


def test_a_killed_child_is_replaced_and_its_last_words_are_told(policy, worker):
    policy.serve(lambda: policy.transitions > 500)
    children = [c for c in psutil.Process().children() if "spawn_main" in " ".join(c.cmdline())]
    children[0].kill()
    policy.serve(lambda: len(policy.delivered) == 2 and policy.transitions > 1000)
    first, second = policy.joins[0], policy.joins[-1]
    assert first.worker == second.worker
    report = Report.from_wire(second.hello.reports[str(first.run)])
    under_way = report.taken - sum(policy.delivered[first.run].values())
    assert 0 <= under_way <= 4 and "SIGKILL" in report.message
    assert policy.left[first.run][0] == "replaced"


@pytest.mark.parametrize("fault", ["exit", "hang"])
def test_the_others_of_a_group_in_which_one_does_not_come_back_are_counted(
    config, policy, monkeypatch, tmp_path, fault
):
    """Of three environments the last ends or hangs their process in a step that the other two have made."""
    config = tallied(config, monkeypatch, tmp_path, f"{fault}:101", envs=3, groups=1)
    with Running(config) as worker:
        policy.serve(lambda: len(policy.delivered) == 2 and policy.transitions > 200)
        finish(policy, worker)
        first, second = policy.joins[0], policy.joins[-1]
    report = Report.from_wire(second.hello.reports[str(first.run)])
    assert (report.taken, report.unsent) == (stepped(tmp_path / "tally", first), 2) == (101, 2)
    settled = found(policy, first.run, report)
    assert (settled.undelivered, settled.missing, settled.surplus) == (2, 0, 0)


def test_the_last_word_of_a_superseded_worker_counts_what_it_stepped_after_that(config, policy, monkeypatch, tmp_path):
    """It steps on until it hears of it; what its environments count is what its supervisor says in the end."""
    config = tallied(config, monkeypatch, tmp_path)
    with Running(config) as old:
        policy.serve(lambda: policy.transitions > 100)
        (run,) = policy.delivered
        with Running(config) as new:
            policy.serve(lambda: policy.left.get(run, ("",))[0] == "bye" and old.code is not None)
            policy.serve(lambda: len(policy.delivered) == 2)
            finish(policy, new)
    report = policy.left[run][1]
    assert report.taken == stepped(tmp_path / "tally", policy.joins[0])
    settled = found(policy, run, report)
    assert settled.undelivered <= 4 and (settled.missing, settled.surplus) == (0, 0)


def test_a_learner_that_is_away_is_waited_for_and_nothing_is_lost(config, worker):
    policy = Policy(config)
    try:
        policy.serve(lambda: policy.transitions > 300)
        before = policy.delivered
        policy.source.close()
        policy = Policy(config)
        policy.serve(lambda: policy.transitions > 600)
        assert list(policy.delivered) == list(before)
        worker[0].stop("test")
        policy.serve(lambda: worker[1] == [0])
        (run,) = policy.delivered
        assert closes(policy, run)
    finally:
        policy.source.close()
