"""Redis carries a command out and its reply is lost: nothing happens twice, and the caller learns what happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.store.interface import Item, Put
from pipeline.store.redis_store import RedisFifo
from tests.integration.flaky_proxy import FlakyProxy

pytestmark = pytest.mark.integration

FifoFactory = Callable[..., RedisFifo]


def items(*rows: int, size: int = 0) -> list[Put]:
    return [Put(1, 2, row, row + 1, 1, b"%d " % row + bytes(size)) for row in rows]


def rows(taken: list[Item]) -> list[int]:
    return [int(x.payload.split(b" ")[0]) for x in taken]


def test_a_put_whose_reply_is_lost_gives_that_reply(proxy: FlakyProxy, make_redis_fifo: FifoFactory) -> None:
    """Also what it dropped: the ledger books it from the reply."""
    fifo = make_redis_fifo(proxy.url, capacity=2, when_full="drop_oldest")
    fifo.put(items(0, 1))
    proxy.lose_reply_to(b"precious")
    assert fifo.put([Put(1, 2, 5, 6, 1, b"5 precious")])[:3] == (1, 0, 1)
    assert proxy.lost.is_set()
    assert fifo.counts() == (3, 0, 1, 2, 2)


def test_a_take_whose_reply_is_lost_takes_the_same_again(proxy: FlakyProxy, make_redis_fifo: FifoFactory) -> None:
    fifo = make_redis_fifo(proxy.url)
    fifo.put(items(*range(6)))
    assert rows(fifo.take(2, 1.0)) == [0, 1]
    assert fifo.take(2, 0.0) != [], "the pending list is read by now"
    proxy.lose_reply_to(b"XREADGROUP")
    assert rows(fifo.take(1, 2.0)) == [4]
    assert proxy.lost.is_set()
    assert rows(fifo.take(9, 2.0)) == [5]


def test_an_acknowledgement_whose_reply_is_lost_counts_once(proxy: FlakyProxy, make_redis_fifo: FifoFactory) -> None:
    fifo = make_redis_fifo(proxy.url)
    fifo.put(items(0, 1))
    taken = fifo.take(2, 1.0)
    proxy.lose_reply_to(taken[0].handle.encode())
    fifo.acknowledge(taken)
    assert proxy.lost.is_set()
    assert fifo.counts() == (2, 2, 0, 0, 0)
