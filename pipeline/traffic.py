"""Who sends how much over one binding socket, message by message; belongs to the thread that owns the socket."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from pipeline.connections import Heard

PERIOD_SECONDS = 1.0


class Traffic:
    """Counts the messages of each peer and says once in a period whom it heard.

    Args:
        most: Messages of one peer within a period; more are dropped, and end its connection.
        named: Peers have user ids, that is, keys.
        tell: Takes what was heard; called at the end of a period.
    """

    def __init__(self, most: int, named: bool, tell: Callable[[Heard], None]) -> None:
        self.dropped = 0
        self._most = most
        self._named = named
        self._tell = tell
        self._counts: dict[bytes, int] = {}
        self._users: dict[int, bytes] = {}
        self._too_many: set[int] = set()
        self._due = float("-inf")

    def take(self, peer: bytes, frame: zmq.Frame) -> bool:
        """Whether to look at a message of ``peer``, of which ``frame`` is one."""
        count = self._counts.get(peer, 0) + 1
        self._counts[peer] = count
        if count == 1:
            self._users[int(frame.get(zmq.SRCFD))] = self._user(frame)
        if count <= self._most:
            return True
        if count == self._most + 1:
            self._too_many.add(int(frame.get(zmq.SRCFD)))
        self.dropped += 1
        return False

    def end_period(self, now: float, drained: bool) -> None:
        """To be called after each round of receiving; ``drained``: it left nothing waiting."""
        if now >= self._due:
            self._tell(Heard(self._users, self._too_many, drained))
            self._counts, self._users, self._too_many = {}, {}, set()
            self._due = now + PERIOD_SECONDS

    def _user(self, frame: zmq.Frame) -> bytes:
        return str(frame.get("User-Id")).encode() if self._named else b""
