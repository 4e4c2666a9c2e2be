"""Live settings: what ``seedmq adjust`` changes while a run goes on, kept in the run's ``live.yaml``."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config import aliases, schema
from pipeline.config.load import (
    FILE,
    RUN,
    Entries,
    File,
    Loaded,
    flatten,
    lay,
    lines,
    origins_of,
    override_entries,
    read,
    validated,
    value_of,
)
from pipeline.config.tree import Config
from pipeline.errors import ConfigError

ADJUST = "adjust"


def adjusted(config: Config, file: Path, assignments: Sequence[str] = ()) -> Loaded:
    """What a run's configuration becomes by its live settings.

    Args:
        config: the run's.
        file: its ``live.yaml``; where there is none, nothing was adjusted.
        assignments: ``section.key=value`` of live settings, laid over the file.

    Returns:
        Origins are ``RUN``, ``FILE`` or ``ADJUST``.

    Raises:
        ConfigError: unreadable file, a key that is no live setting, a wrong type, an impossible combination.
    """
    entries: Entries = {}
    lay(entries, [(path, value, RUN) for path, value in flatten(config.model_dump(by_alias=True), (), file)])
    changes = _live_entries(file)
    for path, _, _ in changes:
        _check_live(".".join(path), f"{file}: ", config)
    for assignment in assignments:
        _check_live(assignment.partition("=")[0].strip(), "", config)
        changes += override_entries(assignment, ADJUST, config.training.algorithm)
    lay(entries, changes)
    return Loaded(validated(entries, file), origins_of(entries), File(file, "", changes, file.stem))


def dump_live(loaded: Loaded) -> str:
    """The YAML of ``live.yaml`` for what ``adjusted`` gave."""
    tree: dict[str, Any] = {}
    for key in schema.live_keys():
        if loaded.origins[key] in (FILE, ADJUST):
            section, _, name = key.rpartition(".")
            node = tree
            for part in section.split("."):
                node = node.setdefault(part, {})
            node[name] = value_of(loaded.config, key)
    return "".join(f"{line}\n" for line, _ in lines(tree, ()))


def _live_entries(file: Path) -> list[tuple[schema.Path, Any, str]]:
    """Of ``live.yaml``, which may be missing. Only of a regular file: to open a pipe waits for whoever writes to it."""
    try:
        regular = stat.S_ISREG(file.stat().st_mode)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    if not regular:
        raise ConfigError(f"cannot read {file}: not a regular file")
    return read(file).entries


def _check_live(key: str, where: str, config: Config) -> None:
    if key not in schema.live_keys():
        known = schema.leaf_at(tuple(key.split("."))) is not None
        suggestion = aliases.suggest(key, config.training.algorithm)
        problem = f"{key} does not change while a run goes on" if known else f"unknown key {key}{suggestion}"
        raise ConfigError(f"{where}{problem}; live settings: {', '.join(schema.live_keys())}")
