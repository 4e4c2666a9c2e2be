"""Conformance of a FIFO: one suite over every backend (a factory of instances on one store)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from pipeline.store.embedded import EmbeddedServer
from pipeline.store.interface import Fifo, Item, Put
from pipeline.store.memory import FifoState, MemoryFifo
from pipeline.store.redis_client import RedisServer
from pipeline.store.redis_store import RedisFifo

pytestmark = pytest.mark.integration

FifoFactory = Callable[..., Fifo]


def item(row: int, environment: int = 1, run: int = 2**62 + 1, valid: int = 5) -> Put:
    return Put(environment, run, row, row + valid, valid, f"payload {environment} {run} {row}".encode())


def rows(items: list[Item]) -> list[int]:
    return [int(x.payload.split()[-1]) for x in items]


def closes(fifo: Fifo) -> bool:
    counts = fifo.counts()
    return counts.put_total == counts.acknowledged_total + counts.dropped_total + counts.waiting


@pytest.fixture
def make_fifo(backend: EmbeddedServer | None, prefix: str) -> Iterator[FifoFactory]:
    """Instances on one store; ``space`` separates stores in one backend."""
    made: list[Fifo] = []
    states: dict[str, FifoState] = {}

    def make(capacity: int = 16, when_full: str = "block", consumer: str = "learner", space: str = "") -> Fifo:
        if backend is None:
            state = states.setdefault(space, FifoState(capacity, when_full))
            made.append(MemoryFifo(state, consumer))
        else:
            settings = {"capacity": capacity, "when_full": when_full, "consumer": consumer}
            made.append(RedisFifo(RedisServer(backend.url), prefix=prefix + space, **settings))
        return made[-1]

    yield make
    for fifo in made:
        fifo.close()


def test_items_come_in_order_and_end_once(make_fifo: FifoFactory) -> None:
    fifo = make_fifo()
    assert fifo.put([item(row) for row in range(7)])[:3] == (7, 0, 0)
    taken = fifo.take(5, 1.0)
    assert rows(taken) == [0, 1, 2, 3, 4]
    assert taken[0].valid == 5 and taken[0].payload == item(0).payload
    assert fifo.counts() == (35, 0, 0, 35, 7)
    fifo.acknowledge([*taken, taken[0], taken[0]])
    fifo.acknowledge(taken)
    assert fifo.counts() == (35, 25, 0, 10, 2)
    assert rows(fifo.take(9, 1.0)) == [5, 6]


def test_empty_calls_do_nothing(make_fifo: FifoFactory) -> None:
    fifo = make_fifo()
    assert fifo.put([])[:3] == (0, 0, 0)
    fifo.acknowledge([])
    assert fifo.take(4, 0.0) == [] and fifo.take(4, 0.05) == []
    assert fifo.counts() == (0, 0, 0, 0, 0)
    assert fifo.stored_index() == {}


def test_a_repeat_is_neither_stored_nor_counted(make_fifo: FifoFactory) -> None:
    fifo = make_fifo()
    fifo.put([item(0), item(10), item(0, environment=2)])
    assert fifo.put([item(0), item(10), item(20), item(0, environment=2), item(0, environment=3)])[:3] == (5, 3, 0)
    assert fifo.counts().length == 5
    assert fifo.put([item(0, run=77)])[:3] == (1, 0, 0), "a new run of the environment begins anew"
    assert closes(fifo)


def test_a_repeat_after_the_acknowledgement_is_still_one(make_fifo: FifoFactory) -> None:
    fifo = make_fifo()
    fifo.put([item(0)])
    fifo.acknowledge(fifo.take(1, 1.0))
    assert make_fifo().put([item(0)])[:3] == (1, 1, 0)
    assert fifo.counts() == (5, 5, 0, 0, 0)


def test_block_stores_what_fits(make_fifo: FifoFactory) -> None:
    fifo = make_fifo(capacity=4)
    assert fifo.put([item(row) for row in range(6)])[:3] == (4, 0, 0)
    assert fifo.put([item(4)])[:3] == (0, 0, 0)
    taken = fifo.take(1, 1.0)
    assert fifo.put([item(4)])[:3] == (0, 0, 0), "what is taken counts until it is acknowledged"
    fifo.acknowledge(taken)
    assert fifo.put([item(4), item(5)])[:3] == (1, 0, 0)
    assert fifo.put([item(5)])[:3] == (0, 0, 0), "it waits"
    assert make_fifo(capacity=4).put([item(3), item(4)])[:3] == (2, 2, 0), "a repeat needs no room"
    assert fifo.counts() == (25, 5, 0, 20, 4)


def test_drop_oldest_drops_what_nobody_took(make_fifo: FifoFactory) -> None:
    fifo = make_fifo(capacity=4, when_full="drop_oldest")
    fifo.put([item(row, valid=row) for row in range(1, 5)])
    taken = fifo.take(2, 1.0)
    assert fifo.put([item(5), item(6)])[:3] == (2, 0, 3 + 4)
    assert fifo.counts() == (1 + 2 + 3 + 4 + 10, 0, 7, 13, 4)
    assert rows(fifo.take(4, 1.0)) == [5, 6]
    assert fifo.put([item(7)])[:3] == (0, 0, 0), "everything is taken: nothing may be dropped"
    fifo.acknowledge(taken)
    assert fifo.counts() == (20, 3, 7, 10, 2)


def test_a_put_larger_than_the_capacity_keeps_the_newest(make_fifo: FifoFactory) -> None:
    fifo = make_fifo(capacity=3, when_full="drop_oldest")
    assert fifo.put([item(row) for row in range(1000)])[:3] == (1000, 0, 997 * 5)
    assert rows(fifo.take(9, 1.0)) == [997, 998, 999]
    assert closes(fifo)


def test_a_successor_takes_first_what_its_predecessor_did_not_acknowledge(make_fifo: FifoFactory) -> None:
    first = make_fifo()
    first.put([item(row) for row in range(6)])
    taken = first.take(4, 1.0)
    first.acknowledge(taken[:1])
    first.close()
    second = make_fifo()
    again = second.take(2, 1.0)
    assert rows(again) == [1, 2]
    assert rows(second.take(9, 1.0)) == [3]
    assert rows(second.take(9, 1.0)) == [4, 5]
    assert second.take(9, 0.0) == []
    second.acknowledge(again)
    assert closes(second) and second.counts().length == 3


def test_another_consumer_does_not_take_what_is_taken(make_fifo: FifoFactory) -> None:
    one, two = make_fifo(consumer="one"), make_fifo(consumer="two")
    one.put([item(row) for row in range(4)])
    mine = one.take(2, 1.0)
    assert rows(two.take(9, 1.0)) == [2, 3]
    two.acknowledge(mine)
    assert one.counts().acknowledged_total == 10, "whoever trains it may end it"


def test_stored_index_tells_a_successor_where_it_stands(make_fifo: FifoFactory) -> None:
    fifo = make_fifo()
    fifo.put([item(0), item(5), item(0, environment=9, run=3)])
    fifo.acknowledge(fifo.take(9, 1.0))
    assert make_fifo().stored_index() == {(1, 2**62 + 1): 10, (9, 3): 5}


def test_two_prefixes_never_touch(make_fifo: FifoFactory) -> None:
    here, there = make_fifo(), make_fifo(space="-there")
    here.put([item(0)])
    assert there.take(1, 0.05) == [] and there.counts().length == 0
    assert there.put([item(0)])[:3] == (1, 0, 0)
    there.acknowledge(here.take(1, 1.0))
    assert here.counts() == (5, 0, 0, 5, 1) and there.counts() == (5, 0, 0, 5, 1)


def test_a_cleared_store_is_another_one(make_fifo: FifoFactory) -> None:
    fifo, other = make_fifo(), make_fifo(consumer="other")
    epoch = fifo.epoch()
    assert fifo.put([item(0), item(10)]).epoch == epoch == other.epoch()
    taken = fifo.take(1, 1.0)
    fifo.clear()
    assert fifo.epoch() != epoch and fifo.counts() == (0, 0, 0, 0, 0) and fifo.stored_index() == {}
    assert fifo.put([item(0)])[:3] == (1, 0, 0)
    fifo.acknowledge(taken)
    assert fifo.counts() == (5, 0, 0, 5, 1), "a handle of what is gone ends nothing"
    assert rows(other.take(9, 1.0)) == [0]


@pytest.mark.parametrize("when_full", ["block", "drop_oldest"])
@pytest.mark.parametrize("seed", range(3))
def test_the_books_close_after_any_operations(make_fifo: FifoFactory, when_full: str, seed: int) -> None:
    """Random puts with repeats, takes, crashes, acknowledgements in any order, against a model in plain Python."""
    rng = random.Random(seed)
    fifo = make_fifo(capacity=8, when_full=when_full)
    next_row, hand, put, ended = [0] * 3, [], 0, 0
    seen: set[bytes] = set()
    for _ in range(300):
        action = rng.choice(("put", "put", "take", "acknowledge", "crash"))
        if action == "put":
            environment = rng.randrange(3)
            start = max(0, next_row[environment] - rng.randint(0, 2))
            batch = [item(row, environment, valid=row % 4) for row in range(start, start + rng.randint(1, 5))]
            result = fifo.put(batch)
            new = batch[result.repeated : result.stored]
            put += sum(x.valid for x in new)
            next_row[environment] = max(next_row[environment], start + result.stored)
        elif action == "take":
            hand += fifo.take(rng.randint(1, 4), 0.0)
        elif action == "acknowledge" and hand:
            done = rng.sample(hand, rng.randint(1, len(hand)))
            fifo.acknowledge(done + done[:1])
            assert not seen & {x.payload for x in done}, "no item ends twice"
            seen |= {x.payload for x in done}
            hand = [x for x in hand if x not in done]
            ended += sum(x.valid for x in done)
        elif action == "crash" and rng.random() < 0.2:
            fifo = make_fifo(capacity=8, when_full=when_full)
            hand = []
        counts = fifo.counts()
        assert (counts.put_total, counts.acknowledged_total) == (put, ended)
        assert closes(fifo) and counts.length <= 8
    if when_full == "block":
        assert fifo.counts().dropped_total == 0
