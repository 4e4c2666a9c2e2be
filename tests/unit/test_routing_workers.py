"""The router towards workers: leases, takeover, repeats, refusals, status."""

from __future__ import annotations

import pytest

from pipeline.protocol import Hello, Kind, Report, encode
from tests.unit.routing_net import SETTINGS, Net, check, hello, ready, step_frames

pytestmark = pytest.mark.unit


def net_with_learner(**changes: object) -> Net:
    net = Net()
    net.learner(b"L", Kind.READY, ready(**changes))
    return net


def say_hello(net: Net, peer: bytes, message: Hello) -> list[tuple[Kind, list[object]]]:
    return net.worker(peer, [encode(Kind.HELLO, message.to_wire())])


def test_the_lowest_free_index_is_leased_with_its_seed() -> None:
    net = net_with_learner()
    assert [net.serve(run) for run in (11, 12, 13)] == [0, 1, 2]
    net.worker(b"w12", [encode(Kind.BYE, 12, Report().to_wire())])
    assert net.serve(14) == 1
    welcome = net.to_workers[-1][2][1]
    lease = {"worker": 1, "seed": 1001, "heartbeat_seconds": 1.0, "lease_seconds": 10.0, "anew": False}
    assert welcome == lease
    check(net.router)


def test_without_a_learner_workers_wait_and_get_no_index() -> None:
    net = Net()
    assert say_hello(net, b"a", hello(1)) == [(Kind.WAIT, [1, "no learner is ready"])]
    assert len(net.router.leases) == 0


def test_more_environments_than_free_slots_wait_and_more_than_all_are_refused() -> None:
    net = net_with_learner(slots=6)
    net.serve(1)
    (answer,) = say_hello(net, b"b", hello(2))
    assert answer[0] == Kind.WAIT and "2 of learner.slots = 6" in str(answer[1])
    (answer,) = say_hello(net, b"c", hello(3, groups=(4, 4)))
    assert answer[0] == Kind.REFUSED and "8 environments do not fit learner.slots = 6" in str(answer[1])


def test_a_worker_too_large_for_every_learner_waits_for_a_larger_one_and_is_refused_when_none_comes() -> None:
    net = Net(SETTINGS._replace(settle_seconds=10.0))
    net.learner(b"L", Kind.READY, ready(slots=6))
    large = hello(3, groups=(4, 4))

    def live(seconds: int, *peers: tuple[bytes, str, int]) -> None:
        for _ in range(seconds):
            net.advance(1.0)
            for peer, name, slots in peers:
                net.learner(peer, Kind.READY, ready(name, slots=slots))

    reason = "8 environments do not fit learner.slots = 6"
    assert say_hello(net, b"c", large) == [(Kind.WAIT, [3, f"{reason}: waiting for a larger learner"])]
    live(9, (b"L", "l", 6))
    assert say_hello(net, b"c", large)[0][0] == Kind.WAIT, "another learner may still come"
    live(1, (b"L", "l", 6), (b"M", "m", 7))
    live(9, (b"L", "l", 6), (b"M", "m", 7))
    assert say_hello(net, b"c", large)[0][0] == Kind.WAIT, "one has come meanwhile"
    live(2, (b"L", "l", 6), (b"M", "m", 7))
    assert say_hello(net, b"c", large)[0][0] == Kind.REFUSED
    live(6, (b"L", "l", 6))
    assert say_hello(net, b"c", large)[0][0] == Kind.WAIT, "a silent one may be restarting, with more slots"
    live(5, (b"L", "l", 6))
    assert say_hello(net, b"c", large)[0][0] == Kind.WAIT, "a lost one too"
    live(1, (b"L", "l", 6), (b"M", "m", 8))
    assert net.serve(3, groups=(4, 4), peer=b"c") == 0
    assert net.router.counters["hello_refused"] == 1
    check(net.router)


def test_max_workers() -> None:
    net = net_with_learner()
    for run in range(1, SETTINGS.max_workers + 1):
        net.serve(run)
    (answer,) = say_hello(net, b"x", hello(100))
    assert answer[0] == Kind.REFUSED and "max_workers" in str(answer[1])
    check(net.router)


def test_a_lease_runs_out_when_nothing_is_heard() -> None:
    net = net_with_learner()
    net.serve(1)
    net.serve(2)
    report = Report(taken=5)
    net.heartbeat(1, report=report)
    for _ in range(12):
        net.advance(1.0)
        net.learner(b"L", Kind.READY, ready())
        net.heartbeat(2)
    assert net.sent_to_learner(Kind.LEFT) == [[0, 1, "lease", report.to_wire()]]
    assert net.heartbeat(1) == [(Kind.UNKNOWN, [1])]
    assert net.worker(b"w1", step_frames(1, 0, 4)) == [(Kind.UNKNOWN, [1])]
    assert net.serve(1) == 0
    check(net.router)


def test_the_loops_own_pause_is_not_the_workers_silence() -> None:
    net = net_with_learner()
    net.serve(1)
    net.now += 60.0
    net.router.tick(net.now)
    assert len(net.router.leases) == 1 and not net.router.learners.named("l").silent  # type: ignore[union-attr]


def test_bye_is_booked_with_its_report_and_answered_again_when_repeated() -> None:
    net = net_with_learner()
    net.serve(1)
    net.worker(b"w1", step_frames(1, 0, 0))
    bye = [encode(Kind.BYE, 1, Report(taken=9).to_wire())]
    assert net.worker(b"w1", bye) == [(Kind.GOODBYE, [1])]
    assert net.worker(b"w1", bye) == [(Kind.GOODBYE, [1])]
    assert net.sent_to_learner(Kind.LEFT) == [[0, 1, "bye", Report(taken=9).to_wire()]]
    assert net.router.counters["request_of_gone_worker"] == 1
    assert net.worker(b"x", [encode(Kind.BYE, 77, Report().to_wire())]) == [(Kind.UNKNOWN, [77])]


@pytest.mark.parametrize("draining", [False, True])
def test_a_worker_that_said_bye_and_connects_anew_hears_that_it_is_booked(draining: bool) -> None:
    net = net_with_learner()
    net.serve(1)
    if draining:
        net.learner(b"L", Kind.DISMISS, "solved")
    net.worker(b"w1", [encode(Kind.BYE, 1, Report(taken=9).to_wire())])
    assert say_hello(net, b"again", hello(1)) == [(Kind.GOODBYE, [1])]
    assert len(net.router.leases) == 0


@pytest.mark.parametrize("end", ["replaced", "lease"])
def test_the_last_word_of_a_run_that_has_left_reaches_its_learner(end: str) -> None:
    net = net_with_learner()
    net.serve(1, name="same")
    if end == "replaced":
        net.serve(2, name="same")
    for _ in range(15 if end == "lease" else 0):
        net.advance(1.0)
        net.learner(b"L", Kind.READY, ready("l"))
    net.to_learners.clear()
    for taken in (7, 7, 9):
        bye = [encode(Kind.BYE, 1, Report(taken=taken).to_wire())]
        assert net.worker(b"old", bye) == [(Kind.GOODBYE, [1])]
    assert net.sent_to_learner(Kind.LEFT) == [[0, 1, "bye", Report(taken=taken).to_wire()] for taken in (7, 9)]
    check(net.router)


def test_what_an_evaluation_worker_took_is_in_nobodys_books() -> None:
    net = net_with_learner()
    say_hello(net, b"w1", hello(1)._replace(mode="eval"))
    net.learner(b"L", Kind.ADMIT, 0, 1, 5, False)
    net.advance(30.0)
    net.to_learners.clear()
    assert net.worker(b"w1", [encode(Kind.BYE, 1, Report(taken=7).to_wire())]) == [(Kind.GOODBYE, [1])]
    assert net.sent_to_learner(Kind.LEFT) == []


def test_a_newer_run_of_the_same_worker_takes_over_and_the_older_is_told() -> None:
    net = net_with_learner()
    assert net.serve(1, name="same", peer=b"old") == 0
    net.worker(b"old", step_frames(1, 0, 0))
    assert net.serve(2, name="same", peer=b"new") == 0
    assert (b"old", Kind.REFUSED, [1, "a newer run of worker same has taken over", 3]) in net.to_workers
    assert net.sent_to_learner(Kind.LEFT) == [[0, 1, "replaced", None]]
    for frames in (
        step_frames(1, 0, 0),
        [encode(Kind.HEARTBEAT, 1, Report().to_wire())],
        [encode(Kind.HELLO, hello(1, name="same").to_wire())],
    ):
        assert [kind for kind, _ in net.worker(b"old", frames)] == [Kind.REFUSED]
    assert net.worker(b"old", [encode(Kind.BYE, 1, Report().to_wire())]) == [(Kind.GOODBYE, [1])]
    assert len(net.router.leases) == 1
    check(net.router)


def test_twenty_takeovers() -> None:
    net = net_with_learner()
    for run in range(1, 21):
        assert net.serve(run, name="same", peer=b"p%d" % run) == 0
    assert len(net.sent_to_learner(Kind.LEFT)) == 19
    check(net.router)


def test_one_request_per_group_is_answered_once_however_often_it_is_repeated() -> None:
    net = net_with_learner()
    net.serve(1)
    for _ in range(3):
        net.worker(b"w1", step_frames(1, 0, 0))
    net.learner(b"L", Kind.CREDIT, 32)
    assert net.flush() == [[0, 1, 0, 0, 2, 2, 2]]
    net.worker(b"w1", step_frames(1, 0, 0))
    assert net.flush() == [[0, 1, 0, 0, 2, 2, 2]], "a repeat of what was given out may have been lost: it goes on"
    reply = [[0, 1, 0, 0]]
    net.learner(b"L", Kind.REPLIES, reply, buffers=[b"a"])
    net.learner(b"L", Kind.REPLIES, reply, buffers=[b"a"])
    assert [x for x in net.to_workers if x[1] == Kind.ACTIONS] == [(b"w1", Kind.ACTIONS, [1, 0, 0])]
    assert net.router.counters["repeated_step"] == 3 and net.router.counters["reply_not_awaited"] == 1


def test_a_repeat_of_an_answered_request_goes_to_the_learner_and_is_answered_again() -> None:
    net = net_with_learner()
    net.serve(1)
    net.learner(b"L", Kind.CREDIT, 32)
    for _ in range(2):
        net.worker(b"w1", step_frames(1, 1, 5))
        assert net.flush() == [[0, 1, 1, 5, 2, 2, 2]]
        net.learner(b"L", Kind.REPLIES, [[0, 1, 1, 5]], buffers=[b"a"])
    assert len([x for x in net.to_workers if x[1] == Kind.ACTIONS]) == 2
    net.worker(b"w1", step_frames(1, 1, 4))
    assert net.flush() == [] and net.router.counters["stale_step"] == 1


def test_answers_follow_a_worker_to_its_new_connection() -> None:
    net = net_with_learner()
    net.serve(1)
    net.learner(b"L", Kind.CREDIT, 32)
    net.worker(b"w1", step_frames(1, 0, 0))
    net.flush()
    assert net.heartbeat(1, peer=b"again") == [(Kind.ALIVE, [1, "serving", ""])]
    net.learner(b"L", Kind.REPLIES, [[0, 1, 0, 0]], buffers=[b"a"])
    assert net.to_workers[-1] == (b"again", Kind.ACTIONS, [1, 0, 0])


@pytest.mark.parametrize(
    "frames",
    [
        step_frames(1, 2, 0),
        step_frames(1, -1, 0),
        step_frames(1, 0, -1),
        step_frames(1, 0, 0, rows=1),
        step_frames(1, 0, 0, rows=5),
        step_frames(1, 0, 0, replies=1),
        step_frames(1, 0, 0)[:2],
        step_frames(1, 0, 0)[:1],
        [*step_frames(1, 0, 0), b""],
        [step_frames(1, 0, 0)[0], b"short", bytes(32)],
    ],
)
def test_steps_that_do_not_fit_the_hello_are_refused_and_never_reach_a_learner(frames: list[bytes]) -> None:
    net = net_with_learner()
    net.serve(1)
    net.learner(b"L", Kind.CREDIT, 32)
    answers = net.worker(b"w1", frames)
    assert all(kind == Kind.REFUSED for kind, _ in answers)
    assert net.flush() == [] and net.router.counters["malformed_step"] == 1


def test_spaces_that_are_not_supported_are_refused_by_name() -> None:
    net = net_with_learner()
    message = hello(1)
    spaces = {**message.spaces, "action": {**message.spaces["action"], "kind": "multi_discrete"}}
    (answer,) = say_hello(net, b"a", message._replace(spaces=spaces))
    assert answer[0] == Kind.REFUSED and "multi_discrete" in str(answer[1])


def test_a_run_keeps_to_its_first_hello() -> None:
    net = net_with_learner()
    net.serve(1)
    (answer,) = say_hello(net, b"w1", hello(1, groups=(1,)))
    assert answer[0] == Kind.REFUSED
    (answer,) = say_hello(net, b"w1", hello(1))
    assert answer[0] == Kind.WELCOME
    check(net.router)


def test_alive_says_held_back_until_it_is_over() -> None:
    net = net_with_learner()
    net.serve(1)
    net.learner(b"L", Kind.READY, ready(held_back="store is full"))
    assert net.heartbeat(1) == [(Kind.ALIVE, [1, "held_back", "store is full"])]
    net.learner(b"L", Kind.READY, ready())
    assert net.heartbeat(1) == [(Kind.ALIVE, [1, "serving", ""])]


def test_dismissal_reaches_present_and_later_workers() -> None:
    net = net_with_learner()
    net.serve(1)
    net.learner(b"L", Kind.DISMISS, "solved")
    assert net.to_workers[-1] == (b"w1", Kind.DRAIN, [1, "solved"])
    assert net.heartbeat(1) == [(Kind.DRAIN, [1, "solved"])]
    assert say_hello(net, b"b", hello(2)) == [(Kind.DRAIN, [2, "solved"])]
    net.learner(b"L", Kind.READY, ready(epoch=2))
    assert [kind for kind, _ in net.heartbeat(1)] == [Kind.ALIVE]


def test_a_dismissal_ends_with_its_run() -> None:
    """`docker-compose up` after a solved run: the same broker, new workers before the new learner."""
    net = net_with_learner()
    net.serve(1)
    net.learner(b"L", Kind.DISMISS, "solved")
    net.worker(b"w1", [encode(Kind.BYE, 1, Report().to_wire())])
    assert say_hello(net, b"b", hello(2)) == [(Kind.DRAIN, [2, "solved"])]
    net.advance(SETTINGS.lease_seconds + 1)
    assert say_hello(net, b"c", hello(3)) == [(Kind.WAIT, [3, "no learner is ready"])]
    assert net.router.counters["learner_lost"] == 0, "it has ended"
    check(net.router)


def test_only_changed_reports_are_passed_on() -> None:
    net = net_with_learner()
    net.serve(1)
    for taken in (1, 1, 2):
        net.heartbeat(1, report=Report(taken=taken))
    assert [fields[2]["taken"] for fields in net.sent_to_learner(Kind.REPORT)] == [1, 2]


def test_a_status_of_many_workers_still_fits_one_head() -> None:
    net = Net(SETTINGS._replace(max_workers=700))
    net.learner(b"L", Kind.READY, ready(slots=2000))
    faults = {f"{'long name ' * 20}{i}": 2**61 for i in range(32)}
    for run in range(1, 601):
        net.serve(run, name=f"{'w' * 190}{run}", groups=(1,))
        net.heartbeat(run, report=Report(faults=faults, message="m" * 2000))
    ((_, (status,)),) = net.worker(b"stranger", [encode(Kind.STATUS)])
    assert status["workers_total"] == 600 and 0 < len(status["workers"]) < 600


def test_status_is_answered_to_anyone_and_bounded() -> None:
    net = net_with_learner()
    net.serve(1)
    net.worker(b"w1", step_frames(1, 0, 0))
    net.heartbeat(1, report=Report(taken=3, message="x" * 2000))
    net.learner(b"L", Kind.PUBLISH, {"updates": 7})
    ((kind, (status,)),) = net.worker(b"stranger", [encode(Kind.STATUS)])
    assert kind == Kind.STATUS_REPLY and status["workers_total"] == 1 and status["learner"] == {"updates": 7}
    (worker,) = status["workers"]
    assert worker["outstanding"] == 1 and worker["state"] == "serving" and worker["report"]["taken"] == 3
    assert len(worker["report"]["message"]) == 200 and status["learners"][0]["pending_rows"] == 2
