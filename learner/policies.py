"""Acting on several inference devices: each slot lives on one of them, so its recurrent state never moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from learner.policy import PolicyRows

Array = npt.NDArray[Any]


class PendingRows(Protocol):
    """A batch on its way through a policy."""

    def result(self) -> PolicyRows:
        """Waits for the devices."""


class Acting(Protocol):
    """What the inference loop acts with: ``learner.policy.Policy``, or several of them."""

    def submit(
        self, slots: Array, first: Array, reward: Array, observation: Sequence[Array], exploration: Array
    ) -> PendingRows:
        """Dispatches n rows, no slot twice."""

    def warm_up(self) -> None:
        """Traces every bucket."""


class Share(NamedTuple):
    """One device's rows of a batch: their places in it, and what is under way."""

    at: Array
    pending: PendingRows


class SplitPending:
    """Puts the devices' rows back in order."""

    def __init__(self, rows: int, shares: list[Share]) -> None:
        self._rows = rows
        self._shares = shares

    def result(self) -> PolicyRows:
        results = [share.pending.result() for share in self._shares]
        return PolicyRows(
            env_action=self._merged([x.env_action for x in results]),
            action=self._merged([x.action for x in results]),
            behaviour=self._merged([x.behaviour for x in results]),
            state=tuple(self._merged([x.state[i] for x in results]) for i in range(len(results[0].state))),
        )

    def _merged(self, parts: list[Array]) -> Array:
        merged = np.empty((self._rows, *parts[0].shape[1:]), parts[0].dtype)
        for share, part in zip(self._shares, parts, strict=True):
            merged[share.at] = part
        return merged


class PolicyBySlot:
    """Slots of evaluation environments act with another policy than those that train.

    Args:
        training: For most slots.
        evaluation: For those that ``evaluates`` names.
        evaluates: bool ``[slots]``, kept by whoever gives slots.
    """

    def __init__(self, training: Acting, evaluation: Acting, evaluates: Array) -> None:
        self._training = training
        self._evaluation = evaluation
        self._evaluates = evaluates

    def submit(
        self, slots: Array, first: Array, reward: Array, observation: Sequence[Array], exploration: Array
    ) -> PendingRows:
        evaluates = self._evaluates[slots]
        if not evaluates.any():
            return self._training.submit(slots, first, reward, observation, exploration)
        shares = []
        for policy, mask in ((self._training, ~evaluates), (self._evaluation, evaluates)):
            at = np.flatnonzero(mask)
            if len(at):
                leaves = [leaf[at] for leaf in observation]
                shares.append(Share(at, policy.submit(slots[at], first[at], reward[at], leaves, exploration[at])))
        return SplitPending(len(slots), shares)

    def warm_up(self) -> None:
        self._training.warm_up()
        self._evaluation.warm_up()


class SplitPolicy:
    """Slot s acts on device ``s mod K`` as that policy's slot ``s div K``.

    Args:
        policies: K policies, each on its own device with at least ``ceil(slots / K)`` slots.
    """

    def __init__(self, policies: Sequence[Acting]) -> None:
        self._policies = policies

    def submit(
        self, slots: Array, first: Array, reward: Array, observation: Sequence[Array], exploration: Array
    ) -> SplitPending:
        owner = slots % len(self._policies)
        shares = []
        for k, policy in enumerate(self._policies):
            at = np.flatnonzero(owner == k)
            if len(at):
                mine = slots[at] // len(self._policies)
                leaves = [leaf[at] for leaf in observation]
                shares.append(Share(at, policy.submit(mine, first[at], reward[at], leaves, exploration[at])))
        return SplitPending(len(slots), shares)

    def warm_up(self) -> None:
        for policy in self._policies:
            policy.warm_up()
