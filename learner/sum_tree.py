"""A sum tree in numpy: draws indices in proportion to their values, many at a time.

Each node is the sum of ``FAN_OUT`` children; the few nodes of the top level are searched by their cumulative sum. A
wide tree is shallow, and numpy's cost is one of calls, not of items: level by level, no Python loop over items.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

FAN_OUT = 64
TOP = 4096  # most nodes of the top level


class SumTree:
    """Values by index, all 0 at first. Not thread-safe.

    A parent is computed from its children each time, never corrected by a difference, so errors do not grow with the
    number of changes: each sum is as exact as one sum over float64.

    Args:
        capacity: Indices go from 0 to ``capacity - 1``.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a sum tree of capacity {capacity}")
        self.capacity = capacity
        nodes = -(-capacity // FAN_OUT) * FAN_OUT
        self._levels: list[Values] = [np.zeros(nodes)]  # from the leaves to the top; each a multiple of FAN_OUT long
        while nodes > TOP:
            nodes = -(-nodes // FAN_OUT**2) * FAN_OUT
            self._levels.append(np.zeros(nodes))
        self._cumulative: Values | None = None  # of the top level; None after a change

    @property
    def total(self) -> float:
        """Sum of all values."""
        return float(self._top()[-1])

    def get(self, indices: Indices) -> Values:
        """Values float64 ``[n]`` at ``indices`` ``[n]``."""
        values: Values = self._levels[0][indices]
        return values

    def set(self, indices: Indices, values: Values) -> None:
        """Sets values; where an index stands twice the last one counts.

        Args:
            indices: int64 ``[n]``.
            values: float64 ``[n]``, finite and not negative.

        Raises:
            ValueError: a value that is negative or not finite.
            IndexError: an index out of bounds.
        """
        indices, values = np.asarray(indices, np.int64), np.asarray(values, np.float64)
        if not np.all((values >= 0) & (values < np.inf)):
            raise ValueError("values of a sum tree are finite and not negative")
        if indices.size and not (indices.min() >= 0 and indices.max() < self.capacity):
            raise IndexError(f"indices of a sum tree of capacity {self.capacity}: {indices.min()} to {indices.max()}")
        self._levels[0][indices] = values
        self._cumulative = None
        for children, parents in zip(self._levels, self._levels[1:], strict=False):
            groups = children.reshape(-1, FAN_OUT)
            if indices.size >= len(groups):
                parents[: len(groups)] = groups.sum(axis=1)
            else:
                indices = indices // FAN_OUT
                parents[indices] = groups[indices].sum(axis=1)

    def clear(self) -> None:
        """Sets all values to 0."""
        for level in self._levels:
            level[:] = 0.0
        self._cumulative = None

    def sample(self, uniforms: Values) -> Indices:
        """The index at each point of the line on which the values lie end to end.

        Args:
            uniforms: float64 ``[n]`` in [0, 1): shares of the whole line.

        Returns:
            int64 ``[n]``; only indices whose value is above 0.

        Raises:
            ValueError: all values are 0.
        """
        top = self._top()
        if not top[-1] > 0:
            raise ValueError("a sum tree whose values are all 0 has nothing to sample")
        # Rounding must not carry a point past the end, of the line or of a node: nothing lies there.
        points = np.minimum(np.asarray(uniforms, np.float64) * top[-1], np.nextafter(top[-1], 0.0))
        nodes = np.searchsorted(top, points, side="right")
        points = points - np.where(nodes > 0, top[nodes - 1], 0.0)
        for level in reversed(self._levels[:-1]):
            sums = level.reshape(-1, FAN_OUT)[nodes].cumsum(axis=1)  # [n, FAN_OUT]
            points = np.minimum(points, np.nextafter(sums[:, -1], 0.0))
            children = (sums <= points[:, None]).sum(axis=1)
            points = points - np.where(children > 0, sums[np.arange(len(points)), children - 1], 0.0)
            nodes = nodes * FAN_OUT + children
        return nodes.astype(np.int64)

    def _top(self) -> Values:
        if self._cumulative is None:
            self._cumulative = self._levels[-1].cumsum()
        return self._cumulative
