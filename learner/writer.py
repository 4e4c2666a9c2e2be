"""The store writer: a thread that hands finished unrolls to the sink, and waits while the store takes no more.

Bound: the inference loop gives no credit while ``backlog`` is at or above the limit, so at most ``limit`` unrolls and
one inference batch's wait here. While the store takes no more, replies wait, so environments wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from learner.assembler import Unroll
from learner.feed import Sink
from pipeline.buckets import LATENCIES, Buckets
from pipeline.rows import offset_of
from pipeline.stages import BUSY, ROOM, UNROLLS, Stage

log = logging.getLogger(__name__)

PUT_ITEMS = 64
FULL_POLL_SECONDS = 0.02
IDLE_SECONDS = 0.2


class UnrollWriter:
    """Hand-over from the inference thread to the store.

    Args:
        make_sink: Opens the sink; called on the writer's own thread.
        limit: Unrolls that may wait here before the inference loop holds back.
        space: Set by whoever makes room in the store (by an acknowledgement, or by samples).
        why_no_room: In words, why the store takes no more.

    Attributes:
        stage: Encodes and puts, or waits for unrolls or for room.
        put_seconds: Of a put that stored something.
    """

    def __init__(
        self,
        make_sink: Callable[[], Sink],
        limit: int,
        space: threading.Event,
        why_no_room: Callable[[], str],
    ) -> None:
        self._make_sink = make_sink
        self.stage = Stage("writer")
        self.put_seconds = Buckets(LATENCIES)
        self._why_no_room = why_no_room
        self._no_room = False  # of the last put
        self._limit = limit
        self._space = space
        self._changed = threading.Condition()
        self._queue: deque[Unroll] = deque()
        self._closing_at: float | None = None
        self._gave_up = False

    @property
    def backlog(self) -> int:
        """Unrolls that wait here."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """The inference loop must hold back."""
        return len(self._queue) >= self._limit

    def why_full(self) -> str:
        """In words, why the backlog does not shrink."""
        return self._why_no_room() if self._no_room else "unrolls wait to be written to the store"

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
        sink = self._make_sink()
        self.stage.enter(BUSY)
        try:
            while (chunk := self._next()) is not None:
                if chunk:
                    self._put(sink, chunk)
        finally:
            self.stage.enter(None)
            sink.close()

    def _next(self) -> list[Unroll] | None:
        with self._changed:
            if not self._queue:
                if self._closing_at is not None:
                    return None
                self.stage.enter(UNROLLS)
                self._changed.wait(IDLE_SECONDS)
                self.stage.enter(BUSY)
            elif self._gave_up or (self._closing_at is not None and time.monotonic() > self._closing_at):
                log.info("%d unrolls did not fit the store at the stop: they stay counted as waiting", len(self._queue))
                return None
            return [self._queue[i] for i in range(min(PUT_ITEMS, len(self._queue)))]

    def _put(self, sink: Sink, unrolls: list[Unroll]) -> None:
        while unrolls:
            self._space.clear()
            begun = time.monotonic()
            stored = sink.put(unrolls)
            if stored:
                self.put_seconds.add(time.monotonic() - begun)
            unrolls = unrolls[stored:]
            self._no_room = bool(unrolls)
            with self._changed:
                for _ in range(stored):
                    self._queue.popleft()
            if not unrolls:
                break
            if self._closing_at is not None:
                self._gave_up = True
                return
            self.stage.enter(ROOM)
            self._space.wait(FULL_POLL_SECONDS)
            self.stage.enter(BUSY)
