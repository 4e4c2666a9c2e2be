"""The FIFO on a Redis stream with a consumer group. Terms, equation and bounds: ``pipeline.store.interface``.

Keys, all under ``<prefix>:``

    key      type    holds
    unrolls  stream  one entry per item, fields v (valid transitions) and p (payload); group "learners"
    books    hash    put_total, acknowledged_total, dropped_total, waiting; changes (of the items, ever)
    last     hash    environment -> "run row next_index;..." of the last put of each of its latest runs
    epoch    string  random; made with the group, so it changes when the data was lost
    replies  hash    producer -> "token stored repeated dropped" of its last put
    alive    hash    consumer -> Unix time of its last acknowledgement
    owner    hash    whose store it is (``pipeline.store.ownership``)

Every change is one script (``*.lua`` beside this module), idempotent, so it is sent again after any connection error.
Taking is XREADGROUP on a connection of its own: its reply may be lost after the server marked the items as taken, so
after every error, and at the start, the own pending list is read from the last item that did arrive (``_cursor``),
before anything new. Nothing is taken twice by one name, and nothing taken is lost. Commands of Redis 7.0 only.

A Redis that comes back with older data than it had (a dump, or a log without its last second) would offer again what
was trained. Every call carries the ``mark`` of the last change that was answered; where the books are behind it, they
and the items are deleted, and the epoch is another one. What a take finds at or before its cursor, in the same epoch,
this name took before: it is passed over.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import Any

import redis

from pipeline.errors import StoreError
from pipeline.stopping import StopToken
from pipeline.store import redis_limits
from pipeline.store.interface import Item, Memory, Put, PutResult, StoreCounts
from pipeline.store.ownership import Claim
from pipeline.store.redis_client import RedisLink, RedisServer, StoreSettings, TransientRedisError
from pipeline.store.scripts import name_of, read_runs, script
from pipeline.store.trouble import Trouble

log = logging.getLogger(__name__)

GROUP = "learners"
BLOCK_SECONDS = 1.0
DEAD_CONSUMER_SECONDS = 600.0
REQUEUE_ITEMS = 64
LOOK_SECONDS = 1.0  # between two looks of a taker at owner and mark; below any lease
PUT_ITEMS = 256  # of one script call: bounds how long the server is busy with it
PUT_BYTES = 64 * 2**20


class _Scripts:
    """The scripts, by name; EVALSHA, loaded where the server does not know them."""

    def __init__(self, client: redis.Redis) -> None:
        def load(name: str) -> Any:
            return client.register_script(script(name))

        self.put, self.acknowledge, self.counts = load("put"), load("acknowledge"), load("counts")
        self.ensure, self.requeue, self.clear = load("ensure"), load("requeue"), load("clear")


class RedisFifo:
    """A ``Fifo`` on Redis. Belongs to one thread.

    Args:
        server: Where Redis is.
        prefix: Every key begins with it and a colon.
        capacity: Items held at most, taken ones included.
        when_full: ``block`` or ``drop_oldest``.
        consumer: Stable name, no spaces: a process that comes back under it continues where its predecessor ended. Two
            instances that take at the same time need two names.
        stop: Ends waiting early.
        dead_consumer_seconds: What another consumer took goes back into the stream when that one was not heard of for
            so long.
        claim: Shared by the instances of a process; None: whose store it is is not asked.
    """

    def __init__(
        self,
        server: RedisServer,
        *,
        prefix: str,
        capacity: int,
        when_full: str,
        consumer: str,
        stop: StopToken | None = None,
        dead_consumer_seconds: float = DEAD_CONSUMER_SECONDS,
        claim: Claim | None = None,
    ) -> None:
        self._stop = stop or StopToken()
        self._commands = RedisLink(server, f"{prefix}:{consumer}:commands", self._stop)
        self._reads = RedisLink(server, f"{prefix}:{consumer}:reads", self._stop, BLOCK_SECONDS)
        self._scripts = _Scripts(self._commands.client)
        names = ("unrolls", "books", "last", "epoch", "replies", "alive")
        self._stream, self._books, self._last, self._epoch, self._replies, self._alive = (
            f"{prefix}:{name}" for name in names
        )
        self._owner = f"{prefix}:owner"
        self._claim = claim or Claim()
        self._capacity = capacity
        self._drop_oldest = when_full == "drop_oldest"
        self._was_full = False  # the last put did not fit
        self._measured = redis_limits.Measured(
            self._commands, "store.capacity", capacity, None, redis_limits.fifo_item_bytes
        )
        self._consumer = consumer
        self._token = uuid.uuid4().hex
        self._calls = 0
        self._cursor = "0"  # id of the last item that arrived here
        self._pending = True  # the own pending list may hold items after the cursor
        self._dead_consumer_seconds = dead_consumer_seconds
        self._next_requeue = self._next_look = 0.0
        self._known_epoch = ""  # at the last look

    @classmethod
    def from_settings(
        cls, section: StoreSettings, consumer: str, stop: StopToken, *, claim: Claim, trouble: Trouble
    ) -> RedisFifo:
        """From the section ``store`` of the configuration.

        Raises:
            ConfigError: no url, a malformed one, or an unreadable password file.
        """
        server = RedisServer.from_settings(section, trouble)
        return cls(
            server,
            prefix=section.prefix,
            capacity=section.capacity,
            when_full=section.when_full,
            consumer=consumer,
            stop=stop,
            claim=claim,
        )

    def check(self, unroll_bytes: int | None = None) -> None:
        """Waits until Redis answers and checks its settings; with ``unroll_bytes``, the capacity against its memory.

        Raises:
            UnreachableError: no answer within ``unreachable_seconds``.
            StoreError: an evicting policy, too little memory, an unroll above the largest value.
        """
        redis_limits.check_policy(self._commands)
        if unroll_bytes is not None:
            redis_limits.check_capacity(self._commands, unroll_bytes, self._capacity)

    def put(self, items: list[Put]) -> PutResult:
        """Appends items in order, each once; stops at the first that does not fit.

        After a put that did not fit, the next one asks for the length first and sends only what there is room for: to
        wait costs no payloads. (Repeats then wait for room too.)

        Raises:
            StoreFull: Redis has no memory left now.
            UnreachableError: Redis stayed away.
            StoreError: Redis refused.
        """
        stored = repeated = dropped = 0
        epoch = ""
        asked = len(items)
        if self._was_full:
            length: Any = self._commands.call(lambda client: client.xlen(self._stream))
            items = items[: max(0, self._capacity - length)]
        for chunk in _chunks(items):
            result = self._put(chunk)
            stored, repeated, dropped = stored + result[0], repeated + result[1], dropped + result[2]
            epoch = result[3].decode()
            self._measured.note(len(item.payload) for item in chunk[: result[0]])
            if result[0] < len(chunk):
                break
        self._was_full = stored < asked and not self._drop_oldest
        return PutResult(stored, repeated, dropped, epoch)

    def _put(self, items: list[Put]) -> tuple[int, int, int, bytes]:
        self._calls += 1
        arguments: list[Any] = [GROUP, uuid.uuid4().hex, self._capacity, int(self._drop_oldest), self._consumer]
        arguments += (f"{self._token}-{self._calls}", self._claim.token, self._claim.mark)
        for item in items:
            arguments += (name_of(item), item.payload)
        keys = [self._stream, self._books, self._last, self._epoch, self._replies, self._owner]
        stored, repeated, dropped, epoch, mark = self._commands.call(
            lambda client: self._scripts.put(keys, arguments, client)
        )
        self._claim.mark = mark.decode()
        return int(stored), int(repeated), int(dropped), epoch

    def take(self, count: int, timeout_seconds: float) -> list[Item]:
        """Up to ``count`` items, oldest first, what the own name took before first; empty on timeout or stop.

        Raises:
            UnreachableError: Redis stayed away beyond its deadline, over several calls if need be.
            StoreError: Redis refused.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = deadline - time.monotonic()
            try:
                self._look()
                items = self._read(count, min(left, BLOCK_SECONDS))
            except TransientRedisError as transient:
                self._pending, self._next_look = True, 0.0
                items = []
                self._stop.wait(max(0.0, min(transient.delay_seconds, left)))
            if items or self._stop.stopped or time.monotonic() >= deadline:
                return items

    def _read(self, count: int, block_seconds: float) -> list[Item]:
        """What the own pending list holds after the cursor, if anything, else what is new."""
        while self._pending:
            entries = self._read_from(self._cursor, count, None)
            # An entry without fields was deleted behind our back: nothing is left of it to take.
            items = _items([entry for entry in entries if entry[1]])
            if items:
                return items
            self._pending = bool(entries)
        block = int(block_seconds * 1000) if block_seconds >= 0.001 else None  # BLOCK 0 would mean for ever
        return _items(self._read_from(">", count, block))

    def _read_from(self, start: str, count: int, block: int | None) -> list[Any]:
        """One XREADGROUP, its entries (id, fields); moves the cursor."""
        try:
            reply: Any = self._reads.attempt(
                lambda client: client.xreadgroup(GROUP, self._consumer, {self._stream: start}, count, block)
            )
        except StoreError as error:
            # The second is what a reader hears that was waiting when the stream went.
            if not any(words in str(error) for words in ("NOGROUP", "UNBLOCKED")):
                raise
            self._begin_again()
            return []
        entries: list[Any] = reply[0][1] if reply else []
        if entries and start == ">" and _place(entries[0][0].decode()) <= _place(self._cursor):
            entries = self._not_taken_before(entries)
        if entries:
            self._cursor = entries[-1][0].decode()
        return entries

    def _not_taken_before(self, entries: list[Any]) -> list[Any]:
        """Redis offers as new what stands at or before the cursor: it went back, or it is another stream."""
        epoch = self._known_epoch
        self._known_epoch = self._commands.attempt(self._ensure)
        if self._known_epoch != epoch:  # what of these is still there stands in the own pending list
            self._cursor, self._pending = "0", True
            return []
        fresh = [entry for entry in entries if _place(entry[0].decode()) > _place(self._cursor)]
        log.warning("Redis came back with older data: %d unrolls were taken before", len(entries) - len(fresh))
        return fresh

    def _begin_again(self) -> None:
        """The group is missing: a new Redis, or one that lost its data."""
        self._known_epoch = self._commands.attempt(self._ensure)
        if self._cursor != "0":
            log.warning("Redis lost what it held under %s (restarted without persistence, or flushed)", self._stream)
        self._cursor = "0"

    def _ensure(self, client: redis.Redis) -> str:
        keys = [self._stream, self._epoch, self._books, self._last, self._replies, self._owner]
        arguments = [GROUP, uuid.uuid4().hex, self._claim.token, self._claim.mark]
        epoch, mark = self._scripts.ensure(keys, arguments, client)
        self._claim.mark = mark.decode()
        return str(epoch.decode())

    def _look(self) -> None:
        """Before a take, now and then: is the group there, the store still ours, and not older than the mark?"""
        now = time.monotonic()
        if now >= self._next_look:
            self._known_epoch = self._commands.attempt(self._ensure)
            self._next_look = now + LOOK_SECONDS
        if now >= self._next_requeue:
            self._requeue_dead(now)

    def _requeue_dead(self, now: float) -> None:
        arguments = [GROUP, self._consumer, int(self._dead_consumer_seconds * 1000), REQUEUE_ITEMS, self._claim.token]
        keys = [self._stream, self._alive, self._owner]
        moved = self._commands.attempt(lambda client: self._scripts.requeue(keys, arguments, client))
        if moved:
            log.warning(
                "put back %d unrolls that a consumer took and left for %g s", moved, self._dead_consumer_seconds
            )
        else:
            self._next_requeue = now + self._dead_consumer_seconds / 2

    def acknowledge(self, items: list[Item]) -> int:
        """Ends items: acknowledged and deleted at once, counted once; the valid transitions that this call ended.

        Raises:
            UnreachableError: Redis stayed away.
            StoreError: Redis refused.
        """
        if not items:
            return 0
        arguments: list[Any] = [GROUP, self._consumer, self._claim.token, self._claim.mark]
        for item in items:
            arguments += (item.handle, item.valid)
        keys = [self._stream, self._books, self._alive, self._epoch, self._owner]
        ended, mark = self._commands.call(lambda client: self._scripts.acknowledge(keys, arguments, client))
        self._claim.mark = mark.decode() or self._claim.mark
        return int(ended)

    def counts(self) -> StoreCounts:
        """The books, read under one cut. After Redis lost its data they begin at 0 and ``epoch`` differs."""
        keys = [self._stream, self._books]
        return StoreCounts(*self._commands.call(lambda client: self._scripts.counts(keys, [], client)))

    def epoch(self) -> str:
        """Names the data: another one than before means that Redis lost what it held (all of it) in between."""
        return self._commands.call(self._ensure)

    def mark(self) -> str:
        """How far the books have come, as of the last change or ``epoch()``."""
        return self._claim.mark

    def expect(self, mark: str) -> None:
        """What Redis holds must not be older than ``mark``, of an earlier time; else it counts as lost."""
        self._claim.mark = mark

    def stored_index(self) -> dict[tuple[int, int], int]:
        """(environment, run) -> next_index of its last put, of the latest runs of each environment."""
        found: Any = self._commands.call(lambda client: client.hgetall(self._last))
        return read_runs(found)

    def memory(self) -> Memory | None:
        """What Redis takes for all that it holds, whoever put it there, and what it may take."""
        return redis_limits.memory(self._commands)

    def clear(self) -> None:
        """Deletes everything under the prefix, for a run that begins anew: books, items and epoch."""
        keys = [self._owner, self._stream, self._books, self._last, self._epoch, self._replies, self._alive]
        self._commands.call(lambda client: self._scripts.clear(keys, [self._claim.token], client))
        self._claim.mark = ""

    def close(self) -> None:
        """Closes both connections."""
        self._commands.close()
        self._reads.close()


def _place(key: str) -> tuple[int, int]:
    """The order of stream ids: milliseconds, number."""
    milliseconds, _, number = key.partition("-")
    return int(milliseconds), int(number or 0)


def _items(entries: list[Any]) -> list[Item]:
    return [Item(key.decode(), int(fields[b"v"]), fields[b"p"]) for key, fields in entries]


def _chunks(items: list[Put]) -> list[list[Put]]:
    """Items in order, in pieces of at most ``PUT_ITEMS`` and about ``PUT_BYTES``."""
    chunks: list[list[Put]] = []
    size = 0
    for item in items:
        if not chunks or len(chunks[-1]) >= PUT_ITEMS or size + len(item.payload) > PUT_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(item)
        size += len(item.payload)
    return chunks
