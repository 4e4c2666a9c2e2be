"""Reverb as a store of unrolls: items per second through a queue, or sampled from a prioritized table.

    python store.py {fifo,prioritized} --unrolls FILE.npy [--stack N] [--whole] [--seconds S] [--capacity N] [--batch N]

Runs in an environment of its own (``requirements.txt``), imports nothing of seedmq and prints one JSON object. Server,
writer and sampler are a process each. As Reverb's own examples do, a trajectory writer appends step by step and makes
an item of the last steps, Reverb's compression on; with ``--whole`` an unroll is one step instead, the fastest way that
was found. The sampler is Reverb's dataset, batched and prefetched, whose elements end as numpy arrays. With ``--stack``
the frames are stacked before the clock starts. Prioritized sampling gives each batch new priorities.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np

TABLE = "unrolls"
START_SECONDS = 60.0
PENDING_ITEMS = 16  # not confirmed by the server yet
FLUSH_MILLISECONDS = 60_000
WARM_UP_SECONDS = 1.0
PRIORITY_EXPONENT = 0.9


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


def stacked(unrolls: Any, stack: int) -> Any:
    """``[N, rows, H, W]`` to ``[N, rows, H, W, stack]``; the first frame is repeated, as at a reset."""
    rows = np.arange(unrolls.shape[1])
    older = [unrolls[:, np.maximum(rows - i, 0)] for i in reversed(range(stack))]
    return np.ascontiguousarray(np.stack(older, -1))


def serve(kind: str, capacity: int, ports: Any, stop: Event) -> None:
    import reverb

    if kind == "fifo":
        table = reverb.Table.queue(TABLE, capacity)
    else:
        table = reverb.Table(
            TABLE,
            sampler=reverb.selectors.Prioritized(PRIORITY_EXPONENT),
            remover=reverb.selectors.Fifo(),
            max_size=capacity,
            rate_limiter=reverb.rate_limiters.MinSize(capacity),
        )
    server = reverb.Server([table])
    ports.send(server.port)
    stop.wait()
    server.stop()


def write(port: int, unrolls: Any, count: int | None, whole: bool, done: Any, stop: Event) -> None:
    """Inserts ``count`` items, or until the stop, with the writer's own pipelining."""
    import reverb

    client = reverb.Client(f"127.0.0.1:{port}")
    rng = np.random.default_rng(1)
    written = 0
    steps = 1 if whole else unrolls.shape[1]
    with client.trajectory_writer(num_keep_alive_refs=steps) as writer:
        while not stop.is_set() and (count is None or written < count):
            unroll = unrolls[written % len(unrolls)]
            for step in unroll[None] if whole else unroll:
                writer.append({"frames": step})
            trajectory = {"frames": writer.history["frames"][-steps:]}
            writer.create_item(TABLE, priority=float(rng.uniform(0.1, 2.0)), trajectory=trajectory)
            written += 1
            writer.flush(block_until_num_items=PENDING_ITEMS, timeout_ms=FLUSH_MILLISECONDS)
        if count is not None:
            writer.flush()
            done.send(written)
            stop.wait()


def batches(port: int, shape: tuple[int, ...], batch: int, whole: bool) -> Any:
    """The dataset's batches of (keys, frames) as numpy arrays."""
    import reverb
    import tensorflow as tf

    dataset = reverb.TrajectoryDataset(
        server_address=f"127.0.0.1:{port}",
        table=TABLE,
        dtypes={"frames": tf.uint8},
        shapes={"frames": tf.TensorShape((1, *shape) if whole else shape)},
        max_in_flight_samples_per_worker=2 * batch,
    )
    for sample in dataset.batch(batch).prefetch(2).as_numpy_iterator():
        frames = sample.data["frames"]
        yield sample.info.key.reshape(len(frames), -1)[:, 0], frames[:, 0] if whole else frames


def measure(options: argparse.Namespace) -> dict[str, Any]:
    unrolls = np.load(options.unrolls)
    if options.stack > 1:
        unrolls = stacked(unrolls, options.stack)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    receiver, sender = context.Pipe(False)
    server = context.Process(target=serve, args=(options.kind, options.capacity, sender, stop), daemon=True)
    server.start()
    if not receiver.poll(START_SECONDS):
        raise TimeoutError("the Reverb server did not start")
    port = receiver.recv()
    before = resident_bytes(server.pid or 0)
    done, told = context.Pipe(False)
    count = options.capacity if options.kind == "prioritized" else None
    writer = context.Process(target=write, args=(port, unrolls, count, options.whole, told, stop), daemon=True)
    writer.start()
    bytes_per_item = None
    if count:
        if not done.poll(START_SECONDS + count / 50):
            raise TimeoutError("the Reverb table did not fill")
        done.recv()
        bytes_per_item = (resident_bytes(server.pid or 0) - before) / count
    rate = sample(options, port, unrolls.shape[1:])
    stop.set()
    for process in (writer, server):
        process.kill()
        process.join()
    return {"items_per_second": rate, "bytes_per_item": bytes_per_item, "item_bytes": unrolls[0].nbytes}


def sample(options: argparse.Namespace, port: int, shape: tuple[int, ...]) -> float:
    import reverb

    client = reverb.Client(f"127.0.0.1:{port}")
    rng = np.random.default_rng(2)
    begun, taken, checksum = None, 0, 0
    first = time.monotonic()
    for keys, frames in batches(port, shape, options.batch, options.whole):
        now = time.monotonic()
        if begun is None and now - first > WARM_UP_SECONDS:
            begun, taken = now, 0
        elif begun is not None and now - begun > options.seconds:
            return (taken + len(frames)) / (now - begun)
        taken += len(frames)
        checksum += int(frames[:, -1, -1].sum())  # the data is really here
        if options.kind == "prioritized":
            priorities = rng.uniform(0.1, 2.0, len(keys))
            client.mutate_priorities(TABLE, dict(zip(keys.tolist(), priorities.tolist(), strict=True)))
    raise RuntimeError("the dataset ended early")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("fifo", "prioritized"))
    parser.add_argument("--unrolls", required=True)
    parser.add_argument("--stack", type=int, default=1)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--capacity", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
