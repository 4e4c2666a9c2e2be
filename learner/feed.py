"""The two ends of the store that the learner's threads see, whatever the store is.

A **sink** takes finished unrolls from the writer thread and books them; a **feed** gives prepared batches to the
training thread and is told when one is done. ``learner.fifo`` has them for the FIFO, ``learner.replay`` for the replay.
"""

from __future__ import annotations

import queue
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from learner.assembler import Unroll
from learner.damage import Damage
from learner.trainer import Metrics, Prepared
from pipeline.buckets import LATENCIES, Buckets
from pipeline.stages import BUSY, ROOM, Stage
from pipeline.stopping import StopToken

QUEUE_SECONDS = 0.2


class Sink(Protocol):
    """Where finished unrolls go. Used by the writer thread alone."""

    def put(self, unrolls: list[Unroll]) -> int:
        """Stores and books those of the front that there is room for; how many. Under the ledger's gate."""

    def close(self) -> None:
        """Closes the connection."""


class Versions(NamedTuple):
    """Policy versions of a batch's valid rows.

    Attributes:
        values: Each once, ascending, int64 ``[K]``; none where no row is valid.
        rows: How many rows of each, int64 ``[K]``.
    """

    values: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]

    @classmethod
    def of(cls, batch: dict[str, npt.NDArray[Any]], rows_before: int) -> Versions:
        """Of rows ``rows_before`` on, in a batch as ``UnrollLayout.batch`` makes it."""
        valid = batch["valid"][rows_before:].astype(bool)
        values, rows = np.unique(batch["version"][rows_before:-1][valid].astype(np.int64), return_counts=True)
        return cls(values, rows.astype(np.int64))


class Batch(NamedTuple):
    """A prepared batch and what is booked of it.

    Attributes:
        prepared: On the devices.
        handles: The feed's own: what it needs when the batch is done.
        versions: Policy versions of the valid rows that are learnt.
    """

    prepared: Prepared
    handles: Any
    versions: Versions

    @property
    def valid(self) -> int:
        """Valid transitions that are learnt."""
        return int(self.versions.rows.sum())


class Feed(Protocol):
    """Where batches come from.

    Attributes:
        stage: Of the prefetch thread: takes, decodes and prepares, or waits for unrolls or for room.
        done_is: What a training thread does in ``done``: waits for the ``STORE``, or is ``BUSY`` with its results.
        take_seconds: Of taking, or fetching, what is there.
        damage: What did not open.
    """

    stage: Stage
    done_is: str
    take_seconds: Buckets
    damage: Damage

    @property
    def waiting(self) -> int:
        """Prepared batches that wait. Any thread."""

    def run(self) -> None:
        """The prefetch thread's body."""

    def get(self, timeout_seconds: float) -> Batch | None:
        """The next batch, or None after the timeout. Training thread."""

    def done(self, batch: Batch, metrics: Metrics) -> None:
        """An update used the batch: acknowledges and books it. Training thread."""

    def wants_checkpoint(self) -> bool:
        """A checkpoint is due before its time: what waits for it fills the store. Training thread."""

    def why_no_sample(self) -> str | None:
        """In words, what keeps the limiter from giving a batch; None: nothing, or there is none. Any thread."""


class ReadyFeed:
    """The half that feeds share: the bounded hand-over from the prefetch thread to the training thread."""

    def __init__(self, depth: int, stop: StopToken) -> None:
        self.stage = Stage("feed")
        self.take_seconds = Buckets(LATENCIES)
        self._ready: queue.Queue[Batch] = queue.Queue(depth)
        self._stop = stop

    @property
    def waiting(self) -> int:
        return self._ready.qsize()

    def get(self, timeout_seconds: float) -> Batch | None:
        try:
            return self._ready.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def hand_over(self, batch: Batch) -> None:
        """Waits for room, until the token stops. Prefetch thread."""
        self.stage.enter(ROOM)
        while not self._stop.stopped:
            try:
                self._ready.put(batch, timeout=QUEUE_SECONDS)
                break
            except queue.Full:
                continue
        self.stage.enter(BUSY)
