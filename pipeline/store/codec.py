"""Unroll records to store payloads and back: a small header, then the record, perhaps compressed.

::

    offset  bytes  field
    0       2      magic, "SQ"
    2       1      version of this header
    3       1      codec: 0 none, 1 lz4 (block), 2 zstd (frame)
    4       4      CRC-32 of everything else, in order
    8       8      raw length: bytes of the record
    16      8      environment   } copied from the record, so that a
    24      8      run           } damaged payload can still be named
    32      8      row           }
    40             body

All little-endian. Nothing is decompressed before the checksum and the raw length are right, and never to more than the
layout's length. Errors: ``StoreError`` for every payload that is not whole.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import cramjam
import numpy as np
import numpy.typing as npt
import zstandard

from pipeline.errors import StoreError
from pipeline.unrolls import OBSERVATION, UnrollLayout

Records = npt.NDArray[np.uint8]

MAGIC = b"SQ"
VERSION = 2
ZSTD_LEVEL = 1
_FRONT = struct.Struct("<2sBB")  # magic, version, codec
_CHECKSUM = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_NAMES_BYTES = 24  # environment, run, row: the first three fields of every record
_HEADER = struct.Struct("<2sBBIQqQq")
_REST_AT = _FRONT.size + _CHECKSUM.size
HEADER_BYTES = _HEADER.size


class Codec(IntEnum):
    """How a payload's body is compressed; the value stands in the header."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


_FRONTS = {codec: _FRONT.pack(MAGIC, VERSION, codec) for codec in range(256)}
_FRONT_CHECKSUMS = {codec: zlib.crc32(front) for codec, front in _FRONTS.items()}


class _Contexts(threading.local):
    """What is not thread-safe and worth keeping, one per thread: zstd contexts, and room for lz4's output."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()
        self._raw_bytes = -1
        self._room = memoryview(b"")

    def lz4_room(self, raw: memoryview) -> memoryview:
        """Room for ``raw``, compressed, until the next call; fresh memory for each unroll would be mapped anew."""
        if self._raw_bytes != raw.nbytes:
            self._raw_bytes = raw.nbytes
            self._room = np.empty(cramjam.lz4.compress_block_bound(raw), np.uint8).data
        return self._room


_contexts = _Contexts()


def choose(compression: str, layout: UnrollLayout) -> Codec:
    """The codec that ``store.compression`` means for this layout.

    ``auto`` is lz4 where the layout holds uint8 images (leaves of rank 2 or more), else none: floats of a simulator
    hardly shrink (``docs/decisions/0002-compression.md``).
    """
    if compression != "auto":
        return Codec[compression.upper()]
    images = (
        field.dtype == np.uint8 and len(field.shape) >= 3  # [rows, height, width, ...]
        for name, field in layout.fields.items()
        if name.startswith(OBSERVATION)
    )
    return Codec.LZ4 if any(images) else Codec.NONE


def encode(record: Records, layout: UnrollLayout, codec: Codec) -> bytes:
    """One record to a payload.

    Args:
        record: uint8 ``[layout.nbytes]``, contiguous.
        layout: Its layout.
        codec: How to compress it.

    Raises:
        StoreError: the record is not of this layout's length.
    """
    raw = record.data.cast("B")
    if raw.nbytes != layout.nbytes:
        raise StoreError(f"a record of {raw.nbytes} bytes where the layout has {layout.nbytes}")
    body: Any = raw
    if codec is Codec.LZ4:
        room = _contexts.lz4_room(raw)
        body = room[: cramjam.lz4.compress_block_into(raw, room, store_size=False)]
    elif codec is Codec.ZSTD:
        body = _contexts.compressor.compress(raw)
    rest = _LENGTH.pack(raw.nbytes) + raw[:_NAMES_BYTES]
    checksum = zlib.crc32(body, zlib.crc32(rest, _FRONT_CHECKSUMS[codec]))
    return b"".join((_FRONTS[codec], _CHECKSUM.pack(checksum), rest, body))


def decode_whole(payloads: Sequence[bytes], layout: UnrollLayout, out: Records) -> list[StoreError | None]:
    """Payloads to records, each copied once, into its row; one that does not open keeps none of the others from it.

    Args:
        payloads: B payloads.
        layout: Their layout.
        out: uint8 ``[B, layout.nbytes]``, contiguous, to fill; the row of a payload that does not open holds anything.

    Returns:
        Of each payload None, or why it does not open: damaged, of another layout or of another version. Names its
        environment and run where the header can be read.
    """
    errors: list[StoreError | None] = []
    for row, payload in zip(out, payloads, strict=True):
        try:
            _open(payload, layout, row)
            errors.append(None)
        except StoreError as error:
            errors.append(error)
    return errors


def _open(payload: bytes, layout: UnrollLayout, out: Records) -> None:
    """The record of one payload into ``out``, uint8 ``[layout.nbytes]``."""
    if len(payload) < HEADER_BYTES:
        raise StoreError(f"a payload of {len(payload)} bytes is shorter than its header")
    magic, version, codec, checksum, raw_length, *names = _HEADER.unpack_from(payload)
    if magic != MAGIC or version != VERSION:
        raise StoreError(f"not an unroll payload of version {VERSION}: it begins with {payload[:4].hex()}")
    whole = memoryview(payload)
    if zlib.crc32(whole[_REST_AT:], _FRONT_CHECKSUMS[codec]) != checksum:
        raise StoreError(f"{_named(names)}: damaged payload, its checksum is wrong")
    if raw_length != layout.nbytes:
        raise StoreError(f"{_named(names)}: {raw_length} bytes where this learner's layout has {layout.nbytes}")
    try:
        written = _expand(whole[HEADER_BYTES:], codec, out)
    except (cramjam.DecompressionError, zstandard.ZstdError, ValueError) as error:
        raise StoreError(f"{_named(names)}: damaged payload: {error}") from error
    if written != layout.nbytes:
        raise StoreError(f"{_named(names)}: damaged payload: {written} of {layout.nbytes} bytes")


def _named(names: Sequence[int]) -> str:
    return "unroll of environment {}, run {}, row {}".format(*names)


def _expand(body: memoryview, codec: int, out: Records) -> int:
    """Decompresses into ``out``, never beyond it; bytes written.

    Raises:
        ValueError: no such codec, or a length that the frame itself contradicts.
    """
    if codec == Codec.LZ4:
        return int(cramjam.lz4.decompress_block_into(body, out.data))
    if codec == Codec.NONE:
        raw = np.frombuffer(body, np.uint8)
    elif codec == Codec.ZSTD:
        # The frame's own length is checked first: zstd allocates what the frame says.
        if zstandard.frame_content_size(body) != out.nbytes:
            raise ValueError("the frame's length is not the layout's")
        raw = np.frombuffer(_contexts.decompressor.decompress(body, max_output_size=out.nbytes), np.uint8)
    else:
        raise ValueError(f"unknown codec {codec}")
    if raw.nbytes == out.nbytes:
        out[:] = raw
    return raw.nbytes
