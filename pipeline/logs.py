"""Logging of a process: text or JSON lines on stderr, each with the component and the run it belongs to.

Loggers of seedmq speak from INFO on, those of libraries from WARNING on. A parent hands its settings to a child
process as command-line options (``Settings.arguments``) or as the ``Settings`` themselves.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import dataclass, replace
from typing import Literal

OURS = ("pipeline", "broker", "workers", "learner")
Style = Literal["text", "json"]
NO_RUN = "-"
_UUID, _SHORT = 32, 8  # characters of an id that nobody chose, and of those in text


@dataclass(frozen=True)
class Settings:
    """How this process logs."""

    component: str = "seedmq"
    run_id: str = NO_RUN
    verbosity: int = 0
    """Above 0: debug messages too, above 1 also what TensorFlow's C++ code notes; below 0: warnings only."""
    style: Style = "text"

    @property
    def level(self) -> int:
        if self.verbosity == 0:
            return logging.INFO
        return logging.DEBUG if self.verbosity > 0 else logging.WARNING

    def arguments(self) -> list[str]:
        """The options of ``seedmq`` that make a child process log alike."""
        flag = "-v" if self.verbosity > 0 else "-q"
        run = [] if self.run_id == NO_RUN else ["--run-id", self.run_id]
        return [flag] * abs(self.verbosity) + ["--log-format", self.style, *run]


class _State:
    settings = Settings()


def configure(settings: Settings) -> None:
    """Makes this process log as ``settings`` say; replaces what an earlier call set up."""
    _State.settings = settings
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if settings.style == "json" else _TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in OURS:
        logging.getLogger(name).setLevel(settings.level)
    logging.captureWarnings(True)


def is_ours(handler: logging.Handler) -> bool:
    """Whether ``configure`` made it."""
    return isinstance(handler.formatter, _TextFormatter | _JsonFormatter)


def current() -> Settings:
    """The settings in force, for a child process."""
    return _State.settings


def identify(component: str | None = None, run_id: str | None = None) -> None:
    """Says which component, which run the lines from now on belong to; what is None stays."""
    now = _State.settings
    _State.settings = replace(now, component=component or now.component, run_id=run_id or now.run_id)


def printable(text: str) -> str:
    """Without what a terminal would obey: some of it was said by others. Lines and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


class _TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO learner/RUN message``; its further lines are indented, so that none begins so."""

    def format(self, record: logging.LogRecord) -> str:
        settings = _State.settings
        run = settings.run_id[:_SHORT] if len(settings.run_id) == _UUID else settings.run_id
        head = f"{_utc(record)} {record.levelname} {settings.component}/{run} "
        return head + _message(self, record)


class _JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, component, run, logger, message and, with an exception, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        settings = _State.settings
        line = {
            "time": _utc(record),
            "level": record.levelname,
            "component": settings.component,
            "run": settings.run_id,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    said = record.getMessage()
    if record.exc_info:
        said = f"{said}\n{formatter.formatException(record.exc_info)}"
    return printable(said).replace("\n", "\n  ")


def _utc(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"
