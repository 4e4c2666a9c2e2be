"""From step requests to one inference batch: buffers are checked, then copied once, into the batch.

open_request   one request: header and lengths
join           all of a batch: its rows, checked together, as arrays
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from learner.slots import Group
from pipeline.errors import ProtocolError
from pipeline.requests import StepRequest
from pipeline.rows import FIRST, KNOWN_FLAGS, NO_REPLY, ROW
from pipeline.spaces import Leaf

Array = npt.NDArray[Any]

# The first word of a ROW, which is environment and flags: what is as it must be where a row has a reply, and FIRST.
_WORD = np.dtype("<u4")
_WORDS = ROW.itemsize // _WORD.itemsize
_CHECKED = 0xFFFFFFFF & ~((KNOWN_FLAGS & ~NO_REPLY) << 16)
_FIRST = FIRST << 16


class Opened(NamedTuple):
    """A request whose header and lengths are checked.

    Attributes:
        group: Whose it is.
        request: As it came: ``final`` rows need no reply and come before the ``replies`` rows, one per environment.
        finals: How many.
        leaves: Of the observation, in the order of the buffers behind the rows.
    """

    group: Group
    request: StepRequest
    finals: int
    leaves: Sequence[Leaf]


def open_request(request: StepRequest, group: Group, leaves: Sequence[Leaf]) -> Opened:
    """Checks header and lengths before anything is used; buffers are of single bytes.

    Raises:
        ProtocolError: the buffers do not hold what the header says.
    """
    n, replies = request.rows, request.replies
    if replies != len(group.slots) or not replies <= n <= 2 * replies:
        raise ProtocolError(f"{n} rows with {replies} replies for a group of {len(group.slots)}")
    expected = [n * ROW.itemsize, *[n * leaf.nbytes for leaf in leaves]]
    lengths = [len(buffer) for buffer in request.buffers]
    if lengths != expected:
        raise ProtocolError(f"buffers of {lengths} bytes, {expected} expected")
    return Opened(group, request, n - replies, leaves)


class Finals(NamedTuple):
    """The final rows of a batch, in order.

    Attributes:
        at: int64 ``[f]``: the batch's row of the same environment.
        rows: ROW ``[f]``.
        observation: Leaves ``[f, ...]``.
    """

    at: npt.NDArray[np.int64]
    rows: Array
    observation: list[Array]


class StepBatch(NamedTuple):
    """Requests joined into one inference batch of n replied rows, no slot twice.

    Attributes:
        parts: The requests, in order.
        slots: int32 ``[n]``.
        rows: ROW ``[n]``: the replied rows.
        observation: Leaves ``[n, ...]``: theirs.
        first: bool ``[n]``: begins an episode, or the slot's first row (a seam).
        evaluation: bool ``[n]``: of an eval worker; feeds nothing into the store. False where none is.
        finals: The rows that need no reply; None where there are none.
    """

    parts: list[Opened]
    slots: npt.NDArray[np.int32]
    rows: Array
    observation: list[Array]
    first: npt.NDArray[np.bool_]
    evaluation: npt.NDArray[np.bool_] | bool
    finals: Finals | None

    def by_row(self, values: Sequence[Any]) -> Array:
        """``[n]`` of one value for each part."""
        return np.repeat(np.array(values), [len(part.group.slots) for part in self.parts])


def join(parts: list[Opened]) -> StepBatch:
    """One batch, over the buffers themselves where it is a single request.

    Raises:
        ProtocolError: a row is impossible, or out of order. To know whose, join each by itself.
    """
    groups = [part.group for part in parts]
    counts, finals = [part.finals for part in parts], None
    buffers = [part.request.buffers for part in parts]
    if any(counts):
        finals = _finals(parts)
        buffers = [_rows(part, part.finals, part.request.rows) for part in parts]
    data, *observation = map(_joined, zip(*buffers, strict=True))
    words = np.frombuffer(data, _WORD)[::_WORDS]
    n, places = len(words), _joined([group.places for group in groups])
    if words.tobytes() == places:  # no flag at all
        first = np.zeros(n, np.bool_)
    elif (words & _CHECKED).tobytes() == places:
        first = (words & _FIRST) != 0
    else:
        raise ProtocolError("impossible flags, or rows that are not in the order of environments")
    batch = StepBatch(
        parts=parts,
        slots=groups[0].slots if len(groups) == 1 else np.concatenate([group.slots for group in groups]),
        rows=np.frombuffer(data, ROW),
        observation=[leaf.view(buffer, n) for leaf, buffer in zip(parts[0].leaves, observation, strict=True)],
        first=first,
        evaluation=False,
        finals=finals,
    )
    seams, evaluation = [group.sequence < 0 for group in groups], [group.evaluation for group in groups]
    if any(seams):
        batch = batch._replace(first=batch.first | batch.by_row(seams))
    if any(evaluation):
        batch = batch._replace(evaluation=batch.by_row(evaluation))
    return batch


def _joined(buffers: Sequence[Any]) -> Any:
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def _rows(part: Opened, begin: int, end: int) -> list[memoryview]:
    """Rows ``begin`` to ``end`` of each buffer, without a copy."""
    sizes = [ROW.itemsize, *[leaf.nbytes for leaf in part.leaves]]
    buffers = part.request.buffers
    return [memoryview(buffer)[begin * size : end * size] for buffer, size in zip(buffers, sizes, strict=True)]


def _finals(parts: list[Opened]) -> Finals:
    """The final rows of all parts: at most one of an environment, in order.

    Raises:
        ProtocolError: they are not.
    """
    data, *observation = map(_joined, zip(*[_rows(part, 0, part.finals) for part in parts], strict=True))
    rows = np.frombuffer(data, ROW)
    flags, environments = rows["flags"], rows["environment"].astype(np.int64)
    if not (flags & NO_REPLY).all() or (flags > KNOWN_FLAGS).any():
        raise ProtocolError("impossible flags of final rows")
    counts, replies = [part.finals for part in parts], [part.request.replies for part in parts]
    at = environments + np.repeat(np.cumsum([0, *replies[:-1]]), counts)
    if (environments >= np.repeat(replies, counts)).any() or (np.diff(at) <= 0).any():
        raise ProtocolError("final rows are not in the order of environments")
    leaves = [leaf.view(buffer, len(rows)) for leaf, buffer in zip(parts[0].leaves, observation, strict=True)]
    return Finals(at, rows, leaves)
