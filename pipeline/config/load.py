"""Reads the configuration once: defaults < YAML file < environment < ``--set``, with the origin of every value.

Every source is flattened to ``{path: (value, origin)}``, laid over the one before, and validated as one tree, so
that an error can name the key, the value, the reason and where the value came from.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pipeline.config import aliases, meant, schema, variables, yaml_text
from pipeline.config.tree import Config
from pipeline.errors import ConfigError

DEFAULT, FILE, SET = "default", "file", "--set"
RUN = "the run's configuration"
_VERSIONS = "versions"
NAME, LAUNCHED = "config", "launched"
"""Keys beside the versions: the configuration's name; that ``seedmq run`` wrote the file for a component."""
NEVER_SHOWN = frozenset({"store.url"})
"""Values that may hold a secret by mistake: left out of messages."""
_SHOWN_CHARACTERS = 200
"""How much of a refused value a message repeats."""
_AGREED = ("id", "kwargs", "wrappers", "vectorization", "frame_stack", "stack_padding", "frame_skip", "life_loss")
"""Keys of ``environment`` that learner and workers must agree on; time limits and budgets may differ per worker."""

_BEFORE: dict[schema.Path, Any] = {
    ("network", "normalize_observations"): False,
    ("vtrace", "normalize_values"): False,
}
"""What a run did that knew no such setting: its own ``config.yaml``, which says all others, does not have these."""

Entries = dict[schema.Path, tuple[Any, str]]


@dataclass(frozen=True)
class File:
    """A configuration file as it was read."""

    path: Path
    text: str
    entries: list[tuple[schema.Path, Any, str]]
    """Its settings, each with the origin ``file``."""
    name: str
    """The configuration's name: the file's, or in a run's ``config.yaml`` what it was called at the start."""
    launched: bool = False
    """Written by ``seedmq run`` for a component of its own, which takes it as it is."""


@dataclass(frozen=True)
class Loaded:
    """A validated configuration and where it came from."""

    config: Config
    origins: dict[str, str]
    """Origin of each setting by dotted key: ``default``, ``file``, ``variable NAME`` or ``--set``."""
    file: File
    """The YAML file."""

    @property
    def source(self) -> Path:
        return self.file.path


def load(source: str | Path, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Loaded:
    """Loads a configuration.

    Args:
        source: a file, or the bare name of a packaged preset (``cartpole_vtrace``).
        overrides: ``section.key=value``, the value in YAML; of two for one key the later counts.
        environ: the environment; default the process's.

    Raises:
        ConfigError: unreadable file, unknown key, wrong type, impossible combination, or misspelt variable.
    """
    file = read(source)
    entries: Entries = {}
    lay(entries, file.entries)
    lay_said(entries, overrides, environ)
    return Loaded(validated(entries, file.path), origins_of(entries), file)


def lay_said(entries: Entries, overrides: Sequence[str], environ: Mapping[str, str] | None) -> None:
    """Lays variables, and ``--set`` above them, over a file's entries.

    Raises:
        ConfigError: an unknown key, a misspelt variable, or a value that cannot be read.
    """
    environ = os.environ if environ is None else environ
    algorithm = _algorithm_said(entries, overrides, environ)
    lay(entries, _variable_entries(environ, algorithm))
    for override in overrides:
        lay(entries, override_entries(override, SET, algorithm))


def value_of(config: Config, key: str) -> Any:
    """The value of a setting by its dotted key."""
    value: Any = config.model_dump(by_alias=True)
    for name in key.split("."):
        value = value[name]
    return value


def resolve(source: str | Path) -> Path:
    """The file that ``source`` names: itself, or the packaged preset of that name.

    Raises:
        ConfigError: there is neither.
    """
    path = Path(source)
    if path.is_file():
        return path
    bare = str(source).removesuffix(".yaml")
    if bare in presets():
        return presets()[bare]
    if path.is_dir():
        raise ConfigError(f"{path} is a directory, not a configuration file")
    known = ", ".join(presets())
    raise ConfigError(f"no configuration file or preset {source}{_suggest_preset(path)}; presets: {known}")


def _suggest_preset(path: Path) -> str:
    """The presets that have the word in their names, the default algorithm's first; else the one that is spelt alike.

    A gymnasium id counts as the word that it begins with: ``ALE/Pong-v5``, ``CartPole-v1``.
    """
    word = re.sub(r"(-v[0-9]+)?(\.ya?ml)?$", "", path.name).lower()
    named = sorted((name for name in presets() if word and word in name), key=lambda name: "vtrace" not in name)
    if not named:
        return schema.suggestion(word, presets())
    *most, last = named
    return f" (did you mean {', '.join(most) + ' or ' if most else ''}{last}?)"


def presets() -> dict[str, Path]:
    """The packaged presets by bare name, sorted."""
    folder = importlib.resources.files("pipeline") / "presets"
    found = (Path(str(entry)) for entry in folder.iterdir()) if folder.is_dir() else ()
    return {path.stem: path for path in sorted(found) if path.suffix == ".yaml"}


def dump(config: Config, about: Mapping[str, str | bool] | None = None) -> str:
    """The resolved configuration as YAML that ``load`` reads back equal.

    Args:
        config: the configuration.
        about: its name, and versions of what ran: a top-level mapping beside the sections.
    """
    tree = config.model_dump(by_alias=True)
    if about is not None:
        tree[_VERSIONS] = dict(about)
    return "".join(f"{line}\n" for line, _ in lines(tree, ()))


def show(loaded: Loaded) -> str:
    """The resolved configuration as YAML, each value with its origin as a comment."""
    text = []
    for line, key in lines(loaded.config.model_dump(by_alias=True), ()):
        text.append(line if key is None else f"{line}  # {loaded.origins[key]}")
    return "\n".join([f"# {loaded.source}", *text, ""])


def config_hash(config: Config) -> str:
    """SHA-256 (hex) of what learner and workers must agree on: the environment, without what may differ per worker."""
    agreed = {key: getattr(config.environment, key) for key in _AGREED}
    return hashlib.sha256(json.dumps(agreed, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child process that gets a resolved file: no variable in it configures seedmq."""
    return variables.without(environ)


def lines(tree: Mapping[str, Any], prefix: schema.Path) -> Iterator[tuple[str, str | None]]:
    """Lines of block YAML; with each value its dotted key, with the head of a mapping None."""
    indent = "  " * len(prefix)
    for name, value in tree.items():
        path = (*prefix, name)
        if isinstance(value, dict) and value:
            yield f"{indent}{yaml_text.scalar(name)}:", None
            yield from lines(value, path)
        else:
            yield f"{indent}{yaml_text.scalar(name)}: {yaml_text.scalar(value)}", ".".join(path)


def lay(entries: Entries, over: Sequence[tuple[schema.Path, Any, str]]) -> None:
    """Lays one source over those before: a value replaces what stands at its path, below it, and above it."""
    for path, value, origin in over:
        for other in [p for p in entries if p[: len(path)] == path or path[: len(p)] == p]:
            del entries[other]
        entries[path] = (value, origin)


def read(source: str | Path) -> File:
    """Reads a configuration file.

    Args:
        source: as for ``load``.

    Raises:
        ConfigError: there is none, or it is unreadable or no mapping.
    """
    path = resolve(source)
    try:
        with path.open("rb") as file:
            text = file.read(yaml_text.MAX_BYTES + 1).decode()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    return parsed(text, path)


def parsed(text: str, path: Path) -> File:
    """A configuration file by its text; errors name ``path``.

    Raises:
        ConfigError: the text is no YAML that we take, or no mapping.
    """
    try:
        tree = yaml_text.parse(text)
    except ValueError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"cannot read {path}: it holds no mapping of sections")
    resolved = _VERSIONS in tree
    about = tree.pop(_VERSIONS, {})
    if not isinstance(about, dict):
        raise ConfigError(f"cannot read {path}: {_VERSIONS} is no mapping")
    entries = [(keys, value, FILE) for keys, value in flatten(tree, (), path)]
    if resolved:
        known = {keys for keys, _, _ in entries}
        entries += [(keys, value, FILE) for keys, value in _BEFORE.items() if keys not in known]
    return File(path, text, entries, str(about.get(NAME, path.stem)), about.get(LAUNCHED) is True)


def flatten(tree: Mapping[str, Any], prefix: schema.Path, source: Path) -> Iterator[tuple[schema.Path, Any]]:
    """Settings by path; keyword arguments key by key. Errors name ``source``."""
    for name, value in tree.items():
        path = (*prefix, name)
        if path in schema.sections():
            # A section whose keys are all commented out reads as nothing.
            if not isinstance(value, dict) and value is not None:
                raise ConfigError(
                    f"{'.'.join(path)} = {_short(value)}: a section, {schema.keys_of(path)} (from file {source})"
                )
            yield from flatten(value or {}, path, source)
        else:
            yield from _spread(path, value)


def _spread(path: schema.Path, value: Any) -> Iterator[tuple[schema.Path, Any]]:
    """Keyword arguments are merged key by key; an empty mapping clears those of the sources before."""
    leaf = schema.leaf_at(path)
    if isinstance(value, dict) and value and leaf is not None and leaf.mapping:
        for name, part in value.items():
            yield from _spread((*path, name), part)
    else:
        yield path, meant.whole(value) if leaf is not None and leaf.integral else value


def _algorithm(entries: Entries) -> str:
    return str(entries.get(aliases.ALGORITHM, ("vtrace", DEFAULT))[0])


def _algorithm_said(entries: Entries, overrides: Sequence[str], environ: Mapping[str, str]) -> str:
    """The algorithm by all sources, before their other keys are known to be right."""
    by_name = {name.upper(): text for name, text in environ.items() if text}
    found = by_name.get(variables.variable_name(aliases.ALGORITHM), _algorithm(entries))
    for override in overrides:
        key, _, text = override.partition("=")
        found = text.strip() if key.strip() == ".".join(aliases.ALGORITHM) else found
    return found


def _variable_entries(environ: Mapping[str, str], algorithm: str) -> list[tuple[schema.Path, Any, str]]:
    entries: list[tuple[schema.Path, Any, str]] = []
    for variable in variables.read(environ, algorithm):
        origin = f"variable {variable.name}"
        value = _parse_value(variable.path, variable.text, origin)
        entries.extend((path, part, origin) for path, part in _spread(variable.path, value))
    return entries


def override_entries(override: str, origin: str, algorithm: str) -> list[tuple[schema.Path, Any, str]]:
    """The settings of one ``section.key=value``; ``ConfigError`` where there is no such key."""
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"{origin} {override}: not of the form section.key=value")
    path = tuple(key.split("."))
    if path in schema.sections():
        raise ConfigError(f"{origin} {override}: {key} is a section, {schema.keys_of(path)}")
    if schema.leaf_at(path) is None:
        raise ConfigError(f"{origin} {override}: unknown key {key}{aliases.suggest(key, algorithm)}")
    return [(part_path, part, origin) for part_path, part in _spread(path, _parse_value(path, text, origin))]


def _parse_value(path: schema.Path, text: str, origin: str) -> Any:
    """Reads a value given as text. Where only text can stand, what is no YAML string is taken as it is."""
    leaf = schema.leaf_at(path)
    textual = leaf is not None and leaf.textual
    try:
        value = yaml_text.parse(text)
    except ValueError as error:
        if textual:
            return text
        raise ConfigError(f"{'.'.join(path)} = {_short(text)}: no YAML value: {error} (from {origin})") from error
    return text if textual and not isinstance(value, str | None) else value


def validated(entries: Entries, source: Path) -> Config:
    """The tree of what all sources say; ``ConfigError`` names keys, values, reasons and origins."""
    tree: dict[str, Any] = {}
    for path, (value, _) in entries.items():
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = value
    try:
        return Config.model_validate(tree, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise ConfigError("; ".join(_explain(detail, entries, source) for detail in details)) from error


def _explain(detail: ErrorDetails, entries: Entries, source: Path) -> str:
    """One refusal in words: key, value, reason, origin."""
    path = tuple(str(part) for part in detail["loc"])
    key, kind, reason = ".".join(path), detail["type"], detail["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return f"unknown key {key}{aliases.suggest(key, _algorithm(entries))} ({_from(path, entries, source)})"
    if kind == "missing":
        return f"{key}: required, but set nowhere"
    if kind == "value_error" and path not in schema.leaves():
        return _explain_combination(key, reason, entries, source)
    if kind == "list_type":
        reason += _short_text(meant.as_list(detail["input"]))
    value = "" if key in NEVER_SHOWN else f" = {_short(detail['input'])}"
    return f"{key}{value}: {reason} ({_from(path, entries, source)})"


def _short(value: Any) -> str:
    return _short_text(repr(value))


def _short_text(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _explain_combination(key: str, reason: str, entries: Entries, source: Path) -> str:
    """A combination's reason names its keys and values; where each came from is added here."""
    named = [tuple(word.split(".")) for word in re.findall(r"[a-z_]+(?:\.[a-z_]+)+", reason)]
    known = list(dict.fromkeys(path for path in named if path in schema.leaves()))
    origins = ", ".join(f"{'.'.join(path)} {_from(path, entries, source)}" for path in known)
    return f"{key + ': ' if key and not known else ''}{reason}{f' ({origins})' if origins else ''}"


def _from(path: schema.Path, entries: Entries, source: Path) -> str:
    for length in range(len(path), 0, -1):
        if path[:length] in entries:
            origin = entries[path[:length]][1]
            return f"from file {source}" if origin == FILE else f"from {origin}"
    return f"from {DEFAULT}"


def origins_of(entries: Entries) -> dict[str, str]:
    """Where each setting came from, by dotted key."""
    origins: dict[str, str] = {}
    for path in schema.leaves():
        below = {p: origin for p, (_, origin) in entries.items() if p[: len(path)] == path}
        origins.update({".".join(p): origin for p, origin in below.items()} or {".".join(path): DEFAULT})
    return origins
