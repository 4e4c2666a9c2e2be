"""A run's directory: what is kept of a run.

::

    config.yaml      the configuration as the user resolved it, with its name, versions, and the machine
    source.json      what that was resolved from: the file as it was given, and the keys that were said anywhere
    live.yaml        settings changed while the run goes on (by `seedmq adjust`)
    summary.json     figures, rewritten at every log interval and at the end (by the learner)
    endpoints.json   where `seedmq status` finds the broker
    run_id           names the run to others; locked by its learner while that runs
    launcher         locked by `seedmq run` while that runs
    checkpoints/     weights, optimizer, counters (by the learner)
    events/          TensorBoard
    logs/            output of each process

Everything is readable by its owner only.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import platform
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel

from pipeline.config.load import NAME, dump, load
from pipeline.config.resumed import Start
from pipeline.config.tree import Config
from pipeline.errors import ConfigError

RUNS = Path("runs")
MAX_JSON_BYTES = 16 * 2**20
_PACKAGES = ("seedmq", "tensorflow", "tensorflow-cpu", "keras", "numpy", "gymnasium", "ale-py", "pyzmq", "redis")
_SAME_ON_RESUME = (
    "environment.id",
    "environment.kwargs",
    "environment.wrappers",
    "environment.frame_stack",
    "environment.frame_skip",
    "environment.stack_padding",
    "network",
    "training.algorithm",
    "training.unroll_length",
    "training.optimizer.name",
    "vtrace.normalize_values",
    "r2d2.burn_in",
)


class RunDirectory:
    """Paths of a run directory, and atomic reading and writing of its small files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.source = path / "source.json"
        self.live = path / "live.yaml"
        self.summary = path / "summary.json"
        self.endpoints = path / "endpoints.json"
        self.run_id = path / "run_id"
        self.launcher = path / "launcher"
        self.checkpoints = path / "checkpoints"
        self.events = path / "events"
        self.logs = path / "logs"

    @classmethod
    def create(
        cls, path: Path | None, name: str, config: Config, resume: bool = False, start: Start | None = None
    ) -> RunDirectory:
        """Makes a new directory with ``config.yaml`` in it, or opens one to go on with.

        Args:
            path: where; None makes ``runs/<name>-<UTC time>``, a new one in any case.
            name: name of the configuration.
            config: as the user resolved it.
            resume: ``path`` exists and holds a run of the same environment, network and algorithm.
            start: what ``config`` was resolved from.

        Raises:
            ConfigError: without ``resume``: it exists and holds something, or cannot be made; with it: it does not
                exist, a learner runs in it, or it holds a run of another environment, network or algorithm.
        """
        try:
            directory = cls._resumed(path, config) if resume else cls(_new(path) if path else _new_default(name))
            for folder in (directory.checkpoints, directory.events, directory.logs):
                folder.mkdir(mode=0o700, exist_ok=True)
            write_text(directory.config, dump(config, {NAME: name, **versions(), "machine": machine()}))
            if start is not None:
                write_json(directory.source, start.to_json())
        except OSError as error:
            where = path if path else RUNS
            raise ConfigError(f"cannot write the run directory {where}: {error.strerror or error}") from error
        return directory

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing one.

        Raises:
            ConfigError: there is no run in ``path``.
        """
        directory = cls(path)
        if not path.is_dir():
            raise ConfigError(f"no run directory {path}")
        if not directory.config.is_file():
            raise ConfigError(f"{path} holds no run: {directory.config.name} is missing")
        return directory

    @classmethod
    def newest(cls, way_out: str = "name a run directory") -> RunDirectory:
        """The newest run under ``runs/``.

        Args:
            way_out: what an error says that the user can do.

        Raises:
            ConfigError: there is none.
        """
        found = list(RUNS.glob("*/config.yaml"))
        if not found:
            raise ConfigError(f"no run under {RUNS}/: {way_out}")
        return cls(max(found, key=lambda path: (path.stat().st_mtime_ns, path)).parent)

    @classmethod
    def _resumed(cls, path: Path | None, config: Config) -> RunDirectory:
        if path is None:
            raise ConfigError("--resume needs the run to go on with: seedmq run RUN_DIR --resume")
        directory = cls.open(path)
        directory.check_same(config)
        with directory.locked():  # before anything is written into the directory of a run that lives
            pass
        summary = directory.read_summary()
        if summary is not None:
            write_json(directory.summary, {**summary, "stop_reason": None})
        return directory

    def check_same(self, config: Config) -> None:
        """Whether the run can be gone on with under this configuration.

        Raises:
            ConfigError: it is of another environment, network or algorithm.
        """
        before = self.read_config()
        for key in _SAME_ON_RESUME:
            was, now = _value(before, key), _value(config, key)
            if was != now:
                name, then, today = _first_difference(key, was, now)
                raise ConfigError(
                    f"{name} = {today!r}: the run in {self.path} has {then!r}, which cannot change within a run: leave "
                    f"it as it is, or start a new run in another --run-dir (under docker-compose and Kubernetes: "
                    f"SEEDMQ_RUN=NAME)"
                )

    @contextmanager
    def locked(self) -> Iterator[str]:
        """Makes this process the run's only learner; the lock ends with the block, or with the process however it ends.

        Yields:
            The run's id, the same whenever it is gone on with. A copy of the directory, whose lock is another one, has
            another id: it is told by the inode.

        Raises:
            ConfigError: another learner runs in this directory, or it cannot be locked.
        """
        with self._only(self.run_id, "a learner") as descriptor:
            run = os.read(descriptor, 64).decode(errors="replace")
            if not run:
                run = uuid.uuid4().hex
                os.write(descriptor, run.encode())
            yield f"{run}-{os.fstat(descriptor).st_ino:x}"

    @contextmanager
    def launched(self) -> Iterator[None]:
        """Makes this process the run's only ``seedmq run``, also while its learner starts; ends as ``locked`` does.

        Raises:
            ConfigError: another one runs in this directory, or it cannot be locked.
        """
        with self._only(self.launcher, "`seedmq run`"):
            yield

    @contextmanager
    def _only(self, file: Path, who: str) -> Iterator[int]:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot lock {file}: {error.strerror or error}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    f"{who} runs in {self.path} already: end it first, or choose another --run-dir"
                ) from error
            yield descriptor
        finally:
            os.close(descriptor)

    @property
    def trained(self) -> bool:
        """Whether there is anything to go on with, to evaluate or to report on."""
        saved = self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        return saved or self.summary.exists()

    def discard(self) -> None:
        """Removes a directory in which nothing was trained, and ``runs/`` if it stood alone in there."""
        if self.trained:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.parent == RUNS:
            with suppress(OSError):  # others are in it
                RUNS.rmdir()

    def name_run(self) -> str:
        """The run's name in log lines: made here where there is none yet. Nobody else may be starting it meanwhile.

        Raises:
            OSError: it cannot be written.
        """
        run = self.run_id.read_text() if self.run_id.exists() else ""
        if not run:
            run = uuid.uuid4().hex
            write_text(self.run_id, run)
        return run

    def read_config(self) -> Config:
        """``config.yaml``, untouched by environment variables.

        Raises:
            ConfigError: unreadable.
        """
        return load(self.config, environ={}).config

    def read_start(self) -> Start | None:
        """``source.json``; None in the directory of an older version.

        Raises:
            ConfigError: it is there and unreadable.
        """
        data = read_json(self.source)
        return None if data is None else Start.from_json(data, self.source)

    def read_summary(self) -> dict[str, Any] | None:
        """``summary.json``; None before it is first written.

        Raises:
            ConfigError: it is there and unreadable.
        """
        return read_json(self.summary)

    def read_endpoints(self) -> dict[str, Any] | None:
        """``endpoints.json``: ``broker`` and ``keys``; None where the run never served workers.

        Raises:
            ConfigError: it is there and unreadable.
        """
        return read_json(self.endpoints)


def versions() -> dict[str, str]:
    """Versions of Python and the main packages that are installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """What this machine is: processor, cores, memory, system; for reports, not to be parsed."""
    try:
        models = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    except OSError:  # no Linux
        models = []
    processor = models[0].partition(":")[2].strip() if models else platform.processor() or platform.machine()
    memory = psutil.virtual_memory().total / 2**30
    return f"{processor}, {os.cpu_count()} cores, {memory:.1f} GiB, {platform.platform(terse=True)}"


def write_json(path: Path, data: Any) -> None:
    """Writes JSON atomically: a reader sees the old text or the new one, never half of it.

    Raises:
        OSError: the disk refuses.
        ValueError: a value is not finite or no JSON.
    """
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON mapping; None where the file does not exist.

    Raises:
        ConfigError: unreadable, too large or no mapping.
    """
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(MAX_JSON_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"cannot read {path}: it holds no mapping")
    return data


def write_text(path: Path, text: str) -> None:
    """Writes a private file (0600) atomically: temporary file, then rename.

    Raises:
        OSError: the disk refuses.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _value(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _first_difference(key: str, was: Any, now: Any) -> tuple[str, Any, Any]:
    """Within a section, the key that differs and its values."""
    while isinstance(was, BaseModel):
        name = next(name for name in type(was).model_fields if getattr(was, name) != getattr(now, name))
        key, was, now = f"{key}.{name}", getattr(was, name), getattr(now, name)
    return key, was, now


def _new(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError as error:
        if not _holds_nothing(path):
            raise ConfigError(
                f"{path} exists: choose another --run-dir, or go on with it by seedmq run {path} --resume"
            ) from error
        path.chmod(0o700)
    return path


def _holds_nothing(path: Path) -> bool:
    """Empty, or what a start leaves that was killed, or found the disk full, before there was a ``config.yaml``."""
    if not path.is_dir():
        return False
    for entry in path.iterdir():
        begun = entry.name in ("checkpoints", "events", "logs") and entry.is_dir() and not any(entry.iterdir())
        if not begun and not entry.name.startswith(".config.yaml."):
            return False
    return True


def _new_default(name: str) -> Path:
    """Two runs of one second get two directories."""
    RUNS.mkdir(exist_ok=True)
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    for number in range(1, 1000):
        path = RUNS / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise ConfigError(f"{RUNS}/{stem} and 998 more exist")
