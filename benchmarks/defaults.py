"""Defaults that learn: steps until a task is solved with ``environment.id`` and nothing else.

    python -m benchmarks.defaults                              # all tasks, seeds 1, 2, 3
    python -m benchmarks.defaults --task Acrobot-v1 --seeds 1 --set network.normalize_observations=false
    python -m benchmarks.defaults --curves docs/decisions/0006-curves.csv

LunarLander-v3 needs ``pip install "gymnasium[box2d]"``. Each run is a ``seedmq run`` of a file that sets
``environment.id``; beside it are set what ends a run (``run.solved_return``, ``run.max_steps``) and ``run.seed``. A
task is solved when the mean return of the last 100 training episodes reaches its threshold. Exits 1 where one is not
within its steps, which are trained transitions: a busy machine takes longer, but no more of them.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks.runs import one_run
from pipeline.launch.report.series import read

POINTS = 20
"""Of a curve, at most."""
ROW = "{:>26} {:>4} {:>7} {:>10} {:>10} {:>8} {:>9} {:>8} {:>6}"
HEADS = ("task", "seed", "solved", "steps", "allowed", "return", "wanted", "updates", "lag")


class Task(NamedTuple):
    """What counts as solved.

    Attributes:
        threshold: Mean return of 100 training episodes, in which actions are sampled. Gymnasium's where it has one.
        steps: Within so many.
    """

    threshold: float
    steps: int


TASKS = {
    "CartPole-v1": Task(475.0, 1_000_000),
    "Acrobot-v1": Task(-100.0, 1_000_000),
    "benchmarks.catch:Catch-v0": Task(0.9, 500_000),
    "Pendulum-v1": Task(-250.0, 2_000_000),
    "LunarLander-v3": Task(200.0, 4_000_000),
}


class Run(NamedTuple):
    """One run: its row of the table, and its curve.

    Attributes:
        row: By ``HEADS``.
        curve: (steps, mean return of the last 100 episodes).
    """

    row: dict[str, Any]
    curve: list[tuple[int, float]]


def measured(name: str, seed: int, settings: Iterable[str]) -> Run:
    """Trains one task with one seed."""
    task = TASKS[name]
    with tempfile.TemporaryDirectory() as temporary:
        file, folder = Path(temporary) / "only_the_id.yaml", Path(temporary) / "run"
        file.write_text(f"environment:\n  id: {name}\n")
        ends = [f"run.seed={seed}", f"run.max_steps={task.steps}", f"run.solved_return={task.threshold}"]
        summary = one_run(str(file), [*ends, *settings], folder)
        points = read(folder / "events").series.get("episodes/return_mean")
    row = {
        "task": name,
        "seed": seed,
        "solved": "yes" if summary["stop_reason"] == "solved" else "NO",
        "steps": summary["agent_steps"],
        "allowed": task.steps,
        "return": round(summary["episode_return_mean"], 2),
        "wanted": task.threshold,
        "updates": summary["updates"],
        "lag": round(summary["policy_lag_mean"], 2),
    }
    curve = [] if points is None else list(zip(points.frames.tolist(), points.values.tolist(), strict=True))
    return Run(row, [*thinned(curve), (row["steps"], row["return"])])


def thinned(curve: list[tuple[float, float]]) -> list[tuple[int, float]]:
    """Some of its points, evenly; its end is told by the summary."""
    kept = np.unique(np.linspace(0, len(curve) - 1, POINTS - 1, dtype=np.int64)) if curve else []
    return [(int(curve[i][0]), round(curve[i][1], 2)) for i in kept]


def write_curves(path: Path, runs: Iterable[Run]) -> None:
    """One line for each point."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("task", "seed", "steps", "return"))
        for run in runs:
            writer.writerows((run.row["task"], run.row["seed"], *point) for point in run.curve)


@click.command()
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(TASKS)), help="Default: all.")
@click.option("--seeds", default=3, show_default=True, help="Runs of each task, with seeds 1, 2, 3, ...")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Other than the defaults, to compare.")
@click.option("--curves", type=click.Path(dir_okay=False, path_type=Path), help="Write the curves to this CSV file.")
def main(tasks: tuple[str, ...], seeds: int, settings: tuple[str, ...], curves: Path | None) -> None:
    runs = []
    click.echo(ROW.format(*HEADS))
    for name in tasks or TASKS:
        for seed in range(1, seeds + 1):
            run = measured(name, seed, settings)
            runs.append(run)
            click.echo(ROW.format(*(run.row[head] for head in HEADS)))
            if curves is not None:
                write_curves(curves, runs)
    raise SystemExit(any(run.row["solved"] == "NO" for run in runs))


if __name__ == "__main__":
    main()
