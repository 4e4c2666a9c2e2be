"""The off-policy path through the replay: insert with a first priority, sample, train, update priorities.

Bounds: ``replay.capacity`` unrolls (the oldest are evicted), ``training.prefetch_batches`` prepared batches, and the
limiter: whoever is ahead of ``replay.samples_per_insert`` waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from learner.algorithms.r2d2 import IMPORTANCE_WEIGHT, PRIORITY
from learner.assembler import Unroll
from learner.damage import Damage
from learner.epochs import Epochs
from learner.feed import Batch, ReadyFeed, Versions
from learner.limiter import Limiter
from learner.priorities import initial_priorities
from learner.replay_index import ReplayIndex, importance_weights
from learner.trainer import Metrics, Trainer
from pipeline.config.r2d2 import R2d2Section
from pipeline.ledger import EVICTED, Ledger
from pipeline.stages import BUSY, UNROLLS
from pipeline.stopping import StopToken
from pipeline.store.interface import Insert, Replay, StoreFull
from pipeline.unrolls import UnrollLayout

Array = npt.NDArray[Any]
LIMITED_SECONDS = 0.005
"""How soon a side that waits for the other looks again."""


class Sampling:
    """What sink and feed share: the index, the limiter under a lock, and the unrolls sampled. Thread-safe.

    Args:
        index: What is there to sample.
        limiter: Who waits.
        ledger: Its valid transitions, trained and inserted, give the replay ratio.
    """

    def __init__(self, index: ReplayIndex, limiter: Limiter, ledger: Ledger) -> None:
        self.index = index
        self.limiter = limiter
        self._ledger = ledger
        self._lock = threading.Lock()
        self._from_trained = self._from_inserted = 0  # of the replay ratio, which is over the limiter's window

    def may_insert(self) -> bool:
        with self._lock:
            return self.limiter.may_insert()

    def inserted(self, count: int, valid: int) -> None:
        """Books ``count`` inserted unrolls of ``valid`` transitions."""
        with self._lock:
            limiter = self.limiter
            before = limiter.inserts
            limiter.inserted(count)
            if before < limiter.min_size:  # sampling may begin with this insert: its surplus counts
                self._begin_window()
                self._from_inserted -= valid * max(0, limiter.inserts - limiter.min_size) // max(1, count)

    def set_samples_per_insert(self, samples_per_insert: float) -> None:
        """For what is inserted from now on."""
        with self._lock:
            self.limiter.set_samples_per_insert(samples_per_insert)
            self._begin_window()

    def release_inserts(self) -> None:
        """At the drain: the last unrolls are inserted whoever is ahead."""
        with self._lock:
            self.limiter.hold_inserts = False

    def restore(self, store: Replay, sampled: int) -> None:
        """Goes on with a predecessor's replay, of which ``sampled`` unrolls were sampled."""
        entries = store.entries()
        with self._lock:
            self.index.rebuild(entries.ids, entries.priorities)
            self.limiter.restore(store.counts().inserted_items, sampled)
            self._begin_window()

    def begin_again(self) -> None:
        """The store lost its data."""
        with self._lock:
            self.index.rebuild([], [])
            self.limiter.restore(0, 0)
            self._begin_window()

    def try_sample(self, count: int) -> bool:
        """Whether a batch of ``count`` may be sampled now; then it is booked."""
        with self._lock:
            if not self.limiter.may_sample(count):
                return False
            self.limiter.sampled(count)
            return True

    def why_no_sample(self, count: int) -> str | None:
        with self._lock:
            return self.limiter.why_no_sample(count)

    def why_no_insert(self) -> str | None:
        with self._lock:
            return self.limiter.why_no_insert()

    def status(self) -> dict[str, Any]:
        """Both sides of the limiter, for ``seedmq status``.

        ``replay_ratio`` is valid learnt transitions trained / inserted, ``samples_per_insert`` unrolls sampled /
        inserted, both since sampling may begin, or since the learner started or the target changed; None while
        there is nothing to divide by.
        """
        with self._lock:
            limiter = self.limiter
            return {
                "unrolls": self.index.size,
                "samples_per_insert": limiter.ratio,
                "samples_per_insert_target": limiter.samples_per_insert,
                "replay_ratio": self._replay_ratio(),
                "inserted_unrolls": limiter.inserts,
                "sampled_unrolls": limiter.samples,
            }

    def _replay_ratio(self) -> float | None:
        trained, inserted = self._ledger.trained_and_inserted()
        inserted -= self._from_inserted
        return (trained - self._from_trained) / inserted if inserted > 0 else None

    def _begin_window(self) -> None:
        self._from_trained, self._from_inserted = self._ledger.trained_and_inserted()


class ReplaySink:
    """Inserts unrolls.

    Args:
        store: The writer thread's connection.
        layout: The record.
        encode: Record to payload.
        settings: Of the loss that gives first priorities.
        ledger: Books inserts and evictions.
        epochs: Told of each insert's epoch.
        sampling: Index and limiter.
    """

    def __init__(
        self,
        *,
        store: Replay,
        layout: UnrollLayout,
        encode: Callable[[Any], bytes],
        settings: R2d2Section,
        ledger: Ledger,
        epochs: Epochs,
        sampling: Sampling,
    ) -> None:
        self._store = store
        self._layout = layout
        self._encode = encode
        self._settings = settings
        self._ledger = ledger
        self._epochs = epochs
        self._sampling = sampling

    def put(self, unrolls: list[Unroll]) -> int:
        if not self._sampling.may_insert():
            return 0
        records = np.stack([unroll.record for unroll in unrolls])
        priorities = initial_priorities(self._layout.view(records), self._settings).astype(np.float64)
        items = [
            Insert(u.environment, u.run, u.row, u.next_index, u.valid, self._encode(u.record), float(p))
            for u, p in zip(unrolls, priorities, strict=True)
        ]
        with self._ledger.gate:
            try:
                result = self._store.insert(items)
            except StoreFull:  # the server's memory, not our capacity: the store says so once a minute
                return 0
            index, stored = self._sampling.index, len(result.ids)
            self._epochs.notice(result.epoch, result.lost_total)
            new = [(i, p) for i, p in zip(result.ids, priorities[:stored], strict=True) if i is not None]
            index.add([i for i, _ in new], [p for _, p in new])
            index.remove(result.evicted)
            self._ledger.moved("assembler", "store", sum(item.valid for item in items[:stored]))
            self._ledger.dropped("store", EVICTED, result.evicted_valid)
        valid = sum(item.valid for item, i in zip(items, result.ids, strict=False) if i is not None)
        self._sampling.inserted(len(new), valid)
        return stored

    def close(self) -> None:
        self._store.close()


class ReplayFeed(ReadyFeed):
    """Samples and prepares batches; takes new priorities to index and store.

    Args:
        make_store: Opens the replay; called on the prefetch thread.
        layout: The record.
        rows_before: Rows of an unroll before those that are learnt.
        trainer: Puts batches on its devices.
        ledger: Counts samples.
        sampling: Index and limiter.
        batch_size: Unrolls per batch.
        depth: Prepared batches that may wait.
        importance_exponent: beta.
        rng: Of the draws.
        space: Set after each sample: inserts may go on.
        stop: Ends the thread.
    """

    def __init__(
        self,
        *,
        make_store: Callable[[], Replay],
        layout: UnrollLayout,
        rows_before: int,
        trainer: Trainer,
        ledger: Ledger,
        sampling: Sampling,
        batch_size: int,
        depth: int,
        importance_exponent: float,
        rng: np.random.Generator,
        space: threading.Event,
        stop: StopToken,
    ) -> None:
        self._make_store = make_store
        self._layout = layout
        self.damage = Damage(layout, time.monotonic)
        self._rows_before = rows_before
        self._trainer = trainer
        self._ledger = ledger
        self._sampling = sampling
        self._batch_size = batch_size
        self._beta = importance_exponent
        self._rng = rng
        self._space = space
        super().__init__(depth, stop)
        # Bounded: one entry per batch in flight, and those are bounded by ``depth``.
        self._updates: deque[tuple[list[int], list[float]]] = deque()

    done_is = BUSY  # it fetches what the update says of each unroll

    def done(self, batch: Batch, metrics: Metrics) -> None:
        priorities = metrics.fetch_unrolls()[PRIORITY].astype(np.float64)
        ids = batch.handles
        finite = np.isfinite(priorities)  # an update that was skipped says nothing
        self._sampling.index.update(ids[finite], priorities[finite])
        self._updates.append((ids[finite].tolist(), priorities[finite].tolist()))
        self._ledger.trained(batch.valid)

    def wants_checkpoint(self) -> bool:
        return False

    def why_no_sample(self) -> str | None:
        return self._sampling.why_no_sample(self._batch_size)

    def run(self) -> None:
        store = self._make_store()
        self.stage.enter(BUSY)
        try:
            while not self._stop.stopped:
                self._send_priorities(store)
                if self._sampling.try_sample(self._batch_size):
                    self._space.set()
                    batch = self._sample(store)
                    if batch is not None:
                        self.hand_over(batch)
                else:
                    self.stage.enter(UNROLLS)
                    self._stop.wait(LIMITED_SECONDS)
                    self.stage.enter(BUSY)
            self._send_priorities(store)
        finally:
            self.stage.enter(None)
            store.close()

    def _send_priorities(self, store: Replay) -> None:
        while self._updates:
            store.update_priorities(*self._updates.popleft())

    def _sample(self, store: Replay) -> Batch | None:
        """One batch. For what was evicted since it was drawn, or does not open, another is drawn.

        What does not open is no longer drawn, and stays in the store's books until it is evicted.
        """
        ids = np.empty(0, np.int64)
        probabilities = np.empty(0, np.float64)
        records = np.empty((self._batch_size, self._layout.nbytes), np.uint8)
        while len(ids) < self._batch_size:
            if self._stop.stopped or not self._sampling.index.size:
                return None
            drawn, chances = self._sampling.index.sample(self._batch_size - len(ids), self._rng)
            begun = time.monotonic()
            found = store.fetch(drawn.tolist())
            self.take_seconds.add(time.monotonic() - begun)
            usable = np.array([payload is not None for payload in found])
            payloads = [payload for payload in found if payload is not None]
            rows = records[len(ids) : len(ids) + len(payloads)]
            usable[usable] = self.damage.open(payloads, rows, ids=drawn[usable])
            self._sampling.index.remove(drawn[~usable])
            ids = np.concatenate([ids, drawn[usable]])
            probabilities = np.concatenate([probabilities, chances[usable]])
        batch = self._layout.batch(records)
        batch[IMPORTANCE_WEIGHT] = importance_weights(probabilities, self._beta, self._sampling.index.size)
        versions = Versions.of(batch, self._rows_before)
        return Batch(self._trainer.prepare(batch), ids, versions)
