"""Step requests joined into one inference batch: what is taken, and what is refused of whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from learner.requests import Opened, StepBatch, join, open_request
from learner.slots import Group
from pipeline.errors import ProtocolError
from pipeline.requests import StepRequest
from pipeline.rows import FIRST, NO_REPLY, ROW, TERMINATED, TRUNCATED
from pipeline.spaces import Leaf

pytestmark = pytest.mark.unit

LEAVES = (Leaf("a", "box", "float32", (3,)), Leaf("b", "box", "uint8", ()))


def group(n: int, at: int, **changes: Any) -> Group:
    made = Group(np.arange(at, at + n, dtype=np.int32), np.arange(n), 1, False, sequence=4)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def records(n: int, finals: tuple[int, ...] = (), flags: int = 0) -> npt.NDArray[Any]:
    rows = np.zeros(len(finals) + n, ROW)
    rows["environment"] = [*finals, *range(n)]
    rows["flags"] = [NO_REPLY | TERMINATED] * len(finals) + [flags] * n
    rows["reward"] = np.random.default_rng(len(rows)).normal(size=len(rows))
    return rows


def part(rows: npt.NDArray[Any], n: int, of: Group) -> tuple[Opened, list[npt.NDArray[Any]]]:
    """Opened, and its leaves: each row of them holds its place in the message and the group's first slot."""
    m = len(rows)
    leaves = [
        np.stack([np.arange(m), np.full(m, of.slots[0]), np.zeros(m)], 1).astype(np.float32),
        (10 * of.slots[0] + np.arange(m)).astype(np.uint8),
    ]
    buffers = [rows.tobytes(), *(leaf.tobytes() for leaf in leaves)]
    return open_request(StepRequest(0, 1, 0, 5, m, n, buffers), of, LEAVES), leaves


PARTS = {
    "one": [(2, (), 0)],
    "several": [(2, (), 0), (1, (), 0), (3, (), 0)],
    "flags": [(2, (), FIRST), (1, (), TERMINATED | TRUNCATED), (1, (), 0)],
    "finals of one": [(3, (0, 2), FIRST)],
    "finals among several": [(1, (), 0), (3, (1, 2), FIRST), (2, (), 0), (2, (0, 1), FIRST)],
}


@pytest.mark.parametrize("sizes", PARTS.values(), ids=PARTS)
def test_a_batch_holds_what_its_requests_hold_one_by_one(sizes: list[tuple[int, tuple[int, ...], int]]) -> None:
    parts, rows, leaves, at, finals = [], [], [[], []], 0, []  # type: ignore[var-annotated]
    for n, of, flags in sizes:
        message = records(n, of, flags)
        opened, arrays = part(message, n, group(n, at))
        parts.append(opened)
        finals += [(at + environment, message[i], [leaf[i] for leaf in arrays]) for i, environment in enumerate(of)]
        rows.append(message[len(of) :])
        for all_of_them, leaf in zip(leaves, arrays, strict=True):
            all_of_them.append(leaf[len(of) :])
        at += n
    batch = join(parts)
    assert batch.slots.tolist() == list(range(at)) and batch.slots.dtype == np.int32
    assert (batch.rows == np.concatenate(rows)).all() and batch.evaluation is False
    for found, wanted in zip(batch.observation, leaves, strict=True):
        assert np.array_equal(found, np.concatenate(wanted)) and found.dtype == wanted[0].dtype
    assert batch.first.tolist() == [bool(row["flags"] & FIRST) for one in rows for row in one]
    if not finals:
        assert batch.finals is None
        return
    assert batch.finals is not None and batch.finals.at.tolist() == [place for place, _, _ in finals]
    assert batch.finals.rows.tolist() == [row.tolist() for _, row, _ in finals]
    for i, leaf in enumerate(batch.finals.observation):
        assert np.array_equal(leaf, np.stack([arrays[i] for _, _, arrays in finals]))


def test_a_first_request_is_a_seam_and_eval_rows_are_told_apart() -> None:
    groups = [group(2, 0), group(1, 2, sequence=-1), group(2, 3, evaluation=True)]
    batch = join([part(records(len(x.slots)), len(x.slots), x)[0] for x in groups])
    assert batch.first.tolist() == [False, False, True, False, False]
    assert isinstance(batch.evaluation, np.ndarray) and batch.evaluation.tolist() == [False] * 3 + [True] * 2
    assert batch.by_row([7, 8, 9]).tolist() == [7, 7, 8, 9, 9]


def changed(finals: tuple[int, ...] = (), **columns: list[int]) -> npt.NDArray[Any]:
    rows = records(2, finals)
    for name, values in columns.items():
        rows[name] = values
    return rows


WRONG = {
    "unknown flag": changed(flags=[0, 32]),
    "high flag": changed(flags=[1 << 15, 0]),
    "no reply among the replied": changed(flags=[0, NO_REPLY]),
    "other order": changed(environment=[1, 0]),
    "twice the same": changed(environment=[0, 0]),
    "no such environment": changed(environment=[0, 2]),
    "a final row with a reply": changed((1,), flags=[TERMINATED, 0, 0]),
    "a final row of an unknown flag": changed((1,), flags=[NO_REPLY | 32, 0, 0]),
    "a final row of no such environment": changed((2,)),
    "final rows in another order": changed((1, 0)),
    "final rows of one environment": changed((1, 1)),
}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("rows", WRONG.values(), ids=WRONG)
def test_one_impossible_request_is_found_wherever_it_stands(rows: npt.NDArray[Any], place: int) -> None:
    parts = [part(records(2, (0, 1)), 2, group(2, 2 * i))[0] for i in range(3)]
    parts[place] = part(rows, 2, group(2, 2 * place))[0]
    with pytest.raises(ProtocolError):
        join(parts)
    assert [_joins(one) for one in parts] == [i != place for i in range(3)]


def _joins(one: Opened) -> bool:
    try:
        return isinstance(join([one]), StepBatch)
    except ProtocolError:
        return False


@pytest.mark.parametrize(
    ("rows", "replies", "lengths"),
    [
        (2, 2, [64, 24]),
        (2, 2, [64, 24, 2, 0]),
        (2, 2, [64, 24, 3]),
        (2, 2, [63, 24, 2]),
        (3, 2, [64, 24, 2]),
        (1, 2, [32, 12, 1]),
        (5, 2, [160, 60, 5]),
        (1, 1, [32, 12, 1]),
        (0, 0, [0, 0, 0]),
    ],
)
def test_lengths_are_those_of_the_header_and_the_group(rows: int, replies: int, lengths: list[int]) -> None:
    request = StepRequest(0, 1, 0, 5, rows, replies, [bytes(n) for n in lengths])
    with pytest.raises(ProtocolError):
        open_request(request, group(2, 0), LEAVES)
