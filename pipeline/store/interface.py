"""The FIFO of unrolls: its terms, its equation, its bounds, its errors.

An **item** is one unroll's record (``pipeline.unrolls``) with the counts that the ledger needs. Producers **put**,
one consumer group **takes**, trains and **acknowledges**; an acknowledged item is gone. ``length`` counts what is put
and neither acknowledged nor dropped, taken or not.

    put_total = acknowledged_total + dropped_total + waiting            (all in valid transitions, kept in the store)
    length <= capacity

A put is idempotent by (environment, run, row): a repeat is neither stored nor counted. With ``when_full = block`` a put
that does not fit stores nothing of what does not fit and says so; with ``drop_oldest`` the oldest items that nobody
has taken make room and are counted.

Errors: ``UnreachableError`` where the backend stays away beyond its deadline, ``StoreFull`` where it has no memory left
now, any other ``StoreError`` where it refuses for good or a payload is damaged.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

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


class Fifo(Protocol):
    """One FIFO. An instance belongs to one thread: make one per thread."""

    def put(self, items: list[Put]) -> PutResult:
        """Appends items in order, atomically per item, each once."""

    def take(self, count: int, timeout_seconds: float) -> list[Item]:
        """Up to ``count`` items, oldest first; empty on timeout.

        Those that a predecessor of the same consumer name took and did not acknowledge come first, once.
        """

    def acknowledge(self, items: list[Item]) -> None:
        """Ends items: acknowledged and deleted at once, counted once."""

    def counts(self) -> StoreCounts:
        """The books, read under one cut."""

    def stored_index(self) -> dict[tuple[int, int], int]:
        """(environment, run) -> next_index of its last put: what a restarted learner knows of its predecessor.

        Of each environment the latest runs are remembered.
        """

    def close(self) -> None:
        """Closes the connection."""
