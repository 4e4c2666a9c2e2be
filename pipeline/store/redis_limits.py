"""What Redis must allow before anything is put into it: eviction policy, memory, size of one value.

Managed Redis often hides CONFIG; INFO then still says most of it, and what is hidden is said and passed over.
"""

from __future__ import annotations

import logging
from typing import Any

import redis

from pipeline.errors import StoreError
from pipeline.store.redis_client import RedisLink

log = logging.getLogger(__name__)

MEMORY_SHARE = 0.8
DEFAULT_MAX_VALUE_BYTES = 512 * 2**20
SAFE_POLICY = "noeviction"


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
    most = _max_value_bytes(link)
    if unroll_bytes > most:
        raise StoreError(f"an unroll of {unroll_bytes} bytes is above Redis' proto-max-bulk-len of {most} bytes")
    memory = _memory(link)
    limit = int(memory.get("maxmemory") or 0)
    if limit and total > MEMORY_SHARE * limit:
        raise StoreError(
            f"{sum_} is {total / limit:.0%} of Redis' maxmemory {_size(limit)}, at most {MEMORY_SHARE:.0%} are taken: "
            f"set store.capacity to {int(MEMORY_SHARE * limit / unroll_bytes)} or less, or raise maxmemory"
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
