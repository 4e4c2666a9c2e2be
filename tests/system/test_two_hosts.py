"""A second host joins a run with one command and through one open port, over a link of 20 ms and 1 % loss each way.

Both hosts are network namespaces: what is said on them is what the README says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline import keys
from tests.chaos import link
from tests.runs import END_SECONDS, PATIENT, settings, summary

pytestmark = pytest.mark.system

DELAY_SECONDS, LOSS = 0.02, 0.01
PARTITION_SECONDS = 15.0
PORT = 5555
SCAN = Path(__file__).parents[2] / "scripts" / "open_ports.py"


@pytest.fixture
def hosts():
    """Ours is ``here``, the other one ``there``."""
    why = link.missing()
    if why is not None:
        if os.environ.get("CI"):
            pytest.fail(f"no second host can be made: {why}", pytrace=False)
        pytest.skip(f"no second host can be made: {why}")
    with link.Link(alone=True) as made:
        yield made


def open_ports(hosts):
    """Ports of this host that the other one reaches, of all there are."""
    command = [*hosts.there, sys.executable, str(SCAN), hosts.address]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    return [int(line.split()[1]) for line in said.splitlines()]


def test_a_second_host_joins_with_one_command_and_survives_a_partition(commands, until, hosts):
    here, there = commands.cwd / "here", commands.cwd / "there"
    here.mkdir(), there.mkdir()
    keys.write_keys(here / "keys")
    shutil.copytree(keys.write_client(here / "keys", "farm"), there / "keys")
    directory = here / "run"

    run = commands.start(
        "run", "cartpole_vtrace", "--run-dir", str(directory),
        *settings(
            f"security.keys={here / 'keys'}", f"broker.bind=tcp://0.0.0.0:{PORT}",
            f"broker.connect=tcp://127.0.0.1:{PORT}", "workers.count=0", "run.max_seconds=1000", PATIENT,
        ),
        there=hosts.here,
    )  # fmt: skip

    def answers():
        assert run.poll() is None, run.communicate()[0]
        return open_ports(hosts)

    until(answers, 100, "the first host opens its port")
    hosts.shape(DELAY_SECONDS, LOSS)
    worker = commands.start(
        "worker", "--config", "cartpole_vtrace",
        *settings(f"security.keys={there / 'keys'}", f"broker.connect=tcp://{hosts.address}:{PORT}"),
        *settings("workers.envs=512", "workers.groups=8"),
        there=hosts.there,
    )  # fmt: skip

    def trains(updates):
        for process in (run, worker):
            assert process.poll() is None, process.communicate()[0]
        return summary(directory).get("updates", 0) >= updates

    until(lambda: trains(20), 200, "it trains with the other host's environments")
    assert open_ports(hosts) == [PORT]

    hosts.shape(DELAY_SECONDS, 1.0)
    ends = time.monotonic() + PARTITION_SECONDS
    until(lambda: time.monotonic() > ends, PARTITION_SECONDS, "the partition")
    cut_off_at = summary(directory)["updates"]
    hosts.shape(DELAY_SECONDS, LOSS)
    until(lambda: trains(cut_off_at + 20), 60, "it trains again")

    said, _ = run.communicate(timeout=10 * END_SECONDS)
    assert run.returncode == 0, said
    told, _ = worker.communicate(timeout=END_SECONDS)
    assert worker.returncode == 0, told
    end = summary(directory)
    print(json.dumps({name: end[name] for name in ("seconds", "agent_steps", "agent_steps_per_second", "bottleneck")}))
    assert end["stop_reason"] == "solved", said
    assert end["ledger"]["error"] == 0, end["ledger"]
