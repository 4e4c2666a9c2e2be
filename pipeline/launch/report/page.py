"""``seedmq report``: the page itself. It asks for nothing: Plotly's script, the styles and all figures stand in it."""

from __future__ import annotations

import importlib.resources
import json
import os
import time
from pathlib import Path
from typing import Any

import click
import jinja2
import plotly.offline
import yaml

from pipeline import __version__
from pipeline.errors import EXIT_FINISHED, ConfigError
from pipeline.launch.report import facts, figures, series
from pipeline.launch.status_text import bottleneck_lines
from pipeline.run_dir import RunDirectory, write_text


def report(run_dir: Path, out: Path) -> int:
    """Writes a page about a run, finished or not; an existing file is replaced at once.

    Args:
        run_dir: the run's directory.
        out: the HTML file.

    Raises:
        ConfigError: there is no run in ``run_dir``, it cannot be read, or ``out`` cannot be written.
    """
    directory = RunDirectory.open(run_dir)
    if out.exists():
        _check_replaceable(out, run_dir)
    try:
        html = render(directory)
    except OSError as error:
        raise ConfigError(f"cannot read the run in {run_dir}: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        kind = type(error).__name__
        raise ConfigError(
            f"cannot read the run in {run_dir}: its files are damaged or none of seedmq's: {kind}: {error}"
        ) from error
    try:
        existed = out.exists()
        write_text(out, html)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror or error}") from error
    click.echo(f"{'replaced' if existed else 'wrote'} {out} ({os.stat(out).st_size / 2**20:.1f} MiB)")
    return EXIT_FINISHED


def _check_replaceable(out: Path, run_dir: Path) -> None:
    """A device, and what belongs to the run, stay as they are.

    Raises:
        ConfigError: it is one.
    """
    if not out.is_file():
        raise ConfigError(f"cannot write {out}: it is {'a directory' if out.is_dir() else 'no ordinary file'}")
    if out.suffix != ".html" and run_dir.resolve() in out.resolve().parents:
        raise ConfigError(f"cannot write {out}: it is a file of the run")


def render(directory: RunDirectory) -> str:
    """The page of a run.

    Raises:
        ConfigError: its files are no run's.
        OSError: they cannot be read.
    """
    config, summary = directory.read_config(), directory.read_summary()
    found = series.read(directory.events)
    about = _about(directory.config)
    shown = summary or {}
    sections = figures.sections(found.series, shown)
    levels, lines = facts.logged(directory.logs)
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html").render(
        title=about.get("config") or directory.path.resolve().name,
        environment=config.environment.id,
        state=facts.state_of(directory, summary, config.run.log_interval_seconds),
        summary=summary,
        began=None if found.began is None else facts.moment(found.began),
        ended=None if found.ended is None else facts.moment(found.ended),
        headline=facts.headline(shown, config.run.solved_return) if summary else [],
        bottleneck=bottleneck_lines(shown.get("bottleneck")),
        what_ran=facts.what_ran(directory, config, about, shown),
        versions={name: value for name, value in about.items() if name not in ("config", "machine")},
        sections=sections,
        curves=bool(found.series),
        damage=found.damage,
        books=facts.books(shown),
        ledger_error=(shown.get("ledger") or {}).get("error"),
        masked=(shown.get("ledger") or {}).get("masked"),
        counts=facts.counts(shown),
        failing=shown.get("failing") or {},
        levels=levels,
        lines=lines,
        settings=facts.settings(config),
        plots=_script([plot._asdict() for section in sections for plot in section.plots]),
        most=series.MAX_POINTS,
        plotly=plotly.offline.get_plotlyjs() if sections else "",
        style=_text("page.css"),
        script=_text("page.js"),
        made=facts.moment(time.time()),
        version=__version__,
    )


def _about(config: Path) -> dict[str, str]:
    """What ran it: the mapping ``versions`` of ``config.yaml``."""
    tree = yaml.safe_load(config.read_text())
    found = tree.get("versions") if isinstance(tree, dict) else None
    return {str(name): str(value) for name, value in (found or {}).items()}


def _script(data: Any) -> str:
    """JSON that can stand within a script element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _text(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text()
