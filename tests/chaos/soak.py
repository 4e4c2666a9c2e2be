"""``python -m tests.chaos.soak``: hours of a run that nothing befalls, and what each of its processes has grown by.

Held: every process is the one that began, its memory grows by at most 2 % after it is warm and its descriptors do not,
no worker joins twice, training goes on to the end, and the ledger closes. Environments fork now and then, as those do
that start a program.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.chaos.environment import STEP_SECONDS
from tests.processes import processes_of
from tests.runs import settings, summary

WORKERS, ENVS = 4, 8
INTERVAL_SECONDS = 10.0
START_SECONDS = 180.0
STOP_SECONDS = 15.0
SHARE = 0.1
"""Of the time: what comes before is warming up, and what is as long at the end is compared with what follows that."""
MAX_GROWTH = 0.02
MAX_IDLE_SECONDS = 60.0
ROLES = {
    " run ": "run",
    " learner ": "learner",
    " broker ": "broker",
    " worker ": "worker",
    "spawn_main": "environments",
    "resource_tracker": "tracker",
    "valkey-server": "store",
    "redis-server": "store",
}


class Sample(NamedTuple):
    seconds: float
    memory_bytes: int
    descriptors: int
    threads: int


class Soak:
    """A ``seedmq run`` and the sizes of its processes.

    Args:
        folder: For everything, with a short path.
        preset: With which algorithm.
        values: More settings, ``key=value``.
        step_seconds: What each environment step takes at least.
    """

    def __init__(self, folder: Path, preset: str, values: list[str], step_seconds: float) -> None:
        self.directory, self.temporary = folder / "run", folder / "tmp"
        self.temporary.mkdir(mode=0o700)
        self.samples: dict[tuple[str, int], list[Sample]] = {}
        self.failures: list[str] = []
        self._trained, self._moved = -1, time.monotonic()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDMQ_")}
        environment |= {"TMPDIR": str(self.temporary), STEP_SECONDS: str(step_seconds)}
        fixed = (
            "run.solved_return=null", "evaluation.solved_return=null", "run.max_seconds=1000000",
            "environment.wrappers=[tests.chaos.environment:Paced]", "broker.placement=process",
            f"workers.count={WORKERS}", f"workers.envs={ENVS}",
        )  # fmt: skip
        command = [sys.executable, "-m", "pipeline.cli", "run", preset, *settings(*fixed, *values)]
        with (folder / "output.log").open("w") as output:
            self.process = subprocess.Popen(
                [*command, "--run-dir", str(self.directory)], stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, env=environment, cwd=Path(__file__).parents[2],
            )  # fmt: skip

    def go(self, seconds: float) -> None:
        """Samples until the time is over or the run ends."""
        began = time.monotonic()
        shown = began
        while time.monotonic() < began + seconds and self.process.poll() is None:
            threading.Event().wait(INTERVAL_SECONDS)
            self._sample(time.monotonic() - began)
            self._look_at_progress()
            if time.monotonic() > shown + 300:
                shown = time.monotonic()
                sizes = {
                    f"{role}": f"{samples[-1].memory_bytes / 2**20:.1f}" for (role, _), samples in self.samples.items()
                }
                print(f"{shown - began:7.0f} s  trained {self._trained}; MiB {sizes}", flush=True)
        if self.process.poll() is not None:
            self.failures.append(f"the run ended by itself with {self.process.returncode}")

    def end(self) -> dict[str, Any]:
        """Stops it in order; its last summary."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                if self.process.wait(STOP_SECONDS) != 143:
                    self.failures.append(f"the run ended with {self.process.returncode}, and not with 143")
            except subprocess.TimeoutExpired:
                self.failures.append(f"the run does not end within {STOP_SECONDS:g} s")
                self.process.kill()
                self.process.wait()
        last = summary(self.directory)
        if not last or last["ledger"]["error"]:
            self.failures.append(f"the ledger does not close: {last.get('ledger')}")
        return last

    def judge(self, seconds: float) -> None:
        """Prints a line a process, and adds to ``failures`` what did not hold."""
        print(f"{'process':14}{'pid':>8}{'MiB warm':>10}{'MiB end':>10}{'growth':>9}{'descriptors':>13}{'threads':>9}")
        for (role, pid), samples in sorted(self.samples.items()):
            warm = [one for one in samples if SHARE * seconds <= one.seconds < 2 * SHARE * seconds]
            end = [one for one in samples if one.seconds >= (1 - SHARE) * seconds]
            if not warm or not end:
                self.failures.append(
                    f"{role} {pid} lived only from {samples[0].seconds:.0f} to {samples[-1].seconds:.0f} s"
                )
                continue
            before, after = (statistics.median(one.memory_bytes for one in part) for part in (warm, end))
            descriptors = [max(one.descriptors for one in part) for part in (warm, end)]
            threads = [max(one.threads for one in part) for part in (warm, end)]
            growth = after / before - 1
            print(
                f"{role:14}{pid:8}{before / 2**20:10.2f}{after / 2**20:10.2f}{growth:9.2%}"
                f"{descriptors[0]:6} ->{descriptors[1]:4}{threads[0]:4} ->{threads[1]:2}"
            )
            if growth > MAX_GROWTH:
                self.failures.append(f"{role} {pid} has grown by {growth:.2%}")
            if descriptors[1] > descriptors[0]:
                self.failures.append(f"{role} {pid} has {descriptors[1]} descriptors open, and had {descriptors[0]}")

    def _sample(self, seconds: float) -> None:
        for pid, command in processes_of(self.temporary).items():
            role = next((role for words, role in ROLES.items() if words in f"{command} "), None)
            if role is None:
                continue
            try:
                process = psutil.Process(pid)
                if ("environments", process.ppid()) in self.samples:
                    continue  # what an environment has started, for a moment
                sample = Sample(seconds, process.memory_info().rss, process.num_fds(), process.num_threads())
            except psutil.Error:
                continue  # ended since
            self.samples.setdefault((role, pid), []).append(sample)

    def _look_at_progress(self) -> None:
        trained = summary(self.directory).get("ledger", {}).get("trained", 0)
        now = time.monotonic()
        if trained > self._trained:
            self._trained, self._moved = trained, now
        elif now > self._moved + (MAX_IDLE_SECONDS if self._trained > 0 else START_SECONDS):
            self.failures.append(f"nothing is trained for {now - self._moved:.0f} s")
            self._moved = now

    def joins(self) -> int:
        """How often a worker joined the broker."""
        return sum(log.read_text().count("admitted as worker") for log in (self.directory / "logs").glob("worker*.log"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=7200.0)
    parser.add_argument("--preset", default="cartpole_vtrace")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="values")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="what an environment step takes at least")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
    soak = Soak(folder, arguments.preset, arguments.values, arguments.step_seconds)
    try:
        soak.go(arguments.seconds)
        joins = soak.joins()
        last = soak.end()
    finally:
        soak.process.kill()
        soak.process.wait()
    soak.judge(arguments.seconds)
    if joins != WORKERS:
        soak.failures.append(f"{WORKERS} workers joined {joins} times")
    figures = {
        name: last.get(name) for name in ("stop_reason", "seconds", "agent_steps", "updates", "episodes", "ledger")
    }
    print(f"{joins} joins; {json.dumps(figures)}")
    for failure in soak.failures:
        print(f"FAILED: {failure}")
    print(f"{len(soak.failures)} bounds did not hold; kept: {folder}" if soak.failures else "all bounds held")
    if not soak.failures:
        shutil.rmtree(folder)
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
