"""What bounds a run, each alone: environment, acting policy, training step, and copies of memory.

Batch shapes are the preset's: ``cartpole`` is ``cartpole_throughput``, ``pong`` is ``atari_pong_vtrace``.

    environment_steps_per_second  vector environments of one env group each, groups as in a worker, a process with one
                                  thread for each CPU; random actions; nothing is built, sent or stored
    policy_rows_per_second        the compiled policy on batches of one env group, one after the other
    trained_steps_per_second      the compiled update on one batch, over and over: its transitions
    agent_steps_per_second        1 / (1 / environment + 1 / policy + 1 / training): the limit of a run in which the
                                  three share all CPUs and nothing else costs anything
    memcpy                        of 64 MiB, and of one Atari unroll (592 704 bytes)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from benchmarks import environments
from benchmarks.harness import Metric
from benchmarks.workloads import PRESETS, acted_batch, inference_of, part, update_of
from pipeline.config.load import load
from pipeline.streams import Role, Stream

WARM_UP_SECONDS = 1.0
COPIES = {"large": 64 * 2**20, "unroll": 21 * 84 * 84 * 4}


@contextmanager
def metrics() -> Iterator[list[Metric]]:
    figures: list[tuple[str, str, Callable[[str, float], float]]] = [
        ("environment_steps_per_second", "steps/s", environment),
        ("policy_rows_per_second", "rows/s", policy),
        ("trained_steps_per_second", "steps/s", training),
        ("agent_steps_per_second", "steps/s", run),
    ]
    yield [
        *(
            Metric(f"limits.{preset}.{figure}", unit, partial(measure, preset))
            for preset in PRESETS
            for figure, unit, measure in figures
        ),
        *(Metric(f"limits.memcpy.{name}_bytes_per_second", "bytes/s", partial(copy, n)) for name, n in COPIES.items()),
    ]


def run(preset: str, seconds: float) -> float:
    """Agent steps per second where environment, policy and training share the machine and nothing else is done."""
    return 1.0 / sum(1.0 / measure(preset, seconds) for measure in (environment, policy, training))


def environment(preset: str, seconds: float) -> float:
    """Valid transitions per second of all CPUs."""
    return environments.rate(load(PRESETS[preset]).config, seconds)


def policy(preset: str, seconds: float) -> float:
    """Rows per second in batches of one env group."""
    found = part(preset)
    act = inference_of(found.agent.policy(found.rows, Stream(1, Role.ACTION)), found.frames[0, : found.rows])
    return found.rows * _rate(act, seconds)


def training(preset: str, seconds: float) -> float:
    """Transitions per second."""
    found = part(preset)
    settings = found.config.training
    batch = acted_batch(found.agent, found.frames[:, : settings.batch_size], found.rows)
    return settings.batch_size * settings.unroll_length * _rate(update_of(found.agent, batch), seconds)


def copy(nbytes: int, seconds: float) -> float:
    """Bytes per second of one thread."""
    source, target = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    return nbytes * _rate(lambda: np.copyto(target, source), seconds)


def _rate(call: Callable[[], Any], seconds: float) -> float:
    """Calls per second after a warm-up."""
    until = time.monotonic() + WARM_UP_SECONDS
    call()
    while time.monotonic() < until:
        call()
    begun, calls = time.monotonic(), 0
    while (now := time.monotonic()) < begun + seconds or not calls:
        call()
        calls += 1
    return calls / (now - begun)
