"""Single environments, stepped one after the other.

Nothing that an environment returns is kept: observations are copied into the group's arrays, rewards and flags become
numbers, infos are not gathered. So it may return its own buffers, and infos of whatever kind.

An environment that fails (raises, or returns what cannot be) is made anew by itself, if it has stepped before: the
others' steps stand. What fails before its first step fails the group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from pipeline.errors import SeedmqError, SpaceError
from pipeline.streams import renewed_seed
from workers.vector import Array, Finals, Mask, Stepped
from workers.watched import Outcome, Watched

log = logging.getLogger(__name__)

OnFault = Callable[[int, BaseException], None]
"""Told which environment failed, and how; returns when it may be made anew, or raises what the group fails with."""


FAULTS = (Exception, SystemExit)
"""An environment may raise anything; errors of ours are none of its."""


class _Seen(NamedTuple):
    """What happened in a step: final observations, and indices."""

    finals: list[tuple[int, list[Array]]]
    renewed: list[int]
    life_lost: list[int]


def fail(index: int, error: BaseException) -> None:
    """The ``OnFault`` of who makes nothing anew."""
    del index
    raise error


class Singles:
    """``n`` single environments as a ``workers.vector.Vector``.

    Args:
        make: Makes the environment of an index, not yet reset.
        n: How many.
        mode: When they begin the next episode. DISABLED is as SAME_STEP: we reset them at once.
        on_fault: See ``OnFault``.

    Raises:
        SpaceError: they differ in their spaces, or seedmq does not support them. And what ``make`` raises.
    """

    def __init__(
        self,
        make: Callable[[int], Watched],
        n: int,
        mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        on_fault: OnFault = fail,
    ) -> None:
        self.n, self.next_step = n, mode == AutoresetMode.NEXT_STEP
        self._make, self._on_fault = make, on_fault
        self.environments = [make(index) for index in range(n)]
        self.spaces = self.environments[0].spaces
        for index, environment in enumerate(self.environments):
            if difference := environment.spaces.difference(self.spaces, f"in environment {index}", "in environment 0"):
                raise SpaceError(f"the environments of a group have the same spaces: {difference}")
        self._discrete = self.spaces.action.kind == "discrete"
        self._leaves = [np.zeros((n, *leaf.shape), leaf.dtype) for leaf in self.spaces.observation]
        self._rows = [[leaf[index, ...] for leaf in self._leaves] for index in range(n)]
        self._reward = np.zeros(n, np.float64)
        self._terminated, self._truncated = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        self._ended = [False] * n  # the next step is a reset
        self._has_stepped = [False] * n
        self._seeds = np.zeros(n, np.int64)
        self._renewals = [0] * n

    def reset(self, seeds: Array | None = None) -> list[Array]:
        """See ``Vector``."""
        if seeds is not None:
            self._seeds[:] = seeds
        for index in range(self.n):
            self._reset(index, None if seeds is None else int(seeds[index]))
        return self._leaves

    def reset_some(self, which: Mask, leaves: list[Array]) -> tuple[list[Array], Mask]:
        """See ``Vector``."""
        for index in np.flatnonzero(which).tolist():
            self._reset(index)
        return leaves, which

    def step(self, actions: Array) -> Stepped:
        """See ``Vector``."""
        seen = _Seen([], [], [])
        for index in range(self.n):
            if self._ended[index]:
                self._say(index, Outcome(0.0, False, False, False))
                self._reset(index)
            else:  # as ``sample`` gives it: a number of the dtype where discrete, else an array, of rank 0 too
                self._step(index, actions[index] if self._discrete else actions[index, ...], seen)
        return Stepped(
            self._leaves,
            self._reward,
            self._terminated,
            self._truncated,
            _finals(seen.finals) if seen.finals else None,
            self._mask(seen.renewed) if seen.renewed else None,
            self._mask(seen.life_lost) if seen.life_lost else None,
        )

    def close(self) -> None:
        """Closes all environments."""
        for environment in self.environments:
            environment.close()

    def _step(self, index: int, action: Any, seen: _Seen) -> None:
        rows = self._rows[index]
        try:
            outcome = self.environments[index].step(action, rows)
        except SeedmqError:
            raise
        except FAULTS as error:
            self._say(index, Outcome(0.0, False, False, False))
            self._renew(index, error)
            seen.renewed.append(index)
            return
        self._has_stepped[index] = True
        self._say(index, outcome)
        if outcome.life_lost:
            seen.life_lost.append(index)
        if not (outcome.terminated or outcome.truncated):
            return
        if self.next_step:
            self._ended[index] = True
        else:
            seen.finals.append((index, [row.copy() for row in rows]))
            self._reset(index)

    def _say(self, index: int, outcome: Outcome) -> None:
        self._reward[index], self._terminated[index], self._truncated[index], _ = outcome

    def _reset(self, index: int, seed: int | None = None) -> None:
        self._ended[index] = False
        try:
            self.environments[index].reset(self._rows[index], seed)
        except SeedmqError:
            raise
        except FAULTS as error:
            self._renew(index, error)

    def _renew(self, index: int, error: BaseException) -> None:
        """Makes the environment anew, and resets it; again and again, for as long as ``on_fault`` lets it."""
        if not self._has_stepped[index]:
            raise error
        while True:
            self._on_fault(index, error)
            try:
                self._close(index)
                self._renewals[index] += 1
                self.environments[index] = self._make(index)
                seed = renewed_seed(int(self._seeds[index]), self._renewals[index])
                self.environments[index].reset(self._rows[index], seed)
                return
            except SeedmqError:
                raise
            except FAULTS as again:
                error = again

    def _close(self, index: int) -> None:
        try:
            self.environments[index].close()
        except Exception as error:  # noqa: BLE001 - it failed before: what counts is that another takes its place
            log.warning("an environment that failed could not be closed: %s: %s", type(error).__name__, error)

    def _mask(self, indices: list[int]) -> Mask:
        mask = np.zeros(self.n, np.bool_)
        mask[indices] = True
        return mask


def _finals(finals: list[tuple[int, list[Array]]]) -> Finals:
    environments = np.array([index for index, _ in finals], np.intp)
    return Finals(environments, [np.stack(leaf) for leaf in zip(*(leaves for _, leaves in finals), strict=True)])
