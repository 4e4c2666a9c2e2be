"""A preset's environments alone, on all CPUs: what ``benchmarks.limits`` measures without TensorFlow."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import numpy as np

from pipeline.config.tree import Config
from pipeline.streams import Lane, environment_seed, environment_seeds
from workers.environments import make_group

START_SECONDS = 180.0  # Atari environments play no-ops first
WARM_UP_SECONDS = 1.0
LOOK_SECONDS = 0.02
ACTIONS = 64  # drawn beforehand


def rate(config: Config, seconds: float) -> float:
    """Valid transitions per second: for each CPU a process with one thread steps the env groups of one worker in turn.

    Raises:
        TimeoutError: not all began. RuntimeError: one ended early.
    """
    context = multiprocessing.get_context("spawn")
    counts = [context.RawValue("q") for _ in os.sched_getaffinity(0)]
    processes = [context.Process(target=_step, args=(config, i, count), daemon=True) for i, count in enumerate(counts)]
    for process in processes:
        process.start()

    def wait(seconds: float) -> int:
        """How many there were in this time."""
        before: int = sum(count.value for count in counts)
        time.sleep(seconds)
        ended = [process.exitcode for process in processes if process.exitcode is not None]
        if ended:
            raise RuntimeError(f"environments ended early with {ended}")
        return sum(count.value for count in counts) - before

    try:
        deadline = time.monotonic() + START_SECONDS
        while not all(count.value for count in counts):
            if time.monotonic() > deadline:
                raise TimeoutError(f"environments did not begin within {START_SECONDS:g} s")
            wait(LOOK_SECONDS)
        wait(WARM_UP_SECONDS)
        begun = time.monotonic()
        return wait(seconds) / (time.monotonic() - begun)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _step(config: Config, worker: int, count: Any) -> None:
    """Until it is killed."""
    n = config.workers.envs // config.workers.groups
    groups = [make_group(config.environment, n) for _ in range(config.workers.groups)]
    first = environment_seed(config.run.seed, Lane.TRAINING, worker * config.workers.envs)
    for i, group in enumerate(groups):
        group.reset(environment_seeds(first, n, i * n))
    rng = np.random.default_rng(worker)
    action = groups[0].spaces.action
    actions = rng.integers(action.start, action.start + action.n, (ACTIONS, n)).astype(action.numpy_dtype)
    ended = [np.zeros(n, np.bool_) for _ in groups]
    step = 0
    while True:
        for i, group in enumerate(groups):
            stepped = group.vector.step(actions[step % ACTIONS])
            count.value += n - int(np.count_nonzero(ended[i]))  # the step after an episode's last is a reset
            ended[i] = stepped.terminated | stepped.truncated
        step += 1
