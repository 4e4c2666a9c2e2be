"""The worker's connection against a real ROUTER: waits that end, messages that wait, and those that are replaced."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from pipeline.config.tree import BrokerSection, SecuritySection
from workers.actions import Send
from workers.connection import GRAIN_MILLISECONDS, LARGE_BYTES, Connection

pytestmark = pytest.mark.integration
PATIENCE = 20.0


class Peer:
    """A ROUTER that may come late."""

    def __init__(self, endpoint: str) -> None:
        self.context: Any = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE * 1000))
        self.socket.bind(endpoint)

    def take(self) -> list[bytes]:
        self.peer, *frames = self.socket.recv_multipart()
        return frames

    def reached(self) -> bool:
        return bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def say(self, *frames: bytes) -> None:
        self.socket.send_multipart([self.peer, *frames])

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def section(tmp_path: Path) -> BrokerSection:
    return BrokerSection(bind=f"ipc://{tmp_path}/broker")


@pytest.fixture
def connection(section: BrokerSection) -> Iterator[Connection]:
    made = Connection(section, SecuritySection())
    yield made
    made.renew()
    made.close()
    made.term()


def taken(connection: Connection) -> list[bytes]:
    """What comes next, while what waits is sent."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if (frames := connection.receive(0.1)) is not None:
            return frames
    raise TimeoutError("nothing came")


def test_a_wait_ends_in_time_with_and_without_a_peer(connection: Connection, section: BrokerSection) -> None:
    for waits_to_send in (False, True):
        for seconds in (0.0, -1.0, 0.1, 0.25):
            begun = time.monotonic()
            assert connection.receive(seconds) is None
            assert time.monotonic() - begun >= seconds
            assert time.monotonic() - begun < max(0.0, seconds) + GRAIN_MILLISECONDS / 1000 + 1.0
        if not waits_to_send:
            connection.send(Send("hello", b"1"))


def test_what_cannot_be_sent_waits_in_order_and_the_newest_of_a_key_goes(
    connection: Connection, section: BrokerSection
) -> None:
    for key, head in (("hello", b"1"), ("step 0", b"2"), ("hello", b"3"), ("step 1", b"4")):
        connection.send(Send(key, head, [np.arange(3, dtype=np.uint8)] if key != "hello" else ()))
    peer = Peer(section.bind)
    while connection.receive(0.1) is None and not peer.reached():
        pass
    assert [peer.take(), peer.take(), peer.take()] == [[b"3"], [b"2", b"\0\1\2"], [b"4", b"\0\1\2"]]
    peer.say(b"one")
    peer.say(b"two", b"frames", b"")
    assert [taken(connection), taken(connection)] == [[b"one"], [b"two", b"frames", b""]]
    connection.send(Send("step 0", b"5"))
    assert peer.take() == [b"5"], "with an empty outbox it goes at once"
    peer.close()


def test_after_a_renewal_nothing_that_waited_is_sent(connection: Connection, section: BrokerSection) -> None:
    connection.send(Send("step 0", b"old"))
    connection.renew()
    peer = Peer(section.bind)
    connection.send(Send("hello", b"new"))
    assert connection.receive(0.5) is None
    assert peer.take() == [b"new"]
    peer.say(b"welcome")
    assert taken(connection) == [b"welcome"]
    peer.close()


@pytest.mark.parametrize("nbytes", [1, LARGE_BYTES - 1, LARGE_BYTES, 4 * LARGE_BYTES])
def test_arrays_of_any_size_arrive_whole_and_as_they_were_where_they_are_sent_again(
    connection: Connection, section: BrokerSection, nbytes: int
) -> None:
    peer = Peer(section.bind)
    connection.send(Send("hello", b"hello"))
    while connection.receive(0.1) is None and not peer.reached():
        pass
    assert peer.take() == [b"hello"]
    array = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    was = array.tobytes()
    connection.send(Send("step 0", b"step", [array, array]))
    assert peer.take() == [b"step", was, was]
    connection.send(Send("step 0", b"step", [array], again=True))
    array[:] = 0
    assert peer.take() == [b"step", was], "a copy is sent"
    peer.close()
