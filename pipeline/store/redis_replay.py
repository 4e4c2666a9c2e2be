"""The replay in Redis. Terms, equation and bounds: ``pipeline.store.interface``.

Keys, all under ``<prefix>:replay:``

    key       type    holds
    payloads  hash    id -> payload
    entries   hash    id -> 16 bytes: priority (float64), valid transitions (uint32), bytes of the payload (uint32)
    books     hash    inserted_total, evicted_total, lost_total, resident, bytes; base_id, first_id, next_id: what is
                      there has ids from first_id up to next_id, and base_id was the first ever
    last      hash    environment -> "run row next_index;..." of the last insert of its latest runs
    epoch     string  random; made with the books, so it changes when the data was lost
    replies   hash    producer -> "token ..." and the reply of its last insert

``<prefix>:owner`` tells whose store it is (``pipeline.store.ownership``).

Every change is one script (``replay_*.lua`` beside this module), idempotent, so it is sent again after any connection
error. Commands of Redis 7.0 only.

A Redis that comes back with older data than it had (a dump, or a log without its last second) has older books than the
``mark`` of the last change that was answered, which every call carries: ``replay_mark.lua`` brings them up to it.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from itertools import chain
from typing import Any, Protocol

import numpy as np
import redis

from pipeline.stopping import StopToken
from pipeline.store import redis_limits
from pipeline.store.interface import (
    Entries,
    Insert,
    InsertResult,
    Memory,
    ReplayCounts,
    StoreFull,
    check_priorities,
    check_sizes,
)
from pipeline.store.ownership import Claim
from pipeline.store.redis_client import RedisLink, RedisServer, StoreSettings
from pipeline.store.scripts import name_of, read_runs, script
from pipeline.store.trouble import Trouble

INSERT_ITEMS = 256  # of one script call: bounds how long the server is busy with it
INSERT_BYTES = 64 * 2**20
FETCH_ITEMS = 64  # of one command; several stand in one pipeline
UPDATE_ITEMS = 1024
ENTRIES_ITEMS = 4096
ENTRY = np.dtype([("priority", "<f8"), ("valid", "<u4"), ("bytes", "<u4")])
_PRIORITY = struct.Struct("<d")


class ReplaySettings(Protocol):
    """What this package reads of the configuration's section ``replay``."""

    @property
    def capacity(self) -> int: ...
    @property
    def capacity_bytes(self) -> int | None: ...


class RedisReplay:
    """A ``Replay`` in Redis. Belongs to one thread.

    Args:
        server: Where Redis is.
        prefix: Every key begins with it and ``:replay:``.
        capacity: Items held at most.
        capacity_bytes: Bytes of payloads held at most; None: no such bound.
        producer: Stable name, no spaces. Two instances that insert at the same time need two names.
        stop: Ends waiting early.
        claim: Shared by the instances of a process; None: whose store it is is not asked.
    """

    def __init__(
        self,
        server: RedisServer,
        *,
        prefix: str,
        capacity: int,
        capacity_bytes: int | None = None,
        producer: str,
        stop: StopToken | None = None,
        claim: Claim | None = None,
    ) -> None:
        self._link = RedisLink(server, f"{prefix}:{producer}:replay", stop or StopToken())
        names = ("payloads", "entries", "books", "last", "epoch", "replies")
        self._keys = [f"{prefix}:replay:{name}" for name in names]
        self._payloads, self._entries, self._books, self._last, self._epoch, _ = self._keys
        self._owner = f"{prefix}:owner"
        self._claim = claim or Claim()
        self._insert_script, self._update_script = self._script("insert"), self._script("update")
        self._counts_script, self._ensure_script = self._script("counts"), self._script("ensure")
        self._clear_script = self._link.client.register_script(script("clear"))
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._measured = redis_limits.Measured(
            self._link, "replay.capacity", capacity, capacity_bytes, redis_limits.replay_item_bytes
        )
        self._producer = producer
        self._token = uuid.uuid4().hex
        self._calls = 0

    @classmethod
    def from_settings(
        cls,
        section: StoreSettings,
        replay: ReplaySettings,
        producer: str,
        stop: StopToken,
        *,
        claim: Claim,
        trouble: Trouble,
    ) -> RedisReplay:
        """From the sections ``store`` and ``replay`` of the configuration.

        Raises:
            ConfigError: no url, a malformed one, or an unreadable password file.
        """
        return cls(
            RedisServer.from_settings(section, trouble),
            prefix=section.prefix,
            capacity=replay.capacity,
            capacity_bytes=replay.capacity_bytes,
            producer=producer,
            stop=stop,
            claim=claim,
        )

    def check(self, unroll_bytes: int | None = None) -> None:
        """Waits until Redis answers and checks its settings; with ``unroll_bytes``, the capacity against its memory.

        Args:
            unroll_bytes: Of a record, neither encoded nor compressed.

        Raises:
            UnreachableError: no answer within ``unreachable_seconds``.
            StoreError: an evicting policy, too little memory, an unroll above the largest value or ``capacity_bytes``.
        """
        redis_limits.check_policy(self._link)
        if unroll_bytes is not None:
            redis_limits.check_replay_capacity(self._link, unroll_bytes, self._capacity, self._capacity_bytes)

    def insert(self, items: list[Insert]) -> InsertResult:
        """Inserts items in order, each once, and evicts the oldest where they need room; ``ids`` may be shorter.

        Raises:
            ValueError: a priority that is negative or not finite; nothing is inserted.
            StoreFull: Redis has no memory left, below the capacity; nothing is inserted.
            UnreachableError: Redis stayed away.
            StoreError: Redis refused, or an item is larger than ``capacity_bytes`` (nothing is inserted).
        """
        check_priorities([item.priority for item in items])
        check_sizes(items, self._capacity_bytes)
        result = InsertResult([], [], 0, 0, "", 0)
        for chunk in _chunks(items):
            try:
                result = _joined(result, self._insert(chunk))
            except StoreFull:
                if not result.ids:
                    raise
                break  # what the front's insert says must not get lost
        return result

    def _insert(self, items: list[Insert]) -> InsertResult:
        self._calls += 1
        arguments: list[Any] = [uuid.uuid4().hex, self._capacity, self._capacity_bytes or 0]
        arguments += (self._producer, f"{self._token}-{self._calls}", self._claim.token, self._claim.mark)
        for item in items:
            arguments += (name_of(item), item.payload, _PRIORITY.pack(item.priority))
        keys = [*self._keys, self._owner]
        reply = self._link.call(lambda client: self._insert_script(keys, arguments, client))
        first, mask, evicted_from, evicted, valid, epoch, mark = reply
        self._claim.mark = mark.decode()
        self._measured.note(len(item.payload) for item in items)
        ids = iter(range(int(first), int(first) + len(items)))
        return InsertResult(
            ids=[next(ids) if here == ord("1") else None for here in mask],
            evicted=list(range(int(evicted_from), int(evicted_from) + int(evicted))),
            evicted_valid=int(valid),
            repeated=mask.count(b"0"),
            epoch=epoch.decode(),
            lost_total=int(mark.rsplit(b" ", 1)[1]),
        )

    def fetch(self, ids: list[int]) -> list[bytes | None]:
        """Payloads, one per id; None where the item was evicted since. One round trip.

        Raises:
            UnreachableError: Redis stayed away.
            StoreError: Redis refused.
        """

        chunks = list(_slices([int(key) for key in ids], FETCH_ITEMS))

        def fetch(client: redis.Redis) -> list[Any]:
            with client.pipeline(transaction=False) as pipeline:
                for chunk in chunks:
                    pipeline.hmget(self._payloads, chunk)
                return pipeline.execute()

        return list(chain.from_iterable(self._link.call(fetch))) if chunks else []

    def update_priorities(self, ids: list[int], priorities: list[float]) -> None:
        """Sets priorities; ignored where the item was evicted.

        Raises:
            ValueError: a priority that is negative or not finite, or another number of them than ids.
            UnreachableError: Redis stayed away.
            StoreError: Redis refused.
        """
        check_priorities(priorities)
        pairs = [(int(key), _PRIORITY.pack(priority)) for key, priority in zip(ids, priorities, strict=True)]
        for chunk in _slices(pairs, UPDATE_ITEMS):
            keys, arguments = [self._entries, self._owner], [self._claim.token, *chain.from_iterable(chunk)]
            self._link.call(lambda client, k=keys, a=arguments: self._update_script(k, a, client))  # type: ignore[misc]

    def entries(self) -> Entries:
        """All that is there when the call begins, less what is evicted meanwhile.

        Raises:
            UnreachableError: Redis stayed away.
            StoreError: Redis refused.
        """
        bounds: Any = self._link.call(lambda client: client.hmget(self._books, ["first_id", "next_id"]))
        ids: list[int] = []
        packed: list[bytes] = []
        for chunk in _slices(range(int(bounds[0] or 0), int(bounds[1] or 0)), ENTRIES_ITEMS):
            found: Any = self._link.call(lambda client, c=chunk: client.hmget(self._entries, list(c)))  # type: ignore[misc]
            there = [(key, entry) for key, entry in zip(chunk, found, strict=True) if entry is not None]
            ids += [key for key, _ in there]
            packed += [entry for _, entry in there]
        table = np.frombuffer(b"".join(packed), ENTRY)
        return Entries(np.array(ids, np.int64), table["priority"].astype(np.float64), table["valid"].astype(np.int64))

    def counts(self) -> ReplayCounts:
        """The books, read under one cut. After Redis lost its data they begin at 0 and ``epoch`` differs."""
        keys = [self._payloads, self._books]
        return ReplayCounts(*map(int, self._link.call(lambda client: self._counts_script(keys, [], client))))

    def stored_index(self) -> dict[tuple[int, int], int]:
        """(environment, run) -> next_index of its last insert, of the latest runs of each environment."""
        found: Any = self._link.call(lambda client: client.hgetall(self._last))
        return read_runs(found)

    def epoch(self) -> str:
        """Names the data: another one than before means that Redis lost what it held (all of it) in between."""
        keys = [self._payloads, self._entries, self._books, self._epoch, self._owner]
        arguments = [uuid.uuid4().hex, self._claim.token, self._claim.mark]
        epoch, mark = self._link.call(lambda client: self._ensure_script(keys, arguments, client))
        self._claim.mark = mark.decode()
        return str(epoch.decode())

    def mark(self) -> str:
        """How far the books have come, as of the last insert or ``epoch()``."""
        return self._claim.mark

    def expect(self, mark: str) -> None:
        """What Redis holds must not be older than ``mark``, of an earlier time; else the books tell what is lost."""
        self._claim.mark = mark

    def memory(self) -> Memory | None:
        """What Redis takes for all that it holds, whoever put it there, and what it may take."""
        return redis_limits.memory(self._link)

    def clear(self) -> None:
        """Deletes everything under the prefix, for a run that begins anew: items, books and epoch."""
        keys = [self._owner, *self._keys]
        self._link.call(lambda client: self._clear_script(keys, [self._claim.token], client))
        self._claim.mark = ""

    def close(self) -> None:
        """Closes the connection."""
        self._link.close()

    def _script(self, name: str) -> Any:
        """A script by its name; EVALSHA, loaded where the server does not know it."""
        return self._link.client.register_script(script(f"replay_{name}"))


def _joined(first: InsertResult, second: InsertResult) -> InsertResult:
    return InsertResult(
        ids=first.ids + second.ids,
        evicted=first.evicted + second.evicted,
        evicted_valid=first.evicted_valid + second.evicted_valid,
        repeated=first.repeated + second.repeated,
        epoch=second.epoch,
        lost_total=second.lost_total,
    )


def _slices(sequence: Any, length: int) -> Iterator[Any]:
    for start in range(0, len(sequence), length):
        yield sequence[start : start + length]


def _chunks(items: list[Insert]) -> list[list[Insert]]:
    """Items in order, in pieces of at most ``INSERT_ITEMS`` and about ``INSERT_BYTES``."""
    chunks: list[list[Insert]] = []
    size = 0
    for item in items:
        if not chunks or len(chunks[-1]) >= INSERT_ITEMS or size + len(item.payload) > INSERT_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(item)
        size += len(item.payload)
    return chunks
