"""The store against Reverb and against plain redis-py: unrolls through the FIFO, samples from the prioritized replay.

Every side starts from the same raw unrolls, uint8 ``[21, 84, 84]`` of three Atari games under random play, and ends
with decoded numpy arrays in batches of 32. Server, writer and reader are a process each, on every side.

    seedmq                the product's store: codec, scripts, sampling index, new priorities after each batch
    reverb                Reverb's queue or prioritized table as its examples use it: a writer that appends step by
                          step, items of the last 21; steps are 4-stacks, made before the clock starts
    reverb_single_frames  the same with single frames
    reverb_whole          as ``reverb``, but an unroll is one step: the fastest way to use Reverb that was found
    reverb_whole_single_frames
    redis                 lists of raw unrolls, pipelined; no codec, no books, nothing idempotent
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import redis

from benchmarks import harness
from benchmarks.harness import Metric
from benchmarks.unrolls import GAMES, atari_frames, fill, layout_of
from learner.replay_index import ReplayIndex
from pipeline.spaces import Leaf
from pipeline.store.codec import choose, decode_whole, encode
from pipeline.store.embedded import EmbeddedServer
from pipeline.store.interface import Insert, Item, Put
from pipeline.store.redis_client import RedisServer
from pipeline.store.redis_replay import RedisReplay
from pipeline.store.redis_store import RedisFifo

ROWS, BATCH, PER_GAME = 21, 32, 64
PUT_ITEMS = 64  # as the learner's writer
FIFO_CAPACITY = 512
REPLAY_CAPACITY = 2048
PRIORITY_EXPONENT, IMPORTANCE_EXPONENT = 0.9, 0.6
WARM_UP_SECONDS = 1.0
DEADLINE_SECONDS = 60.0
LAYOUT = layout_of(Leaf("observation", "box", "uint8", (84, 84)), ROWS - 1, 1)


@contextmanager
def metrics() -> Iterator[list[Metric]]:
    with tempfile.TemporaryDirectory(prefix="seedmq-bench-") as temporary:
        folder = Path(temporary)
        frames = np.concatenate([atari_frames(game, PER_GAME, ROWS) for game in GAMES])
        frames = frames[np.random.default_rng(1).permutation(len(frames))]
        np.save(folder / "frames.npy", frames)
        np.save(folder / "records.npy", fill(LAYOUT, frames, np.random.default_rng(1)))
        yield [
            Metric(
                "store.fifo.unrolls_per_second",
                "unrolls/s",
                partial(_with_server, _fifo, folder),
                _reverb("fifo", folder, FIFO_CAPACITY, "items_per_second")
                | {"redis": partial(_with_server, _plain_fifo, folder)},
            ),
            Metric(
                "store.prioritized.samples_per_second",
                "samples/s",
                partial(_with_server, _prioritized, folder),
                _reverb("prioritized", folder, REPLAY_CAPACITY, "items_per_second"),
            ),
            Metric(
                "store.prioritized.bytes_per_unroll",
                "bytes",
                partial(_with_server, _memory, folder),
                _reverb("prioritized", folder, REPLAY_CAPACITY, "bytes_per_item"),
            ),
        ]


def _reverb(kind: str, folder: Path, capacity: int, figure: str) -> dict[str, harness.Measure]:
    def measure(stack: int, whole: bool, seconds: float) -> float:
        words = [kind, "--unrolls", str(folder / "frames.npy"), "--stack", str(stack), "--batch", str(BATCH)]
        words += ["--seconds", str(seconds), "--capacity", str(capacity), *(["--whole"] if whole else [])]
        return float(harness.run_peer("reverb", "store.py", words, seconds + 2 * DEADLINE_SECONDS)[figure])

    return {
        "reverb" + suffix: harness.Peer("reverb", partial(measure, stack, whole))
        for suffix, stack, whole in (
            ("", 4, False),
            ("_single_frames", 1, False),
            ("_whole", 4, True),
            ("_whole_single_frames", 1, True),
        )
    }


def _with_server(measure: Callable[[EmbeddedServer, Path, float], float], folder: Path, seconds: float) -> float:
    with tempfile.TemporaryDirectory(prefix="seedmq-bench-") as private, EmbeddedServer(Path(private)) as server:
        return measure(server, folder, seconds)


@contextmanager
def _writing(target: Callable[..., None], *arguments: Any) -> Iterator[Event]:
    """A writer process; gives the event that says that there is room."""
    context = multiprocessing.get_context("spawn")
    stop, space = context.Event(), context.Event()
    writer = context.Process(target=target, args=(*arguments, space, stop), daemon=True)
    writer.start()
    try:
        yield space
    finally:
        stop.set()
        space.set()
        writer.join(DEADLINE_SECONDS)
        writer.kill()


def _rate(read: Callable[[], int], seconds: float) -> float:
    """Calls ``read`` for ``seconds`` after a warm-up; items per second."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    begun = time.monotonic() + WARM_UP_SECONDS
    taken = 0
    while time.monotonic() < begun or not taken:
        taken = read()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no unroll arrived within {DEADLINE_SECONDS:g} s")
    begun, taken = time.monotonic(), 0
    while (now := time.monotonic()) < begun + seconds:
        taken += read()
    return taken / (now - begun)


def _fifo(server: EmbeddedServer, folder: Path, seconds: float) -> float:
    """As in the learner: one thread takes and decodes, two batches ahead; the other acknowledges."""
    acknowledging = _open_fifo(server.url, "reader")
    stop = threading.Event()
    ready: queue.Queue[list[Item]] = queue.Queue(2)
    feed = threading.Thread(target=_feed, args=(server.url, ready, stop), daemon=True)
    with _writing(_put, server.url, folder) as space:
        feed.start()

        def read() -> int:
            items = ready.get(timeout=DEADLINE_SECONDS)
            acknowledging.acknowledge(items)
            space.set()
            return len(items)

        try:
            return _rate(read, seconds)
        finally:
            stop.set()
            while feed.is_alive():
                with contextlib.suppress(queue.Empty):
                    ready.get(timeout=0.1)


def _feed(url: str, ready: queue.Queue[list[Item]], stop: threading.Event) -> None:
    fifo = _open_fifo(url, "reader")
    buffers = itertools.cycle([np.empty((BATCH, LAYOUT.nbytes), np.uint8) for _ in range(4)])
    while not stop.is_set():
        items = fifo.take(BATCH, 1.0)
        if items:
            assert not any(decode_whole([item.payload for item in items], LAYOUT, next(buffers)[: len(items)]))
            ready.put(items, timeout=DEADLINE_SECONDS)
    fifo.close()


def _open_fifo(url: str, consumer: str) -> RedisFifo:
    return RedisFifo(RedisServer(url), prefix="bench", capacity=FIFO_CAPACITY, when_full="block", consumer=consumer)


def _put(url: str, folder: Path, space: Event, stop: Event) -> None:
    records = np.load(folder / "records.npy")
    codec = choose("auto", LAYOUT)
    fifo = _open_fifo(url, "writer")
    row, waiting = 0, []
    while not stop.is_set():
        while len(waiting) < PUT_ITEMS:
            i = row % len(records)
            waiting.append(Put(i, 1, row * ROWS, row * ROWS, ROWS - 1, encode(records[i], LAYOUT, codec)))
            row += 1
        space.clear()
        waiting = waiting[fifo.put(waiting).stored :]
        if waiting:
            space.wait(1.0)
    fifo.close()


def _prioritized(server: EmbeddedServer, folder: Path, seconds: float) -> float:
    replay, index = _filled(server.url, folder)
    rng = np.random.default_rng(2)
    records = np.empty((BATCH, LAYOUT.nbytes), np.uint8)

    def read() -> int:
        ids, _ = index.sample(BATCH, rng)
        payloads = [payload for payload in replay.fetch(ids.tolist()) if payload is not None]
        assert not any(decode_whole(payloads, LAYOUT, records[: len(payloads)]))
        priorities = rng.uniform(0.1, 2.0, BATCH)
        index.update(ids, priorities)
        replay.update_priorities(ids.tolist(), priorities.tolist())
        return len(payloads)

    return _rate(read, seconds)


def _filled(url: str, folder: Path) -> tuple[RedisReplay, ReplayIndex]:
    """A full replay and its index."""
    records = np.load(folder / "records.npy")
    codec = choose("auto", LAYOUT)
    replay = RedisReplay(RedisServer(url), prefix="bench", capacity=REPLAY_CAPACITY, producer="bench")
    index = ReplayIndex(REPLAY_CAPACITY, PRIORITY_EXPONENT)
    rng = np.random.default_rng(1)
    for start in range(0, REPLAY_CAPACITY, BATCH):
        items = []
        for number in range(start, start + BATCH):
            i, priority = number % len(records), float(rng.uniform(0.1, 2.0))
            payload = encode(records[i], LAYOUT, codec)
            items.append(Insert(i, 1, number * ROWS, number * ROWS, ROWS - 1, payload, priority))
        result = replay.insert(items)
        index.add([key for key in result.ids if key is not None], [item.priority for item in items])
    return replay, index


def _memory(server: EmbeddedServer, folder: Path, seconds: float) -> float:
    """Resident bytes of the server per unroll of a full replay, all that it needs included."""
    before = _resident_bytes(server)
    replay, _ = _filled(server.url, folder)
    replay.close()
    return (_resident_bytes(server) - before) / REPLAY_CAPACITY


def _resident_bytes(server: EmbeddedServer) -> int:
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096


def _plain_fifo(server: EmbeddedServer, folder: Path, seconds: float) -> float:
    client = _plain_client(server.url)
    records = np.empty((BATCH, LAYOUT.nbytes), np.uint8)
    with _writing(_push, server.url, folder) as space:

        def read() -> int:
            found: Any = client.blmpop(1.0, 1, "plain", direction="LEFT", count=BATCH)
            values = found[1] if found else []
            for row, value in zip(records, values, strict=False):
                row[:] = np.frombuffer(value, np.uint8)
            space.set()
            return len(values)

        return _rate(read, seconds)


def _push(url: str, folder: Path, space: Event, stop: Event) -> None:
    records = np.load(folder / "records.npy")
    client = _plain_client(url)
    row = 0
    while not stop.is_set():
        space.clear()
        with client.pipeline(transaction=False) as pipeline:
            for i in range(row, row + BATCH):
                pipeline.rpush("plain", records[i % len(records)].data)
            length = pipeline.execute()[-1]
        row += BATCH
        while length > FIFO_CAPACITY - BATCH and not stop.is_set():
            space.wait(1.0)
            space.clear()
            length = client.llen("plain")


def _plain_client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, protocol=2, legacy_responses=True, socket_timeout=DEADLINE_SECONDS)
