"""The router towards learners: assignment, credit, restarts of learner and broker."""

from __future__ import annotations

import pytest

from pipeline.protocol import Kind, Report, encode
from tests.unit.routing_net import Net, check, hello, ready, step_frames

pytestmark = pytest.mark.unit


def test_join_is_repeated_until_it_is_answered() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.worker(b"a", [encode(Kind.HELLO, hello(1).to_wire())])
    for _ in range(3):
        net.advance(1.1)
    assert len(net.sent_to_learner(Kind.JOIN)) >= 3
    net.learner(b"L", Kind.ADMIT, 0, 1, 5, False)
    before = len(net.sent_to_learner(Kind.JOIN))
    net.advance(3.0)
    assert len(net.sent_to_learner(Kind.JOIN)) == before


@pytest.mark.parametrize(
    ("cause", "kind", "passed"), [(0, Kind.WAIT, []), (2, Kind.REFUSED, [2]), (3, Kind.REFUSED, [3])]
)
def test_rejection_frees_the_index(cause: int, kind: Kind, passed: list[int]) -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.worker(b"a", [encode(Kind.HELLO, hello(1).to_wire())])
    net.learner(b"L", Kind.REJECT, 0, 1, "other spaces", cause)
    assert net.to_workers[-1] == (b"a", kind, [1, "other spaces", *passed])
    assert net.sent_to_learner(Kind.LEFT) == []
    assert net.serve(2) == 0
    check(net.router)


def test_a_run_that_is_rejected_after_it_was_admitted_leaves() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.serve(1)
    net.learner(b"L", Kind.REJECT, 0, 1, "sequence jumped", 3)
    assert net.to_workers[-1] == (b"w1", Kind.REFUSED, [1, "sequence jumped", 3])
    assert net.sent_to_learner(Kind.LEFT) == [[0, 1, "refused", None]]
    check(net.router)


def test_a_worker_that_drains_while_the_broker_restarts_can_still_say_bye() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready(workers=[0], runs=[1]))
    net.learner(b"L", Kind.DISMISS, "solved")
    net.worker(b"w1", [encode(Kind.HELLO, hello(1, worker=0).to_wire())])
    net.learner(b"L", Kind.ADMIT, 0, 1, 5, False)
    assert net.to_workers[-1][1] == Kind.WELCOME
    net.learner(b"L", Kind.CREDIT, 32)
    net.worker(b"w1", step_frames(1, 0, 9))
    assert len(net.flush()) == 1
    assert net.worker(b"w1", [encode(Kind.BYE, 1, Report().to_wire())]) == [(Kind.GOODBYE, [1])]


def test_a_learner_that_was_silent_for_long_goes_on_with_what_it_had() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.serve(1)
    net.learner(b"L", Kind.CREDIT, 32)
    net.worker(b"w1", step_frames(1, 0, 0))
    assert len(net.flush()) == 1
    for _ in range(30):
        net.advance(1.0)
        net.heartbeat(1)
    net.worker(b"w1", step_frames(1, 1, 0))
    assert len(net.router.learners) == 0
    net.learner(b"L", Kind.READY, ready(workers=[0], runs=[1]))
    net.learner(b"L", Kind.REPLIES, [[0, 1, 0, 0]], buffers=[b"a"])
    assert net.to_workers[-1] == (b"w1", Kind.ACTIONS, [1, 0, 0])
    net.learner(b"L", Kind.CREDIT, 32)
    assert [x[2] for x in net.flush()] == [1]
    check(net.router)


def test_what_a_learners_queue_did_not_take_voids_its_credit() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.serve(1)
    net.learner(b"L", Kind.CREDIT, 32)
    net.worker(b"w1", step_frames(1, 0, 0))
    assert len(net.flush()) == 1
    net.router.learner_unreachable(b"L")
    net.learner(b"L", Kind.CREDIT, 32)  # said before it knows
    net.worker(b"w1", step_frames(1, 0, 0))
    assert net.flush() == []
    net.learner(b"L", Kind.READY, ready(workers=[0], runs=[1]))
    first, again = [x[0]["session"] for x in net.sent_to_learner(Kind.BROKER)]
    assert first != again
    net.learner(b"L", Kind.CREDIT, 32)
    assert len(net.flush()) == 1


def test_credit_is_never_exceeded_and_grows_to_one_batch_at_most() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready(batch=6))
    for run in range(1, 5):
        net.serve(run)
        net.worker(b"w%d" % run, step_frames(run, 0, 0))
        net.worker(b"w%d" % run, step_frames(run, 1, 0))
    assert net.flush() == []
    net.learner(b"L", Kind.CREDIT, 5)
    assert [x[1:3] for x in net.flush()] == [[1, 0], [1, 1]]
    net.learner(b"L", Kind.CREDIT, 3)
    assert [x[1:3] for x in net.flush()] == [[2, 0], [2, 1]]
    for _ in range(3):
        net.learner(b"L", Kind.CREDIT, 6)
    assert len(net.flush()) == 3
    check(net.router)


def test_workers_stay_with_their_learner_and_new_ones_go_where_slots_are_free() -> None:
    net = Net()
    net.learner(b"A", Kind.READY, ready("a", slots=8))
    net.learner(b"B", Kind.READY, ready("b", slots=8))
    for run in range(1, 5):
        net.serve(run)
    assert sorted(x.learner for x in net.router.leases) == ["a", "a", "b", "b"]  # type: ignore[type-var]
    check(net.router)


def test_a_silent_learner_is_said_and_requests_wait_for_it() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.serve(1)
    net.learner(b"L", Kind.CREDIT, 32)
    net.advance(6.0)
    (answer,) = net.heartbeat(1)
    assert answer[1][1] == "no_learner"
    net.worker(b"w1", step_frames(1, 0, 0))
    assert net.flush() == []
    net.learner(b"L", Kind.READY, ready())
    assert len(net.flush()) == 1
    assert net.heartbeat(1)[0][1][1] == "serving"


def test_a_learner_that_restarts_is_asked_for_every_worker_and_requests_wait() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready(epoch=1))
    net.serve(1)
    net.serve(2)
    net.worker(b"w1", step_frames(1, 0, 7))
    joins = len(net.sent_to_learner(Kind.JOIN))
    net.learner(b"M", Kind.READY, ready(epoch=2))
    assert sorted(x[1] for x in net.sent_to_learner(Kind.JOIN)[joins:]) == [1, 2]
    net.worker(b"w2", step_frames(2, 0, 3))
    net.learner(b"M", Kind.CREDIT, 32)
    assert net.flush() == []
    check(net.router)
    net.learner(b"M", Kind.ADMIT, 1, 2, 5, False)
    assert [x[1:4] for x in net.flush()] == [[2, 0, 3]]
    net.learner(b"M", Kind.ADMIT, 0, 1, 5, False)
    assert [x[1:4] for x in net.flush()] == [[1, 0, 7]]
    net.learner(b"L", Kind.CREDIT, 32)
    assert net.router.counters["unknown_learner"] == 1
    check(net.router)


def test_a_lost_learners_workers_go_to_another_one_and_the_old_one_is_told() -> None:
    net = Net()
    net.learner(b"A", Kind.READY, ready("a"))
    net.serve(1)
    net.worker(b"w1", step_frames(1, 0, 0))
    for _ in range(12):
        net.advance(1.0)
        net.learner(b"B", Kind.READY, ready("b"))
        net.heartbeat(1)
    assert net.router.counters["learner_lost"] == 1
    lease = net.router.leases.by_run[1]
    assert lease.learner == "b" and not lease.admitted
    net.learner(b"B", Kind.ADMIT, 0, 1, 5, False)
    net.learner(b"B", Kind.CREDIT, 32)
    assert len(net.flush()) == 1
    net.learner(b"A", Kind.READY, ready("a", workers=[0], runs=[1]))
    assert net.to_learners[-2].peer == b"A" and net.to_learners[-2].fields[:3] == [0, 1, "lease"]
    check(net.router)


def test_another_connection_of_the_same_learner_voids_its_credit_only() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.serve(1)
    net.learner(b"L", Kind.CREDIT, 32)
    session = net.sent_to_learner(Kind.BROKER)[-1][0]["session"]
    net.learner(b"M", Kind.READY, ready(workers=[0], runs=[1]))
    assert net.sent_to_learner(Kind.BROKER)[-1][0]["session"] == session + 1
    net.worker(b"w1", step_frames(1, 0, 0))
    assert net.flush() == []
    net.learner(b"M", Kind.CREDIT, 32)
    assert len(net.flush()) == 1 and len(net.sent_to_learner(Kind.JOIN)) == 1
    check(net.router)


def test_an_older_process_of_a_learners_name_is_refused() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready(epoch=5))
    net.learner(b"K", Kind.READY, ready(epoch=4))
    assert net.router.counters["learner_refused"] == 1
    assert net.router.learners.at(b"L") is not None and net.router.learners.at(b"K") is None
    peer, kind, (answer,), _ = net.to_learners[-1]
    assert (peer, kind) == (b"K", Kind.BROKER) and "has taken over" in answer["refused"], "it is told"


def test_a_broker_that_restarts_keeps_the_indices_that_the_learner_serves() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready(workers=[0, 2], runs=[10, 12]))
    assert net.serve(99) == 1, "0 and 2 are held for runs 10 and 12"
    assert net.worker(b"x", step_frames(12, 0, 5)) == [(Kind.UNKNOWN, [12])]
    net.worker(b"x", [encode(Kind.HELLO, hello(12, worker=2).to_wire())])
    net.learner(b"L", Kind.ADMIT, 2, 12, 5, False)
    assert net.to_workers[-1][1] == Kind.WELCOME and net.to_workers[-1][2][1]["worker"] == 2
    check(net.router)
    for _ in range(12):
        net.advance(1.0)
        net.learner(b"L", Kind.READY, ready(workers=[1, 2], runs=[99, 12]))
        net.heartbeat(12)
        net.heartbeat(99)
    assert net.sent_to_learner(Kind.LEFT) == [[0, 10, "lease", None]]
    check(net.router)


def test_no_worker_is_welcomed_with_a_seed_that_this_broker_was_not_told() -> None:
    """Its learner has admitted it by another broker, is lost, and back before it could say so again."""
    net, returns = Net(), ready(workers=[0], runs=[10])
    net.learner(b"L", Kind.READY, returns)
    say_hello = [encode(Kind.HELLO, hello(10, worker=0).to_wire())]
    net.worker(b"w10", say_hello)
    for _ in range(12):
        net.advance(1.0)
        net.heartbeat(10)
    assert net.router.counters["learner_lost"] == 1
    net.learner(b"L", Kind.READY, returns)
    net.to_learners.clear()
    assert net.worker(b"w10", say_hello) == [] and len(net.sent_to_learner(Kind.JOIN)) == 1
    net.learner(b"L", Kind.ADMIT, 0, 10, 77, False)
    for _ in range(2):
        assert (net.to_workers[-1][1], net.to_workers[-1][2][1]["seed"]) == (Kind.WELCOME, 77)
        net.worker(b"w10", say_hello)
    check(net.router)


def test_a_learner_that_starts_anew_hears_the_last_words_again() -> None:
    """Its predecessor may have died before it kept them, or have been away."""
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    for run in (1, 2):
        net.serve(run)
    net.worker(b"w1", [encode(Kind.BYE, 1, Report(taken=4).to_wire())])
    net.to_learners.clear()
    net.learner(b"L", Kind.READY, ready(workers=[1], runs=[2]))
    assert net.sent_to_learner(Kind.LEFT) == []
    net.learner(b"M", Kind.READY, ready(epoch=99))
    assert net.sent_to_learner(Kind.LEFT) == [[0, 1, "bye", Report(taken=4).to_wire()]]
    check(net.router)


@pytest.mark.parametrize("seed", [-1, 2**31, 2**63 - 1, True, 1.5, None])
def test_an_impossible_seed_is_refused(seed: object) -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.worker(b"w", [encode(Kind.HELLO, hello(1).to_wire())])
    net.learner(b"L", Kind.ADMIT, 0, 1, seed, False)
    assert net.router.counters["malformed_admit"] == 1 and not net.router.leases.by_run[1].admitted


def test_a_claimed_index_is_honoured_when_free() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.worker(b"a", [encode(Kind.HELLO, hello(1, worker=5).to_wire())])
    net.worker(b"b", [encode(Kind.HELLO, hello(2, worker=5).to_wire())])
    net.worker(b"c", [encode(Kind.HELLO, hello(3, worker=2**40).to_wire())])
    assert [x.worker for x in net.router.leases] == [5, 0, 1]


def test_left_is_said_again_to_a_learner_that_missed_it() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.serve(1)
    net.worker(b"w1", [encode(Kind.BYE, 1, Report(taken=4).to_wire())])
    net.to_learners.clear()
    net.learner(b"L", Kind.READY, ready(workers=[0], runs=[1]))
    assert net.sent_to_learner(Kind.LEFT) == [[0, 1, "bye", Report(taken=4).to_wire()]]
    assert len(net.router.leases) == 0


def test_replies_and_answers_for_workers_that_are_gone_are_counted() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.learner(b"L", Kind.REPLIES, [[0, 1, 0, 0]], buffers=[b""])
    net.learner(b"L", Kind.ADMIT, 0, 1, 5, False)
    net.learner(b"L", Kind.REJECT, 0, 1, "no", 2)
    assert net.router.counters["reply_to_gone_worker"] == 1 and net.router.counters["answer_for_gone_worker"] == 2


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Kind.READY, [{}]),
        (Kind.READY, [ready(batch=0)]),
        (Kind.READY, [ready(workers=[1])]),
        (Kind.READY, [ready(workers=["a"], runs=[1])]),
        (Kind.READY, [ready(slots=True)]),
        (Kind.CREDIT, [-1]),
        (Kind.CREDIT, [33]),
        (Kind.CREDIT, [1.5]),
        (Kind.REPLIES, [[[0, 1, 0, 0]]]),
        (Kind.REPLIES, [[1]]),
        (Kind.REJECT, [0, 1, "x", 1]),
        (Kind.PUBLISH, [{"x": "y" * 2**19}]),
        (Kind.DISMISS, []),
        (Kind.STEP, [1, 0, 0, 2, 2]),
    ],
)
def test_malformed_learner_messages_are_counted(kind: Kind, fields: list[object]) -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.learner(b"L", kind, *fields)
    assert net.router.counters["malformed_" + kind.name.lower()] == 1
    check(net.router)


def test_a_learner_that_was_lost_and_returns_has_another_session() -> None:
    net = Net()
    net.learner(b"L", Kind.READY, ready())
    net.learner(b"L", Kind.CREDIT, 32)
    net.advance(11.0)
    assert len(net.router.learners) == 0
    net.learner(b"L", Kind.READY, ready())
    first, again = [x[0]["session"] for x in net.sent_to_learner(Kind.BROKER)]
    assert first != again
