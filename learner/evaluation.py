"""Rounds of evaluation episodes under fixed weights.

A round begins with a copy of the weights. Each evaluation environment then plays its share of episodes, assigned
beforehand and waited for, so that short ones are not favoured; what was going on when the round began does not count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from learner.policies import Acting
from pipeline.rows import FIRST, TERMINATED, TRUNCATED

Array = npt.NDArray[Any]

UNKNOWN = -1


class Result(NamedTuple):
    """A finished round: returns of its episodes, and the policy version that played them."""

    returns: list[float]
    version: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))


class Evaluation:
    """One round after the other: ``begin`` and ``observe`` on the inference thread, ``take`` on the training thread.

    Args:
        policy: Acts with the fixed copy.
        copy_weights: Makes the copy.
        episodes: Of a round, at least; each environment plays as many as every other.
        slots: How many slots there are.
        max_steps: Of an episode; a longer one voids the round.
    """

    def __init__(
        self, policy: Acting, copy_weights: Callable[[], None], episodes: int, slots: int, max_steps: int
    ) -> None:
        self.policy = policy
        self._copy_weights = copy_weights
        self._episodes = episodes
        self._lock = threading.Lock()
        self._max_steps = max_steps
        self._began = np.full(slots, UNKNOWN, np.int64)  # running index where the slot's episode (or the round) began
        self._endless: str | None = None
        self._counts = np.zeros(slots, np.bool_)  # the slot's episode began in this round
        self._share = 0
        self._returns: dict[int, list[float]] = {}  # by slot: of the environments there were when the round began
        self.version = -1  # of the last round
        self._result: Result | None = None
        self.last: Result | None = None
        self.rounds = self.voided = 0

    @property
    def idle(self) -> bool:
        """No round goes on."""
        return not self._returns

    def begin(self, slots: Array, version: int, copies: bool = True) -> None:
        """Begins a round, played by the environments of ``slots``; none: no round.

        Args:
            slots: int ``[n]``.
            version: Of the weights that play it.
            copies: They are those that are trained; else those of the round before.
        """
        with self._lock:
            self._counts[:], self._began[:] = False, UNKNOWN
            self._returns = {int(slot): [] for slot in slots}
            self._result = None
            self.version = version
            if len(slots):
                self._share = -(-self._episodes // len(slots))
                if copies:
                    self._copy_weights()

    def keep_to(self, slots: Array) -> None:
        """Voids the round where other environments are there now than those that play it."""
        with self._lock:
            if self._returns and set(self._returns) != set(slots.tolist()):
                self._returns = {}

    def observe(self, slots: Array, rows: Array) -> None:
        """Rows of evaluation environments in order: of each slot at most a final row and a first one.

        Args:
            slots: int ``[n]``.
            rows: ``pipeline.rows.ROW`` ``[n]``.
        """
        final = (rows["flags"] & (TERMINATED | TRUNCATED)) != 0
        with self._lock:
            for slot, value in zip(slots[final].tolist(), rows["episode_return"][final].tolist(), strict=True):
                played = self._returns.get(slot)
                if played is not None and self._counts[slot] and len(played) < self._share:
                    played.append(value)
                self._counts[slot] = False
            begins = (rows["flags"] & FIRST) != 0
            self._counts[slots[begins]] = True
            self._bound(slots, rows["index"], begins)
            if final.any() and self._returns and all(len(r) >= self._share for r in self._returns.values()):
                returns = [value for mine in self._returns.values() for value in mine]
                self._result = Result(returns, self.version)
                self._returns = {}

    def _bound(self, slots: Array, index: Array, begins: Array) -> None:
        """Voids the round where an episode has no end."""
        anew = begins | (self._began[slots] == UNKNOWN)
        self._began[slots[anew]] = index[anew]
        if not self._returns or (index - self._began[slots]).max(initial=0) <= self._max_steps:
            return
        ended = sum(map(len, self._returns.values()))
        self._endless = (
            f"evaluation: an episode of version {self.version} has not ended after {self._max_steps:,} steps "
            f"(evaluation.max_steps), {ended or 'none'} of the round's others had: the round does not count"
        )
        self._returns, self.voided = {}, self.voided + 1

    def take_endless(self) -> str | None:
        """That a round was voided by an episode without an end, once."""
        with self._lock:
            endless, self._endless = self._endless, None
            return endless

    def take(self) -> Result | None:
        """The finished round, once."""
        with self._lock:
            result, self._result = self._result, None
            if result is not None:
                self.last, self.rounds = result, self.rounds + 1
            return result

    def status(self) -> dict[str, Any]:
        """For ``summary.json``."""
        last = self.last
        return {
            "rounds": self.rounds,
            "voided_rounds": self.voided,
            "last_return_mean": last.mean if last else None,
            "last_version": last.version if last else None,
        }
