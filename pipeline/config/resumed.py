"""What a run goes on with: its own configuration, and on top of it what is said now.

Said now is what variables and ``--set`` say, and where a configuration file is named again, what has changed in it
since it was named last: so neither what was said at the start is forgotten, nor what was edited since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config import schema, yaml_text
from pipeline.config.load import (
    DEFAULT,
    FILE,
    NEVER_SHOWN,
    RUN,
    Entries,
    File,
    Loaded,
    lay,
    lay_said,
    origins_of,
    parsed,
    read,
    validated,
)
from pipeline.config.tree import Config
from pipeline.errors import ConfigError


class Start(NamedTuple):
    """What a run's configuration was resolved from, as its directory keeps it.

    Attributes:
        text: The configuration file as it was given.
        said: Dotted keys of what any source has said: the others are defaults.
    """

    text: str
    said: frozenset[str]

    @classmethod
    def of(cls, loaded: Loaded) -> Start:
        return cls(loaded.file.text, frozenset(key for key, origin in loaded.origins.items() if origin != DEFAULT))

    def to_json(self) -> dict[str, Any]:
        return {"file": self.text, "said": sorted(self.said)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], path: Path) -> Start:
        """The inverse of ``to_json``.

        Raises:
            ConfigError: it is something else; the message names ``path``.
        """
        text, said = data.get("file"), data.get("said")
        if not isinstance(text, str) or not isinstance(said, list) or not all(isinstance(key, str) for key in said):
            raise ConfigError(f"cannot read {path}: it does not say what the configuration was resolved from")
        return cls(text, frozenset(said))


class Difference(NamedTuple):
    """A setting that a resumed run has another value of than before."""

    key: str
    was: str
    now: str
    origin: str

    def __str__(self) -> str:
        return f"{self.key} = {self.now}, was {self.was} (from {self.origin})"


def resumed(
    own: Path,
    start: Start | None,
    source: str | Path | None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """The configuration that a run goes on with.

    Args:
        own: its ``config.yaml``.
        start: what that was resolved from; None where it is not known: then all that ``source`` says counts as new.
        source: a configuration file or preset that is named again; None where none is.
        overrides: as for ``load``.
        environ: as for ``load``.

    Returns:
        Origins are ``RUN`` for what the run said before.

    Raises:
        ConfigError: as ``load``; ``source`` is another configuration than the run was started with.
    """
    before = read(own)
    entries: Entries = {}
    lay(entries, [(path, value, _earlier(path, start)) for path, value, _ in before.entries])
    named = None if source is None else read(source)
    if named is not None:
        if named.name != before.name:
            raise ConfigError(
                f"{source}: the run in {own.parent} was started with {before.name}; go on with that, or start another "
                f"run in another --run-dir (under docker-compose and Kubernetes: SEEDMQ_RUN=NAME)"
            )
        lay(entries, _changed(named, start))
    lay_said(entries, overrides, environ)
    text = named.text if named is not None else start.text if start is not None else ""
    file = File(named.path if named is not None else own, text, before.entries, before.name)
    return Loaded(validated(entries, file.path), origins_of(entries), file)


def differences(before: Config, now: Loaded) -> list[Difference]:
    """Settings whose values differ, in the order of the tree; values that may be secret are not shown."""
    was, today = _leaves(before), _leaves(now.config)
    named = {FILE: f"file {now.source}"}
    origins = {key: named.get(origin, origin) for key, origin in now.origins.items()}
    return [
        Difference(key, _shown(key, was), _shown(key, today), origins.get(key, RUN))
        for key in dict.fromkeys([*was, *today])
        if was.get(key) != today.get(key)
    ]


def _earlier(path: schema.Path, start: Start | None) -> str:
    return RUN if start is None or ".".join(path) in start.said else DEFAULT


def _changed(named: File, start: Start | None) -> list[tuple[schema.Path, Any, str]]:
    if start is None:
        return named.entries
    then = {path: value for path, value, _ in parsed(start.text, named.path).entries}
    return [entry for entry in named.entries if entry[0] not in then or then[entry[0]] != entry[1]]


def _leaves(config: Config) -> dict[str, Any]:
    return dict(_walk(config.model_dump(by_alias=True), ()))


def _walk(tree: Mapping[str, Any], prefix: schema.Path) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        path = (*prefix, name)
        if isinstance(value, dict) and value:
            yield from _walk(value, path)
        else:
            yield ".".join(path), value


def _shown(key: str, values: Mapping[str, Any]) -> str:
    if key not in values:
        return "nothing"
    return "(not shown)" if key in NEVER_SHOWN else yaml_text.scalar(values[key])
