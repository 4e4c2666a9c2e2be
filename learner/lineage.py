"""From policy versions to updates. A version is a name that no other policy of the run ever had; a lag counts updates.

The two part where a learner goes on from a checkpoint: it takes a version above all that may have been published, so
versions jump while no update is applied. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MAX_BRANCHES = 256


class Lineage:
    """Where learners of the run went on: (the checkpoint's version, the version that the same weights then got).

    Versions between the two of a branch are of policies that were rolled back. What they acted counts as acted by the
    weights of the checkpoint: these are the last that such a policy and today's have in common.
    ``MAX_BRANCHES`` are kept: between rows that are older still, jumps count.

    Attributes:
        branches: As they came, for a checkpoint.
    """

    def __init__(self) -> None:
        self.branches: list[tuple[int, int]] = []
        self._read()

    def branch(self, last: int, version: int) -> None:
        """A learner goes on from ``last`` under the name ``version``, which may be the same."""
        if version > last:
            self.branches = [*self.branches, (last, version)][-MAX_BRANCHES:]
            self._read()

    def restore(self, branches: Iterable[tuple[int, int]]) -> None:
        """Those of a checkpoint."""
        for last, version in branches:
            self.branch(int(last), int(version))

    def _read(self) -> None:
        lasts, versions = np.array(self.branches, np.int64).reshape(-1, 2).T
        self._begins = versions
        self._jumped = np.concatenate([[0], np.cumsum(versions - lasts)])
        self._most = np.concatenate([lasts - self._jumped[:-1], [np.iinfo(np.int64).max]])

    @overload
    def updates(self, versions: int) -> int: ...
    @overload
    def updates(self, versions: Array) -> Array: ...
    def updates(self, versions: int | Array) -> int | Array:
        """Updates in the weights of these policies, of any one shape; grows with the version."""
        branch = np.searchsorted(self._begins, versions, side="right")
        found = np.minimum(versions - self._jumped[branch], self._most[branch])
        return int(found) if isinstance(versions, int) else found
