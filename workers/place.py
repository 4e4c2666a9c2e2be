"""Where an environment went wrong: file and line of its own code, not of what stands between it and us."""

from __future__ import annotations

import inspect
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any

import gymnasium
import numpy as np

from workers.watched import Watched

_PATHS = sysconfig.get_paths()
_MACHINERY = (
    *(str(Path(file).parent) for file in (__file__, gymnasium.__file__, np.__file__)),
    *(_PATHS[name] for name in ("stdlib", "platstdlib")),
)
_INSTALLED = (*_MACHINERY, *(_PATHS[name] for name in ("purelib", "platlib")))


MESSAGE_CHARACTERS = 1000


def words_of(error: BaseException, where: str) -> str:
    """A fault in one line: type, message, the place in the environment's code, and which environment it was."""
    words = " ".join(str(error).split())[:MESSAGE_CHARACTERS]
    return f"{type(error).__name__}: {words} ({place_of(error)}; {where})"


def place_of(error: BaseException) -> str:
    """``corridor.py:21, in step``: the innermost line that is the user's own, else that of an installed package.

    Where none of either raised (what an environment returned was refused), the method that returned it.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno}"
    frames = list(walk_tb(error.__traceback__))
    ours = [_within(frame.f_code, _MACHINERY[:1]) for frame, _ in frames]
    frames = frames[ours.index(True) :] if any(ours) else frames
    for others in (_INSTALLED, _MACHINERY):
        for frame, line in reversed(frames):
            if not _within(frame.f_code, others):
                return f"{_shown(frame.f_code.co_filename)}:{line}, in {frame.f_code.co_name}"
    for frame, _ in reversed(frames):
        for code in _methods(frame):
            return f"{_shown(code.co_filename)}:{code.co_firstlineno}, {code.co_qualname}"
    if not frames:
        return "an unknown place"
    frame, line = frames[-1]
    return f"{_shown(frame.f_code.co_filename)}:{line}, in {frame.f_code.co_name}"


def _methods(frame: FrameType) -> Iterator[CodeType]:
    """What an environment of others that this frame calls has made of ``step`` or ``reset``; wrappers first."""
    layer: Any = frame.f_locals.get("self")
    layer = layer.environment if isinstance(layer, Watched) else layer
    while isinstance(layer, gymnasium.Env):
        for name in (frame.f_code.co_name, "observation"):
            method = inspect.unwrap(getattr(type(layer), name, None) or _nothing)
            if not _within(method.__code__, _MACHINERY):
                yield method.__code__
        layer = layer.__dict__.get("env")


def _nothing() -> None:
    """Stands for a method that a class has not."""


def _within(code: CodeType, places: tuple[str, ...]) -> bool:
    name = code.co_filename
    return name.startswith("<") or any(name.startswith(place + os.sep) for place in places)


def _shown(name: str) -> str:
    """Relative to the working directory, where it is in there."""
    path, here = Path(name), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
