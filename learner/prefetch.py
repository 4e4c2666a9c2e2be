"""Prefetch: a thread that takes unrolls from the store, decodes them and puts the batch on the training devices.

Bound: ``training.prefetch_batches`` prepared batches; when they wait, this thread waits and the store fills.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from learner.trainer import Prepared, Trainer
from pipeline.ledger import Ledger
from pipeline.stopping import StopToken
from pipeline.store.codec import decode_batch
from pipeline.store.interface import Fifo, Item
from pipeline.unrolls import UnrollLayout

TAKE_SECONDS = 0.2
QUEUE_SECONDS = 0.2


class Batch(NamedTuple):
    """A prepared batch and what the training loop books of it.

    Attributes:
        prepared: On the devices.
        items: The store's handles, acknowledged after the update.
        valid: Valid transitions.
        oldest: Smallest policy version of a valid row; the current one where no row is valid.
        version_sum: Sum of the policy versions of valid rows.
    """

    prepared: Prepared
    items: list[Item]
    valid: int
    oldest: int
    version_sum: int


class Prefetcher:
    """Takes and prepares batches.

    Args:
        make_store: Opens the FIFO; called on the thread.
        layout: The record.
        trainer: Puts batches on its devices.
        ledger: Books what moves from the store to here.
        batch_size: Unrolls per batch.
        depth: Prepared batches that may wait.
        max_lag: Unrolls whose oldest valid row acted more updates ago are dropped and counted; None: never.
        version: Reads the current policy version.
        stop: Ends the thread.
    """

    def __init__(
        self,
        *,
        make_store: Callable[[], Fifo],
        layout: UnrollLayout,
        trainer: Trainer,
        ledger: Ledger,
        batch_size: int,
        depth: int,
        max_lag: int | None,
        version: Callable[[], int],
        stop: StopToken,
    ) -> None:
        self._make_store = make_store
        self._layout = layout
        self._trainer = trainer
        self._ledger = ledger
        self._batch_size = batch_size
        self._max_lag = max_lag
        self._version = version
        self._stop = stop
        self._ready: queue.Queue[Batch] = queue.Queue(depth)

    @property
    def waiting(self) -> int:
        """Prepared batches."""
        return self._ready.qsize()

    def get(self, timeout_seconds: float) -> Batch | None:
        """The next batch, or None after the timeout. Called by the training thread."""
        try:
            return self._ready.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def run(self) -> None:
        """The thread's body."""
        store = self._make_store()
        try:
            while not self._stop.stopped:
                items = self._take(store)
                if len(items) == self._batch_size:
                    self._hand_over(self._prepare(items))
        finally:
            store.close()

    def _take(self, store: Fifo) -> list[Item]:
        items: list[Item] = []
        while len(items) < self._batch_size and not self._stop.stopped:
            taken = store.take(self._batch_size - len(items), TAKE_SECONDS)
            if taken:
                with self._ledger.gate:  # what was taken may be of a put that is not booked yet
                    self._ledger.moved("store", "prefetch", sum(item.valid for item in taken))
                items += self._fresh(store, taken)
        return items

    def _fresh(self, store: Fifo, items: list[Item]) -> list[Item]:
        """Those within ``max_lag``; the others are dropped and counted."""
        if self._max_lag is None:
            return items
        records = decode_batch([item.payload for item in items], self._layout)
        oldest = self._layout.view(records)["version"].min(axis=1)
        stale = [item for item, version in zip(items, oldest, strict=True) if self._version() - version > self._max_lag]
        if stale:
            with self._ledger.gate:
                store.acknowledge(stale)
                self._ledger.dropped("prefetch", "stale", sum(item.valid for item in stale))
        return [item for item in items if item not in stale]

    def _prepare(self, items: list[Item]) -> Batch:
        batch = self._layout.batch(decode_batch([item.payload for item in items], self._layout))
        valid = batch["valid"].astype(bool)
        versions = batch["version"][:-1][valid]
        return Batch(
            prepared=self._trainer.prepare(batch),
            items=items,
            valid=int(np.count_nonzero(valid)),
            oldest=int(versions.min()) if versions.size else self._version(),
            version_sum=int(versions.sum()),
        )

    def _hand_over(self, batch: Batch) -> None:
        while not self._stop.stopped:
            try:
                self._ready.put(batch, timeout=QUEUE_SECONDS)
                return
            except queue.Full:
                continue
