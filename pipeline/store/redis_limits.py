"""What Redis must allow before anything is put into it: eviction policy, memory, size of one value.

Managed Redis often hides CONFIG; INFO then still says most of it, and what is hidden is said and passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import redis

from pipeline.errors import StoreError
from pipeline.store.codec import HEADER_BYTES
from pipeline.store.redis_client import RedisLink

log = logging.getLogger(__name__)

MEMORY_SHARE = 0.8
DEFAULT_MAX_VALUE_BYTES = 512 * 2**20
SAFE_POLICY = "noeviction"
STRING_HEADER_BYTES = 10  # of a Redis string, its final zero included
ENTRY_BYTES = 130  # the two hash entries of a replay's item: 88 measured in Valkey 9, 178 in Redis 7


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
        StoreError: more than 80 % of ``maxmemory``, or an unroll larger than Redis takes in one value.
    """
    total = unroll_bytes * capacity
    sum_ = f"{unroll_bytes} bytes per unroll x store.capacity {capacity} = {_size(total)}"
    _check_value(link, unroll_bytes)
    _check_total(link, total, sum_, lambda room: f"set store.capacity to {room // unroll_bytes} or less")


def check_replay_capacity(link: RedisLink, unroll_bytes: int, capacity: int, capacity_bytes: int | None) -> None:
    """The same for a replay, with what an item costs beside its payload and what the allocator rounds up.

    Args:
        link: To Redis.
        unroll_bytes: Of a record, neither encoded nor compressed.
        capacity: Unrolls.
        capacity_bytes: Bytes of payloads; None: no such bound.

    Raises:
        UnreachableError: Redis is out of reach.
        StoreError: more than 80 % of ``maxmemory``, an unroll larger than Redis takes in one value, or than
            ``capacity_bytes``.
    """
    payload = unroll_bytes + HEADER_BYTES
    items = capacity if capacity_bytes is None else min(capacity, capacity_bytes // payload)
    if items == 0:
        raise StoreError(f"an unroll of {payload} bytes is above replay.capacity_bytes {capacity_bytes}")
    bound = "replay.capacity" if items == capacity else "replay.capacity_bytes"
    item, unit = replay_item_bytes(payload), 1 if items == capacity else payload
    sum_ = (
        f"{unroll_bytes} bytes per unroll, {item} with all that Redis adds, x {items} unrolls ({bound}) = "
        f"{_size(item * items)}"
    )
    _check_value(link, payload)
    _check_total(link, item * items, sum_, lambda room: f"set {bound} to {room // item * unit} or less")


def replay_item_bytes(payload_bytes: int) -> int:
    """Memory that Redis takes for one item of a replay: payload, two hash entries, and what jemalloc rounds up.

    Size classes of jemalloc: four to each doubling.
    """
    asked = payload_bytes + STRING_HEADER_BYTES
    step = 1 << max(4, (asked - 1).bit_length() - 3)
    return -(-asked // step) * step + ENTRY_BYTES


def _check_value(link: RedisLink, value_bytes: int) -> None:
    most = _max_value_bytes(link)
    if value_bytes > most:
        raise StoreError(f"an unroll of {value_bytes} bytes is above Redis' proto-max-bulk-len of {most} bytes")


def _check_total(link: RedisLink, total: int, sum_: str, remedy: Callable[[int], str]) -> None:
    """``remedy`` tells what to set, given the bytes that there is room for."""
    memory = _memory(link)
    limit = int(memory.get("maxmemory") or 0)
    if limit and total > MEMORY_SHARE * limit:
        raise StoreError(
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
