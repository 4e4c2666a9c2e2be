"""What inference costs beside the policy: the whole way from a worker's request to its actions, and the policy alone.

Four workers, a process each, with one env group of the preset's size: their loop, session and socket, the broker where
``seedmq run`` has it, the inference loop with checks, one batch, compiled policy, replies, books and unrolls (which go
nowhere). Observations are the same array each time. The preset is ``atari_pong_vtrace``, that of ``inference.cartpole``
is ``cartpole_throughput``.

    added latency    at half load: a request is due every two times that the policy alone takes for it (with such
                     pauses: in a row it is faster), so the policy is busy half of the time. Percentiles of the time
                     from request to actions, seen by the worker, less those of the policy alone, called with the same
                     rows at the same times
    rows_per_second  as fast as the workers ask; ``limit`` is the policy alone on batches of the sizes that came about
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clients import Paced, Stepping, clients, next_due, pause_until
from benchmarks.harness import Metric
from benchmarks.serving import placed, serving
from benchmarks.workloads import Part, inference_of, part
from learner.policies import Acting, PendingRows
from pipeline.config.tree import Config
from pipeline.streams import Role, Stream

CLIENTS = 4
CALLS = 100  # of the policy alone, in a row, for the time that it takes
PAUSED_SECONDS = 1.0  # of calls with pauses, for the time that it takes then


@contextmanager
def metrics() -> Iterator[list[Metric]]:
    pong, cartpole = Way("pong"), Way("cartpole")
    yield [
        metric
        for prefix, path in (("inference.", pong), ("inference.cartpole.", cartpole))
        for metric in (
            Metric(f"{prefix}added_latency_p50_ms", "ms", partial(path.added_milliseconds, 50)),
            Metric(f"{prefix}added_latency_p99_ms", "ms", partial(path.added_milliseconds, 99)),
            Metric(f"{prefix}rows_per_second", "rows/s", path.rows_per_second, {"limit": path.limit}),
        )
    ]


class Noting:
    """A policy that keeps the sizes of its batches."""

    def __init__(self, policy: Acting) -> None:
        self._policy = policy
        self.sizes: list[int] = []

    def submit(self, slots: Any, *others: Any) -> PendingRows:
        self.sizes.append(len(slots))
        return self._policy.submit(slots, *others)

    def warm_up(self) -> None:
        self._policy.warm_up()


class Way:
    """The way through inference of one preset; made when it is first measured."""

    def __init__(self, preset: str) -> None:
        self._preset = preset
        self._sizes: list[int] = []

    @cached_property
    def _part(self) -> Part:
        return part(self._preset)

    @cached_property
    def _config(self) -> Config:
        config = self._part.config
        workers = config.workers.model_copy(update={"count": CLIENTS, "envs": self._part.rows, "groups": 1})
        return config.model_copy(update={"workers": workers})

    @property
    def _as_served(self) -> dict[str, Any]:
        return {"collects": True, "in_flight": self._part.agent.devices.in_flight}

    @cached_property
    def _policy(self) -> Acting:
        policy = self._part.agent.policy(self._config.slots, Stream(1, Role.ACTION))
        policy.warm_up()
        return policy

    def added_milliseconds(self, percentile: float, seconds: float) -> float:
        """Percentile of the whole way less that of the policy alone, at half load."""
        act = inference_of(self._policy, self._part.frames[0, : self._part.rows])
        period = 2 * statistics.median(_seconds(act) for _ in range(CALLS))
        period = 2 * statistics.median(_paced(act, period, PAUSED_SECONDS))
        alone = _paced(act, period, seconds)
        return 1e3 * float(np.percentile(self._paced(period, seconds), percentile) - np.percentile(alone, percentile))

    def rows_per_second(self, seconds: float) -> float:
        """Of the whole way, as fast as the workers ask."""
        found, noting = self._part, Noting(self._policy)
        with (
            placed(self._config, "embedded") as config,
            serving(config, found.agent.spaces, noting, found.agent.layout, **self._as_served) as requests,
            clients(config, Stepping, [(found.agent.spaces, found.rows)] * CLIENTS) as check,
        ):
            requests.wait_for(CLIENTS, check)
            before = len(noting.sizes)
            rate = requests.rate(seconds, check)
            self._sizes = noting.sizes[before:]
        return rate

    def limit(self, seconds: float) -> float:
        """Rows per second of the policy alone, on batches of the sizes that the way just had."""
        frames = self._part.frames[0]
        acts = {size: inference_of(self._policy, frames[:size]) for size in set(self._sizes)}
        for act in acts.values():
            act()
        begun, rows = time.monotonic(), 0
        while True:
            for size in self._sizes:
                acts[size]()
                rows += size
                if (now := time.monotonic()) > begun + seconds:
                    return rows / (now - begun)

    def _paced(self, period: float, seconds: float) -> Any:
        """Seconds from request to actions, of requests that are due every ``period``, a client after the other."""
        found = self._part
        with tempfile.TemporaryDirectory(prefix="seedmq-bench-") as name:
            files = [Path(name) / f"{i}.npy" for i in range(CLIENTS)]
            begun = time.monotonic()
            arguments = [
                (found.agent.spaces, found.rows, begun + i * period, CLIENTS * period, file)
                for i, file in enumerate(files)
            ]
            with (
                placed(self._config, "embedded") as config,
                serving(config, found.agent.spaces, self._policy, found.agent.layout, **self._as_served) as requests,
                clients(config, Paced, arguments) as check,
            ):
                requests.wait_for(CLIENTS, check)
                begun = time.monotonic()
                requests.pass_time(seconds, check)
                ended = time.monotonic()
            sent, took = np.concatenate([np.load(file) for file in files]).T
        return took[(sent >= begun) & (sent < ended)]


def _paced(act: Any, period: float, seconds: float) -> list[float]:
    """Seconds that each call takes, of calls that are due every ``period``."""
    begun = due = time.monotonic()
    found = []
    while due < begun + seconds:
        pause_until(due)
        found.append(_seconds(act))
        due = next_due(due, period, time.monotonic())
    return found


def _seconds(act: Any) -> float:
    begun = time.monotonic()
    act()
    return time.monotonic() - begun
