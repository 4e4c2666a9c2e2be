"""``seedmq bench``: runs a benchmark of the checkout's ``benchmarks`` package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

from pipeline.errors import EXIT_FINISHED, ConfigError

FOLDER = Path(__file__).resolve().parent.parent.parent / "benchmarks"


def bench(  # noqa: PLR0917
    name: str, metric: str | None, baseline: str | None, seconds: float | None, repeats: int, as_json: bool
) -> int:
    """Measures and prints; progress goes to the error stream. ``seconds``: of each measurement; None is its own.

    Raises:
        ConfigError: no checkout, no such benchmark, metric or baseline.
    """
    if not (FOLDER / "harness.py").exists():
        raise ConfigError("seedmq bench needs a checkout of the repository: its benchmarks are not installed")
    root = str(FOLDER.parent)
    if root not in sys.path:
        sys.path.append(root)
    harness = importlib.import_module("benchmarks.harness")
    if name not in harness.NAMES:
        raise ConfigError(f"no benchmark {name}: {', '.join(harness.NAMES)}")
    benchmark = importlib.import_module(f"benchmarks.{name}")
    with benchmark.metrics() as metrics:
        chosen = harness.select(metrics, metric, baseline)
        if baseline is None:
            for names, lacking in harness.missing([one for one in metrics if metric in (None, one.name)]):
                click.echo(f"without {names}: {lacking}", err=True)
        seconds = getattr(benchmark, "SECONDS", harness.SECONDS) if seconds is None else seconds
        rows = list(harness.run(chosen, seconds, repeats, lambda line: click.echo(line, err=True)))
    harness.report(rows, as_json)
    return EXIT_FINISHED
