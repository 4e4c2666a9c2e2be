"""What the processes of a pipeline under fire are started with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from pipeline.launch.processes import BROKER, LEARNER
from tests.chaos.link import Link
from tests.counter_env import LEAK_BYTES
from tests.runs import settings

VTRACE, R2D2 = "cartpole_vtrace", "cartpole_r2d2"
REPOSITORY = Path(__file__).parents[2]
WORKERS, ENVIRONMENTS = 4, 8
"""Workers, and environments of each."""
REMOTE = WORKERS // 2
"""Workers behind the link, where there is one."""
THROUGH_MIDDLE = 0
"""Index of the worker that speaks to the broker through the man in the middle."""
CHECKPOINT_SECONDS = 5.0
DRAIN_SECONDS = 40.0
"""That an end takes longer than the default allows is not asked of a machine that runs all this, and maybe more."""
STEP_TIMEOUT_SECONDS = 4.0
JOINING = 500
"""Workers that join at once, with one environment each."""
SETTINGS = (
    "run.solved_return=null",
    "run.max_seconds=1000000",
    "run.log_interval_seconds=0.25",
    f"run.drain_timeout_seconds={DRAIN_SECONDS}",
    "environment.wrappers=[tests.chaos.environment:Faulty]",
    "environment.non_finite=drop",
    f"environment.step_timeout_seconds={STEP_TIMEOUT_SECONDS}",
    "environment.reset_timeout_seconds=20",
    "environment.fault_budget=100000",
    f"environment.max_memory_bytes={LEAK_BYTES}",
    f"workers.envs={ENVIRONMENTS}",
    "workers.reply_timeout_seconds=2",
    "broker.placement=process",
    "broker.lease_seconds=5",
    f"broker.max_workers={JOINING + 100}",
    f"broker.max_connections={JOINING + 100}",
    f"learner.slots={JOINING + 100}",
    "store.operation_timeout_seconds=2",
)
PRESETS = {
    VTRACE: (),
    # As small as it may be: the suite looks at what becomes of the replay, not at what is learnt from it.
    R2D2: (
        "evaluation.workers=0",
        "evaluation.solved_return=null",
        "network.hidden=[16]",
        "network.lstm=16",
        "r2d2.dueling_hidden=16",
        "training.batch_size=16",
        "replay.samples_per_insert=1",
        "replay.min_size=40",
        "replay.capacity=400",
    ),
}
"""What each preset needs beside ``SETTINGS``."""


class Plan(NamedTuple):
    """Attributes:
    lines: Component -> command line.
    endpoint: The broker's.
    keys: Their directory, where one of the workers is on another host.
    front: Endpoint of the man in the middle.
    fleet: Command line of workers that join as well, without their number.
    """

    lines: dict[str, list[str]]
    endpoint: str
    keys: str | None
    front: str
    fleet: list[str]


def plan(folder: Path, store_url: str, preset: str, link: Link | None, checkpoint_seconds: float) -> Plan:
    """Makes keys where they are needed.

    Args:
        folder: Of sockets, keys and the run directory.
        store_url: Of the store.
        preset: One of ``PRESETS``.
        link: To the host of every other worker; None: all are here.
        checkpoint_seconds: Between two checkpoints.
    """
    endpoint, keys = f"ipc://{folder}/b", None
    if link is not None:
        endpoint, keys = f"tcp://{link.address}:5555", str(folder / "keys")
        subprocess.run(
            [sys.executable, "-m", "pipeline.cli", "keys", keys],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    front = f"ipc://{folder}/m"
    secure = [f"security.keys={keys}"] if keys else []
    common = [*SETTINGS, *PRESETS[preset], f"store.url={store_url}", f"broker.learner_bind=ipc://{folder}/l"]
    common.append(f"checkpoint.interval_seconds={checkpoint_seconds}")

    def line(role: str, *values: str) -> list[str]:
        words = settings(*common, *values)
        return [sys.executable, "-m", "pipeline.cli", role, "--config", preset, *words]

    direct = [*secure, f"broker.bind={endpoint}"]
    lines = {
        BROKER: line(BROKER, *direct),
        LEARNER: [*line(LEARNER, *direct), "--run-dir", str(folder / "run"), "--resume"],
    }
    for i in range(WORKERS):
        there = link.there if link is not None and i % 2 else []
        way = [f"broker.bind={front}"] if i == THROUGH_MIDDLE else direct
        lines[f"worker-{i}"] = [*there, *line("worker", f"workers.id=worker-{i}", *way)]
    small = settings(*direct, "workers.envs=1", "workers.groups=1")
    fleet = [sys.executable, "-m", "benchmarks.fleet", "--config", preset, *small]
    return Plan(lines, endpoint, keys, front, fleet)
