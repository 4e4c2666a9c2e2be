"""Payloads: whole ones come back bit for bit, damaged ones are refused before memory is touched."""

from __future__ import annotations

import random
import struct
import zlib

import cramjam
import numpy as np
import pytest
import zstandard

from pipeline.errors import StoreError
from pipeline.spaces import Leaf
from pipeline.store import codec as codecs
from pipeline.store.codec import Codec, Records, choose, decode_whole, encode
from pipeline.unrolls import UnrollLayout

pytestmark = pytest.mark.unit


def make_layout(*leaves: Leaf) -> UnrollLayout:
    return UnrollLayout(5, 1, leaves, (), "int32", 2, ((4,),))


FLAT = make_layout(Leaf("observation", "box", "float32", (4,)))
IMAGE = make_layout(Leaf("observation", "box", "uint8", (16, 16)))


def make_record(layout: UnrollLayout, seed: int = 0) -> np.ndarray:
    record = np.random.default_rng(seed).integers(0, 4, layout.nbytes).astype(np.uint8)
    fields = layout.view(record)
    fields["environment"][...], fields["run"][...], fields["row"][...] = 65537, 2**62 + 5, 40 + seed
    return record


def sealed(codec: int, body: bytes) -> bytes:
    """A payload whose header and checksum are right, whatever its body is."""
    front, rest = struct.pack("<2sBB", codecs.MAGIC, codecs.VERSION, codec), struct.pack("<QqQq", FLAT.nbytes, 1, 2, 3)
    return front + struct.pack("<I", zlib.crc32(front + rest + body)) + rest + body


def decode(payload: bytes, layout: UnrollLayout) -> Records:
    """The record of one payload, or its error raised."""
    record: Records = np.empty((1, layout.nbytes), np.uint8)
    (error,) = decode_whole([payload], layout, record)
    if error is not None:
        raise error
    return record[0]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("layout", [FLAT, IMAGE])
def test_records_come_back_bit_for_bit(codec: Codec, layout: UnrollLayout) -> None:
    records = [make_record(layout, seed) for seed in range(7)]
    payloads = [encode(record, layout, codec) for record in records]
    assert np.array_equal(decode(payloads[3], layout), records[3])
    out = np.zeros((7, layout.nbytes), np.uint8)
    assert decode_whole(payloads, layout, out) == [None] * len(payloads)
    assert np.array_equal(out, np.stack(records))


def test_auto_compresses_images_only() -> None:
    vector = make_layout(Leaf("ram", "box", "uint8", (128,)))
    both = make_layout(Leaf("a", "box", "float32", (3,)), Leaf("b", "box", "uint8", (8, 8, 3)))
    assert [choose("auto", layout) for layout in (FLAT, vector, IMAGE, both)] == [0, 0, Codec.LZ4, Codec.LZ4]
    assert [choose(name, FLAT) for name in ("none", "lz4", "zstd")] == list(Codec)


@pytest.mark.parametrize("codec", list(Codec))
def test_every_damage_is_refused(codec: Codec) -> None:
    payload = encode(make_record(IMAGE), IMAGE, codec)
    rng = random.Random(1)
    for _ in range(2000):
        damaged = bytearray(payload)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] ^= rng.randint(1, 255)
        if bytes(damaged) == payload:
            continue
        with pytest.raises(StoreError):
            decode(bytes(damaged), IMAGE)
    for length in range(0, len(payload), 7):
        with pytest.raises(StoreError):
            decode(payload[:length], IMAGE)


def test_damage_is_named() -> None:
    payload = bytearray(encode(make_record(FLAT), FLAT, Codec.NONE))
    payload[-1] ^= 1
    with pytest.raises(StoreError, match=f"environment 65537, run {2**62 + 5}, row 40"):
        decode(bytes(payload), FLAT)


def test_another_layout_is_refused() -> None:
    with pytest.raises(StoreError, match="this learner's layout has"):
        decode(encode(make_record(FLAT), FLAT, Codec.NONE), IMAGE)
    with pytest.raises(StoreError, match="where the layout has"):
        encode(make_record(FLAT), IMAGE, Codec.NONE)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_bomb_is_not_expanded(codec: Codec) -> None:
    """A body that expands to 64 MiB under a header and a checksum that are right."""
    bomb = bytes(1 << 26)
    body = (
        bytes(cramjam.lz4.compress_block(bomb, store_size=False)) if codec is Codec.LZ4 else zstandard.compress(bomb, 1)
    )
    with pytest.raises(StoreError, match="environment 1, run 2"):
        decode(sealed(codec, body), FLAT)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(StoreError, match="unknown codec 9"):
        decode(sealed(9, bytes(FLAT.nbytes)), FLAT)
