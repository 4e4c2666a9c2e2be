"""The ledger: where every valid transition went. Definitions in ``docs/architecture.md``; unit: one valid transition.

::

    taken    = accepted + undelivered + dropped at the worker (reasons that begin with ``worker_``)
    accepted = trained + waiting (assembler, store, prefetch) + dropped (the other reasons) + rolled_back

With a replay, ``samples`` (trained valid transitions, repeats counted) is a counter and no sink::

    accepted = inserted + waiting (assembler) + dropped
    inserted = resident + evicted

Every term is booked by the event that causes it, by the thread that sees it. The exception is a restart
(``recovered``): what it finds lost is a difference between the checkpoint's books and the store's, at least 0. Of a
run that lives ``taken`` is what its rows tell; of one that ended it is what its worker said, who counts for himself.
What came beyond that is ``surplus``, an error like what is missing. ``error`` is what the two equations fail to close
by, read under one lock: 0 after every drain. ``in_flight`` is in no equation: what living workers had taken when they
spoke last, and had not come.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Literal

Place = Literal["assembler", "store", "prefetch"]
WORKER_PREFIX = "worker_"
EVICTED = "evicted"
STORE_LOST = "store_lost"
LEARNER_RESTART = "learner_restart"
SEAM = "seam"


class Ledger:
    """Thread-safe counters. All amounts are valid transitions, except ``masked`` (rows).

    A replay's residents are what waits in its store, and what it evicts is dropped there, as ``EVICTED``.

    Args:
        replay: The store is a replay.

    Attributes:
        gate: Held by whoever changes the store's books and these, until both are changed; a checkpoint holds it while
            it reads both, so that it never sees one without the other.
        losses: How often all that waited somewhere was lost. Read and changed under the gate.
    """

    def __init__(self, replay: bool = False) -> None:
        self._replay = replay
        self._inserted = 0
        self.gate = threading.Lock()
        self._lock = threading.Lock()
        self.losses = 0
        self._taken = 0
        self._undelivered = 0
        self._surplus = 0
        self._foreseen = 0
        self._in_flight = 0
        self._accepted = 0
        self._trained = 0
        self._rolled_back = 0
        self._masked = 0
        self._waiting: dict[str, int] = {"assembler": 0, "store": 0, "prefetch": 0}
        self._dropped: dict[str, int] = {}

    def arrived(self, taken: int, accepted: int, masked: int) -> None:
        """Rows reached the assembler: ``taken`` by their running index, ``accepted`` by what the assembler owns now."""
        with self._lock:
            self._taken += taken
            self._accepted += accepted
            self._masked += masked
            self._waiting["assembler"] += accepted

    def missed(self, number: int, reason: str) -> None:
        """Transitions that a predecessor accepted, or a seam cut off: taken, accepted and dropped by ``reason``."""
        with self._lock:
            if reason == LEARNER_RESTART:
                number = self._unforeseen(number)
            self._taken += number
            self._accepted += number
            self._drop(reason, number)

    def settled(
        self, *, undelivered: int, dropped: Mapping[str, int], missing: int, surplus: int, inherited: int
    ) -> None:
        """A run's last word; of each amount what is new, which is negative where a word before it is taken back.

        Args:
            undelivered: Taken, and never sent or lost on the way.
            dropped: At the worker, by reason.
            missing: Taken, as the worker says, and nowhere.
            surplus: Accepted, and never taken, as the worker says.
            inherited: Accepted by a predecessor, and lost with it.
        """
        with self._lock:
            self._taken += undelivered + sum(dropped.values()) + missing - surplus
            self._undelivered += undelivered
            self._surplus += surplus
            for reason, number in dropped.items():
                self._drop(WORKER_PREFIX + reason, number)
            inherited = self._unforeseen(inherited)
            self._taken += inherited
            self._accepted += inherited
            self._drop(LEARNER_RESTART, inherited)

    def flies(self, more: int) -> None:
        """So many more transitions are in flight."""
        with self._lock:
            self._in_flight += more

    def moved(self, source: Place, target: Place, number: int) -> None:
        """From one waiting place to the next."""
        with self._lock:
            self._waiting[source] -= number
            self._waiting[target] += number
            if source == "assembler":
                self._inserted += number

    def trained(self, number: int) -> None:
        """An update used them and they are acknowledged; of a replay: sampled, they stay."""
        with self._lock:
            if not self._replay:
                self._waiting["prefetch"] -= number
            self._trained += number

    def dropped(self, source: Place, reason: str, number: int) -> None:
        with self._lock:
            self._waiting[source] -= number
            self._drop(reason, number)

    def lost(self, source: Place, reason: str, number: int | None = None) -> int:
        """So many that waited at ``source`` are gone, or (None) all of them; returns how many."""
        with self._lock:
            if number is None:
                number = self._waiting[source]
                self.losses += 1
            self._waiting[source] -= number
            self._drop(reason, number)
            self._inserted -= number  # of a replay: they count as dropped now
            return number

    def _unforeseen(self, number: int) -> int:
        """Of transitions that a predecessor accepted, those that are in no book yet."""
        known = min(max(0, number), self._foreseen)
        self._foreseen -= known
        return number - known

    def recovered(
        self,
        *,
        accepted: int,
        foreseen: int = 0,
        put: int,
        rolled_back: int,
        waiting_in_store: int,
        dropped: dict[str, int],
    ) -> None:
        """Books what a restored learner finds of its predecessor's work after the checkpoint.

        Args:
            accepted: Transitions accepted after the checkpoint, as the store shows (taken as well), and ``foreseen``.
            foreseen: Of these, those that workers which come back will tell of again, by their running indices.
            put: Transitions put after the checkpoint and not lost since.
            rolled_back: Transitions acknowledged after the checkpoint, whose updates are lost.
            waiting_in_store: What waits in the store now.
            dropped: What is known to be lost, by reason; ``STORE_LOST`` was put before.
        """
        with self._lock:
            self._taken += accepted
            self._accepted += accepted
            self._foreseen = foreseen
            self._inserted += put - dropped.get(STORE_LOST, 0)
            self._rolled_back += rolled_back
            self._waiting = {"assembler": 0, "store": waiting_in_store, "prefetch": 0}
            for reason, number in dropped.items():
                self._drop(reason, number)

    def _drop(self, reason: str, number: int) -> None:
        if number:
            self._dropped[reason] = self._dropped.get(reason, 0) + number

    def snapshot(self) -> dict[str, Any]:
        """The ledger as ``summary.json`` and ``seedmq status`` show it, and as a checkpoint keeps it."""
        with self._lock:
            at_worker = sum(n for reason, n in self._dropped.items() if reason.startswith(WORKER_PREFIX))
            after = sum(self._dropped.values()) - at_worker
            sunk = sum(self._waiting.values()) + after + self._rolled_back + (0 if self._replay else self._trained)
            missing = self._taken - (self._accepted - self._surplus) - self._undelivered - at_worker
            error = abs(missing) + self._surplus + abs(self._accepted - sunk)
            snapshot = {
                "taken": self._taken,
                "in_flight": self._in_flight,
                "undelivered": self._undelivered,
                "surplus": self._surplus,
                "accepted": self._accepted,
                "trained": self._trained,
                "waiting": dict(self._waiting),
                "dropped": dict(self._dropped),
                "rolled_back": self._rolled_back,
                "masked": self._masked,
                "error": error,
            }
            return self._of_replay(snapshot) if self._replay else snapshot

    def _of_replay(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        resident, evicted = snapshot["waiting"]["store"], snapshot["dropped"].pop(EVICTED, 0)
        snapshot["waiting"]["store"] = 0
        snapshot |= {"samples": self._trained, "inserted": self._inserted, "resident": resident, "evicted": evicted}
        snapshot["error"] += abs(self._inserted - resident - evicted)
        return snapshot

    def restore(self, snapshot: dict[str, Any]) -> None:
        """The inverse of ``snapshot``, from a checkpoint."""
        with self._lock:
            self._taken = int(snapshot["taken"])
            self._undelivered, self._surplus = int(snapshot["undelivered"]), int(snapshot.get("surplus", 0))
            self._accepted = int(snapshot["accepted"])
            self._trained = int(snapshot["trained"])
            self._rolled_back = int(snapshot["rolled_back"])
            self._masked = int(snapshot["masked"])
            self._waiting = {place: int(snapshot["waiting"][place]) for place in self._waiting}
            self._dropped = {str(reason): int(number) for reason, number in snapshot["dropped"].items()}
            if self._replay:
                self._inserted, self._waiting["store"] = int(snapshot["inserted"]), int(snapshot["resident"])
                self._drop(EVICTED, int(snapshot["evicted"]))

    @property
    def waiting_in_store(self) -> int:
        """Transitions put and not taken yet."""
        with self._lock:
            return self._waiting["store"]

    @property
    def agent_steps(self) -> int:
        """Valid transitions that count as the run's steps: trained ones, or with a replay accepted ones."""
        with self._lock:
            return self._accepted if self._replay else self._trained

    def trained_and_inserted(self) -> tuple[int, int]:
        """Both of a replay, read together."""
        with self._lock:
            return self._trained, self._inserted


def held_after_assembler(snapshot: dict[str, Any]) -> int:
    """What waits behind the assembler: in the store, prefetched, or resident in a replay."""
    waiting = snapshot["waiting"]
    return int(waiting["store"]) + int(waiting["prefetch"]) + int(snapshot.get("resident", 0))
