"""Endpoints that something else holds, or that a killed process has left."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import zmq

from pipeline.errors import ConfigError
from pipeline.sources import EmbeddedSource
from tests.integration.peers import EchoLearner, FakeWorker
from tests.integration.test_sources import SLOTS, make_config, play

pytestmark = pytest.mark.integration


def test_an_endpoint_that_is_taken_is_said_in_one_line(tmp_path: Path) -> None:
    context = zmq.Context()
    taken = context.socket(zmq.ROUTER)
    port = taken.bind_to_random_port("tcp://127.0.0.1")
    config = make_config(tmp_path, "embedded", bind=f"tcp://127.0.0.1:{port}")
    with pytest.raises(ConfigError, match=rf"broker.bind = tcp://127.0.0.1:{port}: something else listens there"):
        EmbeddedSource(config, context, "learner", SLOTS)
    context.destroy(linger=0)


def test_an_ipc_endpoint_that_is_taken_is_refused_and_one_that_was_left_is_not(tmp_path: Path) -> None:
    context = zmq.Context()
    config = make_config(tmp_path, "embedded")
    taken = EmbeddedSource(config, context, "learner", SLOTS)
    with (
        zmq.Context() as other,
        pytest.raises(ConfigError, match=r"broker.bind = ipc://.*: something else listens there"),
    ):
        EmbeddedSource(config, other, "learner", SLOTS)
    worker = FakeWorker(context, config, "w0", 5, [1], steps=1)
    play(EchoLearner(taken), [worker])
    worker.close()
    taken.close()

    with socket.socket(socket.AF_UNIX) as killed:  # its file stays
        killed.bind(str(tmp_path / "w"))
    again = EmbeddedSource(config, context, "learner", SLOTS)
    worker = FakeWorker(context, config, "w0", 6, [1], steps=1)
    play(EchoLearner(again), [worker])
    worker.close()
    again.close()

    (tmp_path / "w").write_text("a user's")
    with pytest.raises(ConfigError, match="is there and is no socket"):
        EmbeddedSource(config, context, "learner", SLOTS)
    assert (tmp_path / "w").read_text() == "a user's"
    (tmp_path / "w").unlink()

    last = EmbeddedSource(config, context, "learner", SLOTS)
    (tmp_path / "w").unlink()
    (tmp_path / "w").write_text("put there since")
    last.close()
    assert (tmp_path / "w").read_text() == "put there since"
    (tmp_path / "w").unlink()

    (tmp_path / "w").symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="is a link to nothing"):
        EmbeddedSource(config, context, "learner", SLOTS)
    assert (tmp_path / "w").is_symlink()
    context.destroy(linger=0)
