"""A low limit of open files: raised where it may be, refused where it does not do, and named where it is met."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from pipeline.config.load import dump
from pipeline.config.tree import BrokerSection, Config, EnvironmentSection
from pipeline.sources import BrokerSource
from tests.integration.peers import PATIENCE, EchoLearner, FakeWorker, pause, until
from tests.runs import free_ports

pytestmark = pytest.mark.integration
CROWD = 200
LIMITED = 'ulimit -Sn $0; ulimit -Hn $1; exec "${@:2}"'


def limited(files: tuple[int, int], *arguments: str, there: Path) -> subprocess.Popen[str]:
    """``seedmq`` with these soft and hard limits."""
    return subprocess.Popen(
        ["bash", "-c", LIMITED, *map(str, files), sys.executable, "-m", "pipeline.cli", *arguments],
        cwd=there,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def config() -> Config:
    front, back = free_ports(2)
    section = BrokerSection(
        bind=f"tcp://127.0.0.1:{front}", learner_bind=f"tcp://127.0.0.1:{back}", placement="process"
    )
    return Config(environment=EnvironmentSection(id="CartPole-v1"), broker=section)


@pytest.mark.parametrize(
    ("arguments", "files", "words"),
    [
        (
            ("broker", "--config", "it.yaml"),
            50,
            "a broker needs 64 open files of its own, 1 for connections of workers",
        ),
        (("run", "it.yaml", "--set", "workers.count=90"), 128, "90 for connections of workers (workers.count + "),
        (("worker", "--config", "it.yaml"), 40, "a worker needs 64 open files, the limit (ulimit -Hn) is 40"),
    ],
)
def test_less_than_is_needed_is_refused_with_the_arithmetic(tmp_path, config, arguments, files, words):
    (tmp_path / "it.yaml").write_text(dump(config))
    process = limited((files, files), *arguments, there=tmp_path)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2 and words in output, output
    assert f"ulimit -Hn) is {files}" in output and "--ulimit nofile=" in output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("files", [(128, 128), (128, 1024)])
def test_who_is_connected_goes_on_while_a_crowd_meets_the_limit(tmp_path, config, files):
    (tmp_path / "it.yaml").write_text(dump(config))
    process, context = limited(files, "broker", "--config", "it.yaml", there=tmp_path), zmq.Context()
    learner = EchoLearner(BrokerSource(config, None, "learner", 64))
    worker = FakeWorker(context, config, "w", 1, [1], steps=20)
    disconnections = worker.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    crowd: list[socket.socket] = []

    def step() -> None:
        worker.advance()
        learner.advance()

    try:
        until(lambda: worker.done, step)
        address = ("127.0.0.1", int(config.broker.bind.rpartition(":")[2]))
        crowd += [socket.create_connection(address, PATIENCE) for _ in range(CROWD)]
        until(lambda: ended(crowd) >= (CROWD - 64 if files[1] == 128 else 0), pause)
        worker.steps = 200
        until(lambda: worker.done, step)
        assert not disconnections.poll(0) and not worker.wrong
    finally:
        worker.socket.disable_monitor()
        disconnections.close()
        worker.close()
        learner.source.close()
        context.term()
        for one in crowd:
            one.close()
        process.terminate()
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, output
    named = "the limit of open files (ulimit -n) is 128, of which 64 are this process's own" in output
    assert named == (files[1] == 128), output


def ended(crowd: list[socket.socket]) -> int:
    """How many connections the other side has closed."""
    return sum(_is_closed(one) for one in crowd)


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            continue
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True
