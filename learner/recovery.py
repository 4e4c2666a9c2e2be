"""What a checkpoint holds beside the weights, and how a restarted learner closes its predecessor's books.

A checkpoint is one cut: every applied update is acknowledged, and ledger and frontier are read on the inference thread
between two batches. What the store did afterwards is found in the store's own books:

* acknowledged after the cut: updates that are lost with the weights -> ``rolled_back``;
* put after the cut: accepted (and taken) by the predecessor, still there to be trained;
* accepted before the cut and never put: open unrolls of the predecessor -> dropped as ``learner_restart``;
* accepted after the cut and never put: known when the environment's next row tells its running index (``Collector``).

What the predecessor had taken before the store lost its data, and had not applied at the cut, is dropped as
``store_lost``: the store cannot offer it again.

When the store itself is another one (an embedded store that ended with its run, a Redis that lost its data) whatever
was put and is not in its books is dropped as ``store_lost``; so is what a replay that came back with older data counts
as lost itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from learner.accounts import Settled
from learner.checkpoint import Checkpoint
from learner.overwritten import overwrite
from learner.roster import Frontier, Known, Place
from pipeline.errors import UnwrittenError
from pipeline.ledger import STORE_LOST, Ledger, held_after_assembler
from pipeline.rows import offset_of
from pipeline.run_dir import read_json
from pipeline.store.interface import StoreCounts

log = logging.getLogger(__name__)

RESERVED_VERSIONS = 256
VERSIONS_BYTES = 64  # of their file: it never grows


class Cut(NamedTuple):
    """Ledger, frontier and settled runs, read together."""

    ledger: dict[str, Any]
    frontier: Frontier
    settled: Mapping[int, Settled]


class StoreView(NamedTuple):
    """The store's books: its identity, its counters, and the index up to which it got each environment's run.

    ``lost_total`` as in ``ReplayCounts``; ``mark`` as in ``Fifo`` and ``Replay``.
    """

    epoch: str
    counts: StoreCounts
    stored: Known
    lost_total: int = 0
    mark: str = ""


class Recovered(NamedTuple):
    """What a successor knows of its predecessor, if there was one: where each environment stands, and which runs are
    settled."""

    known: Known = MappingProxyType({})
    settled: Mapping[int, Settled] = MappingProxyType({})
    restored: bool = False


class Versions:
    """Policy versions are never published twice: blocks of them are reserved in a file before they are used.

    The file is overwritten where it stands, which needs no room on the disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        found = read_json(path)
        self.reserved = int(found["reserved"]) if found else 0

    def begin(self, version: int) -> int:
        """The version to go on with after ``version``, of a checkpoint: above all that were published, and reserved.

        Raises:
            UnwrittenError: the file system refuses.
        """
        version = max(version, self.reserved)
        try:
            self.reserve(version)
        except OSError as error:
            raise UnwrittenError(f"reserving policy versions in {self._path} failed: {error}") from error
        return version

    def reserve(self, version: int) -> None:
        """Makes sure that ``version`` is reserved; writes once in ``RESERVED_VERSIONS`` updates.

        Raises:
            OSError: it could not be, and may not be published.
        """
        if version >= self.reserved:
            self._write(version + RESERVED_VERSIONS)

    def after(self, version: int) -> int:
        """The version after one more update: the next, or the same while no other is reserved."""
        return version + 1 if version + 1 < self.reserved else version

    def release(self, version: int) -> None:
        """After an orderly stop nothing above ``version`` was published.

        Raises:
            OSError: it stays as it was.
        """
        self._write(version + 1)

    def _write(self, reserved: int) -> None:
        overwrite(self._path, {"reserved": reserved}, VERSIONS_BYTES)
        self.reserved = reserved


def by_place(stored_index: Mapping[tuple[int, int], int]) -> Known:
    """From the store's environments to places: a run may have had several indices."""
    stored: dict[Place, int] = {}
    for (environment, run), index in stored_index.items():
        place = (run, offset_of(environment))
        stored[place] = max(index, stored.get(place, 0))
    return stored


def checkpoint_meta(cut: Cut, store: StoreView, **rest: Any) -> dict[str, Any]:
    """The part of a checkpoint's metadata that ``recover`` reads, and ``rest``."""
    return {
        "ledger": cut.ledger,
        "frontier": [[*place, *entry] for place, entry in cut.frontier.items()],
        "settled": [[run, *entry.to_json()] for run, entry in cut.settled.items()],
        "store": {
            "epoch": store.epoch,
            "lost_total": store.lost_total,
            "mark": store.mark,
            **store.counts._asdict(),
        },
        **rest,
    }


def recover(checkpoint: Checkpoint, store: StoreView, ledger: Ledger, made_room: str) -> Recovered:
    """Restores the ledger and books what happened after the cut.

    Args:
        checkpoint: What was saved.
        store: The store's books now.
        ledger: Empty.
        made_room: The reason under which what the store drops for want of room is booked.
    """
    meta = checkpoint.meta
    ledger.restore(meta["ledger"])
    frontier = {(int(run), int(offset)): (int(base), int(index)) for run, offset, base, index in meta["frontier"]}
    settled = {int(run): Settled.from_json(entry) for run, *entry in meta["settled"]}
    known: dict[Place, int] = {}
    accepted = lost = 0
    for place in frontier.keys() | store.stored.keys():
        base, index = frontier.get(place, (0, 0))
        put = max(base, store.stored.get(place, 0))
        accepted += max(0, put - index)
        lost += max(0, index - put)
        known[place] = max(put, index)
    waiting = meta["ledger"]["waiting"]
    put_of_waiting = int(waiting["assembler"]) - lost
    if meta["store"]["epoch"] == store.epoch:
        before = StoreCounts(**{name: int(meta["store"][name]) for name in StoreCounts._fields})
        # Indices that went on without a put: gaps that the predecessor itself found and dropped.
        gaps = max(0, accepted + put_of_waiting - (store.counts.put_total - before.put_total))
        # Taken before the store lost its data, and not applied when the cut was made: no store has them in its books.
        orphans = max(0, held_after_assembler(meta["ledger"]) - before.waiting)
        gone = orphans + store.lost_total - int(meta["store"]["lost_total"])
        dropped = {"learner_restart": lost + gaps, STORE_LOST: gone}
        if gone > 0:
            log.warning("the store lost some of its data: %d transitions that waited there are gone", gone)
    else:
        before, gaps = StoreCounts(0, 0, 0, 0, 0), 0
        gone = held_after_assembler(meta["ledger"]) + put_of_waiting + accepted - store.counts.put_total
        dropped = {"learner_restart": lost, STORE_LOST: max(0, gone)}
        if gone > 0:
            log.warning("the store is not the one of the checkpoint: %d transitions that waited in it are lost", gone)
    dropped[made_room] = store.counts.dropped_total - before.dropped_total
    ledger.recovered(
        accepted=accepted,
        put=accepted + put_of_waiting - gaps,
        rolled_back=store.counts.acknowledged_total - before.acknowledged_total,
        waiting_in_store=store.counts.waiting,
        dropped=dropped,
    )
    return Recovered(known, settled, restored=True)
