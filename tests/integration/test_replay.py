"""Conformance of a replay: one suite over every backend (a factory of instances on one store)."""

from __future__ import annotations

import os
import random
import threading
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pipeline.errors import StoreError
from pipeline.store.embedded import EmbeddedServer
from pipeline.store.interface import Entries, Insert, Replay
from pipeline.store.memory import MemoryReplay, ReplayState
from pipeline.store.redis_client import RedisServer
from pipeline.store.redis_replay import RedisReplay

pytestmark = pytest.mark.integration

ReplayFactory = Callable[..., Replay]
LIMIT_SECONDS = 60.0
SAMPLES = int(os.environ.get("REPLAY_SAMPLES", "20000"))
"""Whole payloads that concurrent use must give; a million: ``REPLAY_SAMPLES=1000000``."""


def item(row: int, environment: int = 1, run: int = 2**62 + 1, valid: int = 5, priority: float = 1.0) -> Insert:
    payload = f"payload {environment} {run} {row}".encode()
    return Insert(environment, run, row, row + valid, valid, payload, priority)


def contents(replay: Replay) -> list[int]:
    """Rows of what is there, oldest first."""
    payloads = replay.fetch(replay.entries().ids.tolist())
    return [int((payload or b"-1").split()[-1]) for payload in payloads]


def table(entries: Entries) -> dict[int, tuple[float, int]]:
    columns = (entries.ids.tolist(), entries.priorities.tolist(), entries.valid.tolist())
    return {key: (priority, valid) for key, priority, valid in zip(*columns, strict=True)}


def closes(replay: Replay) -> bool:
    counts = replay.counts()
    return counts.inserted_total == counts.resident + counts.evicted_total


@pytest.fixture
def make_replay(backend: EmbeddedServer | None, prefix: str) -> Iterator[ReplayFactory]:
    """Instances on one store; ``space`` separates stores in one backend."""
    made: list[Replay] = []
    states: dict[str, ReplayState] = {}

    def make(
        capacity: int = 1000, capacity_bytes: int | None = None, producer: str = "learner", space: str = ""
    ) -> Replay:
        if backend is None:
            made.append(MemoryReplay(states.setdefault(space, ReplayState(capacity, capacity_bytes))))
        else:
            settings = {"capacity": capacity, "capacity_bytes": capacity_bytes, "producer": producer}
            made.append(RedisReplay(RedisServer(backend.url), prefix=prefix + space, **settings))
        return made[-1]

    yield make
    for replay in made:
        replay.close()


def test_what_is_inserted_is_fetched(make_replay: ReplayFactory) -> None:
    replay = make_replay()
    result = replay.insert([item(0, priority=0.25), item(5, valid=3), item(0, environment=2)])
    first = result.ids[0]
    assert first is not None and result.ids == [first, first + 1, first + 2], "ids grow by one"
    assert result[1:4] == ([], 0, 0) and result.epoch == replay.epoch()
    ids = [first + 2, first, first, first + 9]
    expected = [item(0, environment=2).payload, item(0).payload, item(0).payload, None]
    assert make_replay(producer="other").fetch(ids) == expected
    assert table(replay.entries()) == {first: (0.25, 5), first + 1: (1.0, 3), first + 2: (1.0, 5)}
    size = sum(len(x.payload) for x in (item(0), item(5), item(0)))
    assert replay.counts() == (13, 0, 13, 3, size, 3, 0)


def test_empty_calls_do_nothing(make_replay: ReplayFactory) -> None:
    replay = make_replay()
    assert replay.insert([]) == ([], [], 0, 0, "", 0)
    assert replay.fetch([]) == [] and replay.fetch([7]) == [None]
    replay.update_priorities([], [])
    replay.update_priorities([7], [1.0])
    entries = replay.entries()
    assert [x.dtype for x in entries] == [np.int64, np.float64, np.int64] and len(entries.ids) == 0
    assert replay.counts() == (0, 0, 0, 0, 0, 0, 0)
    assert replay.stored_index() == {}


def test_a_repeat_is_neither_stored_nor_counted(make_replay: ReplayFactory) -> None:
    replay = make_replay()
    b = replay.insert([item(0), item(10)]).ids[1]
    result = replay.insert([item(0), item(20), item(10), item(0, environment=2)])
    assert b is not None and result.ids == [None, b + 1, None, b + 2] and result.repeated == 2
    assert replay.insert([item(0, run=77)]).repeated == 0, "a new run of the environment begins anew"
    assert replay.counts().items == 5 and closes(replay)


def test_a_repeat_after_the_eviction_is_still_one(make_replay: ReplayFactory) -> None:
    replay = make_replay(capacity=1)
    replay.insert([item(0), item(0, environment=2)])
    assert make_replay(capacity=1, producer="other").insert([item(0)]) == ([None], [], 0, 1, replay.epoch(), 0)


def test_the_oldest_makes_room(make_replay: ReplayFactory) -> None:
    replay = make_replay(capacity=4)
    ids = replay.insert([item(row, valid=row) for row in range(1, 5)]).ids
    result = replay.insert([item(5), item(6)])
    assert (result.evicted, result.evicted_valid) == (ids[:2], 1 + 2)
    assert contents(replay) == [3, 4, 5, 6] and replay.fetch([x or 0 for x in ids[:2]]) == [None, None]
    assert replay.counts()[:4] == (20, 3, 17, 4)


def test_an_insert_larger_than_the_capacity_keeps_the_newest(make_replay: ReplayFactory) -> None:
    replay = make_replay(capacity=3)
    result = replay.insert([item(row) for row in range(1000)])
    assert result.evicted == result.ids[:997] and result.evicted_valid == 997 * 5
    assert contents(replay) == [997, 998, 999] and closes(replay)


def test_the_capacity_in_bytes_holds_too(make_replay: ReplayFactory) -> None:
    def sized(row: int, size: int) -> Insert:
        return item(row)._replace(payload=bytes(size))

    replay = make_replay(capacity=100, capacity_bytes=1000)
    ids = replay.insert([sized(row, 300) for row in range(3)]).ids
    assert replay.insert([sized(3, 100)]).evicted == []
    assert replay.counts().bytes == 1000
    assert replay.insert([sized(4, 301)]).evicted == ids[:2], "301 bytes need two of 300"
    assert replay.insert([sized(5, 1000)]).evicted_valid == 15
    assert replay.counts()[3:5] == (1, 1000)
    with pytest.raises(StoreError, match=r"1001 bytes is above replay\.capacity_bytes 1000"):
        replay.insert([sized(6, 10), sized(7, 1001)])
    assert replay.counts().items == 1, "nothing of it is inserted"
    assert replay.insert([sized(6, 0)]).evicted == [] and closes(replay)


def test_priorities_are_updated_by_id(make_replay: ReplayFactory) -> None:
    replay = make_replay(capacity=3)
    ids = [x or 0 for x in replay.insert([item(row, valid=row) for row in range(4)]).ids]
    make_replay(capacity=3).update_priorities([*ids[:2], ids[3], ids[3]], [100.0, 1 / 3, 5.0, 1e-300])
    assert table(replay.entries()) == {ids[1]: (1 / 3, 1), ids[2]: (1.0, 2), ids[3]: (1e-300, 3)}
    assert contents(replay) == [1, 2, 3] and closes(replay)


def test_numpy_ids_and_priorities_are_taken(make_replay: ReplayFactory) -> None:
    replay = make_replay()
    replay.insert([item(0), item(1, priority=np.float32(0.5))])
    entries = replay.entries()
    assert replay.fetch(list(entries.ids)) == [item(0).payload, item(1).payload]
    replay.update_priorities(list(entries.ids), list(np.array([0.25, 2.0], np.float32)))
    assert replay.entries().priorities.tolist() == [0.25, 2.0]


@pytest.mark.parametrize("priority", [-1e-9, float("nan"), float("inf")])
def test_impossible_priorities_are_refused(make_replay: ReplayFactory, priority: float) -> None:
    replay = make_replay()
    key = replay.insert([item(0)]).ids[0] or 0
    with pytest.raises(ValueError, match="finite and not negative"):
        replay.insert([item(1), item(2, priority=priority)])
    with pytest.raises(ValueError, match="finite and not negative"):
        replay.update_priorities([key], [priority])
    with pytest.raises(ValueError, match="zip"):
        replay.update_priorities([key], [1.0, 2.0])
    assert table(replay.entries()) == {key: (1.0, 5)}


def test_a_successor_finds_everything(make_replay: ReplayFactory) -> None:
    first = make_replay(capacity=10_000)
    ids = first.insert([item(row, priority=row) for row in range(9000)]).ids
    first.insert([item(3, environment=9, run=3)])
    first.update_priorities([ids[4] or 0], [0.5])
    counts, epoch = first.counts(), first.epoch()
    first.close()
    second = make_replay(capacity=10_000)
    entries = second.entries()
    assert np.array_equal(entries.ids[:9000], ids) and entries.priorities[3:6].tolist() == [3.0, 0.5, 5.0]
    assert (second.counts(), second.epoch()) == (counts, epoch)
    assert second.stored_index() == {(1, 2**62 + 1): 9004, (9, 3): 8}


def test_a_cleared_store_is_another_one_with_other_ids(make_replay: ReplayFactory) -> None:
    replay = make_replay()
    epoch, ids = replay.epoch(), [x or 0 for x in replay.insert([item(row) for row in range(5)]).ids]
    replay.clear()
    assert replay.epoch() != epoch and replay.counts() == (0, 0, 0, 0, 0, 0, 0) and replay.stored_index() == {}
    new = replay.insert([item(row) for row in range(5)])
    assert new.repeated == 0 and new.epoch == replay.epoch()
    assert min(x or 0 for x in new.ids) > max(ids), "ids never come again"
    replay.update_priorities(ids, [9.0] * 5)
    assert replay.fetch(ids) == [None] * 5 and set(replay.entries().priorities) == {1.0}


def test_two_prefixes_never_touch(make_replay: ReplayFactory) -> None:
    here, there = make_replay(capacity=2), make_replay(capacity=2, space="-there")
    ids = [x or 0 for x in here.insert([item(0), item(1)]).ids]
    assert there.counts().items == 0 and there.insert([item(0)]).repeated == 0
    there.insert([item(row) for row in range(1, 9)])
    there.update_priorities(ids, [7.0, 7.0])
    there.clear()
    assert contents(here) == [0, 1] and here.entries().priorities.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("seed", range(3))
def test_the_books_close_after_any_operations(make_replay: ReplayFactory, seed: int) -> None:
    """Random inserts with repeats, updates and restarts, against a model in plain Python."""
    rng = random.Random(seed)
    replay = make_replay(capacity=8, capacity_bytes=220)
    next_row, model, inserted = [0] * 3, {}, 0
    gone: list[int] = []
    for _ in range(200):
        action = rng.choice(("insert", "insert", "update", "restart"))
        if action == "insert":
            environment = rng.randrange(3)
            start = max(0, next_row[environment] - rng.randint(0, 2))
            batch = [item(row, environment, valid=row % 4) for row in range(start, start + rng.randint(1, 10))]
            result = replay.insert(batch)
            new = {key: x for key, x in zip(result.ids, batch, strict=True) if key is not None}
            model |= {key: [1.0, x.valid, x.payload] for key, x in new.items()}
            inserted += sum(x.valid for x in new.values())
            assert result.repeated == min(len(batch), next_row[environment] - start)
            assert result.evicted == sorted(model)[: len(result.evicted)], "the oldest go"
            assert result.evicted_valid == sum(model[key][1] for key in result.evicted)
            for key in result.evicted:
                del model[key]
            gone += result.evicted
            next_row[environment] = max(next_row[environment], start + len(batch))
        elif action == "update":
            keys = rng.sample([*model, *gone], min(5, len(model) + len(gone)))
            values = [rng.random() for _ in keys]
            replay.update_priorities(keys, values)
            for key, value in zip(keys, values, strict=True):
                if key in model:
                    model[key][0] = value
        else:
            replay = make_replay(capacity=8, capacity_bytes=220)
        assert table(replay.entries()) == {key: (priority, valid) for key, (priority, valid, _) in model.items()}
        assert replay.fetch([*model, *gone[-3:]]) == [x[2] for x in model.values()] + [None] * len(gone[-3:])
        counts = replay.counts()
        size = sum(len(x[2]) for x in model.values())
        assert counts[0] == inserted and counts[3:5] == (len(model), size) and closes(replay)
        assert counts.items <= 8 and counts.bytes <= 220


@pytest.mark.timeout(300 + SAMPLES / 200)
def test_no_torn_payload_under_concurrent_use(make_replay: ReplayFactory) -> None:
    """Two producers that evict all the time, one that updates, one that rebuilds and fetches."""
    stop, errors = threading.Event(), []

    def insert(environment: int, replay: Replay) -> None:
        rng = random.Random(environment)
        row = 0
        while not stop.is_set():
            batch = []
            for _ in range(16):
                body = rng.randbytes(rng.randint(0, 4000))
                payload = zlib.crc32(body).to_bytes(4, "little") + body
                batch.append(Insert(environment, 1, row, row + 1, 1, payload, float(row)))
                row += 1
            if len(replay.insert(batch).ids) != 16:
                errors.append("ids")

    def update(replay: Replay) -> None:
        while not stop.is_set():
            ids = replay.entries().ids.tolist()
            replay.update_priorities(ids, [0.5] * len(ids))
            if not closes(replay) or replay.counts().items > 200:
                errors.append(str(replay.counts()))

    threads = [
        threading.Thread(target=insert, args=(1, make_replay(capacity=200, producer="one"))),
        threading.Thread(target=insert, args=(2, make_replay(capacity=200, producer="two"))),
        threading.Thread(target=update, args=(make_replay(capacity=200, producer="three"),)),
    ]
    for thread in threads:
        thread.start()
    replay, rng, whole, evicted = make_replay(capacity=200, producer="four"), random.Random(0), 0, 0
    try:
        while (whole < SAMPLES or not evicted) and not errors:
            entries = replay.entries()
            assert np.all(np.diff(entries.ids) > 0) and np.all(entries.valid == 1)
            for _ in range(10):
                for payload in replay.fetch(rng.choices(entries.ids.tolist(), k=64)) if len(entries.ids) else ():
                    evicted += payload is None
                    if payload is not None:
                        assert zlib.crc32(payload[4:]).to_bytes(4, "little") == payload[:4]
                        whole += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join(LIMIT_SECONDS)
    print(f"{whole} whole payloads, {evicted} evicted before they were fetched, none torn")
    assert not errors and not any(thread.is_alive() for thread in threads) and evicted > 0
