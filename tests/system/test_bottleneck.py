"""Each component slowed on purpose: status, the summary and the last line of a run name it, and since when."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import zmq
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.config.tree import BrokerSection, SecuritySection
from pipeline.protocol import Kind, encode
from pipeline.sockets import worker_socket
from pipeline.store.embedded import EmbeddedServer
from tests.runs import END_SECONDS, PATIENT, free_ports, settings, summary

pytestmark = pytest.mark.system

PRESET = "cartpole_vtrace"
REPOSITORY = str(Path(__file__).parents[2])
SMALL = settings(
    "workers.envs=8",
    "training.batch_size=8",
    "training.unroll_length=8",
    "run.log_interval_seconds=0.5",
    "run.solved_return=null",
    "run.max_seconds=1000",
    "evaluation.workers=0",
    "evaluation.solved_return=null",
    "broker.heartbeat_seconds=0.5",
    "broker.lease_seconds=3",
    PATIENT,
)
START_SECONDS = 90.0
NAMED_SECONDS = 30.0


class Run:
    """``seedmq run`` with the test's settings."""

    def __init__(self, commands, until, *values):
        self.commands, self.until, self.directory = commands, until, commands.cwd / "run"
        arguments = [*SMALL, *settings(*values), "--run-dir", "run"]
        self.process = commands.start("run", PRESET, *arguments, PYTHONPATH=REPOSITORY)

    def status(self, *options):
        """None before there is a broker to ask."""
        assert self.process.poll() is None, self.process.communicate()[0]
        found = self.commands.run("status", "run", *options)
        return (json.loads(found.stdout) if "--json" in options else found.stdout) if found.returncode == 0 else None

    def tells(self, condition, what, seconds=NAMED_SECONDS):
        """Waits until status is as wanted, and there is a broker to ask; gives the status."""
        found = [None]

        def asked():
            found[0] = self.status("--json")
            return found[0] is not None and condition(found[0])

        try:
            self.until(asked, seconds, what)
        except BaseException:
            print({name: (found[0] or {}).get(name) for name in ("bottleneck", "stages")})
            raise
        return found[0]

    def names(self, component, words="", seconds=NAMED_SECONDS, longer_than=-1.0):
        """Waits until status names the component with these words, for longer than so many seconds; gives the status.

        What is named, and for how long, is of the last seconds: where others had the machine then, it comes again.
        """

        def named(status):
            found = bottleneck(status)
            named_so = found.get("component") == component and words in found["why"]
            return named_so and found["since_seconds"] > longer_than

        return self.tells(named, f"status names {component}", seconds)

    def says(self, *words):
        """Waits until status shows this."""
        said = [""]

        def shown():
            said[0] = self.status() or ""
            return all(one in said[0] for one in words)

        try:
            self.until(shown, NAMED_SECONDS, f"status says {words}")
        except BaseException:
            print(said[0])
            raise

    def trains(self):
        self.until(lambda: summary(self.directory).get("updates", 0) > 2, START_SECONDS, "training")

    def end(self):
        """What it said last."""
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=END_SECONDS)
        assert self.process.returncode == 143, output
        assert summary(self.directory)["ledger"]["error"] == 0
        return output


def bottleneck(status):
    """What it names, if anything."""
    return status["bottleneck"] or {}


def test_slow_environments(commands, until):
    kwargs = json.dumps({"step_seconds": 0.05})
    run = Run(commands, until, "environment.id=tests.counter_env:Counter-v0", f"environment.kwargs={kwargs}")
    run.trains()
    first = run.tells(
        lambda status: (
            bottleneck(status).get("component") == "environments"
            and "environments step " in bottleneck(status)["why"]
            and status["stages"]["environments"]["busy"] > 0.5
            and status["stages"]["training"]["batches"] > 0.5
        ),
        "status names environments, by their shares",
    )
    assert sum(first["stages"]["environments"].values()) == pytest.approx(1.0)
    assert "workers.count" in first["bottleneck"]["advice"]
    assert all(0 <= worker["report"]["busy_percent"] <= 100 for worker in first["workers"])

    run.names("environments", longer_than=first["bottleneck"]["since_seconds"])
    run.says("bottleneck: environments, for ", "to scale: more workers")
    until(lambda: bottleneck(summary(run.directory)).get("component") == "environments", NAMED_SECONDS, "the summary's")

    output = run.end()
    assert "bottleneck: environments, over the whole run; environments step " in output, output
    found = summary(run.directory)
    assert found["bottleneck"]["component"] == "environments" and found["bottleneck"]["since_seconds"] is None
    ended = json.loads(commands.run("status", "run", "--json").stdout)
    assert ended["bottleneck"] == found["bottleneck"]
    assert sum(found["policy_lag_histogram"].values()) == found["ledger"]["trained"]
    assert found["policy_lag_p50"] <= found["policy_lag_p95"] <= found["policy_lag_p99"] <= found["policy_lag_max"]
    events_of(run.directory)


def events_of(directory):
    """Stages and the lag's histogram are among TensorBoard's events."""
    events = EventAccumulator(str(directory / "events"))
    events.Reload()
    tags = events.Tags()
    for stage in ("environments", "inference", "writer", "feed", "training"):
        assert {f"stages/{stage}_busy", f"stages/{stage}_waiting"} <= set(tags["tensors"]), tags
    assert "lag/steps" in tags["tensors"]


@pytest.mark.parametrize(
    ("slow", "seconds", "component", "words"),
    [
        ("step_seconds", 0.2, "inference", "inference is busy "),
        ("unroll_seconds", 1.0, "training", "training waits for nothing"),
    ],
)
def test_slow_networks(commands, until, slow, seconds, component, words):
    kwargs = json.dumps({slow: seconds})
    run = Run(commands, until, "network.name=tests.slow_network:SlowNetwork", f"network.kwargs={kwargs}")
    run.trains()
    run.names(component, words)
    assert f"bottleneck: {component}, over the whole run" in run.end()


@contextmanager
def pauses(url, milliseconds):
    """A store that answers each command only after a pause, as one at the end of a bad line."""
    stop, client = threading.Event(), redis.Redis.from_url(url)

    def pause():
        while not stop.is_set():
            client.client_pause(milliseconds, all=True)  # waits for the end of the one before

    thread = threading.Thread(target=pause)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        client.close()


def test_a_slow_store_and_one_that_is_away(commands, until):
    with tempfile.TemporaryDirectory(prefix="st-") as folder, EmbeddedServer(Path(folder)) as server:
        run = Run(commands, until, f"store.url={server.url}", "store.operation_timeout_seconds=1")
        run.trains()
        with pauses(server.url, 200):
            run.names("store", "the store's writer or reader is busy ")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            run.names("store", "learner and workers wait for the store: Redis does not serve, state timeout")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        run.tells(lambda status: "does not serve" not in bottleneck(status).get("why", ""), "it is back")
        run.end()


def test_no_workers(commands, until):
    run = Run(commands, until, "workers.count=0")
    until(lambda: run.status("--json") is not None, START_SECONDS, "a broker to ask")
    first = run.names("workers", "the learner waits for workers: none is connected", START_SECONDS)
    run.says("bottleneck: workers, for ")
    run.names("workers", longer_than=first["bottleneck"]["since_seconds"])
    worker = commands.start("worker", "--config", PRESET, *SMALL, *settings(f"broker.bind={endpoint_of(run)}"))
    run.trains()
    run.tells(lambda status: bottleneck(status).get("component") != "workers", "one is there")
    os.kill(worker.pid, signal.SIGKILL)
    worker.communicate()
    run.names("workers", "none ")
    run.end()
    commands.forget_sockets()


def endpoint_of(run):
    return json.loads((run.directory / "endpoints.json").read_text())["broker"]


def test_no_learner(commands, until):
    ports = free_ports(2)
    bind = [f"broker.bind=tcp://127.0.0.1:{ports[0]}", f"broker.learner_bind=tcp://127.0.0.1:{ports[1]}"]
    broker = commands.start("broker", "--config", PRESET, *settings("broker.placement=process", *bind))
    found = []

    def named():
        answer = commands.run("status", "--broker", f"tcp://127.0.0.1:{ports[0]}", "--json")
        found[:] = [json.loads(answer.stdout)] if answer.returncode == 0 else []
        return found and (found[0]["bottleneck"] or {}).get("component") == "learner"

    until(named, START_SECONDS, "the broker names the learner")
    before = found[0]["bottleneck"]
    assert before["why"] == "workers wait for a learner: none is connected" and "start the learner" in before["advice"]
    longer = before["since_seconds"]
    until(lambda: named() and found[0]["bottleneck"]["since_seconds"] > longer, NAMED_SECONDS, "it is so for longer")
    assert sum(found[0]["stages"]["broker"].values()) == pytest.approx(1.0)
    broker.send_signal(signal.SIGTERM)
    broker.communicate(timeout=END_SECONDS)


@contextmanager
def flood(endpoint):
    """Somebody keeps the broker busy with questions."""
    stop = threading.Event()

    def ask():
        with zmq.Context() as context:
            client = worker_socket(context, BrokerSection(bind=endpoint), SecuritySection())
            head = encode(Kind.STATUS)
            while not stop.is_set():
                if client.poll(100, zmq.POLLOUT):
                    client.send(head)
                while client.poll(0, zmq.POLLIN):
                    client.recv()
            client.close(linger=0)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_busy_broker_and_a_silent_learner(commands, until):
    kwargs = json.dumps({"step_seconds": 0.002})
    values = ["environment.id=tests.counter_env:Counter-v0", f"environment.kwargs={kwargs}", "workers.envs=2"]
    run = Run(commands, until, "broker.placement=process", *values)
    run.trains()
    run.tells(lambda status: "broker" in status["stages"], "the broker's shares")
    with flood(endpoint_of(run)):
        run.tells(lambda status: status["stages"]["broker"]["busy"] > 0.5, "the broker is busy")
    (learner,) = commands.find("learner --config")
    os.kill(learner, signal.SIGSTOP)
    try:
        why = run.names("learner", "workers wait for a learner: ")["bottleneck"]["why"]
        assert "learner is silent for " in why or "none is connected, learner was last heard of " in why, why
    finally:
        os.kill(learner, signal.SIGCONT)
    run.tells(lambda status: bottleneck(status).get("component") != "learner", "it is back")
    run.end()
