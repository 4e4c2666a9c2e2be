"""What each stage costs per unit of work, measured here: the input of ``benchmarks.simulator``.

``benchmarks.scaling`` keeps it in ``costs.json``. All of it is CPU time, which other work on the machine changes less
than rates. The serving side is measured at several shapes (workers, rows of a request, bytes of a row), and the costs
per batch, request, row and byte are the least-squares solution without negative ones.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks import harness
from benchmarks.clients import Stepping, clients, crowd
from benchmarks.harness import cpu_seconds
from benchmarks.serving import Zeros, broker_process, private, serving
from benchmarks.simulator import Costs
from benchmarks.unrolls import layout_of
from benchmarks.workloads import PRESETS, Part, acted_batch, inference_of, part, update_of
from pipeline.config.tree import BrokerSection, Config, EnvironmentSection, LearnerSection, WorkersSection
from pipeline.rows import ROW
from pipeline.spaces import Leaf, Spaces
from pipeline.store.codec import choose, decode_whole, encode
from pipeline.store.embedded import EmbeddedServer
from pipeline.store.interface import Put
from pipeline.store.redis_client import RedisServer
from pipeline.store.redis_store import RedisFifo
from pipeline.streams import Role, Stream, environment_seeds
from workers.environments import make_group

SMALL = Leaf("observation", "box", "float32", (4,))
LARGE = Leaf("observation", "box", "uint8", (84, 84))
UNROLL = 20
PROCESSES = 4
SHAPES = ((1, 1, SMALL), (4, 1, SMALL), (50, 10, SMALL), (1, 64, SMALL), (4, 64, SMALL), (2, 16, LARGE))
"""Workers (more than ``PROCESSES`` are in one), rows of a request, observation."""
BEATS = (200, 0.1)
"""Workers and heartbeat seconds that make two thousand heartbeats per second."""
PARTS = 5
UNROLLS = 64  # in one put of the learner's writer


class Window(NamedTuple):
    """What was done in one window, and the CPU seconds that it took."""

    batches: int
    requests: float
    rows: int
    nbytes: int
    reports: int
    inference: float
    transport: float
    broker: float
    worker: float


def measure(seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """All of it: what ``costs.json`` holds."""
    common = _serving(seconds, say)
    found = {}
    for name in PRESETS:
        say(name)
        found[name] = common._replace(**_of(part(name), seconds))._asdict()
    load = [round(x, 1) for x in os.getloadavg()]
    return {
        "machine": harness.machine(),
        "versions": harness.versions(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load_average": load,
        "costs": found,
    }


def _serving(seconds: float, say: Callable[[str], None]) -> Costs:
    """Worker, transport, inference loop, broker process, heartbeats."""
    embedded, process = [], []
    for workers, rows, leaf in SHAPES:
        say(f"serving {workers} workers, {rows} rows of {leaf.nbytes} bytes")
        embedded.append(_window(workers, rows, leaf, "embedded", seconds))
        process.append(_window(workers, rows, leaf, "process", seconds))
    batch, request, row, byte = solve(
        [[x.batches, x.requests, x.rows, x.nbytes] for x in embedded], "inference", embedded
    )
    sent, sent_byte = solve([[x.requests, x.nbytes] for x in embedded], "transport", embedded)
    apart = [x for x, (workers, _, _) in zip(embedded, SHAPES, strict=True) if workers <= PROCESSES]
    asked, asked_row = solve([[x.requests, x.rows] for x in apart], "worker", apart)
    turn, passed, passed_byte = solve([[x.batches, x.requests, x.nbytes] for x in process], "broker", process)
    say("heartbeats")
    beating, quiet = (_window(BEATS[0], 1, SMALL, "embedded", seconds, x) for x in (BEATS[1], 100 * BEATS[1]))
    each = (quiet.inference + quiet.transport - batch * quiet.batches) / quiet.requests
    beats = beating.inference + beating.transport - batch * beating.batches - each * beating.requests
    heartbeat = max(0.0, beats) / beating.reports
    return Costs(
        worker_request=asked,
        worker_row=asked_row,
        transport_request=sent,
        transport_byte=sent_byte,
        broker_turn=turn,
        broker_request=passed,
        broker_byte=passed_byte,
        inference_batch=batch,
        inference_request=request,
        inference_row=row,
        inference_byte=byte,
        heartbeat=heartbeat,
    )


def _window(
    workers: int, rows: int, leaf: Leaf, placement: str, seconds: float, heartbeat: float | None = None
) -> Window:
    spaces = Spaces((leaf,), Leaf("action", "discrete", "int64", (), n=2))
    broker = BrokerSection() if heartbeat is None else BrokerSection(heartbeat_seconds=heartbeat, lease_seconds=60.0)
    config = Config(
        environment=EnvironmentSection(id="none"),
        broker=broker,
        workers=WorkersSection(count=workers, envs=rows, groups=1),
        learner=LearnerSection(slots=workers * rows, inference_batch=max(64, rows)),
    )
    start = clients if workers <= PROCESSES else crowd
    with private(config, placement) as config, contextlib.ExitStack() as stack:
        pid = stack.enter_context(broker_process(config)) if placement == "process" else None
        layout = layout_of(leaf, UNROLL, 1)
        requests = stack.enter_context(serving(config, spaces, Zeros(spaces.action), layout, collects=True))
        before_clients = set(psutil.Process().children())
        check = stack.enter_context(start(config, Stepping, [(spaces, rows)] * workers))
        asking = [child.pid for child in set(psutil.Process().children()) - before_clients]
        requests.wait_for(workers, check, 2 * workers * rows)

        def reading() -> tuple[float, ...]:
            counters, (inference, transport) = requests.counters, _thread_seconds()
            served = counters["batches"], counters["rows"], counters["reports"]
            return (*served, inference, transport, cpu_seconds([pid] if pid else []), cpu_seconds(asking))

        begun = reading()
        requests.pass_time(seconds, check)
        batches, answered, reports, inference, transport, passed, asked = (
            b - a for a, b in zip(begun, reading(), strict=True)
        )
    nbytes = answered * (ROW.itemsize + leaf.nbytes)
    return Window(
        int(batches), answered / rows, int(answered), int(nbytes), int(reports), inference, transport, passed, asked
    )


def _thread_seconds() -> tuple[float, float]:
    """CPU seconds of this process's inference thread, and of all threads that are not Python's: ZeroMQ's."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    spent = {"inference": 0.0, "": 0.0}
    for task in Path("/proc/self/task").iterdir():
        name = names.get(int(task.name), "")
        if name in spent:
            spent[name] += 1e-9 * int((task / "schedstat").read_text().split()[0])
    return spent["inference"], spent[""]


def solve(amounts: list[list[float]], stage: str, windows: list[Window]) -> list[float]:
    """CPU seconds per unit of each column of ``amounts``, none negative: relative least squares."""
    spent = np.array([getattr(window, stage) for window in windows])
    scaled = np.array(amounts, np.float64) / spent[:, None]
    kept = list(range(scaled.shape[1]))
    while True:
        unit = np.linalg.norm(scaled[:, kept], axis=0)
        found = np.linalg.lstsq(scaled[:, kept] / unit, np.ones(len(spent)), rcond=None)[0] / unit
        if (found >= 0).all():
            break
        del kept[int(np.argmin(found * unit))]
    costs = np.zeros(scaled.shape[1])
    costs[kept] = found
    return [float(x) for x in costs]


def _of(found: Part, seconds: float) -> dict[str, float]:
    """Environment, policy, store and update of a preset."""
    config, agent = found.config, found.agent
    sizes = sorted({max(1, found.rows // 8), found.rows})
    environment = [_cpu(_stepping(config, n), seconds) for n in sizes]
    largest = min(config.learner.inference_batch, found.frames.shape[1])
    rows = sorted({max(1, largest // 8), largest})
    policy = agent.policy(largest, Stream(1, Role.ACTION))
    acting = [_cpu(inference_of(policy, found.frames[0, :n]), seconds) for n in rows]
    unrolls = config.training.batch_size
    batches = sorted({max(1, unrolls // 4), unrolls})
    updates = [
        _cpu(update_of(agent, acted_batch(agent, found.frames[:, :n], min(n, found.rows))), seconds) for n in batches
    ]
    request, row = _line(sizes, environment)
    batch, each = _line(rows, acting)
    update, transition = _line([n * config.training.unroll_length for n in batches], updates)
    return {
        "environment_request": request,
        "environment_row": row,
        "policy_batch": batch,
        "policy_row": each,
        "update_batch": update,
        "update_row": transition,
        **_store(found, seconds),
    }


def _line(x: list[int], y: list[float]) -> tuple[float, float]:
    """Constant and slope, neither negative."""
    slope = max(0.0, (y[-1] - y[0]) / (x[-1] - x[0]))
    return max(0.0, y[-1] - slope * x[-1]), slope


def _stepping(config: Config, n: int) -> Callable[[], Any]:
    """One step of an env group of the product, as a worker takes it."""
    group = make_group(config.environment, n)
    group.reset(environment_seeds(1, n))
    action = group.spaces.action
    actions = (
        np.random.default_rng(1).integers(action.start, action.start + action.n, (64, n)).astype(action.numpy_dtype)
    )
    steps = iter(range(2**62))
    return lambda: group.step(actions[next(steps) % 64].tobytes())


def _cpu(call: Callable[[], Any], seconds: float) -> float:
    """CPU seconds of this process per call after some to warm up: the least of ``PARTS`` means."""
    for _ in range(5):
        call()
    means = []
    for _ in range(PARTS):
        calls, begun, until = 0, time.process_time(), time.monotonic() + seconds / PARTS
        while time.monotonic() < until or calls < 3:
            call()
            calls += 1
        means.append((time.process_time() - begun) / calls)
    return min(means)


def _store(found: Part, seconds: float) -> dict[str, float]:
    """Writer, server and feed per unroll, through the embedded store."""
    layout = found.agent.layout
    record = np.zeros((1, layout.nbytes), np.uint8)
    for name, leaf in layout.view(record).items():
        if name.startswith("observation"):
            past = leaf.shape[1] - len(found.frames)
            leaf[:, past:] = found.frames[None, :, 0]
    codec, taken = choose(found.config.store.compression, layout), np.empty((UNROLLS, layout.nbytes), np.uint8)
    written = fed = served = 0.0
    unrolls = 0
    with _fifo() as (fifo, server):
        until = time.monotonic() + seconds
        while time.monotonic() < until or not unrolls:
            begun, before = time.process_time(), cpu_seconds([server])
            puts = [
                Put(i, 1, unrolls + i, unrolls + i, UNROLL, encode(record[0], layout, codec)) for i in range(UNROLLS)
            ]
            assert fifo.put(puts).stored == UNROLLS
            middle = time.process_time()
            items = fifo.take(UNROLLS, 1.0)
            assert not any(decode_whole([item.payload for item in items], layout, taken[: len(items)]))
            layout.batch(taken[: len(items)])
            fifo.acknowledge(items)
            written, fed = written + middle - begun, fed + time.process_time() - middle
            served += cpu_seconds([server]) - before
            unrolls += UNROLLS
    names = ("writer_unroll", "store_unroll", "feed_unroll")
    return {name: spent / unrolls for name, spent in zip(names, (written, served, fed), strict=True)}


@contextmanager
def _fifo() -> Iterator[tuple[RedisFifo, int]]:
    with tempfile.TemporaryDirectory(prefix="seedmq-bench-") as folder, EmbeddedServer(Path(folder)) as server:
        assert server.pid is not None
        fifo = RedisFifo(
            RedisServer(server.url), prefix="costs", capacity=2 * UNROLLS, when_full="block", consumer="costs"
        )
        try:
            yield fifo, server.pid
        finally:
            fifo.close()
