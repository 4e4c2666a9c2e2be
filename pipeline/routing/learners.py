"""Learners as the broker sees them: slots, credit, and the requests that wait for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pipeline.errors import ProtocolError
from pipeline.routing.batching import Batcher

MAX_LEARNERS = 64


class Ready(NamedTuple):
    """READY, checked. ``workers`` and ``runs`` are what the learner has admitted, side by side."""

    learner: str
    epoch: int
    slots: int
    batch: int
    held_back: str
    workers: list[int]
    runs: list[int]

    @classmethod
    def from_wire(cls, data: Any) -> Ready:
        """For untrusted data.

        Raises:
            ProtocolError: a field is missing, unknown or impossible.
        """
        if not isinstance(data, dict) or set(data) != set(cls._fields):
            raise ProtocolError(f"a READY has the keys {', '.join(cls._fields)}")
        ready = cls(**data)
        numbers = (ready.epoch, ready.slots, ready.batch)
        if not all(type(n) is int and 0 <= n < 2**63 for n in numbers) or ready.batch == 0:
            raise ProtocolError("READY: impossible epoch, slots or batch")
        if not isinstance(ready.learner, str) or not 0 < len(ready.learner) <= 200 or not ready.learner.isprintable():
            raise ProtocolError("READY: impossible learner name")
        if not isinstance(ready.held_back, str):
            raise ProtocolError("READY: held_back is text")
        lists = (ready.workers, ready.runs)
        if not all(isinstance(x, list) and all(type(n) is int and 0 <= n < 2**63 for n in x) for x in lists):
            raise ProtocolError("READY: workers and runs are lists of integers")
        if len(ready.workers) != len(ready.runs):
            raise ProtocolError("READY: as many workers as runs")
        return ready


class Learner:
    """One learner.

    Attributes:
        session: Another number whenever the connection or the process is another, or it was lost: credit is void then.
        credit: Rows that it can still take.
        since: When this connection of this process was first heard of.
        used: Slots of the workers assigned to it.
        published: Its part of the status.
    """

    def __init__(self, ready: Ready, peer: bytes, batcher: Batcher, now: float) -> None:
        self.name = ready.learner
        self.batcher = batcher
        self.used = 0
        self.published: dict[str, Any] = {}
        self.silent = False
        self.renew(ready, peer, now)

    def renew(self, ready: Ready, peer: bytes, now: float) -> None:
        """Another connection or process of this name."""
        self.peer = peer
        self.epoch = ready.epoch
        self.credit = 0
        self.session = 0  # the router numbers it
        self.since = now
        self.refresh(ready, now)

    def refresh(self, ready: Ready, now: float) -> None:
        """It lives."""
        self.slots, self.batch = ready.slots, ready.batch
        self.held_back = ready.held_back[:300]
        self.heard = now
        self.silent = False


class Learners:
    """All learners, by name and by routing id.

    Attributes:
        last_lost: The one that was lost last.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Learner] = {}
        self._by_peer: dict[bytes, Learner] = {}
        self._lost_at = float("-inf")
        self.last_lost: Learner | None = None

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Learner]:
        return iter(list(self._by_name.values()))

    def named(self, name: str | None) -> Learner | None:
        return None if name is None else self._by_name.get(name)

    def at(self, peer: bytes) -> Learner | None:
        return self._by_peer.get(peer)

    def add(self, learner: Learner) -> None:
        self._by_name[learner.name] = self._by_peer[learner.peer] = learner

    def moved(self, learner: Learner, old_peer: bytes) -> None:
        """Its routing id has changed."""
        self._by_peer.pop(old_peer, None)
        self._by_peer[learner.peer] = learner

    def remove(self, learner: Learner, now: float) -> None:
        """It is lost."""
        self._lost_at, self.last_lost = now, learner
        del self._by_name[learner.name]
        self._by_peer.pop(learner.peer, None)

    def choose(self, environments: int) -> Learner | None:
        """The living learner with the most free slots, if that is enough of them."""
        living = [x for x in self._by_name.values() if not x.silent]
        best = max(living, key=lambda x: x.slots - x.used, default=None)
        return best if best is not None and best.slots - best.used >= environments else None

    def largest(self) -> int:
        """Slots of the largest learner."""
        return max((x.slots for x in self._by_name.values()), default=0)

    def settled(self, since: float) -> bool:
        """Whether they all live, are the same since then, and none was lost after it: no other is about to come."""
        return self._lost_at <= since and all(x.since <= since and not x.silent for x in self._by_name.values())
