"""Opening a step request: from raw buffers to checked arrays, without a copy."""

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


class Opened(NamedTuple):
    """A request's arrays: ``final`` rows need no reply and come before the ``replies`` rows, one per environment.

    Attributes:
        group: Whose they are.
        request: As it came.
        rows: ``pipeline.rows.ROW`` ``[m]``.
        observation: Leaves ``[m, ...]``.
    """

    group: Group
    request: StepRequest
    rows: Array
    observation: list[Array]

    @property
    def finals(self) -> int:
        return self.request.rows - self.request.replies


def open_request(request: StepRequest, group: Group, leaves: Sequence[Leaf]) -> Opened:
    """Checks lengths, environments and flags before anything is used.

    Raises:
        ProtocolError: the buffers do not hold what the header says, or rows are out of order.
    """
    n, replies = request.rows, request.replies
    if replies != len(group.slots) or not replies <= n <= 2 * replies:
        raise ProtocolError(f"{n} rows with {replies} replies for a group of {len(group.slots)}")
    expected = [n * ROW.itemsize, *(n * leaf.nbytes for leaf in leaves)]
    if len(request.buffers) != len(expected):
        raise ProtocolError(f"{len(request.buffers)} buffers, {len(expected)} expected")
    views = [memoryview(buffer) for buffer in request.buffers]
    lengths = [view.nbytes for view in views]
    if lengths != expected:
        raise ProtocolError(f"buffers of {lengths} bytes, {expected} expected")
    rows = np.frombuffer(views[0], ROW)
    no_reply = (rows["flags"] & NO_REPLY) != 0
    if no_reply[n - replies :].any() or not no_reply[: n - replies].all() or (rows["flags"] > KNOWN_FLAGS).any():
        raise ProtocolError("impossible flags")
    environments = rows["environment"]
    if not np.array_equal(environments[n - replies :], np.arange(replies)):
        raise ProtocolError("rows are not in the order of environments")
    if (
        n > replies and (np.diff(environments[: n - replies].astype(np.int32)) <= 0).any()
    ) or environments.max() >= replies:
        raise ProtocolError("final rows are not in the order of environments")
    return Opened(group, request, rows, [leaf.view(view, n) for leaf, view in zip(leaves, views[1:], strict=True)])


class StepBatch(NamedTuple):
    """Requests joined into one inference batch of n replied rows, no slot twice.

    Attributes:
        parts: The requests, in order.
        slots: int32 ``[n]``.
        rows: ROW ``[n]``: the replied rows.
        observation: Leaves ``[n, ...]``: theirs.
        first: bool ``[n]``: begins an episode, or the slot's first row (a seam).
        evaluation: bool ``[n]``: of an eval worker; feeds nothing into the store.
    """

    parts: list[Opened]
    slots: npt.NDArray[np.int32]
    rows: Array
    observation: list[Array]
    first: npt.NDArray[np.bool_]
    evaluation: npt.NDArray[np.bool_]


def join(parts: list[Opened]) -> StepBatch:
    """One batch; a single request is joined without a copy."""
    slots = _joined([part.group.slots for part in parts])
    rows = _joined([part.rows[part.finals :] for part in parts])
    leaves = range(len(parts[0].observation))
    observation = [_joined([part.observation[i][part.finals :] for part in parts]) for i in leaves]
    seams = _joined([np.full(len(part.group.slots), part.group.sequence < 0) for part in parts])
    first = ((rows["flags"] & FIRST) != 0) | seams
    evaluation = _joined([np.full(len(part.group.slots), part.group.evaluation) for part in parts])
    return StepBatch(parts, slots, rows, observation, first, evaluation)


def _joined(arrays: list[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
