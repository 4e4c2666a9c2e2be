"""The command line: parse, load the configuration, hand over, exit code. No logic.

Every command imports what it runs when it runs, so that a worker needs no TensorFlow and ``--help`` is quick.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from pipeline import __version__, logs
from pipeline.config.load import load
from pipeline.errors import (
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_SIGINT,
    EXIT_USAGE,
    MissingExtraError,
    SeedmqError,
)
from pipeline.stopping import StopToken, install_signal_handlers

log = logging.getLogger(__name__)

_FOLDER = click.Path(file_okay=False, path_type=Path)
_EXTRAS = {
    "tensorflow": 'the learner needs TensorFlow: pip install "seedmq[learner]", without a GPU "seedmq[learner-cpu]"',
    "ale_py": 'Atari needs ale-py: pip install "seedmq[atari]"',
    "plotly": 'a report needs Plotly and Jinja2: pip install "seedmq[report]"',
}
_EXTRA_OF = {
    **dict.fromkeys(("tensorflow", "keras", "tensorboard"), "tensorflow"),
    "ale_py": "ale_py",
    **dict.fromkeys(("plotly", "jinja2"), "plotly"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Console entry point; exits with the codes of ``pipeline.errors``. What is written is the owner's only."""
    os.umask(0o077)  # for libraries and child processes too
    code = run_command(arguments)
    if "tensorflow" in sys.modules:
        _exit_at_once(code)
    sys.exit(code)


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; says errors in one line on stderr."""
    _append_working_directory()
    try:
        result = seedmq.main(args=arguments, prog_name="seedmq", standalone_mode=False)
        return result if isinstance(result, int) else EXIT_FINISHED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        return _fail(f"{error.format_message()}{hint}", EXIT_USAGE)
    except click.Abort:
        return EXIT_SIGINT
    except ModuleNotFoundError as error:
        missing = _missing_extra(error)
        return _crash() if missing is None else _fail(str(missing), missing.exit_code)
    except SeedmqError as error:
        log.debug("failed", exc_info=True)
        return _fail(str(error), error.exit_code)
    except Exception:  # noqa: BLE001 - logged with its traceback, and the exit code says it
        return _crash()


def _exit_at_once(code: int) -> NoReturn:
    """Ends the process without taking TensorFlow apart: all is written, and whoever stops a run would wait seconds."""
    logging.shutdown()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads any more
        code = code or EXIT_FAILED
    os._exit(code)


def _append_working_directory() -> None:
    """Lets a user's own environment and network import, here and in child processes."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, here])


def _fail(message: str, code: int) -> int:
    words = logs.printable(" ".join(message.split()))
    if logs.current().style == "json":
        log.error("%s", words)
    else:
        click.echo(f"error: {words}", err=True)
    return code


def _crash() -> int:
    error = sys.exception()
    log.critical("unexpected %s", type(error).__name__, exc_info=True)
    return _fail(f"unexpected {type(error).__name__}: {error}", EXIT_FAILED)


def _missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
    return None if extra is None else MissingExtraError(f"{error.name} is not installed: {_EXTRAS[extra]}")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="seedmq", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", count=True, help="Log debug messages too; twice: TensorFlow's notes.")
@click.option("-q", "--quiet", count=True, help="Log warnings and errors only.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--run-id", default=logs.NO_RUN, envvar="SEEDMQ_RUN", metavar="NAME", help="The run, in log lines.")
@click.pass_context
def seedmq(context: click.Context, verbose: int, quiet: int, log_format: logs.Style, run_id: str) -> None:
    """SEED RL as a message-queue pipeline: ZeroMQ, Redis, central batched inference."""
    component = context.invoked_subcommand or "seedmq"
    logs.configure(logs.Settings(component, run_id or logs.NO_RUN, verbose - quiet, log_format))


def _settings(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set section.key; may stand several times."
    )(_insecure(command))


def _insecure(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--insecure`` is short for ``--set security.insecure=true``."""

    @click.option("--insecure", is_flag=True, help="Allow endpoints off the loopback without keys.")
    @functools.wraps(command)
    def with_flag(*arguments: Any, insecure: bool, overrides: tuple[str, ...], **options: Any) -> Any:
        said = ("security.insecure=true",) if insecure else ()
        return command(*arguments, overrides=(*overrides, *said), **options)

    return with_flag


def _component(command: Callable[..., Any]) -> Callable[..., Any]:
    config = click.option("--config", "source", required=True, metavar="CONFIG", help="A YAML file or a preset.")
    return config(_settings(command))


def _until_stopped(serve: Callable[[StopToken], int]) -> int:
    """Runs a component until it ends or a signal drains it; then the code is 128 + signal, unless it failed."""
    stop = StopToken()
    install_signal_handlers(stop)
    code = serve(stop)
    return 128 + stop.signal if code == EXIT_FINISHED and stop.signal is not None else code


@seedmq.command()
@click.argument("config")
@_settings
@click.option("--run-dir", type=_FOLDER, help="Where the run is kept; default runs/<config>-<UTC time>.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint, under the run's own configuration.")
def run(config: str, overrides: tuple[str, ...], run_dir: Path | None, resume: bool) -> int:
    """Train on this machine: store, broker, learner and workers.

    CONFIG is a YAML file, a preset, or with --resume the directory of the run to go on with.
    """
    from pipeline.beginning import begin

    beginning = begin(config, overrides, run_dir, resume)
    from pipeline.launch import run as launcher

    return launcher.run(beginning)


@seedmq.command()
@_component
def store(source: str, overrides: tuple[str, ...]) -> int:
    """Run an embedded Redis-protocol server."""
    loaded = load(source, overrides)
    from pipeline.launch import store as launcher

    return _until_stopped(lambda stop: launcher.serve(loaded.config, stop))


@seedmq.command()
@_component
def broker(source: str, overrides: tuple[str, ...]) -> int:
    """Run the broker between workers and learners."""
    loaded = load(source, overrides)
    from broker import service

    return _until_stopped(lambda stop: service.serve(loaded.config, stop))


@seedmq.command()
@_component
@click.option("--run-dir", type=_FOLDER, help="Where checkpoints, events and summary are kept.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint, under the run's own configuration.")
def learner(source: str, overrides: tuple[str, ...], run_dir: Path | None, resume: bool) -> int:
    """Run a learner: inference and training."""
    from pipeline.beginning import begin

    beginning = begin(source, overrides, run_dir, resume)
    from learner import start

    start.prepare(beginning.loaded.config)
    from learner import service

    return _until_stopped(lambda stop: service.serve(beginning, stop))


@seedmq.command()
@_component
def worker(source: str, overrides: tuple[str, ...]) -> int:
    """Run a worker: environments and no model."""
    loaded = load(source, overrides)
    from pipeline.reaping import adopting
    from workers import supervisor

    with adopting():
        return _until_stopped(lambda stop: supervisor.supervise(loaded.config, stop))


@seedmq.command()
@click.argument("run_dir", type=_FOLDER, required=False)
@click.option("--broker", "endpoint", metavar="ENDPOINT", help="Ask a broker instead of reading a run directory.")
@click.option("--keys", metavar="DIR", help="Directory of CURVE keys for --broker.")
@click.option("--insecure", is_flag=True, help="Ask a --broker off the loopback without keys.")
@click.option("--watch", is_flag=True, help="Go on until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(  # noqa: PLR0917
    run_dir: Path | None, endpoint: str | None, keys: str | None, insecure: bool, watch: bool, as_json: bool
) -> int:
    """Show who waits for whom, rates, depths and the ledger: of RUN_DIR, a broker, or the newest run under runs/."""
    if run_dir is not None and endpoint is not None:
        raise click.UsageError("give RUN_DIR or --broker ENDPOINT, not both")
    from pipeline.config.tree import SecuritySection
    from pipeline.launch import status as launcher

    return launcher.show(run_dir, endpoint, SecuritySection(keys=keys, insecure=insecure), watch, as_json)


@seedmq.command()
@click.argument("run_dir", type=_FOLDER)
@click.argument("assignments", nargs=-1, required=True, metavar="KEY=VALUE...")
def adjust(run_dir: Path, assignments: tuple[str, ...]) -> int:
    """Change live settings of a run that goes on, such as replay.samples_per_insert=8."""
    from pipeline.launch import adjust as launcher

    return launcher.adjust(run_dir, assignments)


def _or_newest(run_dir: Path | None) -> Path:
    """The directory that was named, or that of the newest run, which is then said."""
    from pipeline.run_dir import RunDirectory

    if run_dir is None:
        run_dir = RunDirectory.newest().path
        log.info("of the newest run, %s", run_dir)
    return run_dir


@seedmq.command("eval")
@click.argument("run_dir", type=_FOLDER, required=False)
@click.option("--episodes", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--mode", type=click.Choice(["greedy", "sample"]), default="greedy", show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True)
@click.option(
    "--max-steps", type=click.IntRange(min=1), default=100_000, show_default=True, help="Fail at a longer episode."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(  # noqa: PLR0917
    run_dir: Path | None, episodes: int, mode: str, seed: int, max_steps: int, as_json: bool
) -> int:
    """Play episodes with the newest checkpoint of RUN_DIR, or of the newest run under runs/."""
    from pipeline.launch import evaluate as launcher

    return launcher.evaluate(_or_newest(run_dir), episodes, mode, seed, as_json, max_steps=max_steps)


@seedmq.command()
@click.argument("run_dir", type=_FOLDER, required=False)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE.html", help="Replaced if there.")
def report(run_dir: Path | None, out: Path) -> int:
    """Write one HTML page about RUN_DIR, or the newest run under runs/: figures, plots, ledger, faults, settings.

    It needs no network.
    """
    from pipeline.launch.report.page import report as write

    return write(_or_newest(run_dir), out)


@seedmq.command()
@click.argument("name")
@click.option("--metric", help="Only this one.")
@click.option("--baseline", help="Only this one.")
@click.option("--seconds", type=click.FloatRange(min=0.1), help="Of each measurement; default: as the benchmark needs.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(  # noqa: PLR0917
    name: str, metric: str | None, baseline: str | None, seconds: float | None, repeats: int, as_json: bool
) -> int:
    """Measure a part side by side with its baselines (in a checkout)."""
    from pipeline.launch import bench as launcher

    return launcher.bench(name, metric, baseline, seconds, repeats, as_json)


@seedmq.group()
def config() -> None:
    """Show or check a configuration."""


@config.command()
@click.argument("config")
@_settings
def show(config: str, overrides: tuple[str, ...]) -> None:
    """Print the resolved configuration, each value with its origin."""
    from pipeline.config.load import show as render

    click.echo(render(load(config, overrides)), nl=False)


@config.command()
@click.argument("config")
@_settings
def check(config: str, overrides: tuple[str, ...]) -> None:
    """Say whether a run can begin with a configuration, and which settings have no effect in it."""
    loaded = load(config, overrides)
    from pipeline.launch import check as launcher

    launcher.check(loaded)


@seedmq.command()
@click.argument("directory", type=_FOLDER)
@click.option("--client", metavar="NAME", help="Add a client pair to a fleet that stands, for DIRECTORY/clients/NAME.")
def keys(directory: Path, client: str | None) -> None:
    """Write a new fleet's CURVE keys, or one more client pair that can be revoked by itself."""
    from pipeline.keys import write_client, write_keys

    if client is None:
        write_keys(directory)
    written = directory if client is None else write_client(directory, client)
    for path in sorted(path for path in written.rglob("*") if path.is_file()):
        click.echo(f"wrote {path}")


@seedmq.command()
def envs() -> None:
    """List environment families: installed, or how to install them."""
    from pipeline import families

    for line in families.describe():
        click.echo(line)


if __name__ == "__main__":
    main()
