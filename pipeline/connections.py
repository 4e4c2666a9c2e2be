"""Which connections of a binding socket may stay: decided here, cut off by ``pipeline.admission``.

A connection is known by its file descriptor, from ACCEPTED to DISCONNECTED. Who it belongs to is known by what came
over it: once in a period the owner of the socket says which descriptors and users (keys) it heard whole messages of.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

LIMIT = "limit"
RATE = "rate"
REVOKED = "revoked"
UNFINISHED = "unfinished"
REASONS = (LIMIT, RATE, REVOKED, UNFINISHED)
SLACK_BYTES = 8 * 2**20  # may be on their way between network and socket


class Cut(NamedTuple):
    """A connection to be cut off, and why: one of ``REASONS``."""

    descriptor: int
    reason: str


class Heard(NamedTuple):
    """What the owner of a socket says about a period.

    Attributes:
        users: Descriptor -> user id (the public key; empty without keys) of all that whole messages came over.
        too_many: Descriptors over which more messages came than may.
        drained: No whole message was left waiting at the end of the period.
    """

    users: Mapping[int, bytes]
    too_many: Set[int]
    drained: bool


class _Connection:
    """One connection: its key once a message came, when that was, and the bytes received up to then."""

    __slots__ = ("base_bytes", "heard", "user")

    def __init__(self) -> None:
        self.user = b""
        self.heard = float("-inf")
        self.base_bytes = 0


class Connections:
    """All connections of one binding socket.

    Args:
        most: Connections at once; a new one above it is cut off.
        message_bytes: Bound of one frame. A peer that has sent more than twice this and ``SLACK_BYTES`` without ending
            a message is cut off: the frames of an unfinished message wait where no queue bound counts them.
    """

    def __init__(self, most: int, message_bytes: int) -> None:
        self._most = most
        self._unfinished_bytes = 2 * message_bytes + SLACK_BYTES
        self._open: dict[int, _Connection] = {}

    def descriptors(self) -> list[int]:
        """Of the open connections."""
        return list(self._open)

    def accepted(self, descriptor: int) -> list[Cut]:
        """A new connection, which nobody has vouched for yet."""
        self._open[descriptor] = _Connection()
        return [Cut(descriptor, LIMIT)] if len(self._open) > self._most else []

    def closed(self, descriptor: int) -> None:
        """It is gone; its number may be another's soon."""
        self._open.pop(descriptor, None)

    def heard(self, said: Heard, received: Mapping[int, int], authorized: Set[bytes] | None, now: float) -> list[Cut]:
        """Judges a period.

        Args:
            said: By the socket's owner.
            received: Descriptor -> bytes received since it was accepted; those where that is unknown are missing.
            authorized: Keys that may connect; None where no keys are used.
            now: Monotonic seconds.
        """
        cuts = [Cut(descriptor, RATE) for descriptor in said.too_many if descriptor in self._open]
        for descriptor, user in said.users.items():
            connection = self._open.get(descriptor)
            if connection is None:
                continue
            connection.user, connection.heard = user, now
            connection.base_bytes = received.get(descriptor, connection.base_bytes)
            if authorized is not None and user not in authorized:
                cuts.append(Cut(descriptor, REVOKED))
        if said.drained:
            for descriptor, nbytes in received.items():
                connection = self._open.get(descriptor)
                if connection is not None and nbytes - connection.base_bytes > self._unfinished_bytes:
                    cuts.append(Cut(descriptor, UNFINISHED))
        return cuts

    def unvouched(self, authorized: Set[bytes], since: float) -> list[Cut]:
        """A key went at ``since``: all but those that have been heard after it with a key that may stay.

        Silent ones of good keys, which nothing tells from others, connect again at once.
        """
        return [
            Cut(descriptor, REVOKED)
            for descriptor, connection in self._open.items()
            if connection.heard < since or connection.user not in authorized
        ]
