"""Replay's limiter through the whole pipeline: who waits, that `seedmq status` says so, and `seedmq adjust`."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.runs import END_SECONDS, PATIENT, free_ports, settings, summary

pytestmark = pytest.mark.system

PRESET = "cartpole_r2d2"
BATCH, MIN_SIZE, TOLERANCE = 16, 20, 32
KEY = "replay.samples_per_insert"
SMALL = [
    "run.max_seconds=2000",
    PATIENT,
    "run.log_interval_seconds=0.2",
    "evaluation.workers=0",
    "evaluation.solved_return=null",
    "workers.envs=8",
    "broker.lease_seconds=2",
    "broker.heartbeat_seconds=0.5",
    "checkpoint.interval_seconds=1",
    "network.hidden=[16]",
    "network.lstm=16",
    "r2d2.dueling_hidden=16",
    f"training.batch_size={BATCH}",
    f"replay.min_size={MIN_SIZE}",
    f"replay.tolerance={TOLERANCE}",
]
START_SECONDS = 90.0


class Run:
    """``seedmq run`` and workers that are no part of it, so that they may be gone for good."""

    def __init__(self, commands, until, *values):
        (port,) = free_ports(1)
        self.commands, self.until, self.directory = commands, until, commands.cwd / "run"
        self.settings = settings(*SMALL, f"broker.bind=tcp://127.0.0.1:{port}", *values)
        self.process = commands.start("run", PRESET, *self.settings, "--run-dir", "run")

    @property
    def summary(self):
        assert self.process.poll() is None, self.process.communicate()[0]
        return summary(self.directory)

    @property
    def inserted(self):
        return self.summary.get("replay", {}).get("inserted_unrolls", 0)

    @property
    def why(self):
        return (self.summary.get("bottleneck") or {}).get("why", "")

    def status(self, *options):
        """Once there is a broker that answers in time."""
        found = [None]

        def answered():
            assert self.process.poll() is None, self.process.communicate()[0]
            found[0] = self.commands.run("status", "run", *options)
            return found[0].returncode == 0

        self.until(answered, START_SECONDS, "an answer to status")
        return json.loads(found[0].stdout) if options else found[0].stdout

    def adjust(self, value):
        result = self.commands.run("adjust", "run", f"{KEY}={value}")
        assert result.returncode == 0, result.stdout
        assert "taken" in result.stdout
        found = self.summary
        assert found["replay"]["samples_per_insert_target"] == found["live"][KEY] == value

    def work_and_be_killed(self, unrolls):
        """A worker that inserts so many unrolls, and is then gone for good."""
        worker = self.commands.start("worker", "--config", PRESET, *self.settings)
        before = self.inserted
        self.until(lambda: self.inserted >= before + unrolls, START_SECONDS, f"{unrolls} unrolls more than {before}")
        os.kill(worker.pid, signal.SIGKILL)
        worker.communicate()

    def stopped(self):
        """The replay's figures once no worker is left, its last unrolls are inserted, and training is at its bound."""
        found = {}

        def at_the_bound():
            status = self.status("--json")
            learner, before = status["learner"], found.get("replay")
            replay = found["replay"] = learner.get("replay", {})
            return (
                replay == before
                and not status["workers"]
                and not any(learner["ledger"]["waiting"].values())
                and "training waits for inserts: " in (learner.get("bottleneck") or {}).get("why", "")
                and learner["queues"] == {"writer": 0, "prefetched_batches": 0}
                and learner["updates"] * BATCH == replay["sampled_unrolls"]
            )

        self.until(at_the_bound, 60, "training waits for inserts")
        return found["replay"]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=END_SECONDS)
        assert self.process.returncode == 143, output
        assert json.loads((self.directory / "summary.json").read_text())["ledger"]["error"] == 0
        self.commands.forget_sockets()  # of the workers that were killed


def test_without_workers_training_stops_at_the_bound_and_a_new_one_is_kept(commands, until):
    run = Run(commands, until, "workers.count=0", f"{KEY}=2")
    run.work_and_be_killed(MIN_SIZE + 30)
    first = run.stopped()
    credit = 2 * (first["inserted_unrolls"] - MIN_SIZE) - first["sampled_unrolls"]
    assert -TOLERANCE <= credit < BATCH - TOLERANCE, first
    assert first["replay_ratio"] == pytest.approx(first["samples_per_insert"], rel=0.25)
    said = run.status()
    assert "the learner waits for workers: none is connected" in said
    assert f"training waits for inserts: {first['samples_per_insert']:.2f} samples per insert of 2.00" in said, said

    run.adjust(5)
    run.until(lambda: "of 5.00 samples per insert" in run.why, 10, "the new bound is named")
    assert run.stopped()["sampled_unrolls"] == first["sampled_unrolls"], "it counts for what is inserted from now on"
    run.work_and_be_killed(40)
    second = run.stopped()
    sampled, inserted = (second[f"{what}_unrolls"] - first[f"{what}_unrolls"] for what in ("sampled", "inserted"))
    assert abs(sampled - 5 * inserted) < BATCH, (first, second)
    assert second["samples_per_insert"] == pytest.approx(sampled / inserted)
    assert second["replay_ratio"] == pytest.approx(second["samples_per_insert"], rel=0.25)

    # A checkpoint from before the bound would count batches as sampled that the killed learner never trained.
    until(lambda: run.summary["updates_since_checkpoint"] == 0, 30, "a checkpoint of what stands at the bound")
    (learner,) = commands.find("learner --config")
    os.kill(learner, signal.SIGKILL)
    log, line = run.directory / "logs/learner.log", f"{KEY}: 2.0 -> 5.0 (live.yaml)"
    until(lambda: log.read_text().count(line) == 2, START_SECONDS, "the learner that resumes takes it too")
    run.work_and_be_killed(20)
    assert run.stopped()["samples_per_insert_target"] == 5
    run.end()


def test_environments_wait_for_samples_until_fewer_are_wanted(commands, until):
    """In the learner's own memory; training is slow for how often each unroll is to be sampled."""
    run = Run(commands, until, "store.backend=memory", "workers.count=1", f"{KEY}=500")
    words = "workers are held back: inserting waits for samples: "
    until(lambda: words in run.why, START_SECONDS, "inserts wait")
    until(lambda: words in run.status(), 30, "status says so")
    until(lambda: "bottleneck: training, for " in run.status(), 30, "and what it is that they wait for")
    until(lambda: "samples per insert of 500.00" in run.status("--json")["learners"][0]["held_back"], 30, "by how much")
    held = run.inserted
    assert held <= MIN_SIZE + 2 * 64 + run.summary["updates"] * BATCH / 500, "at most a put each beyond both bounds"
    run.adjust(0.5)
    until(lambda: run.inserted > held + 200, 60, "environments go on")

    (run.directory / "live.yaml").write_text("replay: [")
    log = run.directory / "logs/learner.log"
    until(lambda: "live.yaml: line 1: " in log.read_text(), 10, "a damaged file is a warning")
    refused = commands.run("adjust", "run", f"{KEY}=1")
    assert refused.returncode == 2 and refused.stdout.count("\n") == 1, refused.stdout
    updates = run.summary["updates"]
    until(lambda: run.summary["updates"] > updates + 3, 60, "training goes on")
    assert run.summary["live"] == {KEY: 0.5}
    run.end()
