"""The tree seen as a list of keys: which exist, what stands there, which one a misspelt key meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pipeline.config.section import LIVE, Section
from pipeline.config.tree import Config

Path = tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    """One setting."""

    path: Path
    """Names as in a file, aliases applied: ``("vtrace", "lambda")``."""
    field: FieldInfo

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def textual(self) -> bool:
        """Whether only a string (or nothing) can stand here, so that ``123`` and ``yes`` are meant as text."""
        return all(_is_text(part) for part in _parts(self.field.annotation))

    @property
    def integral(self) -> bool:
        """Whether an integer, or a list of integers, stands here and no other number."""
        return all(_item(part) is int for part in _parts(self.field.annotation))

    @property
    def mapping(self) -> bool:
        """Whether free keys stand below it (keyword arguments)."""
        return get_origin(self.field.annotation) is dict

    @property
    def live(self) -> bool:
        """Whether `seedmq adjust` changes it while a run goes on: marked by ``pipeline.config.section.LIVE``."""
        return self.field.json_schema_extra == LIVE


def _parts(annotation: Any) -> Iterator[Any]:
    """The members of a union without None; the annotation itself when it is none."""
    arguments = get_args(annotation)
    if type(None) in arguments:
        yield from (part for part in arguments if part is not type(None))
    else:
        yield annotation


def _item(annotation: Any) -> Any:
    """The type of a list's items, or the annotation itself; without bounds."""
    if get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_text(annotation: Any) -> bool:
    return annotation is str or (get_origin(annotation) is Literal and isinstance(get_args(annotation)[0], str))


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section class of a field, or None for a setting."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Names as a file has them (aliases applied), with their fields, in the order of the tree."""
    for name, field in model.model_fields.items():
        yield field.alias or name, field


@cache
def leaves() -> dict[Path, Leaf]:
    """Every setting by its path, in the order of the tree."""
    return {leaf.path: leaf for leaf in _walk(Config, ())}


def _walk(model: type[BaseModel], prefix: Path) -> Iterator[Leaf]:
    for name, field in fields(model):
        section = section_of(field)
        if section is None:
            yield Leaf((*prefix, name), field)
        else:
            yield from _walk(section, (*prefix, name))


@cache
def live_keys() -> tuple[str, ...]:
    """The settings that change while a run goes on, by dotted key."""
    return tuple(leaf.key for leaf in leaves().values() if leaf.live)


@cache
def sections() -> frozenset[Path]:
    """Every section's path, the root's ``()`` included."""
    return frozenset(path[:length] for path in leaves() for length in range(len(path)))


def keys_of(path: Path) -> str:
    """What stands in a section, for who gave it a value: the key that names it comes first, if it has one."""
    names = dict.fromkeys(leaf.path[len(path)] for leaf in leaves().values() if leaf.path[: len(path)] == path)
    first = next((name for name in ("id", "name", "algorithm") if name in names), next(iter(names)))
    return f"not a value: set {'.'.join((*path, first))}, or another of its keys ({', '.join(names)})"


def leaf_at(path: Path) -> Leaf | None:
    """The setting at ``path``, or the mapping that ``path`` points into, or None."""
    if path in leaves() or not all(path):
        return leaves().get(path)
    return next((leaf for leaf in leaves().values() if leaf.mapping and path[: len(leaf.path)] == leaf.path), None)


def suggestion(word: str, candidates: Iterable[str], prefix: str = "") -> str:
    """`` (did you mean ...?)`` with the candidate most like ``word``, or nothing when none is like it.

    A ``prefix`` that ``word`` and all candidates share is not counted as likeness.
    """
    known = [candidate.removeprefix(prefix) for candidate in candidates]
    word = word.removeprefix(prefix)
    same_end = [key for key in known if key.rsplit(".", 1)[-1] == word.rsplit(".", 1)[-1]]
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6) or same_end[:1]
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


def suggest_key(key: str) -> str:
    """``suggestion`` among all settings and sections, for a dotted key."""
    return suggestion(key, [leaf.key for leaf in leaves().values()] + [".".join(path) for path in sections() if path])
