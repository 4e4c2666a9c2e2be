"""The inference loop over a scripted source: who is answered what, and who is refused, within one batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.serving import Nothing
from learner.assembler import Assembler
from learner.exploration import SAMPLE, Exploration
from learner.inference import InferenceLoop, Serving
from learner.policy import PolicyRows
from learner.roster import Roster
from learner.slots import SlotTable
from pipeline.ledger import Ledger
from pipeline.protocol import Cause, GroupReport, Hello, Report
from pipeline.requests import Event, Joined, Left, Reply, Standing, StepRequest
from pipeline.rows import FIRST, KNOWN_FLAGS, ROW
from pipeline.spaces import Leaf, Spaces
from pipeline.stages import Stage
from pipeline.stopping import StopToken
from pipeline.unrolls import UnrollLayout

pytestmark = pytest.mark.unit

SPACES = Spaces((Leaf("observation", "box", "float32", (3,)),), Leaf("action", "discrete", "int64", (), n=100))
LAYOUT = UnrollLayout(5, 1, SPACES.observation, (), "int64", 1, ((2,),))
ROWS = 2


class Script:
    """A request source that gives what ``coming`` holds, and keeps what it is told."""

    def __init__(self) -> None:
        self.stage, self.broker_busy = Stage("inference"), None
        self.coming: list[tuple[list[StepRequest], list[Event]]] = []
        self.arrived: list[float] = []
        self.replies: list[Reply] = []
        self.rejected: list[tuple[int, str, Cause]] = []

    def poll(self, credit: int, timeout_seconds: float) -> tuple[list[StepRequest], list[Event]]:
        given = self.coming.pop(0) if self.coming else ([], [])
        self.arrived = [0.0] * len(given[0])
        return given

    def reply(self, replies: list[Reply]) -> None:
        self.replies += replies

    def reject(self, worker: int, run: int, reason: str, cause: Cause) -> None:
        self.rejected.append((run, reason, cause))

    def admit(self, worker: int, run: int, seed: int, anew: bool) -> None: ...

    def hold_back(self, reason: str | None) -> None: ...

    def publish(self, status: dict[str, Any]) -> None: ...

    def standing(self, now: float) -> Standing:
        return Standing("")


class Slots:
    """A policy whose action is the slot and the sum of its observation: what went in comes out."""

    def __init__(self) -> None:
        self.rows = PolicyRows(np.zeros(0), np.zeros(0), np.zeros((0, 2), np.float32), ())

    def submit(self, slots: Any, first: Any, reward: Any, observation: Any, exploration: Any) -> Slots:
        pending = Slots()
        pending.rows = self.rows._replace(env_action=(10 * slots + observation[0].sum(1)).astype(np.int64))
        return pending

    def result(self) -> PolicyRows:
        return self.rows

    def warm_up(self) -> None: ...


class Stand:
    """The loop with three workers, of one group of ``ROWS`` environments each."""

    def __init__(self, in_flight: int = 2, exploration: Exploration = SAMPLE) -> None:
        self.version = 0
        self.source, self.table, assembler = Script(), SlotTable(8, exploration), Assembler(LAYOUT, 8)
        nothing: Any = type("Writer", (), {"full": False, "submit": lambda self, unrolls: None})()
        roster = Roster(
            spaces=SPACES, config_hash="", largest_group=8, table=self.table, assembler=assembler, ledger=Ledger(),
            known={}, settled={}, seeds=lambda _lane, _count: 1,
        )  # fmt: skip
        self.roster = roster
        self.loop = InferenceLoop(
            lambda: self.source,  # type: ignore[arg-type,return-value]
            batch=8, version=lambda: self.version, status=dict, on_spaces=lambda _: None, stop=StopToken(),
        )  # fmt: skip
        collector: Any = Nothing()
        self.loop.serve_with(Serving(Slots(), roster, collector, nothing, SPACES.observation, False, in_flight))
        hellos = [Hello(f"w{i}", i + 1, "train", SPACES.to_wire(), [ROWS], "", -1, {}, {}) for i in range(3)]
        self.turn([], [Joined(i, i + 1, hello) for i, hello in enumerate(hellos)])

    def turn(self, requests: list[StepRequest], events: list[Event] | None = None) -> list[Reply]:
        """What is answered to these."""
        self.source.coming.append((requests, events or []))
        before = len(self.source.replies)
        for _ in range(2):
            self.loop._turn(self.source)  # type: ignore[arg-type]
        return self.source.replies[before:]


def request(worker: int, sequence: int, flags: int = 0, cut: int = 0) -> StepRequest:
    rows = np.zeros(ROWS, ROW)
    rows["environment"], rows["flags"] = np.arange(ROWS), flags
    observation = np.full((ROWS, 3), worker, np.float32).tobytes()
    buffers = [rows.tobytes(), observation[cut:]]
    return StepRequest(worker, worker + 1, 0, sequence, ROWS, ROWS, buffers)


def actions(worker: int) -> bytes:
    return np.array([10 * (ROWS * worker + i) + 3 * worker for i in range(ROWS)], np.int64).tobytes()


def test_each_request_of_a_batch_gets_its_own_actions_and_a_repeat_the_same() -> None:
    stand = Stand()
    replies = stand.turn([request(2, 0), request(0, 0), request(1, 0)])
    assert replies == [Reply(w, w + 1, 0, 0, actions(w)) for w in (2, 0, 1)]
    assert stand.turn([request(0, 0)]) == [Reply(0, 1, 0, 0, actions(0))] and stand.loop.counters["repeat"] == 1
    assert stand.loop.counters["batches"] == 1


@pytest.mark.parametrize("spoilt", [{"flags": KNOWN_FLAGS + 1}, {"cut": 4}], ids=["rows", "lengths"])
@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_one_spoilt_request_is_refused_and_the_others_of_its_batch_are_answered(
    wrong: int, spoilt: dict[str, int]
) -> None:
    stand = Stand()
    replies = stand.turn([request(w, 0, **(spoilt if w == wrong else {})) for w in range(3)])
    assert replies == [Reply(w, w + 1, 0, 0, actions(w)) for w in range(3) if w != wrong]
    assert [(run, cause) for run, _, cause in stand.source.rejected] == [(wrong + 1, Cause.SESSION)]
    assert stand.loop.counters["malformed"] == 1 and stand.loop.counters["rows"] == 2 * ROWS
    group = stand.table.get(wrong, wrong + 1)
    assert group is not None and group.groups[0].serving == -1 and group.groups[0].sequence == -1


def test_a_batch_of_nothing_but_a_spoilt_request_is_none() -> None:
    stand = Stand()
    assert stand.turn([request(1, 0, flags=KNOWN_FLAGS + 1)]) == [] and stand.loop.counters["batches"] == 0
    assert [run for run, _, _ in stand.source.rejected] == [2]


@pytest.mark.parametrize(("in_flight", "answered"), [(1, [1, 2]), (2, [0, 1])])
def test_actions_go_out_before_the_next_batch_where_one_is_in_flight(in_flight: int, answered: list[int]) -> None:
    stand = Stand(in_flight)
    stand.source.coming += [([request(0, 0)], []), ([request(1, 0)], [])]
    found = []
    for _ in answered:
        stand.loop._turn(stand.source)  # type: ignore[arg-type]
        found.append(len(stand.source.replies))
    assert found == answered


class Witness(Slots):
    """Notes what it is asked with; ``meanwhile`` happens before it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Any, ...]] = []
        self.meanwhile: Any = lambda: None

    def submit(self, slots: Any, first: Any, reward: Any, observation: Any, exploration: Any) -> Slots:
        self.asked.append((slots.tolist(), first.tolist(), reward.tolist(), exploration.tolist()))
        pending = super().submit(slots, first, reward, observation, exploration)
        self.meanwhile()
        return pending


class Versions:
    """Stands where the collector does: notes the version that each batch is booked with."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def collect(self, batch: Any, acted: PolicyRows, version: int) -> None:
        self.found.append(version)


def test_the_policy_is_asked_with_each_rows_reward_first_flag_and_exploration() -> None:
    """Else what acts has other inputs than what learns, or explores otherwise than its slot is to."""
    stand, policy = Stand(exploration=Exploration(np.array([0.5, 0.25, 0.125], np.float32))), Witness()
    serving: Any = stand.loop._serving
    stand.loop.serve_with(serving._replace(policy=policy))
    rows = np.zeros(ROWS, ROW)
    rows["environment"], rows["flags"], rows["reward"] = np.arange(ROWS), (FIRST, 0), (3.0, -2.0)
    rows["index"] = 1
    begun, asked = request(1, 0), request(1, 1)
    assert len(stand.turn([begun])) == 1
    assert len(stand.turn([asked._replace(buffers=[rows.tobytes(), asked.buffers[1]])])) == 1
    assert policy.asked[1:] == [([2, 3], [True, False], [3.0, -2.0], [0.125, 0.5])]


def test_rows_are_booked_with_the_version_that_acted() -> None:
    """Not with one that an update has made by the time the actions are sent."""
    stand, policy, collector = Stand(in_flight=1), Witness(), Versions()
    serving: Any = stand.loop._serving
    stand.loop.serve_with(serving._replace(policy=policy, collector=collector))
    policy.meanwhile = lambda: setattr(stand, "version", stand.version + 10)
    stand.version = 7
    stand.turn([request(0, 0)])
    stand.turn([request(1, 0)])
    assert collector.found == [7, 17]


def test_last_words_that_come_before_the_policy_is_built_are_booked_once_it_is() -> None:
    stand = Stand()
    serving, stand.loop._serving = stand.loop._serving, None
    report = Report(taken=2, groups=(GroupReport(2, 2, 2),))
    stand.turn([], [Left(7, 70, "bye", report), Left(6, 60, "lease", report)])
    ledger = stand.roster._ledger
    assert ledger.snapshot()["taken"] == 0 and serving is not None
    stand.loop.serve_with(serving)
    stand.turn([], [])
    assert ledger.snapshot()["undelivered"] == ledger.snapshot()["taken"] == 2
