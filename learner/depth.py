"""How much the store holds, looked at now and then by a thread of its own, for the metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from pipeline.stopping import StopToken
from pipeline.store.interface import Fifo, Memory, Replay, StoreCounts

LOOK_SECONDS = 2.0
FRESH_SECONDS = 15.0


class Depth(NamedTuple):
    """What was seen: unrolls, and the backend's memory where it tells."""

    unrolls: int
    memory: Memory | None
    at: float


class StoreDepth:
    """Looks, while the store answers; a store that stays away ends this thread as it ends the others.

    Args:
        open_store: The store; called on this thread.
        stop: Ends the thread.
    """

    def __init__(self, open_store: Callable[[], Fifo | Replay], stop: StopToken) -> None:
        self._open_store = open_store
        self._stop = stop
        self._seen: Depth | None = None

    def seen(self) -> Depth | None:
        """The last look; None where that is too long ago to say anything. Any thread."""
        seen = self._seen
        return seen if seen is not None and time.monotonic() - seen.at < FRESH_SECONDS else None

    def run(self) -> None:
        """The thread's body.

        Raises:
            UnreachableError: the store stayed away.
        """
        store = self._open_store()
        try:
            while not self._stop.stopped:
                counts = store.counts()
                unrolls = counts.length if isinstance(counts, StoreCounts) else counts.items
                self._seen = Depth(unrolls, store.memory(), time.monotonic())
                self._stop.wait(LOOK_SECONDS)
        finally:
            store.close()
