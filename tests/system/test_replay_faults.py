"""Learner and Redis die while training goes on from a replay; two learners want one store. Through the whole pipeline.

The store is a server of the test's own, so that it outlives the run, and the test may look into it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest
import redis

from pipeline.store.embedded import EmbeddedServer
from pipeline.store.redis_client import RedisServer
from pipeline.store.redis_replay import RedisReplay
from tests.integration.servers import kill, wait_until_written
from tests.runs import END_SECONDS, PATIENT, Stopwatch, settings, summary

pytestmark = pytest.mark.system

R2D2, VTRACE = "cartpole_r2d2", "cartpole_vtrace"
CAPACITY, FILLED, MIN_SIZE = 2000, 200, 40
START_SECONDS = 120.0
RECOVERY_SECONDS = 30.0
LEASE_SECONDS = 10
SMALL = [
    "workers.envs=8",
    "run.max_seconds=2000",
    PATIENT,
    "run.log_interval_seconds=0.2",
    "run.solved_return=null",
    "checkpoint.interval_seconds=1",
    "training.batch_size=16",
    f"store.lease_seconds={LEASE_SECONDS}",
]
REPLAY = [
    "evaluation.workers=0",
    "evaluation.solved_return=null",
    "network.hidden=[16]",
    "network.lstm=16",
    "r2d2.dueling_hidden=16",
    "replay.samples_per_insert=1",
    f"replay.min_size={MIN_SIZE}",
    f"replay.capacity={CAPACITY}",
]


class Run:
    """``seedmq run`` on the test's store, and what the test sees of it."""

    def __init__(self, commands, until, server, preset=R2D2, *options, name="run"):
        self.commands, self.until, self.directory = commands, until, commands.cwd / name
        values = [*SMALL, *(REPLAY if preset == R2D2 else []), f"store.url={server.url}"]
        arguments = settings(*values)
        self.process = commands.start("run", preset, *arguments, "--run-dir", name, *options)

    @property
    def summary(self):
        assert self.process.poll() is None, self.process.communicate()[0]
        return summary(self.directory)

    @property
    def updates(self):
        return self.summary.get("updates", 0)

    @property
    def unrolls(self):
        """In the learner's index."""
        return self.summary.get("replay", {}).get("unrolls", 0)

    @property
    def log(self):
        path = self.directory / "logs/learner.log"
        return path.read_text() if path.exists() else ""

    @property
    def learner(self):
        (pid,) = [
            pid for pid in self.commands.find("learner --config") if pid in self.commands.find(self.directory.name)
        ]
        return pid

    def trains_on(self, updates, seconds=START_SECONDS):
        before = self.updates
        self.until(lambda: self.updates >= before + updates, seconds, f"{updates} updates more than {before}")

    def saves(self, number):
        """So many checkpoints more."""
        folder = self.directory / "checkpoints"
        newest = max(folder.glob("0*"))
        for _ in range(number):
            self.until(lambda old=newest: max(folder.glob("0*")) > old, 30, f"a checkpoint after {newest.name}")
            newest = max(folder.glob("0*"))

    def fills(self, unrolls=FILLED):
        self.until(lambda: self.unrolls >= unrolls and self.updates > 5, START_SECONDS, "a replay with something in it")

    def end(self):
        """The ledger, which closes."""
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=END_SECONDS)
        assert self.process.returncode == 143, output
        ledger = json.loads((self.directory / "summary.json").read_text())["ledger"]
        assert ledger["error"] == 0, ledger
        if "resident" in ledger:
            assert ledger["inserted"] == ledger["resident"] + ledger["evicted"], ledger
        assert set(ledger["dropped"]) <= {"learner_restart", "store_lost"}, ledger
        return ledger


@pytest.fixture
def make_server():
    """A server of the test's own; keyword arguments as ``EmbeddedServer``."""
    servers = []
    with tempfile.TemporaryDirectory(prefix="st-") as folder:

        def make(**options):
            servers.append(EmbeddedServer(Path(folder) / "store", **options))
            servers[-1].start()
            return servers[-1]

        yield make
        for server in servers:
            server.stop()


def table(server):
    """What the replay holds: id -> (priority, valid transitions)."""
    replay = RedisReplay(RedisServer(server.url), prefix="seedmq", capacity=CAPACITY, producer="test")
    try:
        entries = replay.entries()
    finally:
        replay.close()
    columns = (entries.ids.tolist(), entries.priorities.tolist(), entries.valid.tolist())
    return {key: (priority, valid) for key, priority, valid in zip(*columns, strict=True)}


def log_file(server):
    (path,) = (Path(server.directory) / "appendonlydir").glob("*.incr.aof")
    return path


def test_the_replay_is_whole_when_the_learner_is_killed(commands, until, make_server):
    server = make_server()
    run = Run(commands, until, server)
    run.fills()
    updates = run.updates
    os.kill(run.learner, signal.SIGKILL)
    watch = Stopwatch()
    before = table(server)
    assert FILLED <= len(before) < CAPACITY
    until(lambda: "resumed from" in run.log, RECOVERY_SECONDS, "a learner that resumes")
    successor = run.learner
    os.kill(successor, signal.SIGSTOP)  # while its policy is made ready: nothing is trained yet
    after = table(server)
    os.kill(successor, signal.SIGCONT)
    assert {key: after.get(key) for key in before} == before, "items and priorities are those of before"
    until(lambda: run.updates > updates, RECOVERY_SECONDS, "training goes on")
    print(f"{len(before)} unrolls; training went on after {watch}")
    assert watch.seconds < RECOVERY_SECONDS
    assert run.unrolls >= len(before), "all of them may be sampled"
    run.trains_on(10)
    ledger = run.end()
    assert set(ledger["dropped"]) <= {"learner_restart"}, ledger


def test_a_replay_with_every_write_on_disk_is_whole_when_redis_is_killed(commands, until, make_server):
    server = make_server(persist=True)
    with redis.Redis.from_url(server.url) as client:
        client.config_set("appendfsync", "always")
    run = Run(commands, until, server)
    run.fills()
    before = table(server)
    kill(server)
    watch = Stopwatch()
    server.start()
    after = table(server)
    assert {key for key in before if key >= min(after, default=0)} <= after.keys(), "whole, or evicted since"
    run.trains_on(10, RECOVERY_SECONDS)
    print(f"{len(after)} unrolls; 10 updates more after {watch}")
    assert watch.seconds < RECOVERY_SECONDS
    ledger = run.end()
    assert ledger["dropped"] == {}, ledger


@pytest.mark.parametrize("preset", [R2D2, VTRACE])
def test_what_redis_had_not_on_disk_is_counted_as_lost(commands, until, make_server, preset):
    """``appendfsync everysec`` and a host that goes down: the end of the log is gone, under the same epoch."""
    server = make_server(persist=True)
    run = Run(commands, until, server, preset)
    if preset == R2D2:
        run.fills()
    run.trains_on(5)
    before = table(server)
    wait_until_written(server)
    size = log_file(server).stat().st_size
    run.trains_on(5)
    kill(server)
    watch = Stopwatch()
    assert log_file(server).stat().st_size > size
    os.truncate(log_file(server), size)
    server.start()
    told = "came back with older data" if preset == R2D2 else "the store lost its data"
    until(lambda: told in run.log, RECOVERY_SECONDS, "the learner notices")
    assert watch.seconds < RECOVERY_SECONDS, watch
    after = table(server)
    assert {key for key in before if key >= min(after, default=0)} <= after.keys(), (
        "what was on disk is whole, or evicted since"
    )
    run.trains_on(10, RECOVERY_SECONDS)
    ledger = run.end()
    if preset == R2D2:
        assert 0 < ledger["dropped"]["store_lost"] < ledger["resident"], ledger
        assert ledger["resident"] == sum(valid for _, valid in table(server).values())


@pytest.mark.parametrize("preset", [R2D2, VTRACE])
def test_a_host_that_goes_down_with_all_of_it_comes_back(commands, until, make_server, preset):
    """Run and Redis are killed at once; what Redis has on disk is older than the checkpoint."""
    server = make_server(persist=True)
    run = Run(commands, until, server, preset)
    run.trains_on(10)
    wait_until_written(server)
    size = log_file(server).stat().st_size
    run.trains_on(5)
    run.saves(2)
    run.process.kill()
    kill(server)
    run.process.communicate(timeout=END_SECONDS)
    until(lambda: not commands.alive(), 10, "the end of its processes")
    commands.forget_sockets()
    os.truncate(log_file(server), size)
    server.start()
    again = Run(commands, until, server, preset, "--resume")
    until(lambda: "resumed from" in again.log, START_SECONDS, "a learner that resumes")
    again.trains_on(10)
    ledger = again.end()
    if preset == R2D2:
        assert ledger["dropped"]["store_lost"] > 0, ledger
        assert ledger["resident"] == sum(valid for _, valid in table(server).values())


def test_a_replay_without_persistence_is_counted_as_lost_and_filled_again(commands, until, make_server):
    server = make_server()
    run = Run(commands, until, server)
    run.fills(2 * FILLED)
    resident = sum(valid for _, valid in table(server).values())
    kill(server)
    watch = Stopwatch()
    server.start()
    until(lambda: "the store lost its data" in run.log, RECOVERY_SECONDS, "the learner notices")
    until(lambda: run.unrolls < FILLED, RECOVERY_SECONDS, "the index is empty too")
    assert watch.seconds < RECOVERY_SECONDS, watch
    run.trains_on(10)
    assert run.unrolls >= MIN_SIZE, "training waited for them"
    ledger = run.end()
    assert ledger["dropped"]["store_lost"] >= resident, ledger
    assert ledger["resident"] == sum(valid for _, valid in table(server).values())


@pytest.mark.parametrize("preset", [R2D2, VTRACE])
def test_a_second_run_on_the_same_store_is_refused(commands, until, make_server, preset):
    server = make_server()
    first = Run(commands, until, server, preset, name="first")
    first.trains_on(5)
    second = Run(commands, until, server, preset, name="second")
    output, _ = second.process.communicate(timeout=END_SECONDS)
    assert second.process.returncode == 2, output
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: store.prefix = seedmq: the run in {first.directory} (process "), line
    assert "choose another store.prefix" in line
    first.trains_on(5)
    assert first.end()["dropped"] == {}, "nothing of its data was touched"


@pytest.mark.parametrize("preset", [R2D2, VTRACE])
def test_what_stands_under_another_prefix_is_of_another_history(commands, until, make_server, preset):
    """A run that is gone on with elsewhere and comes back finds its own past, whose books it has closed long ago."""
    server = make_server()
    run = Run(commands, until, server, preset)
    run.trains_on(10)
    run.end()
    for options in (["--set", "store.prefix=elsewhere"], ["--set", "store.prefix=seedmq"]):
        run = Run(commands, until, server, preset, "--resume", *options)
        run.trains_on(10)
        ledger = run.end()
    if preset == R2D2:
        assert ledger["resident"] == sum(valid for _, valid in table(server).values())


def test_a_copy_of_a_run_is_refused_while_that_trains(commands, until, make_server):
    server = make_server()
    run = Run(commands, until, server)
    run.trains_on(5)
    run.saves(1)
    shutil.copytree(run.directory, commands.cwd / "copy")
    copy = Run(commands, until, server, R2D2, "--resume", name="copy")
    output, _ = copy.process.communicate(timeout=END_SECONDS)
    assert copy.process.returncode == 2, output
    assert f"error: store.prefix = seedmq: the run in {run.directory} (process " in output
    run.trains_on(5)
    assert run.end()["dropped"] == {}, "nothing of its data was touched"


def test_a_learner_that_slept_through_its_lease_writes_nothing_any_more(commands, until, make_server):
    server = make_server()
    first = Run(commands, until, server, name="first")
    first.trains_on(5)
    sleeper = first.learner
    os.kill(sleeper, signal.SIGSTOP)
    with redis.Redis.from_url(server.url) as client:
        until(lambda: int(client.hget("seedmq:owner", "until")) < time.time() * 1000, 30, "the lease ends")
    second = Run(commands, until, server, name="second")
    second.trains_on(5)
    os.kill(sleeper, signal.SIGCONT)
    output, _ = first.process.communicate(timeout=END_SECONDS)
    assert first.process.returncode == 2, output
    assert f"error: store.prefix = seedmq: the run in {second.directory} (process " in output
    log = (first.directory / "logs/learner.log").read_text()
    assert "this learner did not renew its lease in time" in log
    second.trains_on(5)
    assert second.end()["dropped"] == {}
