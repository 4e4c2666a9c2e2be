"""Takes back what a learner's predecessors reported beyond the checkpoint that it goes on from: ends of event files.

Not every reader of them heeds a session's start (TensorBoard's ``EventAccumulator`` keeps tensors), and a file that was
cut off in the midst of a record ends whole again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event

FILES = "*tfevents*"
_LENGTH, _CHECKSUM = struct.Struct("<Q"), 4
_HEADER = _LENGTH.size + _CHECKSUM
MAX_RECORD_BYTES = 1 << 26
"""A longer one is none of ours: the length is damaged."""


class Rewound(NamedTuple):
    """Reports that were taken back, and the frames of the last of them."""

    reports: int = 0
    frames: int = 0


def rewind(events: Path, frames: int) -> Rewound:
    """Cuts off all reports above so many frames.

    Raises:
        OSError: a file cannot be read or cut.
    """
    reports = last = 0
    for path in sorted(events.glob(FILES)):
        if not path.is_file():
            continue
        end: int | None = None
        whole = 0
        with path.open("rb") as file:
            for at, after, event in _events(file):
                whole = after
                if event.HasField("summary") and event.step > frames:
                    end = at if end is None else end
                    reports, last = reports + 1, max(last, int(event.step))
        if (kept := whole if end is None else end) < path.stat().st_size:
            os.truncate(path, kept)
    return Rewound(reports, last)


def _events(file: BinaryIO) -> Iterator[tuple[int, int, Event]]:
    """Where each begins and ends, and itself, up to the first that is damaged."""
    at = 0
    while len(header := file.read(_HEADER)) == _HEADER:
        (length,) = _LENGTH.unpack_from(header)
        if length > MAX_RECORD_BYTES:
            return
        data = file.read(length)
        if len(data) < length or len(file.read(_CHECKSUM)) < _CHECKSUM:
            return
        try:
            event = Event.FromString(data)
        except DecodeError:
            return
        begin, at = at, at + _HEADER + length + _CHECKSUM
        yield begin, at, event
