"""Memory: share of right answers in Recall-v0, with an LSTM and without memory, for R2D2 and for V-trace.

    python -m benchmarks.recall                  # k = 4 cues, asked after 20 steps, 1 000 episodes each
    python -m benchmarks.recall --seeds 3        # seeds 1, 2, 3

Each run is a ``seedmq run`` of ``memory_r2d2`` or ``memory_vtrace`` in a temporary run directory, evaluated by
``seedmq eval``. With an LSTM it trains until its evaluation environments solve the task, and more than 95 % must
then be right. Without (``network.lstm=0``; neither preset feeds previous action or reward) it trains for as many steps,
and the share must be within three standard errors of 1/k. Exits 1 where a row does not hold.
"""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from benchmarks.runs import one_run
from pipeline.run_dir import RunDirectory

LEAST_SHARE = 0.95
ERRORS = 3.0
MODES = {"r2d2": ["greedy"], "vtrace": ["greedy", "sample"]}
ROW = "{:>9} {:>4} {:>5} {:>7} {:>7} {:>9} {:>9} {:>8} {:>7} {:>7} {:>7} {:>6}"
HEADS = (
    "algorithm",
    "seed",
    "lstm",
    "learnt",
    "mode",
    "steps",
    "updates",
    "episodes",
    "right",
    "chance",
    "error",
    "holds",
)


def evaluated(folder: Path, episodes: int, mode: str, seed: int) -> list[float]:
    """Returns of a run's newest checkpoint, each 1 for a right answer and 0 for a wrong one.

    Greedy without memory means one answer to every cue: what is right is that cue's share of the episodes of ``seed``.
    """
    command = [sys.executable, "-m", "pipeline.cli", "-q", "eval", str(folder), "--json"]
    command += ["--episodes", str(episodes), "--mode", mode, "--seed", str(seed)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        click.echo(result.stdout + result.stderr, err=True)
        raise SystemExit(result.returncode)
    returns: list[float] = json.loads(result.stdout.splitlines()[-1])["episode_returns"]
    if len(returns) != episodes or not set(returns) <= {0.0, 1.0}:
        raise SystemExit(f"{folder}: {len(returns)} returns of {sorted(set(returns))}, not {episodes} of 0 and 1")
    return returns


def judged(returns: list[float], cues: int, memory: bool) -> dict[str, Any]:
    """The share of right answers, and whether it is what it must be.

    ``error`` is the standard error of the share; without memory that of guessing, which is what it is compared with.
    """
    share, chance = sum(returns) / len(returns), 1 / cues
    rate = share if memory else chance
    error = math.sqrt(rate * (1 - rate) / len(returns))
    holds = share > LEAST_SHARE if memory else abs(share - chance) <= ERRORS * error
    return {"episodes": len(returns), "right": share, "chance": chance, "error": error, "holds": holds}


def measured(algorithm: str, seed: int, memory: bool, steps: int | None, episodes: int) -> tuple[list[Any], int]:
    """Rows of one training run, one per way to act, and the steps that it took."""
    settings = [f"run.seed={seed}"]
    settings += [] if memory else ["network.lstm=0"]
    settings += [] if steps is None else [f"run.max_steps={steps}"]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        summary = one_run(f"memory_{algorithm}", settings, folder)
        config = RunDirectory.open(folder).read_config()
        about = {
            "algorithm": algorithm,
            "seed": seed,
            "lstm": config.network.lstm,
            "learnt": config.training.unroll_length,
            "steps": summary["agent_steps"],
            "updates": summary["updates"],
            "seconds": summary["seconds"],
            "stop_reason": summary["stop_reason"],
            "ledger_error": summary["ledger"]["error"],
        }
        for mode in MODES[algorithm]:
            result = judged(evaluated(folder, episodes, mode, seed), config.environment.kwargs["cues"], memory)
            rows.append({**about, "mode": mode, **result})
    return rows, summary["agent_steps"]


def shown(row: dict[str, Any]) -> str:
    percent = {name: f"{row[name]:.1%}" for name in ("right", "chance", "error")}
    return ROW.format(*({**row, **percent, "holds": "yes" if row["holds"] else "NO"}[name] for name in HEADS))


@click.command()
@click.option("--seeds", default=1, show_default=True, help="Runs of each kind, with seeds 1, 2, 3, ...")
@click.option("--episodes", default=1000, show_default=True, help="Evaluation episodes of each run.")
@click.option("--algorithm", "algorithms", multiple=True, type=click.Choice(list(MODES)), help="Default: both.")
@click.option("--json", "as_json", is_flag=True)
def main(seeds: int, episodes: int, algorithms: tuple[str, ...], as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    click.echo(ROW.format(*HEADS), err=as_json)
    for algorithm in algorithms or MODES:
        for seed in range(1, seeds + 1):
            steps: int | None = None
            for memory in (True, False):
                new, steps = measured(algorithm, seed, memory, steps, episodes)
                for row in new:
                    click.echo(shown(row), err=as_json)
                rows += new
    if as_json:
        versions = {name: version(name) for name in ("seedmq", "numpy", "gymnasium")}
        click.echo(
            json.dumps(
                {
                    "machine": platform.platform(),
                    "python": platform.python_version(),
                    "versions": versions,
                    "rows": rows,
                }
            )
        )
    raise SystemExit(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    main()
