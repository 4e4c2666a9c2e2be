"""Every role is told to end: with its peers there, with none of them, and while they are stopped in their tracks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from functools import partial

import pytest

from learner.checkpoint import load_latest
from tests.runs import END_SECONDS, PATIENT, Stopwatch, free_ports, settings, summary

pytestmark = pytest.mark.system

ROLES = ("store", "broker", "learner", "worker")
PRESET = "cartpole_vtrace"
DRAIN_SECONDS = 10.0
AT_ONCE_SECONDS = 1.0


def is_free(port):
    """Whether nobody listens there."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


class Fleet:
    """Components on ports of their own; every one can be started alone."""

    def __init__(self, commands, until):
        self.commands, self.until, self.directory = commands, until, commands.cwd / "run"
        self.ports = dict(zip(("front", "back", "store"), free_ports(3), strict=True))
        values = [
            "workers.envs=8", "run.log_interval_seconds=0.2", "run.solved_return=null", "run.max_seconds=1000",
            "checkpoint.interval_seconds=1000", "broker.placement=process", PATIENT,
            f"broker.bind=tcp://127.0.0.1:{self.ports['front']}",
            f"broker.learner_bind=tcp://127.0.0.1:{self.ports['back']}",
            f"store.url=redis://127.0.0.1:{self.ports['store']}",
        ]  # fmt: skip
        self._arguments = ["--config", PRESET, *settings(*values)]
        self.processes = {}

    def start(self, role):
        more = ["--run-dir", "run"] if role == "learner" else []
        self.processes[role] = self.commands.start(role, *self._arguments, *more)

    def all_train(self):
        for role in ROLES:
            self.start(role)
        self.until(lambda: summary(self.directory).get("updates", 0) > 3, 120, "training")

    def ends(self, role, number, seconds, again=False):
        """Exit code and output of a role that was sent ``number``; its ports are free again.

        ``again``: is sent it until it ends, as signals of a kind that are under way together arrive as one.
        """
        watch, process = Stopwatch(), self.processes.pop(role)
        process.send_signal(number)
        while again and watch.elapsed < END_SECONDS and process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        output, _ = process.communicate(timeout=END_SECONDS)
        assert watch.seconds < seconds, f"{watch}: {output}"
        assert "Traceback" not in output, output
        for name in {"store": ["store"], "broker": ["front", "back"]}.get(role, []):
            # Nobody listens there any more: a store that its killed parent takes along needs the CPU to go.
            self.until(partial(is_free, self.ports[name]), DRAIN_SECONDS, f"the port of {name} is free")
        return process.returncode, output

    def end(self):
        """The others end too, whoever has gone before."""
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.communicate()
        self.processes.clear()


@pytest.fixture
def fleet(commands, until):
    made = Fleet(commands, until)
    yield made
    made.end()
    commands.forget_sockets()


@pytest.mark.parametrize("role", ROLES)
def test_with_its_peers_a_role_ends_in_order_and_leaves_nothing(fleet, role):
    fleet.all_train()
    children = fleet.commands.find("spawn_main")
    code, output = fleet.ends(role, signal.SIGTERM, DRAIN_SECONDS)
    assert code == 143, output
    if role == "worker":
        assert children and not fleet.commands.find("spawn_main"), "no child is left"
    if role == "learner":
        checkpoint = load_latest(fleet.directory / "checkpoints")
        assert checkpoint is not None and checkpoint.meta["ledger"]["error"] == 0
        assert checkpoint.meta["version"] == summary(fleet.directory)["updates"] > 0, "that of the drain"


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_its_peers_a_role_ends_too(fleet, until, role, number):
    fleet.start(role)
    process = fleet.processes[role]
    if role == "worker":
        until(lambda: fleet.commands.find("spawn_main"), 30, "environments")
    elif role == "learner":
        until(lambda: len(os.listdir(f"/proc/{process.pid}/task")) > 4, 60, "TensorFlow's threads")
    else:
        assert any(f"{role} ready" in line for line in process.stdout)
    code, output = fleet.ends(role, number, DRAIN_SECONDS)
    # What a learner waits for while it is told to end it names, and ends with that.
    assert code == 128 + number or (role == "learner" and code == 4 and "out of reach" in output), output


@pytest.mark.parametrize("role", ROLES)
def test_a_second_signal_ends_a_role_at_once_though_its_peers_do_not_answer(fleet, role):
    fleet.all_train()
    for name, process in fleet.processes.items():
        if name != role:
            process.send_signal(signal.SIGSTOP)
    code, output = fleet.ends(role, signal.SIGTERM, AT_ONCE_SECONDS, again=True)
    assert code == 143, output
