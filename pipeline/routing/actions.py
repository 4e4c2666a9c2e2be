"""What the router asks its loop to do, and what it is told at start."""

from __future__ import annotations

from typing import Any, NamedTuple

from pipeline.protocol import Kind


class SendWorker(NamedTuple):
    """A message to a worker: its routing id, frame 0 encoded, the frames after it."""

    peer: bytes
    head: bytes
    buffers: list[Any]


class SendLearner(NamedTuple):
    """A message to a learner: its routing id, kind and fields of frame 0, the frames after it."""

    peer: bytes
    kind: Kind
    fields: list[Any]
    buffers: list[Any]


class Say(NamedTuple):
    """A line for the log; only of things that happen seldom. A ``detail`` is for those who ask for more."""

    text: str
    detail: bool = False


Action = SendWorker | SendLearner | Say


class Settings(NamedTuple):
    """What the router needs of the configuration; see ``pipeline.config.tree.BrokerSection``.

    ``settle_seconds``: how long the learners must have been the same before a worker that is too large for each of them
    is refused; 0 where there never is another one.
    """

    heartbeat_seconds: float = 1.0
    lease_seconds: float = 10.0
    max_workers: int = 4096
    min_rows: int = 1
    max_wait_seconds: float = 0.0
    settle_seconds: float = 0.0
