"""What a checkpoint holds beside the weights, and how a restarted learner closes its predecessor's books.

A checkpoint is one cut: every applied update is acknowledged, and ledger and frontier are read on the inference thread
between two batches. What the store did afterwards is found in the store's own books:

* acknowledged after the cut: updates that are lost with the weights -> ``rolled_back``;
* put after the cut: accepted (and taken) by the predecessor, still there to be trained;
* accepted before the cut and never put: open unrolls of the predecessor -> dropped as ``learner_restart``;
* accepted after the cut and never put: known when the environment's next row tells its running index (``Collector``).

When the store itself is another one (an embedded store that ended with its run, a Redis that lost its data) whatever
waited in it is dropped as ``store_lost``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from learner.checkpoint import Checkpoint
from learner.roster import Frontier
from pipeline.ledger import Ledger
from pipeline.run_dir import read_json, write_json
from pipeline.store.interface import StoreCounts

log = logging.getLogger(__name__)

RESERVED_VERSIONS = 256


class Cut(NamedTuple):
    """Ledger and frontier, read together."""

    ledger: dict[str, Any]
    frontier: dict[int, tuple[int, int, int]]  # environment -> run, index where its open sequence began, last index


class StoreView(NamedTuple):
    """The store's books: its identity, its counters, and what it last got of each environment."""

    epoch: str
    counts: StoreCounts
    stored: Mapping[int, tuple[int, int]]


class Versions:
    """Policy versions are never published twice: blocks of them are reserved in a file before they are used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found = read_json(path)
        self.reserved = int(found["reserved"]) if found else 0

    def reserve(self, version: int) -> None:
        """Makes sure that ``version`` is reserved; writes at most once in ``RESERVED_VERSIONS`` updates."""
        if version >= self.reserved:
            self.reserved = version + RESERVED_VERSIONS
            write_json(self._path, {"reserved": self.reserved})

    def release(self, version: int) -> None:
        """After an orderly stop nothing above ``version`` was published."""
        self.reserved = version + 1
        write_json(self._path, {"reserved": self.reserved})


def checkpoint_meta(cut: Cut, store: StoreView, **rest: Any) -> dict[str, Any]:
    """The part of a checkpoint's metadata that ``recover`` reads, and ``rest``."""
    return {
        "ledger": cut.ledger,
        "frontier": [[environment, *entry] for environment, entry in cut.frontier.items()],
        "store": {"epoch": store.epoch, **store.counts._asdict()},
        **rest,
    }


def recover(checkpoint: Checkpoint, store: StoreView, ledger: Ledger) -> Frontier:
    """Restores the ledger and books what happened after the cut.

    Returns:
        What is known of each environment: its run and the last running index that is booked.
    """
    meta = checkpoint.meta
    ledger.restore(meta["ledger"])
    frontier = {int(e): (int(run), int(base), int(index)) for e, run, base, index in meta["frontier"]}
    if meta["store"]["epoch"] != store.epoch:
        return _recover_without_store(ledger, frontier, store)
    accepted, lost = 0, 0
    known: dict[int, tuple[int, int]] = {}
    for environment in frontier.keys() | store.stored.keys():
        run, base, index = frontier.get(environment, (0, 0, 0))
        stored_run, stored_index = store.stored.get(environment, (0, 0))
        if stored_run == run:
            accepted += max(0, stored_index - index)
            lost += max(0, index - max(stored_index, base))
            known[environment] = (run, max(stored_index, index))
        elif environment in store.stored and environment not in frontier:
            accepted += stored_index
            known[environment] = (stored_run, stored_index)
        else:
            lost += index - base
            known[environment] = (run, index)
    ledger.recovered(
        accepted=accepted,
        rolled_back=store.counts.acknowledged_total - int(meta["store"]["acknowledged_total"]),
        waiting_in_store=store.counts.waiting,
        dropped={
            "learner_restart": lost,
            "oldest": store.counts.dropped_total - int(meta["store"]["dropped_total"]),
        },
    )
    return known


def _recover_without_store(
    ledger: Ledger, frontier: Mapping[int, tuple[int, int, int]], store: StoreView
) -> dict[int, tuple[int, int]]:
    waiting = ledger.snapshot()["waiting"]
    if sum(waiting.values()):
        log.warning("the store is not the one of the checkpoint: what waited in it is lost: %s", waiting)
    dropped = {"store_lost": waiting["store"] + waiting["prefetch"], "learner_restart": waiting["assembler"]}
    ledger.recovered(accepted=0, rolled_back=0, waiting_in_store=store.counts.waiting, dropped=dropped)
    return {environment: (run, index) for environment, (run, _, index) in frontier.items()}
