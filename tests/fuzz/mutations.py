"""Valid messages and unrolls, spoilt: cut off, bits flipped, or another structure under a right surface."""

from __future__ import annotations

import copy
import json
import random
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import cramjam
import msgpack
import zstandard

from pipeline.protocol import Kind
from pipeline.store import codec
from pipeline.store.codec import Codec
from pipeline.unrolls import UnrollLayout

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
FIELDS: dict[Kind, list[Any]] = {
    Kind[kind]: json.loads(fields)
    for kind, fields in re.findall(r"^```vector (\w+)\n(.*)\n[0-9a-f\n]+\n```$", DOCUMENT, re.MULTILINE)
}
"""Fields of one valid message of each kind, from the document's test vectors."""

HOW = ("truncated", "flipped", "structural")
Frames = list[bytes]

_MARK = "\x00mark\x00"
_ODD = [
    None,
    True,
    False,
    -1,
    0,
    2**31,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**63),
    1.5,
    float("nan"),
    float("inf"),
    "",
    "x" * 5000,
]
_ODD += [
    b"x",
    b"",
    [],
    [[]],
    {},
    {"a": {}},
    [0] * 70,
    {str(i): i for i in range(100)},
    "\ud7ff",
    "None",
    "../../etc/passwd",
]
_RAW = [  # msgpack that no encoder writes here
    b"\xdd\xff\xff\xff\xff",  # an array of 2^32 - 1
    b"\xdf\xff\xff\xff\xff",  # a mapping
    b"\xdb\xff\xff\xff\xff",  # a text
    b"\xc6\xff\xff\xff\xff",  # bytes
    b"\xc9\xff\xff\xff\xff\x01",  # an extension
    b"\xd4\x05\x00",  # a small one
    b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
    b"\xc1",  # never used
    b"\x91" * 9 + b"\xc0",
    b"\x91" * 3000 + b"\xc0",
    b"\x81\xa1a" * 40 + b"\xc0",
    b"\x82\xa1a\x01\xa1a\x02",  # one key twice
    b"\x81\x01\x02",  # a key that is no text
    b"\x81\x90\x02",
    b"\xa2\xff\xff",  # no UTF-8
    b"\xdc\xff\xff" + b"\xc0" * 65535,  # the widest that is taken, and one more
    b"\xdd\x00\x01\x00\x01" + b"\xc0" * 65537,
]


def message(rng: random.Random, kind: Kind, fields: list[Any], buffers: Frames, how: str) -> Frames:
    """A message whose frame 0 is spoilt; ``structural`` may add, drop or change the other frames too.

    Args:
        rng: Draws.
        kind: Of the message.
        fields: Valid ones.
        buffers: Frames after the first.
        how: One of ``HOW``. What is ``truncated`` is never valid.
    """
    head = msgpack.packb([1, int(kind), *fields], use_bin_type=True)
    if how == "truncated":
        return [head[: rng.randrange(len(head))], *buffers]
    if how == "flipped":
        return [flipped(rng, head), *buffers]
    head = _structural(rng, [1, int(kind), *copy.deepcopy(fields)])
    match rng.randrange(8):
        case 0:
            buffers = [*buffers, *[b"more"] * rng.choice([1, 5, 300])]
        case 1:
            buffers = buffers[: rng.randrange(len(buffers) + 1)]
        case 2:
            buffers = [flipped(rng, buffer) + rng.randbytes(rng.randrange(3)) for buffer in buffers]
    return [head, *buffers]


def flipped(rng: random.Random, data: bytes) -> bytes:
    """With one to eight bits flipped."""
    spoilt = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8]) if data else 0):
        spoilt[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def _structural(rng: random.Random, tree: list[Any]) -> bytes:
    """The encoding of the tree with something else in one of its places."""
    node: Any = tree
    while True:
        places = list(node) if isinstance(node, dict) else list(range(len(node)))
        inner = [place for place in places if isinstance(node[place], (list, dict)) and node[place]]
        if inner and rng.random() < 0.7:
            node = node[rng.choice(inner)]
            continue
        break
    if node is tree and rng.random() < 0.9:
        places = places[2:] or places  # version and kind stay as they are
    place = rng.choice(places)
    raw = b""
    match rng.randrange(4):
        case 0:
            del node[place]
        case 1 if isinstance(node, dict):
            node[rng.choice(["unknown", "", "x" * 300])] = rng.choice(_ODD)
        case 1:
            node.insert(place, copy.deepcopy(rng.choice(_ODD)))
        case 2:
            node[place], raw = _MARK, rng.choice(_RAW)
        case _:
            node[place] = copy.deepcopy(rng.choice(_ODD))
    packed: bytes = msgpack.packb(tree, use_bin_type=True)
    return packed.replace(msgpack.packb(_MARK), raw) if raw else packed


def payload(rng: random.Random, whole: bytes, layout: UnrollLayout, how: str) -> bytes:
    """A stored unroll, spoilt; ``structural`` has a right checksum over a wrong header or body."""
    if how == "truncated":
        return whole[: rng.randrange(len(whole))]
    if how == "flipped":
        return flipped(rng, whole)
    length = rng.choice([layout.nbytes, layout.nbytes, layout.nbytes, 0, 1, 2**31, 2**63, 2**64 - 1])
    kind = rng.choice([*Codec, *Codec, rng.randrange(256)])
    return sealed(length, kind, _body(rng, kind, layout.nbytes), version=rng.choice([1, 1, 1, 1, 0, 2, 255]))


def _body(rng: random.Random, kind: int, nbytes: int) -> bytes:
    """Of another length, empty, noise, or one that expands to a thousand times what the layout has."""
    raw = rng.choice([b"", bytes(1), bytes(nbytes - 1), bytes(nbytes + 1), bytes(1000 * nbytes)])
    if rng.random() < 0.3 or kind not in (Codec.LZ4, Codec.ZSTD):
        return rng.randbytes(min(len(raw), 2 * nbytes))
    if kind == Codec.ZSTD:
        return bytes(zstandard.compress(raw, 1))
    return bytes(cramjam.lz4.compress_block(raw, store_size=rng.random() < 0.2))


def sealed(length: int, kind: int, body: bytes, version: int = codec.VERSION) -> bytes:
    """A payload whose checksum is right, whatever else it says."""
    front, rest = struct.pack("<2sBB", codec.MAGIC, version, kind), struct.pack("<QqQq", length, 1, 2, 3)
    return front + struct.pack("<I", zlib.crc32(front + rest + body)) + rest + body
