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
as lost itself. Another store cannot tell either what was trained after the cut. The predecessor's last summary can, up
to the moment when that was written: so many are ``rolled_back``, the oldest first, as a FIFO gives them.

Where the books of store and checkpoint contradict each other nothing is made up: it is said, and shows in ``error``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from learner.accounts import Settled
from learner.checkpoint import Checkpoint
from learner.overwritten import overwrite
from learner.roster import Frontier, Known, Place
from pipeline.errors import UnwrittenError
from pipeline.ledger import LEARNER_RESTART, STORE_LOST, Ledger, held_after_assembler
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


def trained_after(meta: Mapping[str, Any], summary: Mapping[str, Any] | None) -> int:
    """Transitions that a predecessor's last summary has trained beyond its checkpoint, where both are of one process.

    A process that restores a checkpoint adds to what is rolled back, and saves that before it trains: so a summary with
    less rolled back is older than the checkpoint.
    """
    try:
        ledger, saved = (summary or {})["ledger"], meta["ledger"]
        older = int(ledger["rolled_back"]) != int(saved["rolled_back"])
        return 0 if older else max(0, int(ledger["trained"]) - int(saved["trained"]))
    except (KeyError, TypeError, ValueError):
        return 0  # no summary, or one of another form: nothing is known


class _Indices(NamedTuple):
    """What the running indices of all environments tell.

    Attributes:
        known: Up to where each was accepted.
        accepted: After the cut.
        lost: Accepted before the cut, and never put.
    """

    known: dict[Place, int]
    accepted: int
    lost: int


class _Found(NamedTuple):
    """What the store tells of the time after the cut: transitions.

    Attributes:
        before: Its counters at the cut.
        lost: Accepted before the cut, and never put.
        gaps: Accepted and never put: the predecessor found and dropped them itself.
        gone: Put, and not there any more.
        rolled_back: Trained after the cut.
        unseen: Of these, those that no index tells of.
        contradiction: By how much its books and the checkpoint's cannot both be right.
    """

    before: StoreCounts
    lost: int
    gaps: int
    gone: int
    rolled_back: int
    unseen: int
    contradiction: int


def recover(
    checkpoint: Checkpoint, store: StoreView, ledger: Ledger, made_room: str, trained_after: int = 0
) -> Recovered:
    """Restores the ledger and books what happened after the cut.

    Args:
        checkpoint: What was saved.
        store: The store's books now.
        ledger: Empty.
        made_room: The reason under which what the store drops for want of room is booked.
        trained_after: So many transitions were trained after the cut, at least; asked where the store is another one.
    """
    meta = checkpoint.meta
    ledger.restore(meta["ledger"])
    settled = {int(run): Settled.from_json(entry) for run, *entry in meta["settled"]}
    indices = _compare(meta["frontier"], store.stored)
    put_of_waiting = int(meta["ledger"]["waiting"]["assembler"]) - indices.lost
    same = meta["store"]["epoch"] == store.epoch
    put = put_of_waiting + indices.accepted
    lost = indices.lost
    found = _of_same_store(meta, store, put, lost) if same else _of_another(meta, store, put, lost, trained_after)
    if found.contradiction:
        log.error(
            "the books of the checkpoint and of the store differ by %d transitions; the ledger's error says so as well",
            found.contradiction,
        )
    dropped = {LEARNER_RESTART: found.lost + found.gaps, STORE_LOST: found.gone}
    dropped[made_room] = store.counts.dropped_total - found.before.dropped_total
    ledger.recovered(
        accepted=indices.accepted + found.unseen,
        foreseen=found.unseen,
        put=put - found.gaps,
        rolled_back=found.rolled_back,
        waiting_in_store=store.counts.waiting,
        dropped=dropped,
    )
    return Recovered(indices.known, settled, restored=True)


def _compare(frontier: Iterable[Sequence[int]], stored: Known) -> _Indices:
    """A checkpoint's frontier with what the store got of each environment."""
    entries = {(int(run), int(offset)): (int(base), int(index)) for run, offset, base, index in frontier}
    known: dict[Place, int] = {}
    accepted = lost = 0
    for place in entries.keys() | stored.keys():
        base, index = entries.get(place, (0, 0))
        put = max(base, stored.get(place, 0))
        accepted += max(0, put - index)  # of the two one is 0: the store is ahead of the cut, or behind it
        lost += max(0, index - put)
        known[place] = max(put, index)
    return _Indices(known, accepted, lost)


def _of_same_store(meta: Mapping[str, Any], store: StoreView, put: int, lost: int) -> _Found:
    """By its own counters; ``put``: transitions that the indices say were put after the cut, gaps included."""
    before = StoreCounts(**{name: int(meta["store"][name]) for name in StoreCounts._fields})
    # Indices that went on without a put: gaps that the predecessor itself found and dropped.
    gaps = put - (store.counts.put_total - before.put_total)
    # Taken before the store lost its data, and not applied when the cut was made: no store has them in its books.
    orphans = held_after_assembler(meta["ledger"]) - before.waiting
    contradiction = max(0, -gaps) + max(0, -orphans)
    gone = max(0, orphans) + store.lost_total - int(meta["store"]["lost_total"])
    if gone > 0:
        log.warning("the store lost some of its data: %d transitions that waited there are gone", gone)
    rolled_back = store.counts.acknowledged_total - before.acknowledged_total
    return _Found(before, lost, max(0, gaps), gone, rolled_back, 0, contradiction)


def _of_another(meta: Mapping[str, Any], store: StoreView, put: int, lost: int, trained_after: int) -> _Found:
    """Its counters are of the time since it began; what was trained before that is known from elsewhere.

    The oldest are trained first: those that waited in the store at the cut, then those that were not put yet.
    """
    gone = held_after_assembler(meta["ledger"]) + put - store.counts.put_total
    contradiction, gone = max(0, -gone), max(0, gone)
    of_gone = min(gone, trained_after)
    of_lost = min(lost, trained_after - of_gone)
    gone, lost, unseen = gone - of_gone, lost - of_lost, trained_after - of_gone - of_lost
    if gone > 0:
        log.warning("the store is not the one of the checkpoint: %d transitions that waited in it are lost", gone)
    if trained_after:
        log.warning(
            "%d transitions that were trained after the checkpoint are rolled back: so many at least, by the summary "
            "that the run left; the store that could tell exactly is gone",
            trained_after,
        )
    rolled_back, before = store.counts.acknowledged_total + trained_after, StoreCounts(0, 0, 0, 0, 0)
    return _Found(before, lost, 0, gone, rolled_back, unseen, contradiction)
