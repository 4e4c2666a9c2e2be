"""The sampling index of a replay: which items there are, and how likely each is to be drawn.

The payloads and raw priorities are in the store (``pipeline.store.interface``); this index is the learner's, built from
the store's ``entries`` when a learner starts and kept up to date by what ``insert`` answers.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from learner.sum_tree import SumTree

Ids: TypeAlias = npt.NDArray[np.int64] | Sequence[int]
Floats: TypeAlias = npt.NDArray[np.float64] | Sequence[float]

NO_ID = -1
INDEX_BYTES = 17  # of an item: its id, and its leaf of the tree with a 64th of the node above


class ReplayIndex:
    """Draws ids in proportion to priority ** exponent (prioritized experience replay, section 3.3). Thread-safe.

    An id has the leaf id mod capacity. The store's ids are a range of at most ``capacity``, so each has a leaf of its
    own, whatever the order in which additions and removals come: a newer id takes the leaf over, an older one that
    comes late is passed over.

    Args:
        capacity: The store's, in items.
        exponent: alpha; 0 draws uniformly.
    """

    def __init__(self, capacity: int, exponent: float) -> None:
        self.capacity = capacity
        self.exponent = exponent
        self._lock = threading.Lock()
        self._tree = SumTree(capacity)
        self._ids = np.full(capacity, NO_ID, np.int64)  # by leaf
        self._size = 0

    @property
    def size(self) -> int:
        """Items that are there."""
        return self._size

    def add(self, ids: Ids, priorities: Floats) -> None:
        """Takes new items in.

        Args:
            ids: int64 ``[n]``, growing.
            priorities: float64 ``[n]``, raw, finite and not negative; 0 is never drawn unless the exponent is 0.

        Raises:
            ValueError: a priority that is negative or not finite, or another number of them than ids.
        """
        ids, weights = self._weights(ids, priorities)
        with self._lock:
            self._add(ids, weights)

    def remove(self, ids: Ids) -> None:
        """Forgets items; those that are not there are passed over."""
        ids = np.asarray(ids, np.int64)
        with self._lock:
            leaves = np.unique(ids[self._ids[ids % self.capacity] == ids] % self.capacity)
            self._ids[leaves] = NO_ID
            self._tree.set(leaves, np.zeros(len(leaves)))
            self._size -= len(leaves)

    def update(self, ids: Ids, priorities: Floats) -> None:
        """Sets priorities, of the last mention where an id stands twice; ignored where the item is gone.

        Raises:
            ValueError: as ``add``.
        """
        ids, weights = self._weights(ids, priorities)
        with self._lock:
            leaves = ids % self.capacity
            there = self._ids[leaves] == ids
            self._tree.set(leaves[there], weights[there])

    def rebuild(self, ids: Ids, priorities: Floats) -> None:
        """Forgets everything and takes these items in, the newest ``capacity`` of them.

        For the thread that inserts: what another one adds meanwhile would be forgotten.

        Raises:
            ValueError: as ``add``.
        """
        ids, weights = self._weights(ids, priorities)
        with self._lock:
            self._tree.clear()
            self._ids[:] = NO_ID
            self._size = 0
            self._add(ids, weights)

    def sample(self, count: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Draws with replacement, stratified: one item from each of ``count`` equal parts of the line of priorities.

        Each item comes ``count`` x probability times in the mean, as with independent draws, but always within 2 of
        that, so batches differ less from each other. The draws come in the order of the leaves: shuffle them where the
        order within a batch matters.

        Args:
            count: n.
            rng: Source of the draws.

        Returns:
            Ids int64 ``[n]`` and the probability of each, float64 ``[n]``: its share of all priorities.

        Raises:
            ValueError: nothing is there that could be drawn.
        """
        uniforms = (np.arange(count) + rng.random(count)) / count
        with self._lock:
            leaves = self._tree.sample(uniforms)
            return self._ids[leaves], self._tree.get(leaves) / self._tree.total

    def _add(self, ids: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> None:
        newer = ids >= self._ids[ids % self.capacity]
        ids, weights = ids[newer], weights[newer]
        leaves = ids % self.capacity
        self._size += int(np.count_nonzero(self._ids[np.unique(leaves)] == NO_ID))
        self._ids[leaves] = ids
        self._tree.set(leaves, weights)

    def _weights(self, ids: Ids, priorities: Floats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        keys, raw = np.asarray(ids, np.int64), np.asarray(priorities, np.float64)
        if keys.shape != raw.shape:
            raise ValueError(f"{keys.size} ids with {raw.size} priorities")
        if not np.all((raw >= 0) & (raw < np.inf)):
            raise ValueError("priorities are finite and not negative")
        return keys, raw**self.exponent


def importance_weights(probabilities: npt.NDArray[np.float64], beta: float, size: int) -> npt.NDArray[np.float64]:
    """(1 / (N p)) ** beta (prioritized experience replay, section 3.4), not normalised.

    Args:
        probabilities: p, float64 ``[n]``, above 0.
        beta: 0 gives 1 for all.
        size: N, items that could be drawn.

    Returns:
        float64 ``[n]``.
    """
    weights: npt.NDArray[np.float64] = (size * probabilities) ** -beta
    return weights
