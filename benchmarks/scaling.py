"""The scale model: predicts throughput and cost, checks itself against runs, and sizes SEED RL's headline cases.

python -m benchmarks.scaling measure                 measures what each stage costs here, into benchmarks/costs.json
python -m benchmarks.scaling predict cartpole_vtrace --set workers.count=4 [--cpus N] [--elsewhere] [--pause S]
python -m benchmarks.scaling check [--seconds 20]    runs of other shapes than were measured, beside the prediction
python -m benchmarks.scaling headline                what SEED RL's published rates would take of our stages
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from benchmarks.runs import command
from benchmarks.simulator import Costs, Prediction, Setup, simulate
from pipeline.config.load import load
from pipeline.config.tree import Config
from pipeline.rows import ROW
from pipeline.run_dir import write_text

FILE = Path(__file__).with_name("costs.json")
ROW_BYTES = {"cartpole": 16, "pong": 84 * 84}
FILLED = 0.7
"""Share of its time that a stage may be busy where it is to keep up: more makes requests wait."""
START_SECONDS = 240.0
LOOK_SECONDS = 0.05
PONG = ("training.batch_size=32", "store.capacity=64")
CHECKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("cartpole_vtrace", ("workers.envs=8",)),
    ("cartpole_vtrace", ("workers.envs=64",)),
    ("cartpole_vtrace", ("workers.count=2", "workers.envs=32")),
    ("cartpole_vtrace", ("workers.count=4", "workers.envs=64")),
    ("cartpole_throughput", ("workers.envs=512",)),
    ("atari_pong_vtrace", (*PONG, "workers.envs=32")),
    ("atari_pong_vtrace", (*PONG, "workers.envs=64")),
)
"""Preset and settings."""
UNROLL_BYTES = 21 * 84 * 84
"""Of the frames of the unrolls whose store costs were measured."""


def setup_of(config: Config, workload: str, cpus: int) -> Setup:
    """The model of what ``seedmq run`` starts for a configuration."""
    return Setup(
        workers=config.workers.count,
        environments=config.workers.envs,
        groups=config.workers.groups,
        row_bytes=ROW.itemsize + ROW_BYTES[workload],
        broker=config.broker.placement == "process",
        batch=min(config.learner.inference_batch, config.slots),
        unroll=config.training.unroll_length,
        training_batch=config.training.batch_size,
        capacity=config.store.capacity,
        cpus=cpus,
    )


def workload_of(config: Config) -> str:
    """Whose costs a configuration has."""
    return "cartpole" if config.environment.id.startswith("CartPole") else "pong"


class Case(NamedTuple):
    """A published rate of SEED RL, and what a step of it is here.

    Attributes:
        name: As in its paper and repository.
        frames_per_second: Published, or what its environments give.
        repeats: Frames of a step.
        row_bytes: Observation of one environment that travels.
        rows: Environments of one request.
        batch: Rows of an inference batch.
        unroll: Transitions of an unroll; ``overlap`` rows more are stored.
        overlap: Rows stored again.
        reuse: How often a transition is read for training.
        environment_seconds: CPU seconds of an environment's step.
    """

    name: str
    frames_per_second: float
    repeats: int
    row_bytes: int
    rows: int
    batch: int
    unroll: int
    overlap: int
    reuse: float
    environment_seconds: float


CASES = (
    # 2.4 M frames/s on 64 TPU v3 cores; 130 steps/s of an actor (R2D2 paper); 96 x 72 RGB, unrolls of 100, 8 a worker.
    Case("DeepMind Lab, 64 cores", 2.4e6, 4, 96 * 72 * 3, 8, 512, 100, 0, 1.0, 1 / 130),
    Case("DeepMind Lab, 8 cores", 330e3, 4, 96 * 72 * 3, 8, 512, 100, 0, 1.0, 1 / 130),
    # 257 K frames/s on 8 cores with 610 environments; 260 steps/s of an actor; 84 x 84, 80 + 40, ratio 0.75.
    Case("Atari R2D2, 8 cores", 257e3, 4, 84 * 84, 10, 320, 80, 41, 1 / 0.75, 1 / 260),
    # 200 environments; SMM of 96 x 72, 16 planes of bits; 100 steps/s of an environment are assumed, none is published.
    Case("Football, 200 environments", 20e3, 1, 96 * 72 * 2, 8, 200, 32, 0, 1.0, 1 / 100),
)


class Demand(NamedTuple):
    """CPU seconds per second of each stage, and bytes per second into the learners."""

    load: dict[str, float]
    bytes_per_second: float

    @property
    def first(self) -> str:
        """The stage that one process of would limit first."""
        serial = {stage: load for stage, load in self.load.items() if stage != "workers"}
        return max(serial, key=lambda stage: serial[stage])

    def processes(self) -> dict[str, int]:
        """How many of each stage keep up."""
        return {stage: math.ceil(load / FILLED) for stage, load in self.load.items()}


def demand(case: Case, costs: Costs) -> Demand:
    """What a rate takes of the stages that are not the accelerator's: policy and updates are left out.

    ``learner`` is what its Python threads do together: inference loop, writer and feed.
    """
    steps = case.frames_per_second / case.repeats
    requests, unrolls = steps / case.rows, steps / case.unroll
    nbytes = steps * (case.row_bytes + ROW.itemsize)
    larger = (case.unroll + 1 + case.overlap) * case.row_bytes / UNROLL_BYTES
    request = costs.inference_request + case.rows * costs.inference_row
    inference = requests * request + steps / case.batch * costs.inference_batch + nbytes * costs.inference_byte
    passing = costs.broker_request + costs.broker_turn * case.rows / case.batch
    load = {
        "workers": steps * (case.environment_seconds + costs.worker_row) + requests * costs.worker_request,
        "broker": requests * passing + nbytes * costs.broker_byte,
        "transport": requests * costs.transport_request + nbytes * costs.transport_byte,
        "learner": inference + unrolls * larger * (costs.writer_unroll + costs.feed_unroll * case.reuse),
        "store": unrolls * larger * costs.store_unroll * (1 + case.reuse) / 2,
    }
    return Demand(load, nbytes)


@click.group(help=(__doc__ or "").partition("\n")[0])
def main() -> None:
    pass


@main.command()
@click.option("--seconds", default=4.0, show_default=True, help="Of each measurement.")
def measure(seconds: float) -> None:
    """Measures the costs anew and writes them down."""
    from benchmarks import costs

    found = costs.measure(seconds, lambda line: click.echo(line, err=True))
    write_text(FILE, json.dumps(found, indent=1) + "\n")
    click.echo(f"{FILE}, at a load of {found['load_average']}")


@main.command()
@click.argument("preset")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE")
@click.option("--cpus", default=os.cpu_count() or 1, show_default=True)
@click.option("--elsewhere", is_flag=True, help="Workers have CPUs enough of their own.")
@click.option("--pause", default=0.0, help="Seconds that a group's step lasts besides its CPU time.")
def predict(preset: str, settings: tuple[str, ...], cpus: int, elsewhere: bool, pause: float) -> None:
    """Throughput, busy shares and CPU time per step of a configuration of CartPole or Atari."""
    found = prediction(preset, settings, cpus, elsewhere, pause)
    click.echo(
        f"{found.steps_per_second:,.0f} steps/s, {found.trained_per_second:,.0f} trained; {found.bottleneck} first"
    )
    for stage, share in found.busy.items():
        click.echo(f"{stage:>10}: busy {share:6.1%}, {1e6 * found.cpu_per_step[stage]:8.2f} us per step")


def prediction(
    preset: str, settings: Sequence[str], cpus: int, elsewhere: bool = False, pause: float = 0.0
) -> Prediction:
    config = load(preset, list(settings)).config
    workload = workload_of(config)
    setup = setup_of(config, workload, cpus)._replace(workers_elsewhere=elsewhere, pause=pause)
    return simulate(setup, read_costs(workload))


def read_costs(workload: str) -> Costs:
    """As measured last."""
    return Costs(**json.loads(FILE.read_text("utf-8"))["costs"][workload])


@main.command()
@click.option("--seconds", default=20.0, show_default=True, help="Of each run.")
@click.option("--repeats", default=1, show_default=True)
def check(seconds: float, repeats: int) -> None:
    """Runs beside what is predicted for them: trained steps per second, and per CPU second of all processes.

    The first is only fair where nothing else uses the CPUs.
    """
    columns = ("predicted", "measured", "error")
    table = _table("preset", "settings", *(f"{name} /s" for name in columns), *(f"{name} /CPU s" for name in columns))
    for preset, settings in CHECKS:
        found = prediction(preset, settings, os.cpu_count() or 1)
        runs = [observe(preset, settings, seconds) for _ in range(repeats)]
        cells = []
        for predicted, measured in zip(
            (found.trained_per_second, 1.0 / sum(found.cpu_per_step.values())), zip(*runs, strict=True), strict=True
        ):
            median = statistics.median(measured)
            cells += [f"{predicted:,.0f}", f"{median:,.0f}", f"{predicted / median - 1:+.0%}"]
        table.add_row(preset, " ".join(settings), *cells)
        click.echo(f"{preset} {' '.join(settings)}: {cells}, load {os.getloadavg()[0]:.0f}", err=True)
    Console(width=200).print(table)


def observe(preset: str, settings: Sequence[str], seconds: float) -> tuple[float, float]:
    """Trained steps of a run per second, and per CPU second of all its processes.

    Raises:
        TimeoutError: it did not train for so long. RuntimeError: it ended early.
    """
    words = [*settings, f"run.max_seconds={START_SECONDS + 4 * seconds}", "run.solved_return=null"]
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary, tempfile.TemporaryFile() as output:
        folder = Path(temporary) / "run"
        with harness.group(command(preset, words, folder), output, output, cwd=harness.ROOT) as process:
            begin = _reading(process, folder / "summary.json", 0.0)
            end = _reading(process, folder / "summary.json", begin[0] + seconds)
            process.send_signal(signal.SIGINT)
            process.wait(START_SECONDS)
    took, steps, spent = (b - a for a, b in zip(begin, end, strict=True))
    return steps / took, steps / spent


def _reading(process: subprocess.Popen[bytes], file: Path, after: float) -> tuple[float, float, float]:
    """Seconds, trained steps and CPU seconds of a run, once its summary says more seconds than ``after``."""
    deadline = time.monotonic() + START_SECONDS
    last: float | None = None
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run did not train past {after:.0f} s within {START_SECONDS:g} s")
        summary = json.loads(file.read_text()) if file.exists() else {"updates": 0}
        if summary["updates"] and last not in (None, summary["seconds"]) and summary["seconds"] > after:
            tree = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
            return summary["seconds"], summary["agent_steps"], harness.cpu_seconds(tree)
        last = summary.get("seconds", last)
        time.sleep(LOOK_SECONDS)
    raise RuntimeError(f"the run ended early with {process.returncode}")


@main.command()
def headline() -> None:
    """Loads of SEED RL's published rates, and how many processes of each stage would keep up."""
    costs = read_costs("pong")
    names = list(demand(CASES[0], costs).load)
    table = _table("case", "steps/s", "GB/s", *names, "one of it limits first")
    for case in CASES:
        found = demand(case, costs)
        steps, counts = case.frames_per_second / case.repeats, found.processes()
        cells = [f"{found.load[name]:.2f} ({counts[name]})" for name in names]
        limit = f"{found.first}, at {steps / found.load[found.first]:,.0f} steps/s"
        table.add_row(case.name, f"{steps:,.0f}", f"{found.bytes_per_second / 1e9:.2f}", *cells, limit)
    Console(width=200).print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


if __name__ == "__main__":
    sys.exit(main())
