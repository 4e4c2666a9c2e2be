"""Where a session stands, what it asks its loop to do, and the deadlines it goes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from pipeline.errors import SeedmqError
from pipeline.protocol import Report


class State(Enum):
    """Of a session."""

    JOINING = "joining"
    SERVING = "serving"
    DRAINING = "draining"
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True)
class Timing:
    """Deadlines in seconds.

    Attributes:
        reply: A STEP unanswered for so long is sent again; twice that, and the connection is made anew.
        connect: No word from any broker for so long at the start, and the worker gives up.
        replies_drain: How long a drain waits for outstanding replies.
        goodbye: How long after that it waits for GOODBYE.
        heartbeat: Until WELCOME says otherwise.
        silence: What it may mean that no broker answers, in words.
    """

    reply: float
    connect: float
    replies_drain: float
    goodbye: float
    heartbeat: float = 1.0
    silence: str = ""


class Send(NamedTuple):
    """Send a message. What cannot be sent yet waits under its ``key``, until something newer replaces it there.

    ``buffers`` are arrays; ``again``: they may still be on their way, so copy them.
    """

    key: str
    head: bytes
    buffers: Sequence[Any] = ()
    again: bool = False


class Reconnect(NamedTuple):
    """Close the socket without lingering, forget what is unsent, and make a new one."""


class Begin(NamedTuple):
    """Reset every group and report each with ``stepped``; ``seed`` is the first environment's, the others' follow."""

    seed: int
    worker: int


class Abandon(NamedTuple):
    """Reset this group in the midst of its episodes, and report it with ``stepped``: the learner lost their state."""

    group: int


class Step(NamedTuple):
    """Step this group with these actions, and report it with ``stepped``."""

    group: int
    actions: Any


class Say(NamedTuple):
    """A log line."""

    level: str
    text: str


class Finish(NamedTuple):
    """The end; ``error`` is what the process fails with, None after an orderly end; ``booked``: what BYE said, where it
    was answered."""

    error: SeedmqError | None = None
    booked: Report | None = None


Action = Send | Reconnect | Begin | Abandon | Step | Say | Finish
