"""What Redis must allow before anything is put into it: eviction policy, memory, size of one value.

Managed Redis often hides CONFIG; INFO then still says most of it, and what is hidden is said and passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import redis

from pipeline.errors import CapacityError, ConfigError, StoreError
from pipeline.store.codec import HEADER_BYTES
from pipeline.store.interface import Memory
from pipeline.store.redis_client import RedisLink

log = logging.getLogger(__name__)

MEMORY_SHARE = 0.8
NO_CLUSTER = (
    "seedmq's scripts change several keys at once, which a cluster has on several nodes. Use a Redis that is none (7.0 "
    "or newer, cluster-enabled no): a single one, or the primary of a replicated one; one is enough for a run"
)
DEFAULT_MAX_VALUE_BYTES = 512 * 2**20
SAFE_POLICY = "noeviction"
STRING_HEADER_BYTES = 10  # of a Redis string, its final zero included
ENTRY_BYTES = 130  # the two hash entries of a replay's item: 88 to 128 measured in Valkey 9
ENTRY_CLASSES_BYTES = 160  # the same with size classes: 178 measured in Redis 7
STREAM_FIELDS_BYTES = 20  # of a stream's entry, beside its payload
STREAM_NODE_BYTES = 90  # of a stream's node, beside its entries
STREAM_NODE_MAX_BYTES = 4096  # of entries in one node, Redis' default
MEASURED_ITEMS = 100


def check_single(link: RedisLink) -> None:
    """Waits until Redis answers; before any key is touched, which a cluster may have elsewhere.

    Raises:
        UnreachableError: no answer within ``unreachable_seconds``.
        ConfigError: a Redis Cluster.
    """
    cluster = link.call(lambda client: _allowed(lambda: client.info("cluster"), "INFO")) or {}
    if cluster.get("cluster_enabled"):
        raise ConfigError(f"store.url = {link.server.url} is a Redis Cluster: {NO_CLUSTER}")


def check_policy(link: RedisLink) -> None:
    """Waits until Redis answers, then checks that it will not throw unrolls away.

    Raises:
        UnreachableError: no answer within ``unreachable_seconds``.
        StoreError: an evicting ``maxmemory-policy`` with ``maxmemory`` set.
    """
    memory = _memory(link)
    policy, limit = memory.get("maxmemory_policy"), memory.get("maxmemory")
    if policy is None or limit is None:
        log.warning("Redis hides its memory settings: make sure that maxmemory-policy is %s", SAFE_POLICY)
    elif limit and policy != SAFE_POLICY:
        raise StoreError(
            f"Redis evicts: maxmemory-policy is {policy} with maxmemory {_size(limit)}, so it would delete unrolls. "
            f"Set it: CONFIG SET maxmemory-policy {SAFE_POLICY}"
        )


def check_capacity(link: RedisLink, unroll_bytes: int, capacity: int) -> None:
    """Compares ``capacity`` unrolls of ``unroll_bytes`` (not compressed) with what Redis may take; logs the arithmetic.

    Raises:
        UnreachableError: Redis is out of reach.
        CapacityError: more than 80 % of ``maxmemory``, or an unroll larger than Redis takes in one value.
    """
    payload = unroll_bytes + HEADER_BYTES
    item = fifo_item_bytes(payload, rounds_up(link))
    total = item * capacity
    sum_ = (
        f"{unroll_bytes} bytes per unroll before compression, {item} with all that Redis adds, x {capacity} unrolls "
        f"(store.capacity) = {_size(total)}"
    )
    _check_value(link, payload)
    _check_total(link, total, sum_, lambda room: f"set store.capacity to {room // item} or less")


def check_replay_capacity(link: RedisLink, unroll_bytes: int, capacity: int, capacity_bytes: int | None) -> None:
    """The same for a replay, with what an item costs beside its payload and what the allocator rounds up.

    Args:
        link: To Redis.
        unroll_bytes: Of a record, neither encoded nor compressed.
        capacity: Unrolls.
        capacity_bytes: Bytes of payloads; None: no such bound.

    Raises:
        UnreachableError: Redis is out of reach.
        CapacityError: more than 80 % of ``maxmemory``, an unroll larger than Redis takes in one value, or than
            ``capacity_bytes``.
    """
    payload = unroll_bytes + HEADER_BYTES
    items = capacity if capacity_bytes is None else min(capacity, capacity_bytes // payload)
    if items == 0:
        raise CapacityError(f"an unroll of {payload} bytes is above replay.capacity_bytes {capacity_bytes}")
    bound = "replay.capacity" if items == capacity else "replay.capacity_bytes"
    item, unit = replay_item_bytes(payload, rounds_up(link)), 1 if items == capacity else payload
    sum_ = (
        f"{unroll_bytes} bytes per unroll before compression, {item} with all that Redis adds, x {items} unrolls "
        f"({bound}) = {_size(item * items)}"
    )
    _check_value(link, payload)
    _check_total(link, item * items, sum_, lambda room: f"set {bound} to {room // item * unit} or less")


def memory(link: RedisLink) -> Memory | None:
    """What Redis takes and may take; None where it hides that.

    Raises:
        UnreachableError: Redis is out of reach.
    """
    found = _memory(link)
    return Memory(int(found["used_memory"]), int(found.get("maxmemory") or 0)) if "used_memory" in found else None


def rounds_up(link: RedisLink) -> bool:
    """Whether Redis' allocator has size classes (jemalloc, or one that is not told) or gives what is asked (libc)."""
    return not str(_memory(link).get("mem_allocator", "")).startswith("libc")


def replay_item_bytes(payload_bytes: int, classes: bool) -> int:
    """Memory that Redis takes for one item of a replay: payload and two hash entries.

    Args:
        payload_bytes: As stored: encoded and compressed.
        classes: ``rounds_up``.
    """
    entries = ENTRY_CLASSES_BYTES if classes else ENTRY_BYTES
    return _allocated(payload_bytes + STRING_HEADER_BYTES, classes) + entries


def fifo_item_bytes(payload_bytes: int, classes: bool) -> int:
    """Memory that Redis takes for one entry of the FIFO's stream, of which small ones share a node; as above."""
    entry = payload_bytes + STREAM_FIELDS_BYTES
    in_node = max(1, STREAM_NODE_MAX_BYTES // entry)
    return -(-(_allocated(entry * in_node, classes) + STREAM_NODE_BYTES) // in_node)


def _allocated(asked: int, classes: bool) -> int:
    """Size classes of jemalloc: four to each doubling."""
    step = 1 << max(4, (asked - 1).bit_length() - 3) if classes else 16
    return -(-asked // step) * step


class Measured:
    """Tells once, by the first unrolls as they are stored, what the capacity comes to: compression is known only then.

    Args:
        link: To Redis.
        bound: Name of the setting that is ``capacity``.
        capacity: Unrolls.
        capacity_bytes: Bytes of payloads; None: no such bound.
        item_bytes: ``fifo_item_bytes`` or ``replay_item_bytes``.
    """

    def __init__(
        self,
        link: RedisLink,
        bound: str,
        capacity: int,
        capacity_bytes: int | None,
        item_bytes: Callable[[int, bool], int],
    ) -> None:
        self._link = link
        self._bound = bound
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._item_bytes = item_bytes
        self._sizes: list[int] = []
        self._told = False

    def note(self, sizes: Iterable[int]) -> None:
        """Payload bytes of unrolls that were stored.

        Raises:
            UnreachableError, StoreError: as any call.
        """
        if self._told:
            return
        self._sizes += sizes
        if len(self._sizes) < min(MEASURED_ITEMS, self._capacity):
            return
        self._told = True
        classes, count = rounds_up(self._link), len(self._sizes)
        payload = max(1, sum(self._sizes) // count)
        item = sum(self._item_bytes(size, classes) for size in self._sizes) // count
        self._sizes = []
        bytes_ = self._capacity_bytes
        items = self._capacity if bytes_ is None else min(self._capacity, bytes_ // payload)
        log.info(
            "measured: %d bytes per unroll as stored, %d with all that Redis adds, x %d unrolls (%s) = %s",
            *(payload, item, items, self._bound if items == self._capacity else f"{self._bound}_bytes"),
            _size(item * items),
        )


def _check_value(link: RedisLink, value_bytes: int) -> None:
    most = _max_value_bytes(link)
    if value_bytes > most:
        raise CapacityError(f"an unroll of {value_bytes} bytes is above Redis' proto-max-bulk-len of {most} bytes")


def _check_total(link: RedisLink, total: int, sum_: str, remedy: Callable[[int], str]) -> None:
    """``remedy`` tells what to set, given the bytes that there is room for."""
    memory = _memory(link)
    limit = int(memory.get("maxmemory") or 0)
    if limit and total > MEMORY_SHARE * limit:
        raise CapacityError(
            f"{sum_} is {total / limit:.0%} of Redis' maxmemory {_size(limit)}, at most {MEMORY_SHARE:.0%} are taken: "
            f"{remedy(int(MEMORY_SHARE * limit))}, or raise maxmemory"
        )
    host = int(memory.get("total_system_memory") or 0)
    if not limit and host and total > MEMORY_SHARE * host:
        log.warning("%s is %.0f %% of the memory of Redis' host (%s)", sum_, 100 * total / host, _size(host))
    else:
        log.info("%s; Redis' maxmemory: %s", sum_, _size(limit) if limit else "none")


def _memory(link: RedisLink) -> dict[str, Any]:
    return link.call(lambda client: _allowed(lambda: client.info("memory"), "INFO")) or {}


def _max_value_bytes(link: RedisLink) -> int:
    found = link.call(lambda client: _allowed(lambda: client.config_get("proto-max-bulk-len"), "CONFIG")) or {}
    return int(found.get("proto-max-bulk-len") or DEFAULT_MAX_VALUE_BYTES)


def _allowed(command: Any, name: str) -> Any:
    """The command's reply, or None where this Redis does not let us."""
    try:
        return command()
    except redis.exceptions.NoPermissionError as error:
        reason: Exception = error
    except redis.ResponseError as error:
        if "unknown command" not in str(error).lower():
            raise
        reason = error
    log.info("Redis hides %s (%s): going on without", name, reason)
    return None


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.2f} GiB"
