"""A peer fills its queue and is gone before anybody has read it: the binding process lives on."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zmq

from pipeline.config.tree import BrokerSection, SecuritySection
from pipeline.sockets import HEARTBEAT_MILLISECONDS, WORKER_QUEUE, worker_socket
from tests.integration.peers import PATIENCE
from tests.runs import free_ports

pytestmark = pytest.mark.integration

READER = """
import sys, zmq
from pipeline.config.tree import BrokerSection, SecuritySection
from pipeline.sockets import worker_facing
context = zmq.Context()
socket = worker_facing(context, BrokerSection(bind=sys.argv[1]), SecuritySection())
print("ready", flush=True)
sys.stdin.readline()  # busy with something else
number = 0
while socket.poll(500):
    socket.recv_multipart()
    number += 1
print(number, flush=True)
socket.close(linger=0)
context.term()
"""
FULL_MILLISECONDS = 500


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_a_peer_that_is_gone_with_its_queue_unread_ends_nobody(tmp_path: Path, scheme: str) -> None:
    """ZeroMQ's own heartbeat would abort the process as soon as it is due."""
    endpoint = f"ipc://{tmp_path}/b" if scheme == "ipc" else f"tcp://127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-c", READER, endpoint]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        try:
            assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
            with zmq.Context() as context:
                peer = worker_socket(context, BrokerSection(bind=endpoint), SecuritySection())
                assert peer.poll(int(PATIENCE * 1000), zmq.POLLOUT)
                while peer.poll(FULL_MILLISECONDS, zmq.POLLOUT):
                    peer.send(bytes(1000))
                peer.close(linger=0)
            threading.Event().wait(2 * HEARTBEAT_MILLISECONDS / 1000)
            output, _ = reader.communicate("go on\n", timeout=PATIENCE)
        finally:
            reader.kill()
    assert reader.returncode == 0 and int(output) > WORKER_QUEUE, (reader.returncode, output)
