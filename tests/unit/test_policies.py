"""Several policies: who acts for which slot, and when the one that evaluates is traced."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from learner.assembler import Assembler
from learner.policies import PolicyBySlot, SplitPolicy, WarmUp
from learner.policy import PolicyRows
from learner.roster import Refusal, Roster
from learner.slots import SlotTable
from pipeline.ledger import Ledger
from pipeline.protocol import Cause, Hello
from pipeline.requests import Joined
from pipeline.spaces import Leaf, Spaces
from pipeline.stopping import StopToken
from pipeline.unrolls import UnrollLayout

pytestmark = pytest.mark.unit

SPACES = Spaces((Leaf("observation", "box", "float32", (1,)),), Leaf("action", "discrete", "int64", (), n=2))
LAYOUT = UnrollLayout(2, 1, SPACES.observation, (), "int64", 2, ())


class Named:
    """Acts with its own number; its tracing waits until it is allowed to end."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.traced = 0
        self.may_end = threading.Event()
        self.error: Exception | None = None

    def submit(
        self,
        slots: npt.NDArray[Any],
        first: npt.NDArray[Any],
        reward: npt.NDArray[Any],
        observation: Sequence[npt.NDArray[Any]],
        exploration: npt.NDArray[Any],
    ) -> Named:
        self.rows = len(slots)
        return self

    def result(self) -> PolicyRows:
        acted = np.full(self.rows, self.number)
        return PolicyRows(acted, acted, np.zeros((self.rows, 2), np.float32), ())

    def warm_up(self) -> None:
        assert self.may_end.wait(60.0)
        self.traced += 1
        if self.error is not None:
            raise self.error


def act(policy: PolicyBySlot | SplitPolicy, n: int) -> list[int]:
    zeros = np.zeros(n, np.float32)
    actions = policy.submit(np.arange(n), zeros > 0, zeros, [zeros[:, None]], zeros).result().env_action
    return [int(action) for action in actions]


def test_slots_that_evaluate_act_with_the_other_policy() -> None:
    evaluates = np.array([False, True, False, True])
    assert act(PolicyBySlot(Named(1), Named(2), evaluates), 4) == [1, 2, 1, 2]
    assert act(SplitPolicy([Named(1), Named(2)]), 5) == [1, 2, 1, 2, 1]


def test_the_policy_that_evaluates_is_not_traced_with_the_other() -> None:
    training, evaluation = Named(1), Named(2)
    training.may_end.set()
    PolicyBySlot(training, evaluation, np.zeros(4, bool)).warm_up()
    assert (training.traced, evaluation.traced) == (1, 0)


def test_tracing_stalls_nobody_and_happens_once() -> None:
    training, evaluation, stop = Named(1), Named(2), StopToken()
    policy, warm_up = PolicyBySlot(training, evaluation, np.zeros(4, bool)), WarmUp(evaluation, stop)
    assert evaluation.traced == 0
    assert not warm_up.ready() and not warm_up.ready()
    assert act(policy, 4) == [1] * 4, "who trains is served while the other policy is traced"
    evaluation.may_end.set()
    warm_up.join(60.0)
    assert warm_up.ready() and evaluation.traced == 1 and stop.error is None


def test_a_policy_traced_at_the_start_is_ready_at_once() -> None:
    evaluation = Named(2)
    evaluation.may_end.set()
    warm_up = WarmUp(evaluation, StopToken())
    warm_up.now()
    assert warm_up.ready() and evaluation.traced == 1
    warm_up.join(0.0)


def test_a_policy_that_cannot_be_traced_ends_the_learner() -> None:
    evaluation, stop = Named(2), StopToken()
    evaluation.error = RuntimeError("no such operation")
    evaluation.may_end.set()
    warm_up = WarmUp(evaluation, stop)
    assert not warm_up.ready()
    warm_up.join(60.0)
    assert not warm_up.ready() and stop.error is evaluation.error


def test_evaluation_workers_are_asked_to_wait_for_their_policy() -> None:
    ready = False
    roster = Roster(
        spaces=SPACES,
        config_hash="",
        largest_group=4,
        table=SlotTable(8),
        assembler=Assembler(LAYOUT, 8),
        ledger=Ledger(),
        known={},
        settled={},
        seeds=lambda _lane, _count: 1,
        evaluates_now=lambda: ready,
    )

    def join(mode: str, run: int) -> Refusal | None:
        return roster.join(Joined(run, run, Hello("w", run, mode, SPACES.to_wire(), [2], "", -1, {}, {})))

    assert join("train", 1) is None, "who trains needs no other policy"
    refused = join("eval", 2)
    assert refused is not None and refused.cause is Cause.NOT_YET and "evaluation policy" in refused.reason
    ready = True
    assert join("eval", 2) is None
