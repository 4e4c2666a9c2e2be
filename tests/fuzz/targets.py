"""The readers of what others write, each as a function of bytes. Refused by name or taken: all else is a failure.

A target returns whether the input was taken. What is taken must hold what its reader promises.
"""

from __future__ import annotations

import math
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from learner.requests import join, open_request
from learner.slots import Group
from pipeline.config.load import dump, load
from pipeline.errors import ConfigError, ProtocolError, SpaceError, StoreError
from pipeline.protocol import Hello, Kind, Report, decode
from pipeline.requests import StepRequest
from pipeline.routing.learners import Ready
from pipeline.rows import NO_REPLY, ROW
from pipeline.spaces import Leaf, Spaces
from pipeline.store.codec import decode_whole
from pipeline.unrolls import UnrollLayout
from tests.unit.routing_net import Net, check, ready

LAYOUT = UnrollLayout(5, 1, (Leaf("observation", "box", "uint8", (8, 8)),), (), "int32", 2, ((4,),))
LEAVES = (Leaf("observation", "box", "float32", (4,)),)
PEER, LEARNER = b"peer", b"L"


def split(data: bytes) -> list[bytes]:
    """Frames from bytes: each after its length in two bytes; the last one gets what is there."""
    frames, at = [], 0
    while at + 2 <= len(data):
        (length,) = struct.unpack_from("<H", data, at)
        frames.append(data[at + 2 : at + 2 + length])
        at += 2 + length
    return frames


def joined(frames: list[bytes]) -> bytes:
    """The inverse of ``split``; frames of less than 64 KiB."""
    return b"".join(struct.pack("<H", len(frame)) + frame for frame in frames)


def protocol(data: bytes) -> bool:
    """One message at the structures of the protocol."""
    try:
        message = decode(split(data))
        if message.kind in (Kind.HELLO, Kind.JOIN):
            Spaces.from_wire(Hello.from_wire(message.fields[-1] if message.fields else None).spaces)
        elif message.kind in (Kind.HEARTBEAT, Kind.BYE, Kind.REPORT):
            Report.from_wire(message.fields[-1] if message.fields else None)
        elif message.kind == Kind.READY:
            Ready.from_wire(message.fields[-1] if message.fields else None)
    except (ProtocolError, SpaceError):
        return False
    return True


def router(data: bytes) -> bool:
    """Messages at a broker that serves one worker, in turn as a worker's and as a learner's."""
    net = Net()
    net.learner(LEARNER, Kind.READY, ready())
    net.serve(1)
    before = net.router.counters.total()
    for i, one in enumerate(split(data)[:16]):
        if i % 2:
            net.learner_raw(LEARNER, split(one))
        else:
            net.worker(PEER, split(one))
        net.now += 0.05
        net.flush()
        check(net.router)
    refused = net.router.counters.total() > before
    net.advance(1.0)
    check(net.router)
    return not refused


def request(data: bytes) -> bool:
    """The frames after a STEP's head, at a learner whose group has two environments."""
    group = Group(np.arange(2, dtype=np.int32), np.arange(2), 1, False)
    frames = split(data)
    rows = len(frames[0]) // ROW.itemsize if frames else 0
    try:
        batch = join([open_request(StepRequest(0, 1, 0, 0, rows, 2, frames), group, LEAVES)])
    except ProtocolError:
        return False
    assert len(batch.rows) == 2 and batch.observation[0].shape == (2, 4)
    assert batch.rows["environment"].tolist() == [0, 1] and not (batch.rows["flags"] & NO_REPLY).any()
    finals = batch.finals
    assert (finals is None) == (rows == 2)
    if finals is not None:
        assert len(finals.rows) == rows - 2 and finals.observation[0].shape == (rows - 2, 4)
        assert (batch.rows["environment"][finals.at] == finals.rows["environment"]).all()
    return True


def unroll(data: bytes) -> bool:
    """One stored unroll."""
    (error,) = decode_whole([data], LAYOUT, np.empty((1, LAYOUT.nbytes), np.uint8))
    assert error is None or isinstance(error, StoreError)
    return error is None


def config(data: bytes) -> bool:
    """A configuration file: what loads can be written, and loads equal again."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_bytes(data)
        try:
            loaded = load(path, (), {}).config
        except ConfigError as error:
            assert "\n" not in str(error) and error.exit_code == 2
            return False
        path.write_text(dump(loaded))
        assert load(path, (), {}).config == loaded
    return True


def settings(data: bytes) -> bool:
    """``--set`` and variables: lines of ``key=value``, each given both ways."""
    lines = [line for line in data.decode(errors="replace").replace("\0", "").splitlines() if line][:8]
    pairs = [line.partition("=") for line in lines]
    taken = True
    for overrides, environ in (
        (lines, {}),
        ([], {"SEEDMQ_" + key.upper().replace(".", "__"): value for key, _, value in pairs}),
    ):
        try:
            loaded = load("cartpole_vtrace", overrides, environ).config
            assert math.isfinite(loaded.vtrace.discount)
        except ConfigError as error:
            assert "\n" not in str(error)
            taken = False
    return taken


TARGETS: dict[str, Callable[[bytes], bool]] = {
    target.__name__: target for target in (protocol, router, request, unroll, config, settings)
}
