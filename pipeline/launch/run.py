"""``seedmq run``: store, broker, learner and workers as processes of this machine, on sockets in a private folder.

Start order: store (waited for), broker, learner, workers; workers and learner find each other whoever is first.

Stop order, after the first signal, a limit of the run, or a failure:

1. the learner gets SIGTERM, alone: it dismisses the workers, which deliver what they took, say BYE and exit 0; it
   trains on or stores what arrived, writes checkpoint and summary, and exits;
2. workers that it could not reach get SIGTERM;
3. the broker gets SIGTERM;
4. the store is stopped;
5. what outlives ``run.drain_timeout_seconds`` is killed.

The second signal kills everything at once. What is decided stands in ``processes``; here it is done.
"""

from __future__ import annotations

import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from pipeline import logs
from pipeline.beginning import Beginning
from pipeline.config.effects import without_effect
from pipeline.config.load import DEFAULT, LAUNCHED, NAME, Loaded, child_environment, dump
from pipeline.config.metrics import MetricsSection
from pipeline.config.tree import Config, WorkersSection
from pipeline.elapsed import elapsed_seconds, reached
from pipeline.errors import EXIT_FINISHED, EXIT_UNREACHABLE, EXIT_USAGE, ConfigError, SeedmqError
from pipeline.files import require_for_workers
from pipeline.folders import private_folder, sweep
from pipeline.launch.children import Children, error_line, last_logged
from pipeline.launch.processes import (
    BROKER,
    LEARNER,
    STORE,
    Action,
    Delay,
    Finish,
    Kill,
    Start,
    Supervisor,
    Terminate,
    words,
)
from pipeline.launch.progress import Progress, ending
from pipeline.launch.signals import Signals
from pipeline.launch.status_text import bottleneck_lines
from pipeline.reaping import adopting
from pipeline.run_dir import RunDirectory, write_json, write_text
from pipeline.store.embedded import EmbeddedServer

TICK_SECONDS = 0.25
MARGIN_SECONDS = 1.0
"""A learner that uses the whole of ``run.drain_timeout_seconds`` still ends by itself."""
LONGEST_FOLDER_BYTES = 70
"""Of 107 that a socket path may have."""
TELLING_SECONDS = 5.0
"""Of a shorter run, which mostly built its graphs, no bottleneck is told."""
_SHOWN_LINES = 8


def run(beginning: Beginning) -> int:
    """A whole run on this machine; belongs to the main thread.

    Args:
        beginning: what is to be run, and whether it goes on from the newest checkpoint.

    Returns:
        The exit code: 0 solved or at its limit, 2 and 4 from a component, 3 a component failed for good, 130 or 143
        after a signal and a clean drain.

    Raises:
        ConfigError: the run directory exists, or cannot be gone on with; a package is missing; too few files may be
            open.
        StoreError: the embedded store does not start.
    """
    loaded, resume = beginning.loaded, beginning.resume
    require_for_workers("run", loaded.config)  # here, and not in a log: its processes have the same limit
    if resume and beginning.run_dir is not None:
        _check_time(loaded.config, RunDirectory(beginning.run_dir))  # what is refused changes nothing
    with Signals() as signals, _sockets_folder() as folder, adopting(), beginning.of_run() as directory:
        if resume:
            click.echo("\n".join(_going_on(beginning, directory)))
        for line in without_effect(loaded):
            click.echo(f"note: {line}")
        code = _launched(loaded, directory, resume, signals, folder)
        if code == EXIT_USAGE and not resume:
            directory.discard()
        return code


def _launched(loaded: Loaded, directory: RunDirectory, resume: bool, signals: Signals, folder: Path) -> int:
    """The run in its directory; a new one that came to nothing is removed where this raises."""
    with _discarded_unless(directory, resume):
        logs.identify(run_id=directory.name_run())
        embedded = loaded.config.store.backend == "redis" and loaded.config.store.url is None
        store = EmbeddedServer(folder / "store") if embedded else None
        config = _resolved(loaded, folder, store)
        endpoint = config.broker.connect or config.broker.bind
        write_json(directory.endpoints, {"broker": endpoint, "keys": config.security.keys, "pid": os.getpid()})
        children = Children(
            _commands(config, loaded.file.name, directory, folder),
            _environment(folder),
            directory.logs,
            store,
            config.run.log_bytes,
        )
        drain_seconds = config.run.drain_timeout_seconds + MARGIN_SECONDS
        supervisor = Supervisor(_budgets(config, store is not None), drain_seconds, _jitter, resume)
        launch = _Launch(config, directory, children, supervisor)
        try:
            return launch.until_finished(signals)
        finally:
            launch.close()


@contextmanager
def _discarded_unless(directory: RunDirectory, resume: bool) -> Iterator[None]:
    """An error on the way to the first process leaves no directory."""
    try:
        yield
    except SeedmqError:
        if not resume:
            directory.discard()
        raise


class _Launch:
    """Does what the supervisor says, tells it what happened, and shows both."""

    def __init__(self, config: Config, directory: RunDirectory, children: Children, supervisor: Supervisor) -> None:
        self._directory = directory
        self._children = children
        self._supervisor = supervisor
        self._progress = Progress(config.run)
        self._began = time.monotonic()
        self._old_summary = _stamp(directory.summary)

    def until_finished(self, signals: Signals) -> int:
        """The loop: waits for signals, exits and deadlines, and shows the progress."""
        early = signals.take()
        actions = self._supervisor.signalled(early[0], self._began) if early else self._supervisor.begin(self._began)
        while (finish := self._do(actions)) is None:
            self._show()
            signals.wait(self._patience())
            now = time.monotonic()
            actions = self._signalled(signals.take(), now)
            for name, code in self._children.exits():
                actions += self._supervisor.exited(name, code, now)
            actions += self._supervisor.tick(now)
        self._progress.close()
        self._say_end(finish)
        return finish.code

    def close(self) -> None:
        """Kills what still runs: nothing, unless an error came between."""
        self._progress.close()
        self._children.close()

    def _show(self) -> None:
        summary = self._summary()
        self._supervisor.trains = self._supervisor.trains or _has_trained(summary)
        doing = "" if summary is not None else last_logged(self._children.last_words(LEARNER, _SHOWN_LINES))
        self._progress.update(summary, self._supervisor.states(), time.monotonic() - self._began, doing)

    def _patience(self) -> float:
        deadline = self._supervisor.next_deadline()
        return TICK_SECONDS if deadline is None else min(TICK_SECONDS, max(0.0, deadline - time.monotonic()))

    def _signalled(self, numbers: list[int], now: float) -> list[Action]:
        actions: list[Action] = []
        for number in numbers:
            first = self._supervisor.signal is None
            self._progress.say("stopping in order; a second signal kills" if first else "killed by the second signal")
            actions += self._supervisor.signalled(number, now)
        return actions

    def _do(self, actions: list[Action]) -> Finish | None:
        for action in actions:
            if isinstance(action, Finish):
                return action
            if isinstance(action, Start):
                self._children.start(action.component, *(["--resume"] if action.resume else []))
            elif isinstance(action, Delay) and action.code != EXIT_FINISHED:
                self._say_failure(action.component, action.code, f"starts again in {action.seconds:.1f} s")
            elif isinstance(action, Terminate):
                self._children.terminate(action.component)
            elif isinstance(action, Kill):
                self._children.kill(action.component)
        return None

    def _summary(self) -> dict[str, Any] | None:
        """What this run's learner wrote; None before it did."""
        return None if _stamp(self._directory.summary) == self._old_summary else self._directory.read_summary()

    def _say_failure(self, component: str, code: int, then: str) -> None:
        lines = self._children.last_words(component, _SHOWN_LINES)
        self._progress.say("\n".join([f"{component} ended with {words(code)}, {then}", *(f"    {x}" for x in lines)]))

    def _say_end(self, finish: Finish) -> None:
        seconds, summary = time.monotonic() - self._began, self._summary()
        if finish.culprit is not None:
            self._progress.say("\n".join(self._explained(finish, finish.culprit)))
            if summary is not None:  # the learner was told to stop, or could say nothing
                summary["stop_reason"] = "error"
                self._rewrite(summary)
        click.echo(ending(summary, seconds))
        seconds_trained = 0.0 if summary is None else summary.get("seconds") or 0.0
        # After a failure advice on speed would lead away from it.
        if summary is not None and finish.culprit is None and seconds_trained >= TELLING_SECONDS:
            click.echo("; ".join(bottleneck_lines(summary.get("bottleneck"))) or "bottleneck: not known")
        if finish.code != EXIT_USAGE or self._directory.trained:
            click.echo(f"run directory: {self._directory.path}")
        path = shlex.quote(str(self._directory.path))
        if _has_trained(summary):
            click.echo(f"evaluate it:   seedmq eval {path}")
        if _has_trained(summary) and (how := _goes_on(finish, summary)) is not None:
            click.echo(f"go on with it: seedmq run {path} --resume{how}")

    def _rewrite(self, summary: dict[str, Any]) -> None:
        try:
            write_json(self._directory.summary, summary)
        except OSError as error:  # what ended the run may be a full disk
            self._progress.say(f"{self._directory.summary} stays as it is: {error.strerror}")

    def _explained(self, finish: Finish, culprit: str) -> list[str]:
        """One line for bad configuration and the like; for a crash also what the log ends with."""
        lines = self._children.last_words(culprit, _SHOWN_LINES)
        cause = error_line(lines)
        if cause is not None and finish.code in (EXIT_USAGE, EXIT_UNREACHABLE):
            return [f"error: {cause}"]
        log = self._directory.logs / f"{culprit}.log"
        return [*(f"    {text}" for text in lines), f"error: {finish.reason}: {cause or 'no message'} (see {log})"]


def _going_on(beginning: Beginning, directory: RunDirectory) -> list[str]:
    """Which run goes on, and what has changed since it ran last."""
    changes = [f"    {difference}" for difference in beginning.differences]
    head = f"going on with {directory.path} ({beginning.loaded.file.name})"
    return [f"{head}, changed:" if changes else head, *changes]


def _check_time(config: Config, directory: RunDirectory) -> None:
    """Before anything is started.

    Raises:
        ConfigError: the run that is to be gone on with has had all of its time.
    """
    limit, elapsed = config.run.max_seconds, elapsed_seconds(directory.read_summary())
    if limit is not None and elapsed >= limit:
        raise ConfigError(reached(limit, elapsed))


def _goes_on(finish: Finish, summary: dict[str, Any] | None) -> str | None:
    """What a resume needs to be told beside the directory; None for a run that is solved."""
    if finish.code != EXIT_FINISHED:
        return ""
    reason = None if summary is None else summary.get("stop_reason")
    return f" --set run.{reason}=null" if reason in ("max_seconds", "max_steps") else None


def _has_trained(summary: dict[str, Any] | None) -> bool:
    """Whether there was an update."""
    return summary is not None and (summary.get("updates") or 0) > 0


def _budgets(config: Config, embedded_store: bool) -> dict[str, int]:
    """Restart budgets by component, in the order of the start."""
    services = [STORE] if embedded_store else []
    services += [BROKER] if config.broker.placement == "process" else []
    budgets = dict.fromkeys([*services, LEARNER], config.learner.restart_budget)
    return budgets | dict.fromkeys(_workers(config), config.workers.restart_budget)


def _resolved(loaded: Loaded, folder: Path, embedded_store: EmbeddedServer | None) -> Config:
    """The children's configuration: private sockets wherever the user set no endpoint."""
    config = loaded.config
    broker: dict[str, Any] = {}
    if loaded.origins["broker.bind"] == DEFAULT:
        broker |= {"bind": f"ipc://{folder}/broker", "connect": None}
    if loaded.origins["broker.learner_bind"] == DEFAULT:
        broker |= {"learner_bind": f"ipc://{folder}/learner", "learner_connect": None}
    store: dict[str, Any] = {}
    if embedded_store is not None:
        store = {"url": embedded_store.url, "username": None, "password_file": None}
    return config.model_copy(
        update={"broker": config.broker.model_copy(update=broker), "store": config.store.model_copy(update=store)}
    )


def _commands(config: Config, name: str, directory: RunDirectory, folder: Path) -> dict[str, list[str]]:
    """component -> command line; writes the resolved configurations that they read into ``folder``."""
    base = [sys.executable, "-m", "pipeline.cli", *logs.current().arguments()]
    workers = _workers(config)
    files = {
        component: _written(
            folder / f"{component}.yaml",
            config.model_copy(update={"workers": workers.get(component, config.workers), "metrics": section}),
            name,
        )
        for component, section in _metrics(config).items()
    }
    commands = {
        LEARNER: [*base, "learner", "--config", files[LEARNER], "--run-dir", str(directory.path)],
        BROKER: [*base, "broker", "--config", files[BROKER]],
    }
    return commands | {name: [*base, "worker", "--config", files[name]] for name in workers}


def _metrics(config: Config) -> dict[str, MetricsSection]:
    """component -> where it serves its metrics: on ports one after the other, in this order.

    Raises:
        ConfigError: there are not so many ports.
    """
    try:
        return {name: config.metrics.moved(by) for by, name in enumerate([LEARNER, BROKER, *_workers(config)])}
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _workers(config: Config) -> dict[str, WorkersSection]:
    """component -> its section: the workers that train, and those that evaluate."""
    prefix = f"{config.workers.id}-" if config.workers.id else ""
    training: dict[str, dict[str, Any]] = {f"worker-{i}": {} for i in range(config.workers.count)}
    evaluating = {
        f"eval-{i}": {"mode": "eval", "envs": config.evaluation.envs, "groups": 1}
        for i in range(config.evaluation.workers)
    }
    return {
        name: config.workers.model_copy(update={"id": f"{prefix}{name}", **update})
        for name, update in (training | evaluating).items()
    }


def _environment(folder: Path) -> dict[str, str]:
    """Of the children: their temporary files go with ``folder``, also those of a child that was killed."""
    temporary = folder / "tmp"
    temporary.mkdir(mode=0o700)
    return {**child_environment(os.environ), "TMPDIR": str(temporary)}


def _written(path: Path, config: Config, name: str) -> str:
    write_text(path, dump(config, {NAME: name, LAUNCHED: True}))
    return str(path)


@contextmanager
def _sockets_folder() -> Iterator[Path]:
    """A private folder (0700) whose path is short enough for sockets in it; removed at the end.

    What runs before left there because they were killed is removed first.

    Raises:
        ConfigError: it cannot be made.
    """
    place = Path(tempfile.gettempdir())
    if len(os.fsencode(place)) > LONGEST_FOLDER_BYTES:
        place = Path("/tmp")
    sweep(place)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(private_folder(place=place))
        except OSError as error:
            raise ConfigError(f"cannot make a folder for sockets in {place}: {error.strerror or error}") from error
        yield folder


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def _jitter() -> float:
    return random.uniform(0.5, 1.0)
