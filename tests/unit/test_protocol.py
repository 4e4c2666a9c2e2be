"""The wire format: the document's test vectors, and that hostile bytes end as ``ProtocolError`` and nothing else."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from pipeline.errors import ProtocolError, SpaceError
from pipeline.protocol import MAX_DEPTH, MAX_FRAMES, VERSION, Hello, Kind, Report, decode, encode, fields_of, unpack
from pipeline.routing.actions import SendWorker
from pipeline.routing.learners import Ready
from pipeline.rows import ROW
from pipeline.spaces import Spaces
from tests.unit.routing_net import Net, check, ready, step_frames

pytestmark = pytest.mark.unit

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
VECTORS = [
    (kind, json.loads(fields), bytes.fromhex(head))
    for kind, fields, head in re.findall(r"^```vector (\w+)\n(.*)\n([0-9a-f\n]+)\n```$", DOCUMENT, re.MULTILINE)
]


@pytest.mark.parametrize(("kind", "fields", "head"), VECTORS)
def test_vectors_of_the_document(kind: str, fields: list[Any], head: bytes) -> None:
    assert encode(Kind[kind], *fields) == head
    message = decode([head, b"buffer"])
    assert (message.kind, message.fields, message.buffers) == (Kind[kind], fields, [b"buffer"])


def test_the_document_has_a_vector_for_every_kind_and_its_number() -> None:
    assert {kind for kind, _, _ in VECTORS} == {kind.name for kind in Kind}
    table = dict(re.findall(r"^\| ([A-Z_]+) \| (\d+) \|", DOCUMENT, re.MULTILINE))
    assert {name: int(number) for name, number in table.items()} == {kind.name: int(kind) for kind in Kind}


def test_the_documents_rows() -> None:
    found = re.search(r"^```rows\n(.*)\n([0-9a-f\n]+)\n```$", DOCUMENT, re.MULTILINE)
    assert found is not None
    rows = np.array([tuple(row) for row in json.loads(found[1])], ROW)
    assert rows.tobytes().hex() == found[2].replace("\n", "")
    layout = re.findall(r"^\| (\d+) \| (u?int\d+|float\d+) \| `(\w+)` \|", DOCUMENT, re.MULTILINE)
    assert [(int(offset), kind, name) for offset, kind, name in layout] == [
        (ROW.fields[name][1], ROW.fields[name][0].name, name)  # type: ignore[index]
        for name in ROW.names or ()
    ]


def test_structures_of_the_vectors_are_what_the_code_takes() -> None:
    by_kind = {kind: fields for kind, fields, _ in VECTORS}
    hello = Hello.from_wire(by_kind["HELLO"][0])
    assert hello.to_wire() == by_kind["HELLO"][0] and hello.groups == [2, 2]
    assert Spaces.from_wire(hello.spaces).to_wire() == hello.spaces
    assert Report.from_wire(by_kind["BYE"][1]).taken == 10
    assert Ready.from_wire(by_kind["READY"][0]).batch == 512


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x91\x01",
        msgpack.packb([VERSION + 1, 1]),
        msgpack.packb(["1", 1]),
        msgpack.packb([VERSION, 99]),
        msgpack.packb([VERSION, "HELLO"]),
        msgpack.packb([VERSION, [1]]),
        msgpack.packb({1: 2}),
        msgpack.packb([VERSION, 1, msgpack.ExtType(5, b"x")]),
        msgpack.packb([VERSION, 1]) + b"\x00",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 2000,
        b"\x93\x01\x01\xa2\xff\xff",
        b"\x00" * (2**20 + 1),
    ],
)
def test_heads_that_are_refused(head: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode([head])


def test_frames_and_depth_are_bounded() -> None:
    good = encode(Kind.STATUS)
    for frames in ([], [good] + [b""] * MAX_FRAMES):
        with pytest.raises(ProtocolError):
            decode(frames)
    nested: Any = 1
    for _ in range(MAX_DEPTH):
        nested = [nested]
    assert unpack(msgpack.packb(nested)) == nested
    for deeper in ([nested], {"x": nested}, [1, {"x": 0}, nested]):
        with pytest.raises(ProtocolError, match="nested deeper"):
            unpack(msgpack.packb(deeper))


def test_fields_are_checked_by_number_and_type() -> None:
    message = decode([encode(Kind.STEP, 1, 2, 3)])
    assert fields_of(message, int, int, int) == [1, 2, 3]
    for types in ((int, int), (int, int, int, int), (int, str, int)):
        with pytest.raises(ProtocolError):
            fields_of(message, *types)
    with pytest.raises(ProtocolError):
        fields_of(decode([encode(Kind.CREDIT, True)]), int)


def mutate(head: bytes, rng: random.Random) -> bytes:
    """A few random bytes changed, dropped, added or swapped."""
    data = bytearray(head)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0 if at < len(data):
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.randint(1, 8)]
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case _:
                data[at:at] = data[: rng.randrange(len(data) + 1)]
    return bytes(data)


def test_mutated_messages_raise_protocol_errors_only() -> None:
    rng = random.Random(1)
    refused = 0
    for i in range(4000):
        kind, _, head = VECTORS[i % len(VECTORS)]
        try:
            message = decode([mutate(head, rng), bytes(96)])
            for value in message.fields:
                for take in (Hello.from_wire, Report.from_wire, Ready.from_wire, Spaces.from_wire):
                    with pytest.raises((ProtocolError, SpaceError)):
                        take(value)
                        raise ProtocolError("a mutation that is still valid")
        except ProtocolError:
            refused += 1
    assert refused > 2000, kind


def test_mutated_values_inside_valid_messages_are_refused_or_harmless() -> None:
    """Structures whose msgpack is right and whose values are not."""
    rng = random.Random(2)
    odd = [None, True, -1, 2**63, 2**64 - 1, 1.5, float("nan"), "", "x" * 300, b"x", [], [[]], {}, {"a": {}}, [0] * 70]
    makers = {"HELLO": Hello.from_wire, "BYE": Report.from_wire, "READY": Ready.from_wire}
    for _ in range(3000):
        kind, fields, _ = VECTORS[rng.randrange(len(VECTORS))]
        if kind not in makers:
            continue
        data = json.loads(json.dumps(fields[-1]))
        target = data
        while rng.random() < 0.5 and (inner := [x for x in target.values() if isinstance(x, dict) and x]):
            target = rng.choice(inner)
        target[rng.choice(list(target))] = rng.choice(odd)
        try:
            made = makers[kind](data)
            if isinstance(made, Hello):
                Spaces.from_wire(made.spaces)
        except (ProtocolError, SpaceError):
            continue
        encode(Kind.JOIN, made._asdict())


def test_names_hold_no_control_characters() -> None:
    """They come into logs."""
    by_kind = {kind: fields for kind, fields, _ in VECTORS}
    with pytest.raises(ProtocolError, match="control characters"):
        Hello.from_wire(by_kind["HELLO"][0] | {"worker_id": "w\x1b[31m"})
    with pytest.raises(ProtocolError, match="learner name"):
        Ready.from_wire(by_kind["READY"][0] | {"learner": "l\nWARNING forged"})


def test_a_router_under_mutated_messages_never_raises_and_never_amplifies() -> None:
    rng = random.Random(3)
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.serve(1)
    for i in range(6000):
        kind, _, head = VECTORS[i % len(VECTORS)]
        if kind == "STEP" or i % 5 == 0:
            frames: list[bytes] = step_frames(1, rng.randrange(3), rng.randrange(4))
            frames[rng.randrange(3)] = mutate(frames[rng.randrange(3)], rng)
        else:
            frames = [mutate(head, rng), *[bytes(64)] * rng.randrange(3)]
        net.router.take_actions()
        before = net.router.counters.total()
        net._workers.take(b"peer", frames, net.now)
        malformed = net.router.counters.total() > before
        answers = [x for x in net.router.take_actions() if isinstance(x, SendWorker) and x.peer == b"peer"]
        if malformed:
            assert sum(len(x.head) for x in answers) <= max(sum(map(len, frames)), 120)
        net._learners.take(b"L", frames, net.now)
        net.collect()
        if i % 100 == 0:
            net.now += 0.25
            net.router.tick(net.now)
            check(net.router)
    assert len(net.router.counters) < 64, "reasons are a fixed set"
    net.advance(20.0)
    net.learner(b"M", Kind.READY, ready(epoch=2**62))
    net.serve(2**40, name="new", peer=b"new")
