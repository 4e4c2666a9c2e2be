"""The store writer: a thread that encodes finished unrolls and puts them, and waits while the store is full.

Bound: the inference loop gives no credit while ``backlog`` is at or above the limit, so at most ``limit`` unrolls and
one inference batch's wait here. When the store is full for good (its capacity), replies wait, so environments wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from learner.assembler import Unroll
from pipeline.ledger import Ledger
from pipeline.rows import offset_of
from pipeline.store.interface import Fifo, Put, PutResult, StoreFull

log = logging.getLogger(__name__)

PUT_ITEMS = 64
FULL_POLL_SECONDS = 0.02
IDLE_SECONDS = 0.2


class UnrollWriter:
    """Hand-over from the inference thread to the store.

    Args:
        make_store: Opens the FIFO; called on the writer's own thread.
        encode: Record bytes to payload.
        ledger: Books puts and drops.
        limit: Unrolls that may wait here before the inference loop holds back.
        space: Set by whoever makes room in the store (the training thread, after an acknowledgement).
    """

    def __init__(
        self,
        make_store: Callable[[], Fifo],
        encode: Callable[[Any], bytes],
        ledger: Ledger,
        limit: int,
        space: threading.Event,
    ) -> None:
        self._make_store = make_store
        self._encode = encode
        self._ledger = ledger
        self._limit = limit
        self._space = space
        self._changed = threading.Condition()
        self._queue: deque[Unroll] = deque()
        self._closing_at: float | None = None
        self._gave_up = False
        self._epoch = ""
        self.store_full_since: float | None = None
        self.repeated = 0

    @property
    def backlog(self) -> int:
        """Unrolls that wait here."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """The inference loop must hold back."""
        return len(self._queue) >= self._limit

    def pending(self) -> dict[tuple[int, int], int]:
        """(run, offset) -> running index where its first unroll that waits here begins.

        Called by the inference thread under the ledger's gate: nothing comes or goes meanwhile.
        """
        first: dict[tuple[int, int], int] = {}
        for unroll in self._queue:
            first.setdefault((unroll.run, offset_of(unroll.environment)), unroll.first_index)
        return first

    def submit(self, unrolls: list[Unroll]) -> None:
        """Takes finished unrolls, in order. Called by the inference thread; never blocks."""
        with self._changed:
            self._queue.extend(unrolls)
            self._changed.notify()

    def close(self, deadline: float) -> None:
        """Asks the thread to end when the backlog is put, at the latest at ``deadline`` (monotonic seconds).

        A full store ends it at once: training has stopped, so nobody makes room. What is left stays counted as waiting.
        """
        with self._changed:
            self._closing_at = deadline
            self._changed.notify()

    def run(self) -> None:
        """The thread's body."""
        store = self._make_store()
        try:
            while (chunk := self._next()) is not None:
                if chunk:
                    self._put(store, chunk)
        finally:
            store.close()

    def _next(self) -> list[Unroll] | None:
        with self._changed:
            if not self._queue:
                if self._closing_at is not None:
                    return None
                self._changed.wait(IDLE_SECONDS)
            elif self._gave_up or (self._closing_at is not None and time.monotonic() > self._closing_at):
                log.info("%d unrolls did not fit the store at the stop: they stay counted as waiting", len(self._queue))
                return None
            return [self._queue[i] for i in range(min(PUT_ITEMS, len(self._queue)))]

    def _put(self, store: Fifo, chunk: list[Unroll]) -> None:
        puts = [Put(u.environment, u.run, u.row, u.next_index, u.valid, self._encode(u.record)) for u in chunk]
        while puts:
            self._space.clear()
            with self._ledger.gate:
                try:
                    result = store.put(puts)
                except StoreFull:  # the server's memory, not our capacity: the store says so once a minute
                    result = PutResult(0, 0, 0, "")
                self.notice(result.epoch)
                self._book(puts[: result.stored], result.repeated, result.dropped)
            puts = puts[result.stored :]
            if not puts:
                break
            if self._closing_at is not None:
                self._gave_up = True
                return
            self.store_full_since = self.store_full_since or time.monotonic()
            self._space.wait(FULL_POLL_SECONDS)
        self.store_full_since = None

    def notice(self, epoch: str) -> None:
        """A store that began anew lost what waited in it: called with its epoch under the ledger's gate.

        A put is the first to know, or a checkpoint that comes before it.
        """
        if epoch and epoch != self._epoch:
            if self._epoch:
                lost = self._ledger.lost("store", "store_lost")
                log.warning("the store lost its data, and with it %d transitions that waited there", lost)
            self._epoch = epoch

    def _book(self, puts: list[Put], repeated: int, dropped: int) -> None:
        if not puts:
            return
        self._ledger.moved("assembler", "store", sum(put.valid for put in puts))
        if dropped:
            self._ledger.dropped("store", "oldest", dropped)
        self.repeated += repeated
        with self._changed:
            for _ in puts:
                self._queue.popleft()
