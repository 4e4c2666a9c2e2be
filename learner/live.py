"""Settings that change while a run goes on: ``live.yaml`` in the run directory, laid over the run's configuration.

`seedmq adjust` writes the file; here it is looked at, checked as any other source of settings, and handed to whom it
concerns. What is marked live in the configuration tree and has no setter in this run changes nothing, with a warning.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.config.live import adjusted
from pipeline.config.load import DEFAULT, RUN, value_of
from pipeline.config.tree import Config
from pipeline.errors import ConfigError

log = logging.getLogger(__name__)


class LiveSettings:
    """Takes what changed. One thread at a time.

    Args:
        config: The run's configuration.
        file: ``live.yaml``; it may come, change and go.
        setters: Dotted key -> what takes a new value.

    Attributes:
        values: Dotted key -> the value in force.
    """

    def __init__(self, config: Config, file: Path, setters: Mapping[str, Callable[[Any], None]]) -> None:
        self._config = config
        self._file = file
        self._setters = setters
        self._seen: tuple[int, int, int] | int | None = None  # of the file, or the error number of a look
        self.values: dict[str, Any] = {key: value_of(config, key) for key in setters}

    def look(self) -> None:
        """Takes the file's values where it has changed; whatever cannot be taken is a warning."""
        try:
            seen = _stamp(self._file)
            if seen == self._seen:
                return
            self._seen = seen
            loaded = adjusted(self._config, self._file)
        except OSError as error:
            if self._seen != error.errno:
                log.warning("cannot look at %s: %s: the values in force stay", self._file, error.strerror or error)
            self._seen = error.errno
            return
        except ConfigError as error:
            log.warning("%s: the values in force stay", error)
            return
        for key, take in self._setters.items():
            old, new = self.values[key], value_of(loaded.config, key)
            if new != old:
                take(new)
                self.values[key] = new
                log.info("%s: %s -> %s (%s)", key, old, new, self._file.name)
        for key, origin in loaded.origins.items():
            if origin not in (RUN, DEFAULT) and key not in self._setters:
                log.warning("%s in %s changes nothing: this run does not use it", key, self._file)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """Differs when the file or its permissions have changed; None where there is none.

    Raises:
        OSError: nobody can tell.
    """
    try:
        stat = os.stat(file)
    except FileNotFoundError:
        return None
    return stat.st_ctime_ns, stat.st_ino, stat.st_size
