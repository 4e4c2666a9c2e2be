"""The on-policy path through the FIFO: put, take, train once, acknowledge.

Bounds: ``store.capacity`` unrolls in the store, ``training.prefetch_batches`` prepared batches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from learner.assembler import Unroll
from learner.damage import DAMAGED, Damage
from learner.epochs import Epochs
from learner.feed import Batch, ReadyFeed, Versions
from learner.staleness import Staleness
from learner.trainer import Metrics, Trainer
from pipeline.ledger import STORE_LOST, Ledger
from pipeline.stages import BUSY, STORE, UNROLLS
from pipeline.stopping import StopToken
from pipeline.store.codec import Records
from pipeline.store.interface import Fifo, Item, Put, StoreCounts, StoreFull
from pipeline.unrolls import UnrollLayout

TAKE_SECONDS = 0.2
OLDEST = "oldest"
"""Why transitions are dropped by ``store.when_full: drop_oldest``."""


class FifoSink:
    """Puts unrolls.

    Args:
        store: The writer thread's connection.
        encode: Record to payload.
        ledger: Books puts and drops.
        epochs: Told of each put's epoch.
    """

    def __init__(self, store: Fifo, encode: Callable[[Any], bytes], ledger: Ledger, epochs: Epochs) -> None:
        self._store = store
        self._encode = encode
        self._ledger = ledger
        self._epochs = epochs

    def put(self, unrolls: list[Unroll]) -> int:
        puts = [Put(u.environment, u.run, u.row, u.next_index, u.valid, self._encode(u.record)) for u in unrolls]
        with self._ledger.gate:
            try:
                result = self._store.put(puts)
            except StoreFull:  # the server's memory, not our capacity: the store says so once a minute
                return 0
            self._epochs.notice(result.epoch, 0)
            self._ledger.moved("assembler", "store", sum(put.valid for put in puts[: result.stored]))
            if result.dropped:
                self._ledger.dropped("store", OLDEST, result.dropped)
        return result.stored

    def close(self) -> None:
        self._store.close()


class Taken(NamedTuple):
    """A taken item, and the ledger's ``losses`` when it was: when that is another, no store has the item any more."""

    item: Item
    losses: int


class FifoFeed(ReadyFeed):
    """Takes and prepares batches; acknowledges what an update used.

    Args:
        make_store: Opens the FIFO; called on the prefetch thread.
        training_store: The training thread's connection.
        layout: The record.
        trainer: Puts batches on its devices.
        ledger: Books what moves from the store to here, and what is trained.
        batch_size: Unrolls per batch.
        depth: Prepared batches that may wait.
        staleness: Says which unrolls are dropped as too old; None: none is.
        updates: Reads how many updates are applied.
        keep: Acknowledge only what a checkpoint covers, and ask for one when so many unrolls wait for it; None:
            acknowledge after each update.
        space: Set after each acknowledgement: there is room in the store.
        stop: Ends the thread.
    """

    def __init__(
        self,
        *,
        make_store: Callable[[], Fifo],
        training_store: Fifo,
        layout: UnrollLayout,
        trainer: Trainer,
        ledger: Ledger,
        batch_size: int,
        depth: int,
        staleness: Staleness | None,
        updates: Callable[[], int],
        keep: int | None,
        space: threading.Event,
        stop: StopToken,
    ) -> None:
        self._keep = keep
        self._kept: list[Taken] = []  # used by updates that no checkpoint covers yet; training thread
        self._make_store = make_store
        self._training_store = training_store
        self._layout = layout
        self._trainer = trainer
        self._ledger = ledger
        self._batch_size = batch_size
        self.staleness = staleness
        self.damage = Damage(layout, time.monotonic)
        self._updates = updates
        self._made = 0  # batches that were handed over; prefetch thread
        self._got: tuple[int, int] | None = None  # number of the last batch that was got, updates before it
        self._space = space
        super().__init__(depth, stop)

    done_is = STORE

    def get(self, timeout_seconds: float) -> Batch | None:
        batch = super().get(timeout_seconds)
        if batch is not None:
            self._got = (0 if self._got is None else self._got[0] + 1, self._updates())
        return batch

    def done(self, batch: Batch, metrics: Metrics) -> None:
        with self._ledger.gate:
            if self._keep is None:
                self._training_store.acknowledge([taken.item for taken in batch.handles])
            else:
                self._kept += batch.handles
            self._ledger.trained(batch.valid)
        self._space.set()

    def wants_checkpoint(self) -> bool:
        return self._keep is not None and len(self._kept) >= self._keep

    def acknowledge_kept(self) -> None:
        """A checkpoint covers what was kept. Training thread."""
        if self._kept:
            with self._ledger.gate:
                self._training_store.acknowledge(self.kept())
            self._kept = []
            self._space.set()

    def kept(self) -> list[Item]:
        """What the store holds only because no checkpoint covers its update yet. Training thread."""
        return [taken.item for taken in self._kept if taken.losses == self._ledger.losses]

    def as_acknowledged(self, counts: StoreCounts) -> StoreCounts:
        """The store's books as they are once a checkpoint is written: ``kept`` is acknowledged. Training thread."""
        kept = sum(item.valid for item in self.kept())
        acknowledged, waiting = counts.acknowledged_total + kept, counts.waiting - kept
        return counts._replace(acknowledged_total=acknowledged, waiting=waiting)

    def why_no_sample(self) -> None:
        return None

    def run(self) -> None:
        store = self._make_store()
        self.stage.enter(BUSY)
        try:
            while not self._stop.stopped:
                records = np.empty((self._batch_size, self._layout.nbytes), np.uint8)
                items = self._take(store, records)
                if len(items) == self._batch_size:
                    self.hand_over(self._prepare(items, records))
                    self._made += 1
        finally:
            self.stage.enter(None)
            store.close()

    def _take(self, store: Fifo, records: Records) -> list[Taken]:
        """A batch of items, and their records into ``records`` ``[batch_size, layout.nbytes]``; fewer at the stop."""
        items: list[Taken] = []
        while len(items) < self._batch_size and not self._stop.stopped:
            losses = self._ledger.losses
            there = self._ledger.waiting_in_store
            begun = self.stage.enter(BUSY if there else UNROLLS)
            taken = store.take(self._batch_size - len(items), TAKE_SECONDS)
            ended = self.stage.enter(BUSY)
            if there and taken:
                self.take_seconds.add(ended - begun)
            if taken and self._booked(store, taken, losses):
                rows = records[len(items) : len(items) + len(taken)]
                whole = self._fresh(store, self._whole(store, taken, rows), rows)
                items += [Taken(item, losses) for item in whole]
        return items

    def _booked(self, store: Fifo, taken: list[Item], losses: int) -> bool:
        """Books what was taken, unless the store lost its data meanwhile: then these are counted as lost too.

        Args:
            store: This thread's.
            taken: From it.
            losses: Of the ledger, before the taking.
        """
        with self._ledger.gate:  # what was taken may be of a put that is not booked yet
            if self._ledger.losses == losses:
                self._ledger.moved("store", "prefetch", sum(item.valid for item in taken))
                return True
            # Those of the lost data are booked; of the new data are those that still can be ended.
            self._ledger.dropped("store", STORE_LOST, store.acknowledge(taken))
            return False

    def _whole(self, store: Fifo, items: list[Item], out: Records) -> list[Item]:
        """Those that open, their records to the front of ``out``; the others are dropped and counted."""
        whole = self.damage.open([item.payload for item in items], out, [item.valid for item in items])
        return self._dropped(store, items, whole, DAMAGED)

    def _fresh(self, store: Fifo, items: list[Item], out: Records) -> list[Item]:
        """Those that are not stale when they are consumed, their records to the front of ``out``; drops the others."""
        if self.staleness is None or not items:
            return items
        records = out[: len(items)]
        fresh = ~self.staleness.judge(self._layout.view(records), self._updates_before_next(), time.monotonic())
        kept = self._dropped(store, items, fresh, "stale")
        out[: len(kept)] = records[fresh]
        return kept

    def _updates_before_next(self) -> int:
        """Updates that are applied when the batch that is being made is consumed.

        That is known already: batches are consumed in the order in which they are made, by one update each.
        """
        number, updates = self._got or (0, self._updates())
        return updates + self._made - number

    def _dropped(self, store: Fifo, items: list[Item], keep: npt.NDArray[np.bool_], reason: str) -> list[Item]:
        """Drops and counts those that are not to be kept; the others."""
        gone = [item for item, kept in zip(items, keep, strict=True) if not kept]
        if gone:
            with self._ledger.gate:
                store.acknowledge(gone)
                self._ledger.dropped("prefetch", reason, sum(item.valid for item in gone))
        return [item for item, kept in zip(items, keep, strict=True) if kept]

    def _prepare(self, items: list[Taken], records: Records) -> Batch:
        batch = self._layout.batch(records)
        return Batch(self._trainer.prepare(batch), items, Versions.of(batch, 0))
