"""Unroll assembly: rows in, finished unrolls out. A state machine over numpy buffers: no IO, no clock.

One open unroll per slot, written in place into a record of ``pipeline.unrolls.UnrollLayout``; a finished one is a copy
of the record's bytes, and its last row (with the frames before it) begins the next.

    opened slot -> row 0 (always ``first``: a seam) -> rows 1..T -> unroll out -> its row T is row 0 of the next -> ...

With an overlap of b (R2D2's burn-in) the last b + 1 rows begin the next unroll, and a transition belongs to the first
unroll that has it behind its first b rows. The first unroll after a seam begins with b invented rows: they are
``first`` and not valid, and the real row after them is ``first``, so their recurrent state does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.rows import FIRST, LIFE_LOST, TERMINATED, TRUNCATED
from pipeline.unrolls import OBSERVATION, STATE, UnrollLayout

Array = npt.NDArray[Any]


class Acted(NamedTuple):
    """What the policy did on n rows.

    Attributes:
        action: Stored action ``[n, *shape]``.
        behaviour: Parameters of the behaviour distribution, float32 ``[n, D]``.
        state: Recurrent state carried into each row before its reset, leaves ``[n, ...]`` float32.
        version: The policy version that acted.
    """

    action: Array
    behaviour: Array
    state: Sequence[Array]
    version: int


class Unroll(NamedTuple):
    """A finished unroll: the names of ``pipeline.store.interface.Put``, and a copy of the record, uint8 [nbytes]."""

    environment: int
    run: int
    row: int
    first_index: int  # running index of the row where what it owns begins
    next_index: int
    valid: int
    record: Array


class Appended(NamedTuple):
    """What ``append`` did: transitions that open unrolls now own, rows that complete none, and the full unrolls."""

    accepted: int
    masked: int
    unrolls: list[Unroll]


class Assembler:
    """Open unrolls of all slots. Owned by the inference thread.

    Args:
        layout: The record.
        slots: Number of slots; memory is ``slots * layout.nbytes``, allocated at once.
        overlap: b; less than half of the layout's unroll length, so that the next row 0 is a row that came here.
    """

    def __init__(self, layout: UnrollLayout, slots: int, overlap: int = 0) -> None:
        self._layout = layout
        self._overlap = overlap
        self._period = layout.unroll_length - overlap
        self._prefix = layout.frame_stack - 1
        self._records = np.zeros((slots, layout.nbytes), np.uint8)
        self._fields = layout.view(self._records)
        self._fresh = np.ones(slots, np.bool_)  # no row yet
        self._position = np.full(slots, overlap, np.int64)  # rows in the open unroll, invented ones included
        self._index = np.zeros(slots, np.int64)  # running index of the last row
        self._owned = np.zeros(slots, np.int64)  # running index of the row where what the open unroll owns begins
        self._framed = [name for name in layout.fields if name.startswith(OBSERVATION)]
        self._by_row = ["version", "terminated", "truncated", "life_lost", "reward", "action", "behaviour"]
        # Of the row that will be row 0 of the next unroll: its number, its index, and the state fed to it.
        self._next_number = np.zeros(slots, np.int64)
        self._next_index = np.zeros(slots, np.int64)
        self._next_state = [np.zeros((slots, *shape), np.float32) for shape in layout.state_shapes]

    def open(self, slots: Array, environments: Array, run: int, index: Array) -> None:
        """Begins a run in ``slots`` (int ``[n]``); what was open there must have been flushed.

        Args:
            slots: int ``[n]``.
            environments: Environment ids, int64 ``[n]``.
            run: The worker's run id.
            index: Running index of each environment's last known transition: 0 for a new run.
        """
        self._records[slots] = 0
        self._fields["environment"][slots] = environments
        self._fields["run"][slots] = run
        self._restart(slots)
        self._index[slots] = index

    def fresh(self, slots: Array) -> Array:
        """Bool ``[n]``: no row yet since ``open``; its next row begins a sequence whatever the environment says."""
        fresh: Array = self._fresh[slots]
        return fresh

    def last_index(self, slots: Array) -> Array:
        """Running index of the last row, int64 ``[n]``; after ``open`` the index given there."""
        index: Array = self._index[slots]
        return index

    def open_index(self, slots: Array) -> Array:
        """Running index where what the open unroll owns begins, int64 ``[n]``; where there is none, the last index."""
        index: Array = np.where(self._fresh[slots], self._index[slots], self._owned[slots])
        return index

    def append(self, slots: Array, numbers: Array, rows: Array, observation: Sequence[Array], acted: Acted) -> Appended:
        """Appends one row to each slot.

        Args:
            slots: int ``[n]``, no slot twice.
            numbers: ``pipeline.rows.row_number`` of each row, int64 ``[n]``.
            rows: ``pipeline.rows.ROW`` records ``[n]``.
            observation: Leaves ``[n, ...]`` in the layout's order.
            acted: What the policy did on these rows.
        """
        fields, at = self._fields, self._position[slots]
        fresh = self._fresh[slots]
        flags = rows["flags"]
        first = ((flags & FIRST) != 0) | fresh
        before = np.maximum(at - 1, 0)
        follows_final = (fields["terminated"][slots, before] | fields["truncated"][slots, before]) != 0
        valid = ~first & ~follows_final
        if fresh.any():
            self._begin(slots[fresh], numbers[fresh], rows["index"][fresh], [leaf[fresh] for leaf in acted.state])
        fields["first"][slots, self._prefix + at] = first
        fields["terminated"][slots, at] = (flags & TERMINATED) != 0
        fields["truncated"][slots, at] = (flags & TRUNCATED) != 0
        fields["life_lost"][slots, at] = (flags & LIFE_LOST) != 0
        fields["reward"][slots, at] = rows["reward"]
        fields["action"][slots, at] = acted.action
        fields["behaviour"][slots, at] = acted.behaviour
        fields["version"][slots, at] = acted.version
        for name, leaf in zip(self._framed, observation, strict=True):
            fields[name][slots, self._prefix + at] = leaf
        self._position[slots] = at + 1
        self._index[slots] = rows["index"]
        if (turning := at == self._period).any():
            self._remember(slots[turning], numbers[turning], [leaf[turning] for leaf in acted.state])
        full = at == self._layout.unroll_length
        unrolls = self._finish(slots[full]) if full.any() else []
        accepted = int(np.count_nonzero(valid))
        return Appended(accepted, int(np.count_nonzero(~valid & ~fresh)), unrolls)

    def flush(self, slots: Array) -> list[Unroll]:
        """Pads the open unrolls of ``slots`` with masked rows and gives those that own a valid transition."""
        begun = slots[self._position[slots] > self._overlap + 1]
        for slot in begun:
            self._fields["first"][slot, self._prefix + int(self._position[slot]) :] = 1
        self._fields["valid"][begun] = self._valid(begun)
        unrolls = [unroll for unroll in self._take(begun) if unroll.valid]
        self._restart(slots)
        return unrolls

    def _restart(self, slots: Array) -> None:
        self._position[slots] = self._overlap
        self._fresh[slots] = True

    def _begin(self, slots: Array, numbers: Array, index: Array, state: Sequence[Array]) -> None:
        """The first row after a seam; the invented rows before it are ``first`` and hold nothing of what was here."""
        self._fresh[slots] = False
        self._owned[slots] = index
        for name in self._by_row:
            self._fields[name][slots, : self._overlap] = 0
        for name in self._framed:
            self._fields[name][slots, : self._prefix + self._overlap] = 0
        self._fields["first"][slots, : self._prefix + self._overlap] = 1
        self._set_row_0(slots, numbers, index, state)

    def _remember(self, slots: Array, numbers: Array, state: Sequence[Array]) -> None:
        self._next_number[slots] = numbers
        self._next_index[slots] = self._index[slots]
        for kept, leaf in zip(self._next_state, state, strict=True):
            kept[slots] = leaf

    def _set_row_0(self, slots: Array, numbers: Array, index: Array, state: Sequence[Array]) -> None:
        self._fields["row"][slots] = numbers
        self._fields["index"][slots] = index
        for i, leaf in enumerate(state):
            self._fields[STATE + str(i)][slots] = leaf

    def _valid(self, slots: Array) -> Array:
        fields, prefix, length = self._fields, self._prefix, self._layout.unroll_length
        final = (fields["terminated"][slots, :length] | fields["truncated"][slots, :length]) != 0
        valid: Array = ~final & (fields["first"][slots, prefix + 1 : prefix + 1 + length] == 0)
        return valid

    def _finish(self, slots: Array) -> list[Unroll]:
        fields, period, kept = self._fields, self._period, self._overlap + 1
        fields["valid"][slots] = self._valid(slots)
        unrolls = self._take(slots)
        fields["previous_action"][slots] = fields["action"][slots, period - 1]
        for name in self._by_row:
            fields[name][slots, :kept] = fields[name][slots, period : period + kept]
        kept += self._prefix
        for name in ["first", *self._framed]:
            fields[name][slots, :kept] = fields[name][slots, period : period + kept]
        state = [leaf[slots] for leaf in self._next_state]
        self._set_row_0(slots, self._next_number[slots], self._next_index[slots], state)
        self._owned[slots] = self._index[slots]
        self._position[slots] = self._overlap + 1
        return unrolls

    def _take(self, slots: Array) -> list[Unroll]:
        """Copies, whose records are views of one block; many slots at once, as a group's are full at the same time."""
        fields = self._fields
        columns = [fields[name][slots] for name in ("environment", "run", "row")]
        columns += [self._owned[slots], self._index[slots], fields["valid"][slots, self._overlap :].sum(axis=1)]
        numbers = zip(*(column.tolist() for column in columns), strict=True)
        return [Unroll._make((*of_one, record)) for of_one, record in zip(numbers, self._records[slots], strict=True)]
