"""The man in the middle of ``make chaos`` does to messages what he is told, in either direction, and nothing else."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zmq

from pipeline.config.tree import BrokerSection, SecuritySection
from pipeline.sockets import worker_facing, worker_socket
from tests.chaos.middle import LATE_SECONDS, Fate, Middle

pytestmark = pytest.mark.integration

MESSAGES = 100
PATIENCE_MILLISECONDS = 60_000
SILENCE_MILLISECONDS = 5000
"""After so long nothing more comes."""


class Ends(NamedTuple):
    """A worker's socket, the broker's, who stands between them, and that worker's name at the broker."""

    worker: Any
    broker: Any
    middle: Middle
    peer: bytes

    def send(self, number: int) -> None:
        """So many messages in either direction."""
        for i in range(number):
            self.worker.send_multipart([b"out", b"%d" % i])
            self.broker.send_multipart([self.peer, b"back", b"%d" % i])

    def come(self, number: int) -> tuple[list[int], list[int]]:
        """What arrives at broker and worker: so many, or fewer where for long nothing more comes."""
        return _numbers(self.broker, number), _numbers(self.worker, number)


def _numbers(socket: Any, number: int) -> list[int]:
    found: list[int] = []
    while len(found) < number and socket.poll(PATIENCE_MILLISECONDS if not found else SILENCE_MILLISECONDS):
        found.append(int(socket.recv_multipart()[-1]))
    return found


@pytest.fixture
def ends() -> Iterator[Ends]:
    folder = Path(tempfile.mkdtemp(prefix="mid-"))  # socket paths are short
    front, back = BrokerSection(bind=f"ipc://{folder}/m"), BrokerSection(bind=f"ipc://{folder}/b")
    context: Any = zmq.Context()
    broker = worker_facing(context, back, SecuritySection())
    middle = Middle(front.bind, back.bind, None, dict(os.environ))
    middle.start()
    worker = worker_socket(context, front, SecuritySection())
    try:
        assert worker.poll(PATIENCE_MILLISECONDS, zmq.POLLOUT)
        worker.send_multipart([b"hello"])
        assert broker.poll(PATIENCE_MILLISECONDS)
        yield Ends(worker, broker, middle, broker.recv_multipart()[0])
    finally:
        middle.close()
        context.destroy(linger=0)
        shutil.rmtree(folder)


def test_calm_is_as_if_nobody_were_there(ends: Ends) -> None:
    ends.send(MESSAGES)
    assert ends.come(MESSAGES) == (list(range(MESSAGES)),) * 2
    assert set(ends.middle.shape(Fate()).values()) == {0}


def test_each_comes_twice(ends: Ends) -> None:
    ends.middle.shape(Fate(duplicate=1.0))
    ends.send(MESSAGES)
    twice = sorted([*range(MESSAGES)] * 2)
    assert [sorted(numbers) for numbers in ends.come(2 * MESSAGES)] == [twice] * 2
    assert ends.middle.shape(Fate())["duplicated"] == 2 * MESSAGES


def test_some_overtake_others_and_none_is_lost(ends: Ends) -> None:
    ends.middle.shape(Fate(reorder=0.5))
    ends.send(MESSAGES)
    for numbers in ends.come(MESSAGES):
        assert numbers != sorted(numbers) == list(range(MESSAGES))


def test_some_are_lost_and_the_others_keep_their_order(ends: Ends) -> None:
    ends.middle.shape(Fate(drop=0.5))
    ends.send(MESSAGES)
    come = ends.come(MESSAGES)
    assert all(numbers == sorted(set(numbers)) and 0 < len(numbers) < MESSAGES for numbers in come)
    assert ends.middle.shape(Fate())["dropped"] == 2 * MESSAGES - sum(map(len, come))


def test_late_ones_come_after_seconds(ends: Ends) -> None:
    ends.middle.shape(Fate(late=1.0))
    began = time.monotonic()
    ends.send(1)
    for socket in (ends.broker, ends.worker):
        assert _numbers(socket, 1) == [0] and time.monotonic() - began > LATE_SECONDS[0]
