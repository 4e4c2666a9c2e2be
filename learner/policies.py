"""Acting with several policies: one for each inference device, where a slot stays for good, and one that evaluates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from learner.policy import PolicyRows
from pipeline.stopping import OwnedThread, StopToken

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

    ``WarmUp`` traces that other policy before the first of them is admitted, so ``warm_up`` does not.

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
        if not np.count_nonzero(evaluates):  # several times as fast as any()
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


class WarmUp:
    """Traces a policy that nobody acts with yet: at once, or when it is first asked for, on a thread of its own.

    Tracing takes about a second, in which whoever acts with other policies goes on.

    Args:
        policy: Owned by this thread until ``ready`` says True.
        stop: Stopped with the error of a policy that cannot be traced.
    """

    def __init__(self, policy: Acting, stop: StopToken) -> None:
        self._policy = policy
        self._thread = OwnedThread("evaluation-warm-up", self._trace, stop)
        self._done = False

    def now(self) -> None:
        """Traces on the caller's thread; before the first ``ready``."""
        self._trace()

    def ready(self) -> bool:
        """Whether the policy is traced; the first call begins it. One thread; never blocks."""
        if not self._done and self._thread.ident is None:
            self._thread.start()
        return self._done

    def join(self, timeout_seconds: float) -> None:
        """Waits for what goes on."""
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def _trace(self) -> None:
        self._policy.warm_up()
        self._done = True


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
