"""Ninety seconds in which a network passes nothing, while every connection seems to stand.

Where the test may make network namespaces, one host is behind a link that loses every packet; else a router on the
loopback takes what it gets and passes nothing on.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

import pytest

from pipeline import keys
from pipeline.store.embedded import EmbeddedServer
from tests.chaos import link
from tests.integration.forgetful_router import ForgetfulRouter
from tests.runs import END_SECONDS, PATIENT, Stopwatch, free_ports, settings, summary

pytestmark = pytest.mark.system

PRESET = "cartpole_vtrace"
SILENT_SECONDS = 90.0
RESUMED_SECONDS = 30.0
CALM_SECONDS = 45.0
"""Of the silence; before that somebody may train what has arrived already."""
PLACEMENTS = ("embedded", "process")


class Namespaces:
    """The other host is a network namespace."""

    def __init__(self, stack):
        self._link = stack.enter_context(link.Link())
        self.address, self.there = self._link.address, self._link.there

    def seen_there(self, port):
        """Port under which the other host reaches ``port`` of this one."""
        return port

    def silence(self):
        self._link.shape(loss=1.0)

    def speak(self):
        self._link.shape()


class Routers:
    """The other host is this one, and reaches each port through a router of its own."""

    address, there = "127.0.0.1", ()

    def __init__(self, stack):
        self._stack, self._routers = stack, []

    def seen_there(self, port):
        self._routers.append(ForgetfulRouter(port))
        self._stack.callback(self._routers[-1].close)
        return self._routers[-1].port

    def silence(self):
        for router in self._routers:
            router.silence()

    def speak(self):
        for router in self._routers:
            router.speak()


@pytest.fixture
def network():
    with contextlib.ExitStack() as stack:
        yield Routers(stack) if link.missing() else Namespaces(stack)


@pytest.fixture
def store_url():
    with tempfile.TemporaryDirectory(prefix="st-") as folder, EmbeddedServer(Path(folder)) as server:
        yield server.url


class Pipeline:
    """Here the broker, or the learner that holds it; the others on the other host."""

    def __init__(self, commands, network, store_url, placement):
        front, back = free_ports(2)
        self.directory = commands.cwd / placement
        values = [
            "workers.envs=8", "run.log_interval_seconds=0.2", "run.solved_return=null", "run.max_seconds=1000", PATIENT,
            f"store.url={store_url}", f"store.prefix={placement}", f"broker.placement={placement}",
            f"security.keys={commands.cwd / 'keys'}", "workers.connect_timeout_seconds=300",
            f"workers.id={placement}", f"broker.bind=tcp://{network.address}:{front}",
            f"broker.learner_bind=tcp://{network.address}:{back}",
        ]  # fmt: skip
        near = ["--config", PRESET, *settings(*values)]
        seen = [f"tcp://{network.address}:{network.seen_there(port)}" for port in (front, back)]
        far = [*near, *settings(f"broker.connect={seen[0]}", f"broker.learner_connect={seen[1]}")]
        run_dir = ["--run-dir", placement]
        if placement == "process":
            self._processes = [
                commands.start("broker", *near),
                commands.start("learner", *far, *run_dir, there=network.there),
            ]
        else:
            self._processes = [commands.start("learner", *near, *run_dir)]
        self._worker = commands.start("worker", *far, there=network.there)

    def updates(self):
        for process in (*self._processes, self._worker):
            assert process.poll() is None, process.communicate()[0]
        return summary(self.directory).get("updates", 0)

    def end(self):
        """Learner, worker and broker end in order; what the worker and the learner said."""
        for process in reversed(self._processes):
            process.terminate()
            output, _ = process.communicate(timeout=END_SECONDS)
            assert process.returncode == 143, output
            if process is self._processes[-1]:
                learner_said = output
                said, _ = self._worker.communicate(timeout=END_SECONDS)
                assert self._worker.returncode == 0, said
        ledger = summary(self.directory)["ledger"]
        assert ledger["error"] == 0, ledger
        return said, learner_said


def test_after_90_seconds_of_dropped_packets_all_resume_within_30(commands, until, network, store_url):
    """The link of the workers to an embedded and to a separate broker, and that of a learner to its broker.

    Meanwhile the learners wait for unrolls, and their connections to Redis are idle: nobody complains of that.
    """
    keys.write_keys(commands.cwd / "keys")
    pipelines = [Pipeline(commands, network, store_url, placement) for placement in PLACEMENTS]
    until(lambda: all(one.updates() > 5 for one in pipelines), 200, "both train")
    environments = commands.find("spawn_main")
    network.silence()
    silent_since = time.monotonic()
    until(lambda: time.monotonic() > silent_since + SILENT_SECONDS - CALM_SECONDS, SILENT_SECONDS, "half the silence")
    before = [one.updates() for one in pipelines]
    until(lambda: time.monotonic() > silent_since + SILENT_SECONDS, SILENT_SECONDS, "the silence")
    assert [one.updates() for one in pipelines] == before, "nothing passes, nothing is trained"
    network.speak()
    watch, took = Stopwatch(), {}

    def resumed():
        for placement, one, updates in zip(PLACEMENTS, pipelines, before, strict=True):
            if one.updates() >= updates + 5:
                took.setdefault(placement, watch.seconds)
        return len(took) == len(pipelines)

    until(resumed, RESUMED_SECONDS, "both train again")
    print(f"{type(network).__name__}: resumed after {took}; {watch}")
    assert max(took.values()) < RESUMED_SECONDS
    assert commands.find("spawn_main") == environments, "the same processes go on"
    for one in pipelines:
        said, learner_said = one.end()
        assert "not stepping" in said and said.count("admitted as worker") >= 2, said
        complaints = [line for line in learner_said.splitlines() if " WARNING " in line or " ERROR " in line]
        assert not any(" ERROR " in line or "Redis" in line for line in complaints), complaints
