"""FIFO and replay within one process. Terms, equations and bounds: ``pipeline.store.interface``.

A state object holds the data; instances, one per thread, work on it under its lock. What is here ends with the process:
a successor finds another epoch and nothing else, and unlike in Redis no consumer outlives another.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np
import psutil

from pipeline.errors import CapacityError
from pipeline.stopping import StopToken
from pipeline.store.codec import HEADER_BYTES
from pipeline.store.interface import (
    Entries,
    Insert,
    InsertResult,
    Item,
    Memory,
    Put,
    PutResult,
    ReplayCounts,
    StoreCounts,
    check_priorities,
    check_sizes,
)

log = logging.getLogger(__name__)

MEMORY_SHARE = 0.8
WAIT_SECONDS = 0.1  # between two looks at the stop token
_handles = itertools.count(1)  # of all FIFOs of the process: a handle of lost data, or of another FIFO, ends nothing


@dataclass
class _Last:
    """What was stored last of each environment's run: row, next_index."""

    known: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def repeats(self, item: Put | Insert) -> bool:
        row, _ = self.known.get((item.environment, item.run), (-1, 0))
        return item.row <= row

    def note(self, item: Put | Insert) -> None:
        self.known[item.environment, item.run] = (item.row, item.next_index)

    def index(self) -> dict[tuple[int, int], int]:
        return {place: next_index for place, (_, next_index) in self.known.items()}


class FifoState:
    """The data of one FIFO. Its lock guards all of it.

    Args:
        capacity: Items held at most, taken ones included.
        when_full: ``block`` or ``drop_oldest``.
    """

    def __init__(self, capacity: int, when_full: str) -> None:
        self.capacity = capacity
        self.drop_oldest = when_full == "drop_oldest"
        self.changed = threading.Condition()
        self.clear()

    def clear(self) -> None:
        self.epoch = uuid.uuid4().hex
        self.untaken: deque[Item] = deque()
        self.taken: dict[str, OrderedDict[int, Item]] = {}  # consumer -> handle -> item
        self.last = _Last()
        self.put_total = self.acknowledged_total = self.dropped_total = self.waiting = 0

    @property
    def length(self) -> int:
        return len(self.untaken) + sum(map(len, self.taken.values()))


class MemoryFifo:
    """A ``Fifo`` on a ``FifoState``. Belongs to one thread.

    Args:
        state: The data.
        consumer: Stable name: an instance that comes under it continues where its predecessor ended. Two instances that
            take at the same time need two names.
        stop: Ends waiting early.
    """

    def __init__(self, state: FifoState, consumer: str, stop: StopToken | None = None) -> None:
        self._state = state
        self._consumer = consumer
        self._stop = stop or StopToken()
        self._cursor = 0  # handle of the last item that came here
        self._pending = True  # the predecessor may have left items after the cursor

    def put(self, items: list[Put]) -> PutResult:
        """Appends items in order, each once; stops at the first that does not fit."""
        state = self._state
        stored = repeated = dropped = 0
        with state.changed:
            length = state.length
            for item in items:
                if state.last.repeats(item):
                    repeated += 1
                else:
                    if length >= state.capacity and state.drop_oldest and state.untaken:
                        dropped += state.untaken.popleft().valid
                        length -= 1
                    if length >= state.capacity:
                        break
                    state.untaken.append(Item(str(next(_handles)), item.valid, bytes(item.payload)))
                    state.last.note(item)
                    state.put_total += item.valid
                    state.waiting += item.valid
                    length += 1
                stored += 1
            state.dropped_total += dropped
            state.waiting -= dropped
            state.changed.notify_all()
            return PutResult(stored, repeated, dropped, state.epoch if items else "")

    def take(self, count: int, timeout_seconds: float) -> list[Item]:
        """Up to ``count`` items, oldest first, what the own name took before first; empty on timeout or stop."""
        deadline = time.monotonic() + timeout_seconds
        with self._state.changed:
            while True:
                items = self._take(count)
                left = deadline - time.monotonic()
                if items or self._stop.stopped or left <= 0:
                    return items
                self._state.changed.wait(min(left, WAIT_SECONDS))

    def _take(self, count: int) -> list[Item]:
        state = self._state
        mine = state.taken.setdefault(self._consumer, OrderedDict())
        items: list[Item] = []
        if self._pending:
            left = (item for handle, item in mine.items() if handle > self._cursor)
            items = list(itertools.islice(left, count))
            self._pending = bool(items)
        if not items:
            items = [state.untaken.popleft() for _ in range(min(count, len(state.untaken)))]
            mine.update((int(item.handle), item) for item in items)
        if items:
            self._cursor = int(items[-1].handle)
        return items

    def acknowledge(self, items: list[Item]) -> int:
        """Ends items: acknowledged and deleted at once, counted once, whoever took them."""
        state, before = self._state, self._state.acknowledged_total
        with state.changed:
            for item in items:
                for taken in state.taken.values():
                    ended = taken.pop(int(item.handle), None)
                    if ended is not None:
                        state.acknowledged_total += ended.valid
                        state.waiting -= ended.valid
            return state.acknowledged_total - before

    def counts(self) -> StoreCounts:
        """The books, read under one cut."""
        state = self._state
        with state.changed:
            return StoreCounts(
                state.put_total, state.acknowledged_total, state.dropped_total, state.waiting, state.length
            )

    def stored_index(self) -> dict[tuple[int, int], int]:
        """(environment, run) -> next_index of its last put."""
        with self._state.changed:
            return self._state.last.index()

    def epoch(self) -> str:
        """Names the data."""
        return self._state.epoch

    def mark(self) -> str:
        """Memory never goes back."""
        return ""

    def expect(self, mark: str) -> None:
        """Memory never goes back."""

    def check(self, unroll_bytes: int | None = None) -> None:
        """Compares the capacity with this host's memory; logs the arithmetic.

        Raises:
            CapacityError: more than 80 % of it.
        """
        if unroll_bytes is not None:
            _check_memory(unroll_bytes, self._state.capacity, "store.capacity")

    def memory(self) -> Memory:
        """Of the payloads; there is no bound."""
        with self._state.changed:
            places = [self._state.untaken, *(items.values() for items in self._state.taken.values())]
            return Memory(sum(len(item.payload) for place in places for item in place), 0)

    def clear(self) -> None:
        """Deletes everything, for a run that begins anew."""
        with self._state.changed:
            self._state.clear()

    def close(self) -> None:
        """Nothing to close: the data is the state's."""


class _Resident:
    """An item of the replay."""

    __slots__ = ("payload", "priority", "valid")

    def __init__(self, item: Insert) -> None:
        self.payload, self.priority, self.valid = bytes(item.payload), float(item.priority), item.valid


class ReplayState:
    """The data of one replay. Its lock guards all of it.

    Args:
        capacity: Items held at most.
        capacity_bytes: Bytes of payloads held at most; None: no such bound.
    """

    def __init__(self, capacity: int, capacity_bytes: int | None = None) -> None:
        self.capacity = capacity
        self.capacity_bytes = capacity_bytes
        self.lock = threading.Lock()
        self.next_id = 0
        self.clear()

    def clear(self) -> None:
        """Ids go on, so that those of what is deleted never come again."""
        self.epoch = uuid.uuid4().hex
        self.base_id = self.next_id
        self.items: OrderedDict[int, _Resident] = OrderedDict()
        self.last = _Last()
        self.inserted_total = self.evicted_total = self.resident = self.bytes = 0

    def insert(self, item: Insert) -> int:
        """Under the lock; returns the id."""
        key, self.next_id = self.next_id, self.next_id + 1
        self.items[key] = _Resident(item)
        self.last.note(item)
        self.inserted_total += item.valid
        self.resident += item.valid
        self.bytes += len(item.payload)
        return key

    def fits(self, size: int) -> bool:
        return len(self.items) < self.capacity and (
            self.capacity_bytes is None or self.bytes + size <= self.capacity_bytes
        )

    def evict(self) -> tuple[int, int]:
        """The oldest, under the lock; returns its id and its valid transitions."""
        key, item = self.items.popitem(last=False)
        self.evicted_total += item.valid
        self.resident -= item.valid
        self.bytes -= len(item.payload)
        return key, item.valid


class MemoryReplay:
    """A ``Replay`` on a ``ReplayState``. Belongs to one thread."""

    def __init__(self, state: ReplayState) -> None:
        self._state = state

    def insert(self, items: list[Insert]) -> InsertResult:
        """Inserts items in order, each once, and evicts the oldest where they need room.

        Raises:
            ValueError: a priority that is negative or not finite; nothing is inserted.
            StoreError: an item that is larger than ``capacity_bytes``; nothing is inserted.
        """
        check_priorities([item.priority for item in items])
        state = self._state
        check_sizes(items, state.capacity_bytes)
        ids: list[int | None] = []
        evicted: list[tuple[int, int]] = []
        with state.lock:
            for item in items:
                if state.last.repeats(item):
                    ids.append(None)
                    continue
                while state.items and not state.fits(len(item.payload)):
                    evicted.append(state.evict())
                ids.append(state.insert(item))
            return InsertResult(
                ids=ids,
                evicted=[key for key, _ in evicted],
                evicted_valid=sum(valid for _, valid in evicted),
                repeated=ids.count(None),
                epoch=state.epoch if items else "",
                lost_total=0,
            )

    def fetch(self, ids: list[int]) -> list[bytes | None]:
        """Payloads, one per id; None where the item was evicted since."""
        with self._state.lock:
            found = [self._state.items.get(key) for key in ids]
        return [None if item is None else item.payload for item in found]

    def update_priorities(self, ids: list[int], priorities: list[float]) -> None:
        """Sets priorities; ignored where the item was evicted.

        Raises:
            ValueError: a priority that is negative or not finite, or another number of them than ids.
        """
        check_priorities(priorities)
        with self._state.lock:
            for key, priority in zip(ids, priorities, strict=True):
                item = self._state.items.get(key)
                if item is not None:
                    item.priority = float(priority)

    def entries(self) -> Entries:
        """All that is there."""
        with self._state.lock:
            found = [(key, item.priority, item.valid) for key, item in self._state.items.items()]
        ids, priorities, valid = zip(*found, strict=True) if found else ((), (), ())
        return Entries(np.array(ids, np.int64), np.array(priorities, np.float64), np.array(valid, np.int64))

    def counts(self) -> ReplayCounts:
        """The books, read under one cut."""
        state = self._state
        with state.lock:
            return ReplayCounts(
                state.inserted_total,
                state.evicted_total,
                state.resident,
                len(state.items),
                state.bytes,
                state.next_id - state.base_id,
                0,
            )

    def stored_index(self) -> dict[tuple[int, int], int]:
        """(environment, run) -> next_index of its last insert."""
        with self._state.lock:
            return self._state.last.index()

    def epoch(self) -> str:
        """Names the data."""
        return self._state.epoch

    def mark(self) -> str:
        """Memory never goes back."""
        return ""

    def expect(self, mark: str) -> None:
        """Memory never goes back."""

    def check(self, unroll_bytes: int | None = None) -> None:
        """Compares the capacity with this host's memory; logs the arithmetic.

        Raises:
            CapacityError: more than 80 % of it, or an unroll larger than ``capacity_bytes``.
        """
        if unroll_bytes is None:
            return
        state, payload = self._state, unroll_bytes + HEADER_BYTES
        items = state.capacity if state.capacity_bytes is None else min(state.capacity, state.capacity_bytes // payload)
        if items == 0:
            raise CapacityError(f"an unroll of {payload} bytes is above replay.capacity_bytes {state.capacity_bytes}")
        _check_memory(payload, items, "replay.capacity" if items == state.capacity else "replay.capacity_bytes")

    def memory(self) -> Memory:
        """Of the payloads, and their bound."""
        return Memory(self.counts().bytes, self._state.capacity_bytes or 0)

    def clear(self) -> None:
        """Deletes everything, for a run that begins anew."""
        with self._state.lock:
            self._state.clear()

    def close(self) -> None:
        """Nothing to close: the data is the state's."""


def _check_memory(unroll_bytes: int, items: int, bound: str) -> None:
    total, host = unroll_bytes * items, psutil.virtual_memory().total
    sum_ = f"{unroll_bytes} bytes per unroll x {items} unrolls ({bound}) = {total / 2**20:.1f} MiB"
    if total > MEMORY_SHARE * host:
        raise CapacityError(
            f"{sum_} is {total / host:.0%} of this host's memory, at most {MEMORY_SHARE:.0%} are taken: lower {bound}"
        )
    log.info("%s; this host's memory: %.1f MiB", sum_, host / 2**20)
