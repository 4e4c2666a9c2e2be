"""The layout of one unroll: a fixed record of bytes, the same in the assembler, the store and the training batch.

An unroll holds rows 0..T (T + 1 rows), owns transitions 0..T-1 and shares its last row with the next unroll. With a
frame stack of S, S - 1 frames and their ``first`` flags stand before row 0. Every field starts at a multiple of 8
bytes, little-endian, so a batch is one join of buffers and one strided view per field.

    record   one unroll as uint8 [nbytes]
    fields   name -> array [..., *shape] over records [..., nbytes]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.spaces import Leaf

Array = npt.NDArray[Any]
OBSERVATION = "observation/"
STATE = "state/"


class Field(NamedTuple):
    """Where a field stands in the record."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class UnrollLayout:
    """Names, dtypes and shapes of an unroll's fields.

    Attributes:
        unroll_length: T.
        frame_stack: S.
        observation: Leaves of one observation (a single frame, never a stack).
        action_shape: Shape of the stored action: what the distribution sampled, before squashing.
        action_dtype: ``int32`` for categorical, ``float32`` for continuous.
        behaviour_size: Parameters of the behaviour distribution per row (D).
        state_shapes: Recurrent state leaves, float32, as fed to row 0 before its own reset by ``first``.
    """

    unroll_length: int
    frame_stack: int
    observation: tuple[Leaf, ...]
    action_shape: tuple[int, ...]
    action_dtype: str
    behaviour_size: int
    state_shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def fields(self) -> dict[str, Field]:
        rows, prefix = self.unroll_length + 1, self.frame_stack - 1
        shapes: list[tuple[str, str, tuple[int, ...]]] = [
            ("environment", "<i8", ()),  # pipeline.rows.environment_id
            ("run", "<u8", ()),  # run id of the worker's environments
            ("row", "<i8", ()),  # pipeline.rows.row_number of row 0
            ("index", "<i8", ()),  # running index of row 0
            ("version", "<i8", (rows,)),  # policy version that acted
            ("first", "|u1", (prefix + rows,)),
            ("terminated", "|u1", (rows,)),
            ("truncated", "|u1", (rows,)),
            ("life_lost", "|u1", (rows,)),
            ("valid", "|u1", (self.unroll_length,)),
            ("reward", "<f4", (rows,)),
            ("action", _little(self.action_dtype), (rows, *self.action_shape)),
            ("previous_action", _little(self.action_dtype), self.action_shape),  # of row 0; ignored where first[0]
            ("behaviour", "<f4", (rows, self.behaviour_size)),
        ]
        shapes += [(STATE + str(i), "<f4", shape) for i, shape in enumerate(self.state_shapes)]
        shapes += [
            (OBSERVATION + leaf.path, _little(leaf.dtype), (prefix + rows, *leaf.shape)) for leaf in self.observation
        ]
        fields, offset = {}, 0
        for name, dtype, shape in shapes:
            fields[name] = Field(offset, np.dtype(dtype), shape)
            offset = _aligned(offset + fields[name].nbytes)
        return fields

    @cached_property
    def nbytes(self) -> int:
        """Bytes of one record."""
        last = list(self.fields.values())[-1]
        return _aligned(last.offset + last.nbytes)

    def view(self, records: npt.NDArray[np.uint8]) -> dict[str, Array]:
        """Fields over ``records`` ``[..., nbytes]``, without a copy: name -> ``[..., *shape]``."""
        return {name: _field_view(records, field) for name, field in self.fields.items()}

    def batch(self, records: npt.NDArray[np.uint8]) -> dict[str, Array]:
        """Time-major training batch from ``records`` ``[B, nbytes]``: one contiguous copy per field.

        Returns:
            name -> ``[rows, B, ...]`` for fields with rows, ``[B, ...]`` for the others (``environment``, ``run``,
            ``row``, ``index``, ``previous_action``, ``state/i``).
        """
        batch = {}
        for name, value in self.view(records).items():
            flat = name in _PER_UNROLL or name.startswith(STATE)
            batch[name] = np.ascontiguousarray(value if flat else np.swapaxes(value, 0, 1))
        return batch


_PER_UNROLL = {"environment", "run", "row", "index", "previous_action"}


def _field_view(records: npt.NDArray[np.uint8], field: Field) -> Array:
    raw = records[..., field.offset : field.offset + field.nbytes]
    if not math.prod(field.shape):
        return np.zeros((*records.shape[:-1], *field.shape), field.dtype)
    return raw.view(field.dtype).reshape((*records.shape[:-1], *field.shape))


def _little(dtype: str) -> str:
    return np.dtype(dtype).newbyteorder("<").str


def _aligned(offset: int) -> int:
    return -(-offset // 8) * 8
