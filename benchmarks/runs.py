"""Whole runs of a preset, one after the other: steps, seconds and returns of each, such as the time to solve.

    python -m benchmarks.runs cartpole_vtrace --repeats 5 --seeds      # seeds 1 to 5
    python -m benchmarks.runs atari_pong_vtrace --repeats 2 --seconds 120 --set workers.envs=64

Each run is a ``seedmq run`` of its own in a temporary run directory. Figures come from its ``summary.json``;
``seconds`` runs from the first environment step to the last update. Speed beside other systems: ``seedmq bench
end_to_end``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

ROW = "{:>4} {:>10} {:>10} {:>12} {:>10} {:>9} {:>9} {:>7}"


def command(preset: str, settings: Sequence[str], folder: Path) -> list[str]:
    """Words of a run with its run directory at ``folder``."""
    arguments = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, "-m", "pipeline.cli", "-q", "run", preset, "--run-dir", str(folder), *arguments]


def one_run(preset: str, settings: list[str], folder: Path) -> dict[str, Any]:
    """The summary of one run; its own output goes to the error stream when it fails."""
    result = subprocess.run(command(preset, settings, folder), capture_output=True, text=True, check=False)
    if result.returncode:
        click.echo(result.stdout + result.stderr, err=True)
        raise SystemExit(result.returncode)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


@click.command()
@click.argument("preset")
@click.option("--repeats", default=3, show_default=True)
@click.option("--seconds", type=float, help="run.max_seconds of each run; default the preset's.")
@click.option("--seeds", is_flag=True, help="Give each run another seed: 1, 2, 3, ...")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE")
@click.option("--json", "as_json", is_flag=True)
def main(
    preset: str, repeats: int, seconds: float | None, seeds: bool, settings: tuple[str, ...], as_json: bool
) -> None:
    summaries = []
    click.echo(ROW.format("run", "stop", "seconds", "steps", "steps/s", "return", "lag", "error"), err=as_json)
    with tempfile.TemporaryDirectory() as temporary:
        for i in range(repeats):
            extra = [f"run.max_seconds={seconds}"] if seconds else []
            extra += [f"run.seed={i + 1}"] if seeds else []
            summary = one_run(preset, [*settings, *extra], Path(temporary) / str(i))
            summaries.append(summary)
            mean = summary["episode_return_mean"]
            click.echo(
                ROW.format(
                    i + 1,
                    summary["stop_reason"],
                    f"{summary['seconds']:.1f}",
                    summary["agent_steps"],
                    f"{summary['agent_steps_per_second']:.0f}",
                    "-" if mean is None else f"{mean:.1f}",
                    f"{summary['policy_lag_mean']:.2f}",
                    summary["ledger"]["error"],
                ),
                err=as_json,
            )
    rates = [summary["agent_steps_per_second"] for summary in summaries]
    times = [summary["seconds"] for summary in summaries]
    found = {
        "preset": preset,
        "agent_steps_per_second": {"median": statistics.median(rates), "min": min(rates), "max": max(rates)},
        "seconds": {"median": statistics.median(times), "min": min(times), "max": max(times)},
        "ledger_error": max(summary["ledger"]["error"] for summary in summaries),
    }
    if as_json:
        click.echo(json.dumps(found))
    else:
        rate, time = found["agent_steps_per_second"], found["seconds"]
        click.echo(f"steps/s: median {rate['median']:.0f}, from {rate['min']:.0f} to {rate['max']:.0f}")
        click.echo(f"seconds: median {time['median']:.1f}, from {time['min']:.1f} to {time['max']:.1f}")


if __name__ == "__main__":
    main()
