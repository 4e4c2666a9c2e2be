"""Environment variables that configure seedmq.

``SEEDMQ_SECTION__KEY`` (in any case) sets ``section.key``; two short names scale a deployment. A ``SEEDMQ_`` name with
``__`` in it must resolve. One without is refused when it looks like a misspelt short name and is else left alone:
Kubernetes puts ``SEEDMQ_BROKER_PORT`` and the like into every container. An empty value counts as not set, since
compose files pass ``${NAME:-}``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.config import aliases, schema
from pipeline.errors import ConfigError

PREFIX = "SEEDMQ_"
SHORT_NAMES: dict[str, schema.Path] = {
    "SEEDMQ_WORKERS": ("workers", "count"),
    "SEEDMQ_ENVS_PER_WORKER": ("workers", "envs"),
}
_MISSPELT_WITHIN = 2

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Variable:
    """A variable that sets a key."""

    name: str
    path: schema.Path
    text: str


def read(environ: Mapping[str, str], algorithm: str = "vtrace") -> list[Variable]:
    """The variables that set something, sorted by name.

    Args:
        environ: the environment.
        algorithm: of the run, for what is said of names that are unknown here.

    Raises:
        ConfigError: a name that resolves to no setting, one that looks like a misspelt short name, or two for one key.
    """
    found: dict[schema.Path, Variable] = {}
    for variable in _resolved(environ, algorithm):
        if variable.path in found:
            key, other = ".".join(variable.path), found[variable.path].name
            raise ConfigError(f"the variables {other} and {variable.name} both set {key}: unset one")
        found[variable.path] = variable
    return list(found.values())


def without(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` without the variables that configure seedmq, resolvable or not; the others stay."""
    return {name: value for name, value in environ.items() if not configures(name)}


def configures(name: str) -> bool:
    """Whether ``name`` is read as a setting."""
    upper = name.upper()
    return upper in SHORT_NAMES or (upper.startswith(PREFIX) and "__" in upper[len(PREFIX) :])


def variable_name(path: schema.Path) -> str:
    """``SEEDMQ_SECTION__KEY`` of a setting."""
    return PREFIX + "__".join(part.upper() for part in path)


def _resolved(environ: Mapping[str, str], algorithm: str) -> Iterator[Variable]:
    for name in sorted(environ):
        upper = name.upper()
        if not upper.startswith(PREFIX):
            continue
        if configures(name):
            path = SHORT_NAMES.get(upper) or tuple(upper[len(PREFIX) :].lower().split("__"))
            if schema.leaf_at(path) is None:
                raise ConfigError(f"the variable {name} sets no known key{_suggest(path, algorithm)}")
            if environ[name]:
                yield Variable(name, path, environ[name])
        else:
            _check_not_misspelt(name, algorithm)


def _suggest(path: schema.Path, algorithm: str) -> str:
    meaning = aliases.meaning_of(".".join(path), algorithm)
    if meaning is not None:
        ours = aliases.key_in(meaning)
        return f" (here: {meaning}{f'; variable {variable_name(ours)}' if ours else ''})"
    return schema.suggestion(variable_name(path), [*map(variable_name, schema.leaves()), *SHORT_NAMES], PREFIX)


def _check_not_misspelt(name: str, algorithm: str) -> None:
    upper = name.upper()
    for short in SHORT_NAMES:
        if edit_distance(upper, short) <= _MISSPELT_WITHIN:
            raise ConfigError(f"the variable {name} sets no known key (did you mean {short}?)")
    for path in schema.leaves():
        if upper == PREFIX + "_".join(path).upper():
            log.warning("the variable %s is ignored (did you mean %s?)", name, variable_name(path))
    bare = (upper.removeprefix(PREFIX).lower(),)
    if aliases.meaning_of(bare[0], algorithm) is not None:
        log.warning("the variable %s is ignored%s", name, _suggest(bare, algorithm))


def edit_distance(a: str, b: str) -> int:
    """Levenshtein distance: insertions, deletions and substitutions that make ``b`` of ``a``."""
    previous = list(range(len(b) + 1))
    for i, char_a in enumerate(a, 1):
        current = [i]
        for j, char_b in enumerate(b, 1):
            current.append(min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (char_a != char_b)))
        previous = current
    return previous[-1]
