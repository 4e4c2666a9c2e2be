"""Observation and action spaces as plain data, so that they travel in HELLO and in checkpoints.

A nested space is a flat tuple of leaves in a fixed order (dictionary keys sorted, tuples by position); a leaf is
named by its path (``camera/rgb``, ``1/0``; the only leaf of a flat space is named ``observation`` or ``action``).
Making a description from a gymnasium space is the workers' business (``workers.spaces``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import SpaceError

KINDS = ("box", "discrete", "multi_discrete", "multi_binary")
ACTION_KINDS = ("box", "discrete")
MAX_LEAVES = 64
MAX_RANK = 8
MAX_LEAF_BYTES = 2**28
MAX_ACTION_SIZE = 4096
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
DTYPES = ("bool", *INTEGERS, "float16", "float32", "float64")


@dataclass(frozen=True)
class Leaf:
    """One array of a space.

    Attributes:
        path: Where it stands in the nested space.
        kind: One of ``KINDS``.
        dtype: numpy dtype name, as it travels.
        shape: Shape of one element, without the batch.
        n: Number of values of a discrete leaf, else 0.
        start: Smallest value of a discrete leaf.
        low: Bounds of a box action, flattened; empty where they do not matter (observations).
        high: The same.
    """

    path: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    n: int = 0
    start: int = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype).newbyteorder("<")

    @cached_property
    def nbytes(self) -> int:
        """Bytes of one element."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def view(self, buffer: Any, rows: int) -> npt.NDArray[Any]:
        """``[rows, *shape]`` over a raw buffer, without a copy; the caller has checked its length."""
        return np.frombuffer(buffer, self.numpy_dtype).reshape((rows, *self.shape))

    def to_wire(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "kind": self.kind,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "n": self.n,
            "start": self.start,
            "low": list(self.low),
            "high": list(self.high),
        }

    @classmethod
    def from_wire(cls, data: Any) -> Leaf:
        """Checked before use: a hostile description ends here.

        Raises:
            SpaceError: anything that is not a leaf of a supported kind and size.
        """
        try:
            leaf = cls(
                path=str(data["path"])[:200],
                kind=str(data["kind"]),
                dtype=str(data["dtype"]),
                shape=tuple(int(x) for x in data["shape"]),
                n=int(data["n"]),
                start=int(data["start"]),
                low=tuple(float(x) for x in data["low"]),
                high=tuple(float(x) for x in data["high"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SpaceError(f"malformed space description: {error!r}") from error
        if leaf.kind not in KINDS or leaf.dtype not in DTYPES:
            raise SpaceError(f"unsupported space at {leaf.path!r}: kind {leaf.kind!r}, dtype {leaf.dtype!r}")
        if len(leaf.shape) > MAX_RANK or any(d < 0 for d in leaf.shape) or leaf.nbytes > MAX_LEAF_BYTES:
            raise SpaceError(f"space at {leaf.path!r} has an impossible shape {leaf.shape}")
        if leaf.kind == "discrete" and not 0 < leaf.n < 2**31:
            raise SpaceError(f"discrete space at {leaf.path!r} has n = {leaf.n}")
        return leaf


@dataclass(frozen=True)
class Spaces:
    """The spaces of one environment: observation leaves in order, and one action leaf."""

    observation: tuple[Leaf, ...]
    action: Leaf

    def to_wire(self) -> dict[str, Any]:
        return {"observation": [leaf.to_wire() for leaf in self.observation], "action": self.action.to_wire()}

    @classmethod
    def from_wire(cls, data: Any) -> Spaces:
        """The inverse of ``to_wire``, for untrusted data.

        Raises:
            SpaceError: malformed or unsupported.
        """
        if not isinstance(data, dict) or not isinstance(data.get("observation"), list):
            raise SpaceError("malformed space description: observation is not a list")
        if not 0 < len(data["observation"]) <= MAX_LEAVES:
            raise SpaceError(f"an observation has 1 to {MAX_LEAVES} leaves, not {len(data['observation'])}")
        spaces = cls(tuple(Leaf.from_wire(x) for x in data["observation"]), Leaf.from_wire(data.get("action")))
        action = spaces.action
        if action.kind not in ACTION_KINDS:
            raise SpaceError(
                f"action space of kind {action.kind!r} is not supported; supported: {', '.join(ACTION_KINDS)}"
            )
        size = math.prod(action.shape)
        if action.kind == "box" and not (0 < size <= MAX_ACTION_SIZE and len(action.low) == len(action.high) == size):
            raise SpaceError(f"box action of shape {action.shape} has {len(action.low)} bounds")
        return spaces

    def difference(self, other: Spaces, here: str = "here", there: str = "there") -> str | None:
        """The first difference to ``other`` in words, or None where they are equal.

        Args:
            other: To compare with.
            here: What the words call the place of these spaces.
            there: And that of the other's.
        """
        mine = {leaf.path: leaf for leaf in self.observation}
        theirs = {leaf.path: leaf for leaf in other.observation}
        for path in sorted(mine.keys() | theirs.keys()):
            if mine.get(path) != theirs.get(path):
                return f"observation {path!r}: {_words(mine.get(path))} {here}, {_words(theirs.get(path))} {there}"
        if self.action != other.action:
            return f"action: {_words(self.action)} {here}, {_words(other.action)} {there}"
        return None


def _words(leaf: Leaf | None) -> str:
    if leaf is None:
        return "nothing"
    if leaf.kind == "discrete":
        return f"Discrete({leaf.n}, start={leaf.start})"
    bounds = f", low={_short(leaf.low)}, high={_short(leaf.high)}" if leaf.low else ""
    return f"{leaf.kind} {leaf.dtype}{list(leaf.shape)}{bounds}"


def _short(values: tuple[float, ...]) -> str:
    return str(list(values[:4]))[:-1] + (", ...]" if len(values) > 4 else "]")
