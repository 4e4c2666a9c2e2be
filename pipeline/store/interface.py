"""The stores of unrolls, FIFO and replay: their terms, their equations, their bounds, their errors.

**FIFO.** An **item** is one unroll's record (``pipeline.unrolls``) with the counts that the ledger needs. Producers
**put**, one consumer group **takes**, trains and **acknowledges**; an acknowledged item is gone. ``length`` counts what
is put and neither acknowledged nor dropped, taken or not.

    put_total = acknowledged_total + dropped_total + waiting            (all in valid transitions, kept in the store)
    length <= capacity

A put is idempotent by (environment, run, row): a repeat is neither stored nor counted. With ``when_full = block`` a put
that does not fit stores nothing of what does not fit and says so; with ``drop_oldest`` the oldest items that nobody
has taken make room and are counted.

**Replay.** An item is an unroll's record with its valid transitions and a **priority**, raw: before the exponent.
Producers **insert**, learners **fetch** by id and **update priorities**; the sampling index is the learner's own
(``learner.replay_index``). An item leaves only by **eviction**, the oldest first, when newer ones need its room.

    inserted_total = resident + evicted_total + lost_total              (all in valid transitions, kept in the store)
    items <= capacity        bytes <= capacity_bytes                    (bytes of payloads)

An insert is idempotent by (environment, run, row), and one with the evictions that it causes: nobody ever sees more
than the capacity, or an item half there. **Ids** grow by one from item to item and never come again, not even after
the data was lost or cleared: the ids of what is there are a range, and an old id finds nothing. What refers to an
evicted item is ignored. Payloads never change, so what is fetched is what was inserted. ``epoch`` names the data: when
it changes, all that was there is lost, and so are the ids that a learner still knows.

**A backend that goes back** to older data than it had (Redis, from a dump or a log without its end) is noticed by the
``mark`` of the last answered change. A FIFO that went back is emptied, under another epoch: which of its items were
trained already nobody knows any more. A replay keeps what is there, under the same epoch: ``lost_total`` tells what is
gone, and its ids do not come again.

Errors: ``UnreachableError`` where the backend stays away beyond its deadline, ``StoreFull`` where it has no memory left
now, any other ``StoreError`` where it refuses for good or a payload is damaged.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.errors import StoreError


class StoreFull(StoreError):
    """The backend has no memory left, below the capacity: nothing of the call is stored; wait and put again."""


class Put(NamedTuple):
    """An item to put.

    Attributes:
        environment: ``pipeline.rows.environment_id``.
        run: Run id of the worker.
        row: ``pipeline.rows.row_number`` of row 0; grows within a run.
        next_index: Running index of the last row: what a successor counts from.
        valid: Valid transitions owned.
        payload: Encoded record (``pipeline.store.codec``).
    """

    environment: int
    run: int
    row: int
    next_index: int
    valid: int
    payload: bytes


class Item(NamedTuple):
    """A taken item: its handle for the acknowledgement, its valid transitions, its payload."""

    handle: str
    valid: int
    payload: bytes


class PutResult(NamedTuple):
    """What became of a put.

    Attributes:
        stored: So many items of the front of the list are in (or were before); the rest did not fit.
        repeated: So many of the stored ones were there before.
        dropped: Valid transitions of older items that made room.
        epoch: Names the data they were put to; another one than before means that what was there is lost. Empty where
            nothing was asked of the store.
    """

    stored: int
    repeated: int
    dropped: int
    epoch: str


class StoreCounts(NamedTuple):
    """The store's own books, in valid transitions, and its length in items."""

    put_total: int
    acknowledged_total: int
    dropped_total: int
    waiting: int
    length: int


class Memory(NamedTuple):
    """What a backend takes for all that it holds, whoever put it there, and what it may take, in bytes; 0: no bound."""

    used: int
    limit: int


class Fifo(Protocol):
    """One FIFO. An instance belongs to one thread: make one per thread."""

    def put(self, items: list[Put]) -> PutResult:
        """Appends items in order, atomically per item, each once."""

    def take(self, count: int, timeout_seconds: float) -> list[Item]:
        """Up to ``count`` items, oldest first; empty on timeout.

        Those that a predecessor of the same consumer name took and did not acknowledge come first, once.
        """

    def acknowledge(self, items: list[Item]) -> int:
        """Ends items: acknowledged and deleted at once, counted once; the valid transitions that this call ended."""

    def counts(self) -> StoreCounts:
        """The books, read under one cut."""

    def stored_index(self) -> dict[tuple[int, int], int]:
        """(environment, run) -> next_index of its last put: what a restarted learner knows of its predecessor.

        Of each environment the latest runs are remembered.
        """

    def epoch(self) -> str:
        """Names the data: another one than before means that what was there is lost."""

    def mark(self) -> str:
        """How far the books have come, as of the last change or ``epoch()``: for ``expect``, after a restart."""

    def expect(self, mark: str) -> None:
        """What the backend holds must not be older than ``mark``; the next call sees to what is."""

    def check(self, unroll_bytes: int | None = None) -> None:
        """Whether the backend can hold what it may come to hold; logs the arithmetic.

        Raises:
            StoreError: it cannot.
        """

    def memory(self) -> Memory | None:
        """Of the backend; None where it hides it."""

    def clear(self) -> None:
        """Deletes everything, for a run that begins anew: items, books and epoch."""

    def close(self) -> None:
        """Closes the connection."""


class Insert(NamedTuple):
    """An item to insert: the fields of ``Put``, and its first priority.

    Attributes:
        environment: ``pipeline.rows.environment_id``.
        run: Run id of the worker.
        row: ``pipeline.rows.row_number`` of row 0; grows within a run.
        next_index: Running index of the last row: what a successor counts from.
        valid: Valid transitions owned.
        payload: Encoded record (``pipeline.store.codec``).
        priority: Before the exponent; finite, not negative.
    """

    environment: int
    run: int
    row: int
    next_index: int
    valid: int
    payload: bytes
    priority: float


class InsertResult(NamedTuple):
    """What became of an insert.

    Attributes:
        ids: One per item, in order: its id, or None where it is a repeat. Shorter than the items where the backend ran
            out of memory between them: insert the rest again.
        evicted: Ids of the items that made room, oldest first; of this very call's too, where it inserted more than the
            capacity.
        evicted_valid: Their valid transitions.
        repeated: Items that were inserted before.
        epoch: Names the data they were inserted into. Empty where nothing was asked of the store.
        lost_total: As in ``ReplayCounts``.
    """

    ids: list[int | None]
    evicted: list[int]
    evicted_valid: int
    repeated: int
    epoch: str
    lost_total: int


class ReplayCounts(NamedTuple):
    """The replay's own books.

    Attributes:
        inserted_total: Valid transitions ever inserted.
        evicted_total: Valid transitions evicted.
        resident: Valid transitions that are there.
        items: Items that are there.
        bytes: Bytes of their payloads.
        inserted_items: Items ever inserted: what the samples-per-insert limiter goes on from.
        lost_total: Valid transitions that were inserted and are gone without eviction.
    """

    inserted_total: int
    evicted_total: int
    resident: int
    items: int
    bytes: int
    inserted_items: int
    lost_total: int


class Entries(NamedTuple):
    """What an index is built from, oldest first.

    Attributes:
        ids: int64 ``[n]``.
        priorities: float64 ``[n]``.
        valid: Valid transitions owned, int64 ``[n]``.
    """

    ids: npt.NDArray[np.int64]
    priorities: npt.NDArray[np.float64]
    valid: npt.NDArray[np.int64]


class Replay(Protocol):
    """One replay. An instance belongs to one thread: make one per thread."""

    def insert(self, items: list[Insert]) -> InsertResult:
        """Inserts items in order, each once, and evicts the oldest where they need room.

        Raises:
            ValueError: a priority that is negative or not finite; nothing is inserted.
            StoreError: an item that is larger than ``capacity_bytes``; nothing is inserted.
            StoreFull: the backend has no memory left; nothing is inserted.
        """

    def fetch(self, ids: list[int]) -> list[bytes | None]:
        """Payloads, one per id; None where the item was evicted since."""

    def update_priorities(self, ids: list[int], priorities: list[float]) -> None:
        """Sets priorities, of the last mention where an id stands twice; ignored where the item was evicted.

        Raises:
            ValueError: a priority that is negative or not finite, or another number of them than ids.
        """

    def entries(self) -> Entries:
        """All that is there when the call begins, less what is evicted meanwhile.

        What is inserted meanwhile is learned by its ``insert``.
        """

    def counts(self) -> ReplayCounts:
        """The books, read under one cut."""

    def stored_index(self) -> dict[tuple[int, int], int]:
        """(environment, run) -> next_index of its last insert, of the latest runs of each environment."""

    def epoch(self) -> str:
        """Names the data: another one than before means that what was there is lost."""

    def mark(self) -> str:
        """How far the books have come, as of the last change or ``epoch()``: for ``expect``, after a restart."""

    def expect(self, mark: str) -> None:
        """What the backend holds must not be older than ``mark``; the next call sees to what is."""

    def check(self, unroll_bytes: int | None = None) -> None:
        """Whether the backend can hold what it may come to hold; logs the arithmetic.

        Raises:
            StoreError: it cannot.
        """

    def memory(self) -> Memory | None:
        """Of the backend; None where it hides it."""

    def clear(self) -> None:
        """Deletes everything, for a run that begins anew: items, books and epoch."""

    def close(self) -> None:
        """Closes the connection."""


def check_priorities(priorities: list[float]) -> None:
    """Raises ``ValueError`` for the first priority that is negative or not finite."""
    found = np.asarray(priorities, np.float64)
    wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if wrong.size:
        raise ValueError(f"priority {found[wrong[0]]} of item {wrong[0]}: finite and not negative it must be")


def check_sizes(items: list[Insert], capacity_bytes: int | None) -> None:
    """Raises ``StoreError`` for an item that would never fit, whatever is evicted."""
    for item in items:
        if capacity_bytes is not None and len(item.payload) > capacity_bytes:
            raise StoreError(f"an unroll of {len(item.payload)} bytes is above replay.capacity_bytes {capacity_bytes}")
