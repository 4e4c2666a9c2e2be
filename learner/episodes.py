"""Finished episodes: raw undiscounted returns, as the workers summed them, with environments weighed equally.

The window holds the last N episodes, and of every environment at least its last one. The mean over it is the mean of
each environment's own mean: one with many short episodes counts no more than one with a few long ones.

Whoever is short ends first: before each environment had its turn (has ended an episode that it began here), short
episodes prevail in the window, and there is no mean. Environments that join after that are not waited for. They count
when all of their worker's have had their turn, for of those the short ones end first as well. Where such that wait are
the majority, all are waited for anew.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.rows import FIRST, TERMINATED, TRUNCATED

Array = npt.NDArray[Any]
Slots = npt.NDArray[np.int32]

_ENDS = TERMINATED | TRUNCATED


class Figures(NamedTuple):
    """Over the window: mean and deviation of the return, mean length; environments weighed equally."""

    mean: float
    std: float
    length: float


class _Window:
    """The last finished episodes; where it is full the newest take the places of the oldest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._filled = self._next = 0
        self._slots = np.zeros(0, np.int64)
        self._values = np.zeros((2, 0))

    @property
    def full(self) -> bool:
        return self._filled == self._size

    @property
    def slots(self) -> Array:
        """``[n]``."""
        return self._slots[: self._filled]

    @property
    def values(self) -> Array:
        """Returns and lengths ``[2, n]``."""
        return self._values[:, : self._filled]

    def add(self, slots: Array, values: Array) -> None:
        """Episodes of ``slots``; values ``[2, n]``."""
        slots, values = slots[-self._size :], values[:, -self._size :]
        self._make_room(min(self._size, self._filled + len(slots)))
        at = (self._next + np.arange(len(slots))) % self._size
        self._slots[at], self._values[:, at] = slots, values
        self._next = (self._next + len(slots)) % self._size
        self._filled = min(self._size, self._filled + len(slots))

    def drop(self, slots: Array) -> None:
        """Leaves out what is of ``slots``."""
        order = (np.arange(self._filled) + (self._next if self.full else 0)) % self._size
        kept = order[~np.isin(self._slots[order], slots)]
        self._filled = len(kept)
        self._next = self._filled % self._size
        self._slots[: self._filled], self._values[:, : self._filled] = self._slots[kept], self._values[:, kept]

    def _make_room(self, number: int) -> None:
        """Twice as much each time: N may be large, and never reached."""
        if number > len(self._slots):
            more = min(self._size, max(2 * number, 1024)) - len(self._slots)
            self._slots = np.concatenate([self._slots, np.zeros(more, np.int64)])
            self._values = np.concatenate([self._values, np.zeros((2, more))], axis=1)


class Episodes:
    """See the module's docstring. Thread-safe.

    Args:
        window: N, episodes.
        slots: Of the learner.

    Attributes:
        count: Finished episodes.
        steps: Of theirs.
        trained: The run has had an update; before that there is no mean either.
    """

    def __init__(self, window: int, slots: int) -> None:
        self.count = self.steps = 0
        self.trained = False
        self._lock = threading.Lock()  # of all that follows
        self._window = _Window(window)
        self._worker = np.full(slots, -1, np.int64)  # by slot: the first slot of its worker's; -1: nobody's
        self._begun = np.zeros(slots, np.bool_)  # its episode began here
        self._last = np.zeros((2, slots))  # return and length of its last episode
        self._had_turn = np.zeros(slots, np.bool_)
        self._missing = np.zeros(slots, np.int64)  # by first slot of a worker: its environments without a turn
        self._settled = False  # all that were there at some moment have had their turn
        self._stays = False
        self._figures: tuple[bool, Figures | None] = (True, None)  # as they were last, and whether they still are
        self._first: Figures | None = None

    def join(self, slots: Slots) -> None:
        """A worker's environments are here."""
        with self._lock:
            self._worker[slots], self._missing[slots[0]] = slots[0], len(slots)
            self._begun[slots] = self._had_turn[slots] = False
            self._settle()

    def leave(self, slots: Slots) -> None:
        """A worker's environments are gone, and so is what they have played."""
        with self._lock:
            if not self._stays:
                self._worker[slots], self._missing[slots[0]] = -1, 0
                self._window.drop(slots)
                self._settle()

    def stay(self) -> None:
        """Whoever leaves from now on does so because the run ends: what it has played stays."""
        with self._lock:
            self._stays = True

    def observe(self, slots: Slots, rows: Array) -> None:
        """Rows in order: of each slot at most one.

        Args:
            slots: ``[n]``.
            rows: ``pipeline.rows.ROW`` ``[n]``.
        """
        flags = rows["flags"] & (_ENDS | FIRST)
        if not np.count_nonzero(flags):
            return
        final = (flags & _ENDS) != 0
        with self._lock:
            if np.count_nonzero(final):
                self._end(slots[final], rows[final])
            self._begun[slots[flags == FIRST]] = True

    def solved(self, target: float) -> bool:
        """The window is full, and its mean return reaches ``target``."""
        with self._lock:
            figures = self._now() if self._window.full else None
            return figures is not None and figures.mean >= target

    def snapshot(self) -> dict[str, Any]:
        """For ``summary.json``; means are None as long as there is none."""
        with self._lock:
            figures, first = self._now(), self._first
            return {
                "episodes": self.count,
                "episode_steps": self.steps,
                "episode_return_mean": None if figures is None else figures.mean,
                "episode_return_std": None if figures is None else figures.std,
                "episode_length_mean": None if figures is None else figures.length,
                "episode_environments": int(np.count_nonzero(self._worker >= 0)),
                "episode_environments_waited_for": 0 if self._settled else int(self._missing.sum()),
                "first_episode_return_mean": None if first is None else first.mean,
                "first_episode_return_std": None if first is None else first.std,
            }

    def _end(self, slots: Slots, rows: Array) -> None:
        """Episodes end with these rows."""
        self.count += len(slots)
        self.steps += int(rows["episode_length"].sum())
        own = self._begun[slots] & (self._worker[slots] >= 0)
        slots, values = slots[own], np.stack([rows["episode_return"][own], rows["episode_length"][own]])
        self._window.add(slots, values)
        self._last[:, slots] = values
        new = slots[~self._had_turn[slots]]
        if len(new):
            self._had_turn[new] = True
            np.subtract.at(self._missing, self._worker[new], 1)
            self._settle()
        self._figures = (False, self._figures[1])

    def _settle(self) -> None:
        """Who is here has changed, or who has had a turn."""
        self._figures = (False, self._figures[1])
        here = int(np.count_nonzero(self._worker >= 0))
        if not self._missing.any():
            self._settled = here > 0
        elif self._settled and 2 * len(self._counted()) < here:
            self._settled = False
        if self._settled and self._first is None:
            self._first = self._compute()

    def _counted(self) -> npt.NDArray[np.intp]:
        """Slots of workers whose environments have all had their turn."""
        here = np.flatnonzero(self._worker >= 0)
        return here[self._missing[self._worker[here]] == 0]

    def _now(self) -> Figures | None:
        fresh, figures = self._figures
        if not fresh:
            figures = self._compute() if self._settled else None
            self._figures = (True, figures)
        return figures if self.trained else None

    def _compute(self) -> Figures:
        """Mean over environments of the mean over each one's episodes in the window, else of its last."""
        counted = self._counted()
        high = int(counted[-1]) + 1
        number = np.bincount(self._window.slots, minlength=high)[:high][counted]

        def mean(values: Array, last: Array) -> float:
            sums = np.bincount(self._window.slots, values, minlength=high)[:high][counted]
            return float(np.where(number > 0, sums / np.maximum(number, 1), last[counted]).mean())

        (returns, lengths), (last_return, last_length) = self._window.values, self._last
        centre = mean(returns, last_return)
        deviation = np.sqrt(mean((returns - centre) ** 2, (last_return - centre) ** 2))
        return Figures(centre, float(deviation), mean(lengths, last_length))
