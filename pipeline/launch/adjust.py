"""``seedmq adjust``: writes live settings into a run directory's ``live.yaml`` and waits until they are taken."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pipeline.config.live import adjusted, dump_live
from pipeline.config.load import value_of
from pipeline.errors import EXIT_FINISHED, ConfigError, UnreachableError
from pipeline.run_dir import RunDirectory, write_text
from pipeline.stopping import StopToken, install_signal_handlers

LOOK_SECONDS = 0.1
PATIENCE_INTERVALS = 5
LEAST_PATIENCE_SECONDS = 5.0
"""A learner on a busy machine writes its summary late."""


def adjust(run_dir: Path, assignments: Sequence[str]) -> int:
    """Writes ``live.yaml`` and waits for the run's ``summary.json`` to show the new values.

    Args:
        run_dir: of the run.
        assignments: ``section.key=value`` of live settings; what was adjusted before stays.

    Returns:
        0 when they are taken, or when the run has ended: then a resumed one takes them. 128 + signal after a signal;
        the settings are written then.

    Raises:
        ConfigError: no run there, a key that is no live setting or that the run does not use, a bad value, a damaged
            or unwritable ``live.yaml``.
        UnreachableError: the run does not show them in time.
    """
    directory = RunDirectory.open(run_dir)
    config = directory.read_config()
    loaded = adjusted(config, directory.live, assignments)
    wanted = {key: value_of(loaded.config, key) for key in (text.partition("=")[0].strip() for text in assignments)}
    summary = directory.read_summary() or {}
    for key in wanted:
        if key not in _in_force(summary, wanted):
            raise ConfigError(f"{key}: the run in {run_dir} does not use it ({config.training.algorithm})")
    try:
        write_text(directory.live, dump_live(loaded))
    except OSError as error:
        raise ConfigError(f"cannot write {directory.live}: {error.strerror or error}") from error
    patience = max(LEAST_PATIENCE_SECONDS, PATIENCE_INTERVALS * config.run.log_interval_seconds)
    return _wait(directory, wanted, patience)


def _wait(directory: RunDirectory, wanted: Mapping[str, Any], seconds: float) -> int:
    stop = StopToken()
    install_signal_handlers(stop)
    words = ", ".join(f"{key} = {value}" for key, value in wanted.items())
    deadline = time.monotonic() + seconds
    while not stop.wait(LOOK_SECONDS):
        summary = directory.read_summary() or {}
        if summary.get("stop_reason") is not None:
            click.echo(f"{words}: {directory.path} has ended ({summary['stop_reason']}), --resume takes it")
            return EXIT_FINISHED
        if wanted.items() <= _in_force(summary, {}).items():
            click.echo(f"{words}: taken, as seedmq status shows")
            return EXIT_FINISHED
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"{words}: written to {directory.live}, but not in {directory.summary.name} within {seconds:g} s: "
                "no learner trains there now, the next one takes it"
            )
    return 128 + (stop.signal or 0)


def _in_force(summary: Mapping[str, Any], unknown: Mapping[str, Any]) -> Mapping[str, Any]:
    """Live settings in force, by key; ``unknown`` before the first summary that names them."""
    live = summary.get("live")
    return live if isinstance(live, Mapping) else unknown
