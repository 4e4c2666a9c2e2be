"""The session under a staged clock."""

from __future__ import annotations

import pytest

from pipeline.errors import ComponentError, UnreachableError
from pipeline.protocol import Hello, Kind, Report, decode, encode
from workers.actions import Abandon, Begin, Finish, Reconnect, Say, Send, State, Step, Timing
from workers.session import MALFORMED_ACTIONS, Session

pytestmark = pytest.mark.unit
RUN = 7
TIMING = Timing(reply=5.0, connect=60.0, replies_drain=4.0, goodbye=2.0)


class Stage:
    """Drives a session; checks its invariants after each event."""

    def __init__(self, groups=(2, 2)):
        hello = Hello("w", RUN, "train", {}, list(groups), "", -1, {}, {})
        self.now = 100.0
        self.session = Session(hello, 8, TIMING, lambda: Report(taken=3), self.now)
        self.groups = groups

    def did(self, actions):
        session = self.session
        assert len(session.outstanding()) <= len(self.groups)
        if session.state is not State.GONE:
            assert session.deadline() < self.now + 61
        return actions

    def tick(self, seconds=0.0):
        self.now += seconds
        return self.did(self.session.tick(self.now))

    def get(self, kind, *fields, buffers=(), run=RUN):
        message = decode([encode(kind, run, *fields), *buffers])
        return self.did(self.session.received(message, self.now))

    def welcome(self, worker=3):
        return self.get(Kind.WELCOME, {"worker": worker, "seed": 11, "heartbeat_seconds": 1.0, "lease_seconds": 10.0})

    def stepped(self, group):
        return self.did(self.session.stepped(group, 2, 2, [b"rows", b"leaf"], self.now))

    def actions(self, group, sequence, size=16):
        return self.get(Kind.ACTIONS, group, sequence, buffers=[bytes(size)])

    def serve(self):
        """Admitted, both groups reset and waiting."""
        self.tick()
        self.welcome()
        for group in range(len(self.groups)):
            self.stepped(group)
        return self

    def run(self, seconds, step=0.1):
        """Ticks through a stretch of silence."""
        found = []
        for _ in range(round(seconds / step)):
            found += self.tick(step)
        return found


def kinds(actions):
    return [decode([a.head]).kind if isinstance(a, Send) else type(a) for a in actions if not isinstance(a, Say)]


def said(actions):
    return [a.text for a in actions if isinstance(a, Say)]


def fields(action):
    return decode([action.head]).fields


def test_hello_is_repeated_each_second_until_welcome():
    stage = Stage()
    assert kinds(stage.tick()) == [Kind.HELLO]
    assert stage.tick(0.5) == []
    assert kinds(stage.tick(0.5)) == [Kind.HELLO]
    assert kinds(stage.welcome()) == [Begin]
    assert stage.welcome() == []
    assert stage.session.worker == 3


def test_no_broker_within_the_deadline_gives_up():
    stage = Stage()
    found = stage.run(61)
    assert isinstance(found[-1], Finish) and isinstance(found[-1].error, UnreachableError)
    assert stage.session.state is State.GONE


def test_wait_is_said_once_and_keeps_the_worker_trying():
    stage = Stage()
    stage.tick()
    texts = []
    for _ in range(100):
        texts += said(stage.get(Kind.WAIT, "no learner"))
        assert kinds(stage.tick(1.0)) == [Kind.HELLO]
    assert texts == ["the broker lets this worker wait: no learner"]


@pytest.mark.parametrize("run", [RUN, 0])
@pytest.mark.parametrize(("cause", "code"), [(2, 2), (3, 3)])
def test_refused_ends_it_with_the_reason(run, cause, code):
    stage = Stage()
    stage.tick()
    (finish,) = stage.get(Kind.REFUSED, "spaces differ", cause, run=run)
    assert finish.error.exit_code == code and "spaces differ" in str(finish.error)


def test_one_step_is_outstanding_per_group_and_sequences_grow():
    stage = Stage().serve()
    assert stage.session.outstanding() == [0, 1]
    assert kinds(stage.actions(0, 0)) == [Step]
    assert stage.session.outstanding() == [1]
    (sent,) = stage.stepped(0)
    assert fields(sent) == [RUN, 0, 1, 2, 2] and list(sent.buffers) == [b"rows", b"leaf"]


def test_repeated_stale_and_foreign_actions_are_ignored():
    stage = Stage().serve()
    stage.actions(0, 0)
    assert stage.actions(0, 0) == []
    stage.stepped(0)
    assert stage.actions(0, 0) == []
    assert stage.get(Kind.ACTIONS, 0, 1, buffers=[bytes(16)], run=RUN + 1) == []
    assert kinds(stage.actions(0, 1)) == [Step]


@pytest.mark.parametrize(
    ("actions", "words"),
    [((0, 0, 15), "15"), ((2, 0, 16), "group 2"), ((-1, 0, 16), "group -1")],
)
def test_malformed_actions_are_not_executed(actions, words):
    stage = Stage().serve()
    found = stage.actions(*actions)
    assert kinds(found) == [] and words in said(found)[0]
    assert stage.session.outstanding() == [0, 1]


def test_actions_that_stay_malformed_end_the_worker():
    stage = Stage().serve()
    for number in range(1, MALFORMED_ACTIONS):
        assert kinds(stage.actions(number % 2, 0, 32)) == []
    stage.actions(0, 0, 16)
    stage.stepped(0)
    for _ in range(MALFORMED_ACTIONS - 1):
        assert kinds(stage.actions(0, 1, 32)) == [], "a sound one came between"
    (end,) = stage.actions(1, 0, 32)
    assert isinstance(end, Finish) and isinstance(end.error, ComponentError) and end.error.exit_code == 3
    assert "5 times in a row" in str(end.error) and "hold [32] bytes, not one buffer of 16" in str(end.error)
    assert stage.session.state is State.GONE


def test_an_unanswered_step_is_sent_again_then_the_connection_is_made_anew():
    stage = Stage((2,)).serve()
    found = []
    for _ in range(99):
        found += stage.tick(0.1)
        stage.get(Kind.ALIVE, "serving", "")
    repeats = [a for a in found if isinstance(a, Send) and decode([a.head]).kind is Kind.STEP]
    assert [fields(a)[2] for a in repeats] == [0] and repeats[0].again
    assert Reconnect not in kinds(found)
    assert kinds(stage.tick(0.2))[:2] == [Reconnect, Kind.HELLO]
    found = stage.welcome()
    assert kinds(found) == [Kind.STEP] and fields(found[-1])[2] == 0
    assert Reconnect not in kinds(stage.tick(4.0))


@pytest.mark.parametrize("state", ["held_back", "no_learner"])
def test_a_worker_that_is_held_back_says_so_once_and_does_not_reconnect(state):
    stage = Stage().serve()
    texts, found = [], []
    for _ in range(600):
        texts += said(stage.get(Kind.ALIVE, state, "the store is full"))
        found += stage.tick(0.1)
    assert len(texts) == 1 and "the store is full" in texts[0] and "not stepping" in texts[0]
    assert set(kinds(found)) == {Kind.HEARTBEAT, Kind.STEP}
    assert said(stage.get(Kind.ALIVE, "serving", "")) == ["the learner serves"]


def test_a_silent_broker_is_said_within_ten_seconds_and_asked_again():
    stage = Stage().serve()
    found = stage.run(10)
    assert "not stepping" in said(found)[0] and len(said(found)) == 1
    assert Reconnect in kinds(found) and Kind.HELLO in kinds(found)
    found = stage.run(300)
    assert 4 <= len(said(found)) <= 6  # once a minute
    assert Finish not in kinds(found)
    found = stage.welcome()
    assert [fields(a)[1:3] for a in found if isinstance(a, Send)] == [[0, 0], [1, 0]]
    assert all(a.again for a in found if isinstance(a, Send))


def test_a_slow_environment_is_not_the_brokers_silence():
    stage = Stage().serve()
    stage.actions(0, 0)
    stage.now += 25.0
    stage.session.paused(25.0, stage.now)
    stage.stepped(0)
    assert kinds(stage.tick()) == [Kind.HEARTBEAT]


def test_unknown_claims_the_index_again_and_repeats_the_outstanding_steps():
    stage = Stage().serve()
    stage.actions(1, 0)
    found = stage.get(Kind.UNKNOWN)
    assert kinds(found) == [Kind.HELLO]
    hello = Hello.from_wire(fields(found[-1])[0])
    assert (hello.run, hello.worker) == (RUN, 3)
    assert stage.get(Kind.UNKNOWN) == []
    assert stage.stepped(1) == []  # kept until we are known again
    again = [a for a in stage.welcome() if isinstance(a, Send)]
    assert [fields(a)[1:3] for a in again] == [[0, 0], [1, 1]]
    assert kinds(stage.actions(1, 1)) == [Step]


def test_heartbeats_carry_the_report():
    stage = Stage().serve()
    found = stage.run(3.05)
    beats = [a for a in found if decode([a.head]).kind is Kind.HEARTBEAT]
    assert len(beats) in (3, 4) and fields(beats[0])[1]["taken"] == 3


@pytest.mark.parametrize("by", ["broker", "token"])
def test_a_drain_waits_for_replies_executes_none_and_says_bye(by):
    stage = Stage().serve()
    stage.actions(1, 0)  # group 1 is being stepped
    found = stage.get(Kind.DRAIN, "solved") if by == "broker" else stage.session.drain("signal", stage.now)
    assert kinds(found) == [] and stage.session.stopping
    stage.stepped(1)
    assert stage.actions(0, 0) == []
    found = stage.actions(1, 1)
    assert kinds(found) == [Kind.BYE] and fields(found[0])[1]["taken"] == 3
    assert kinds(stage.tick(1.0)) == [Kind.BYE]
    assert stage.get(Kind.GOODBYE) == [Finish(None, booked=Report(taken=3))]


def test_a_drain_in_the_midst_of_a_step_delivers_that_step():
    stage = Stage((2,)).serve()
    stage.actions(0, 0)
    stage.session.stepping(0)
    assert kinds(stage.get(Kind.DRAIN, "solved")) == []
    assert kinds(stage.stepped(0)) == [Kind.STEP]
    assert kinds(stage.actions(0, 1)) == [Kind.BYE]


def test_a_step_that_ends_after_the_deadline_is_not_sent_but_told():
    stage = Stage((2,)).serve()
    stage.actions(0, 0)
    stage.session.stepping(0)
    stage.session.drain("signal", stage.now)
    assert Kind.BYE in kinds(stage.tick(4.1))
    assert stage.stepped(0) == []
    assert Kind.BYE in kinds(stage.tick(1.0))


def test_a_drain_does_not_wait_for_ever():
    stage = Stage().serve()
    stage.session.drain("signal", stage.now)
    found = stage.run(7)
    assert "not answered" in said(found)[0]
    assert found[-1] == Finish() and Kind.BYE in kinds(found)
    assert stage.session.state is State.GONE and stage.tick() == []


def test_a_drain_before_the_first_step_ends_at_once():
    stage = Stage()
    stage.tick()
    assert kinds(stage.session.drain("signal", stage.now)) == [Finish]
    stage = Stage()
    stage.tick()
    assert kinds(stage.get(Kind.DRAIN, "solved")) == [Finish]


def test_a_drain_while_the_broker_is_gone_joins_again_to_deliver():
    stage = Stage((2,)).serve()
    stage.get(Kind.UNKNOWN)
    stage.session.drain("signal", stage.now)
    assert Kind.STEP in kinds(stage.welcome())
    assert kinds(stage.actions(0, 0)) == [Kind.BYE]


def test_a_bye_that_an_unknowing_broker_gets_is_said_again_after_joining():
    stage = Stage((2,)).serve()
    stage.session.drain("signal", stage.now)
    stage.actions(0, 0)
    assert Kind.HELLO in kinds(stage.get(Kind.UNKNOWN))
    stage.welcome()
    assert Kind.BYE in kinds(stage.tick())


def test_deadlines_are_never_in_the_past_after_a_tick():
    stage = Stage().serve()
    for round_ in range(2000):
        stage.tick(max(0.0, stage.session.deadline() - stage.now) + 1e-6)
        assert stage.session.state is State.GONE or stage.session.deadline() > stage.now
        if round_ == 500:
            stage.welcome()
        if round_ == 1000:
            stage.session.drain("signal", stage.now)


def test_anew_abandons_the_episodes_of_what_is_unanswered():
    """A learner that lost the recurrent state: instead of the old steps come first observations, numbered on."""
    stage = Stage().serve()
    stage.actions(1, 0)
    stage.stepped(1)
    stage.get(Kind.UNKNOWN)
    lease = {"worker": 3, "seed": 11, "heartbeat_seconds": 1.0, "lease_seconds": 10.0, "anew": True}
    assert kinds(stage.get(Kind.WELCOME, lease)) == [Abandon, Abandon]
    assert stage.session.outstanding() == []
    (step,) = stage.stepped(1)
    assert fields(step)[1:3] == [1, 2]


def test_back_pressure_that_comes_and_goes_is_said_once_a_minute():
    stage = Stage().serve()
    texts = []
    for _ in range(90):
        texts += said(stage.get(Kind.ALIVE, "held_back", "the store is full"))
        texts += said(stage.get(Kind.ALIVE, "serving", ""))
        stage.tick(1.0)
    held = "held back: the store is full; not stepping until the learner catches up"
    assert texts == [held, "the learner serves"] * 2
