"""What a command is to do: begin a run under a configuration, or go on with one under its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from pipeline.config.effects import without_effect
from pipeline.config.load import Loaded, load, read
from pipeline.config.resumed import Difference, Start, differences, resumed
from pipeline.errors import ConfigError
from pipeline.run_dir import RunDirectory

log = logging.getLogger(__name__)


class Beginning(NamedTuple):
    """A run that is to begin or to go on.

    Attributes:
        loaded: Its configuration.
        run_dir: Its directory; None: a new one under ``runs/``.
        resume: Whether it goes on where there is something to go on with.
        differences: Settings that have changed since it ran last.
    """

    loaded: Loaded
    run_dir: Path | None
    resume: bool
    differences: Sequence[Difference] = ()

    @contextmanager
    def of_run(self) -> Iterator[RunDirectory]:
        """The directory of ``seedmq run``, with the configuration in it; meanwhile no other one runs in it.

        Raises:
            ConfigError: as ``RunDirectory.create`` and ``RunDirectory.launched``.
        """
        with ExitStack() as held:
            if self.resume and self.run_dir is not None and holds_run(self.run_dir):
                held.enter_context(RunDirectory(self.run_dir).launched())  # before anything of a living run is touched
            directory = self._written(self.resume)
            if not self.resume:
                held.enter_context(directory.launched())
            yield directory

    def of_component(self) -> RunDirectory:
        """The directory of a learner, which ``seedmq run`` may have made, and in which no run may have begun yet.

        Raises:
            ConfigError: as ``RunDirectory.create``.
        """
        if not self.loaded.file.launched:
            for line in without_effect(self.loaded):
                log.warning("%s", line)
        if self.run_dir is None or not holds_run(self.run_dir):
            return self._written(False)
        if self.resume and not self.loaded.file.launched:
            for difference in self.differences:
                log.warning("changed since the run ran last: %s", difference)
            return self._written(True)
        return RunDirectory.open(self.run_dir)

    def _written(self, resume: bool) -> RunDirectory:
        start = Start.of(self.loaded)
        return RunDirectory.create(self.run_dir, self.loaded.file.name, self.loaded.config, resume, start)


def begin(source: str, overrides: Sequence[str], run_dir: Path | None, resume: bool) -> Beginning:
    """Loads what is to be run.

    Args:
        source: A configuration file, a preset, or the directory of a run to go on with.
        overrides: As for ``load``.
        run_dir: Where the run is kept. With ``resume`` a directory in which no run was begun yet is a new run's.
        resume: Go on under the run's own configuration; what is said here lies on top.

    Raises:
        ConfigError: as ``load``; ``source`` is a run and ``resume`` is not said, or ``run_dir`` is another one; what
            was changed cannot change within a run.
    """
    named: str | None = source
    if holds_run(Path(source)):
        if not resume:
            raise ConfigError(
                f"{source} holds a run: go on with it by --resume, or start one like it with {Path(source)}/config.yaml"
            )
        if run_dir is not None and run_dir.resolve() != Path(source).resolve():
            raise ConfigError(f"{source} is the run to go on with, --run-dir {run_dir} another directory: name one")
        named, run_dir = None, Path(source)
    if not resume or run_dir is None or not holds_run(run_dir) or (named is not None and read(named).launched):
        return Beginning(load(source, overrides), run_dir, resume)
    directory = RunDirectory.open(run_dir)
    loaded = resumed(directory.config, directory.read_start(), named, overrides)
    directory.check_same(loaded.config)
    return Beginning(loaded, run_dir, True, differences(directory.read_config(), loaded))


def holds_run(path: Path) -> bool:
    """Whether a run was begun in this directory."""
    return (path / "config.yaml").is_file()
