"""Faults through the whole pipeline: whatever dies, hangs or is damaged, training goes on or ends with one line."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import redis

import tests.counter_env  # noqa: F401 - registers its environments
from learner.agent import build_agent
from learner.devices import choose_devices
from pipeline.config.tree import Config
from pipeline.rows import environment_id
from pipeline.store.codec import decode_whole
from pipeline.store.embedded import EmbeddedServer
from tests.runs import END_SECONDS, PATIENT, Stopwatch, free_ports, processor_seconds, settings, summary
from workers.spaces import spaces_of

pytestmark = pytest.mark.system

PRESET = "cartpole_vtrace"
REPOSITORY = str(Path(__file__).parents[2])
DEFAULT_DRAIN = "run.drain_timeout_seconds=8"
EXPLAINED = {"learner_restart", "store_lost", "seam", "worker_non_finite"}


SMALL = settings(
    "workers.envs=8", "run.log_interval_seconds=0.2", "run.solved_return=null", "run.max_seconds=1000", PATIENT
)


class Run:
    """``seedmq run`` with the test's settings, and what the test does to its processes."""

    def __init__(self, commands, until, *values, name="run", **variables):
        self.commands, self.until, self.directory = commands, until, commands.cwd / name
        self.process = commands.start("run", PRESET, *SMALL, *settings(*values), "--run-dir", name, **variables)

    def trains(self, updates=4, seconds=90.0):
        """So many updates more; a learner that was resumed may have to make good for some first."""
        before = summary(self.directory).get("updates", 0)

        def further():
            assert self.process.poll() is None, self.process.communicate()[0]
            return summary(self.directory).get("updates", 0) >= before + updates

        self.until(further, seconds, f"{updates} updates more than {before}")

    def kill(self, words):
        pids = self.commands.find(words)
        assert pids, f"nothing to kill: {words}"
        os.kill(pids[0], signal.SIGKILL)

    def end(self, code=143):
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=END_SECONDS)
        assert self.process.returncode == code, output
        ledger = summary(self.directory)["ledger"]
        assert ledger["error"] == 0, ledger
        assert set(ledger["dropped"]) <= EXPLAINED, ledger
        return output


def counter(fault=None, name="Counter-v0", **kwargs):
    """Settings of a run on CounterEnv with four environments."""
    kwargs |= {"fault": fault} if fault else {}
    return [
        f"environment.id=tests.counter_env:{name}",
        f"environment.kwargs={json.dumps(kwargs)}",
        "environment.step_timeout_seconds=5",
        "workers.envs=4",
        "training.batch_size=8",
        "training.unroll_length=8",
        "store.capacity=32",
    ]


def test_books_close_whatever_dies_between_two_checkpoints(commands, until):
    values = ["broker.placement=process", "workers.count=2", "checkpoint.interval_seconds=1000"]
    run = Run(commands, until, *values, "learner.restart_budget=10")
    run.trains()
    run.kill("spawn_main")  # the environments; their supervisor starts others
    run.trains()
    run.kill("learner --config")
    run.trains()
    run.kill("valkey-server")
    run.trains()
    run.kill("worker --config")
    run.kill("broker --config")
    run.kill("learner --config")
    run.trains()
    run.end()


def test_an_environment_that_hangs_once_is_made_anew(commands):
    values = counter("hang_gil", once=str(commands.cwd / "happened"))
    arguments = settings(*values, "run.max_steps=2000")
    result = commands.run("run", PRESET, *SMALL, *arguments, "--run-dir", "run", PYTHONPATH=REPOSITORY)
    assert result.returncode == 0, result.stdout
    assert (commands.cwd / "happened").exists()
    assert summary(commands.cwd / "run")["ledger"]["error"] == 0
    log = (commands.cwd / "run/logs/worker-0.log").read_text()
    assert "starting anew" in log and "counter_env.py" in log, "the stack stands in the log"


def test_values_that_are_not_finite_are_dropped_and_counted(commands):
    arguments = settings(*counter("nan"), "run.max_steps=2000", "environment.non_finite=drop")
    result = commands.run("run", PRESET, *SMALL, *arguments, "--run-dir", "run", PYTHONPATH=REPOSITORY)
    assert result.returncode == 0, result.stdout
    figures = summary(commands.cwd / "run")
    assert figures["ledger"]["error"] == 0
    assert figures["ledger"]["dropped"]["worker_non_finite"] > 0
    assert np.isfinite(figures["loss"])


def test_a_spent_budget_ends_the_run_with_the_original_message(commands):
    values = counter("raise", at=3)
    arguments = settings(*values, "environment.fault_budget=1")
    result = commands.run("run", PRESET, *SMALL, *arguments, "--run-dir", "run", PYTHONPATH=REPOSITORY)
    assert result.returncode == 3, result.stdout
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("error: ")]
    assert "the counter was told to fail at step 3" in line
    assert summary(commands.cwd / "run").get("stop_reason", "error") == "error"


def test_a_hung_environment_does_not_hold_up_the_stop(commands, until):
    run = Run(
        commands,
        until,
        *counter("hang_gil", at=3),
        DEFAULT_DRAIN,
        "environment.step_timeout_seconds=60",
        PYTHONPATH=REPOSITORY,
    )
    log = run.directory / "logs/worker-0.log"
    until(lambda: log.exists() and "admitted as worker" in log.read_text(), 60, "the environments run")
    run.process.send_signal(signal.SIGINT)
    watch = Stopwatch()
    output, _ = run.process.communicate(timeout=END_SECONDS)
    assert watch.seconds < 10.5, f"{watch}: {output}"
    assert run.process.returncode in (130, 3), output


def stored_unrolls(url, layout):
    """What waits in the store: a record of each unroll, oldest first."""
    with redis.Redis.from_url(url) as client:
        payloads = [fields[b"p"] for _, fields in client.xrange("seedmq:unrolls")]
    records = np.zeros((len(payloads), layout.nbytes), np.uint8)
    assert not any(decode_whole(payloads, layout, records))
    return [layout.view(record) for record in records]


def test_every_leaf_of_every_stored_unroll_is_of_its_step(commands, until):
    """Four workers of four environments; nothing is trained until 2000 unrolls are there, which takes a minute."""
    values = counter(name="CounterDict-v0", step_seconds=0.01)
    values += ["workers.count=4", "training.batch_size=2000", "store.capacity=2000"]
    made = gymnasium.make("CounterDict-v0")
    spaces = spaces_of(made.observation_space, made.action_space)
    config = Config.model_validate({"environment": {"id": "CounterDict-v0"}, "training": {"unroll_length": 8}})
    layout = build_agent(config, spaces, choose_devices(["auto"], ["auto"])).layout
    begun = []
    for name in ("one", "two"):
        with tempfile.TemporaryDirectory(prefix="st-") as folder, EmbeddedServer(Path(folder)) as server:
            run = Run(commands, until, *values, f"store.url={server.url}", name=name, PYTHONPATH=REPOSITORY)

            def all_there(url=server.url):
                environments = [int(one["environment"]) for one in stored_unrolls(url, layout)]
                return len(environments) > 100 and len(set(environments)) == 16

            until(all_there, 60, "unrolls of 16 environments")
            unrolls = stored_unrolls(server.url, layout)
            run.end()
        assert {int(one["environment"]) for one in unrolls} == {
            environment_id(w, i) for w in range(4) for i in range(4)
        }
        begun.append({int(one["environment"]): check(one)[0] for one in reversed(unrolls)})
    assert len(set(begun[0].values())) == 16
    assert set(begun[0].values()) == set(begun[1].values()), "a rerun sees the same environments"


def check(unroll):
    """Every leaf, reward and pairing of one unroll of CounterDict-v0; gives its first (number, episode, step)."""
    box, deep, step = (unroll[f"observation/{path}"] for path in ("z", "a/deep", "a/step"))
    np.testing.assert_array_equal(step, box[:, 2])
    np.testing.assert_array_equal(deep, np.repeat(box[:, None, :], 2, axis=1).astype(np.int64) % 256)
    for i in np.flatnonzero(unroll["valid"]):
        assert tuple(box[i, :2]) == tuple(box[i + 1, :2])
        assert box[i, 2] + 1 == box[i + 1, 2] == unroll["reward"][i + 1]
    return tuple(int(x) for x in box[0])


def test_a_slow_learner_holds_the_workers_back(commands, until):
    with tempfile.TemporaryDirectory(prefix="st-") as folder, EmbeddedServer(Path(folder)) as server:
        values = ["network.hidden=[1000,1000]", "store.capacity=64", f"store.url={server.url}"]
        run = Run(commands, until, *values, "workers.envs=64")
        run.trains(2)
        lengths = []
        with redis.Redis.from_url(server.url) as client:

            def held_back():
                lengths.append(client.xlen("seedmq:unrolls"))
                return len(lengths) > 100 and "held back" in (run.directory / "logs/worker-0.log").read_text()

            until(held_back, 60, "workers are held back")
        run.trains(2)
        run.end()
    assert max(lengths) <= 64
    # Two batches in the store, two prepared, one being trained, and what was open when it acted.
    assert summary(run.directory)["policy_lag_max"] <= 12


def test_components_start_in_any_order_and_again(commands, until):
    """Worker, learner, broker, store; then broker and learner once more; then all end in order."""
    front, back, store = free_ports(3)
    values = [f"broker.bind=tcp://127.0.0.1:{front}", f"broker.learner_bind=tcp://127.0.0.1:{back}"]
    values += [f"store.url=redis://127.0.0.1:{store}", "broker.placement=process", "checkpoint.interval_seconds=1"]
    arguments = ["--config", PRESET, *SMALL, *settings(*values)]
    directory = commands.cwd / "run"

    def trains(what):
        before = summary(directory).get("updates", 0)
        until(lambda: summary(directory).get("updates", 0) > before + 3, 90, what)

    worker = commands.start("worker", *arguments)
    learner = commands.start("learner", *arguments, "--run-dir", "run")
    until(lambda: commands.find("spawn_main"), 30, "environments")
    broker = commands.start("broker", *arguments)
    server = commands.start("store", *arguments)
    trains("training begins")
    broker.kill()
    broker.communicate()
    broker = commands.start("broker", *arguments)
    trains("a new broker serves")
    learner.kill()
    learner.communicate()
    learner = commands.start("learner", *arguments, "--run-dir", "run", "--resume")
    trains("the learner is resumed")
    for process in (learner, worker, broker, server):
        watch = Stopwatch()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=END_SECONDS)
        assert process.returncode in (143, 0), output
        assert watch.seconds < 10, f"{watch}: {output}"
    ledger = summary(directory)["ledger"]
    assert ledger["error"] == 0 and set(ledger["dropped"]) <= EXPLAINED, ledger


def test_damaged_and_foreign_checkpoints(commands, until):
    run = Run(commands, until, "checkpoint.interval_seconds=0.5")
    run.trains(10)
    until(lambda: len(list((run.directory / "checkpoints").glob("0*"))) > 1, 30, "two checkpoints")
    run.end()
    saved = sorted((run.directory / "checkpoints").glob("0*"))
    os.truncate(saved[-1] / "arrays.npz", 100)
    again = ["run", PRESET, *SMALL, "--run-dir", "run", "--resume"]
    spent = processor_seconds()
    foreign = commands.run(*again, *settings("network.hidden=[32,32]"))
    spent = processor_seconds() - spent
    print(f"refused after {spent:.1f} s of work")
    assert spent < 10
    assert foreign.returncode == 2, foreign.stdout
    assert foreign.stdout.startswith("error: network.hidden = [32, 32]: the run in run has [64, 64]")
    for path in saved[:-1]:
        os.truncate(path / "arrays.npz", 100)
    nothing = commands.run(*again)
    assert nothing.returncode == 3, nothing.stdout
    assert "no usable checkpoint" in nothing.stdout
