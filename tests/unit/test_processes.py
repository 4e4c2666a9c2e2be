"""Supervision of a run's processes: exits, signals and the time in, actions out."""

import random

import pytest

from pipeline.launch.processes import (
    BROKER,
    KILL_SECONDS,
    LEARNER,
    LOST_SECONDS,
    STORE,
    WINDOW_SECONDS,
    WORKER_GRACE_SECONDS,
    Delay,
    Finish,
    Kill,
    Phase,
    Start,
    Supervisor,
    Terminate,
)

pytestmark = pytest.mark.unit

WORKERS = ["worker-0", "worker-1"]
EVERYTHING = {STORE: 3, BROKER: 3, LEARNER: 3, "worker-0": 2, "worker-1": 2}


def begun(budgets=EVERYTHING, resume=False):
    supervisor = Supervisor(budgets, 8.0, lambda: 1.0, resume)
    assert supervisor.begin(0.0) == [Start(name, resume and name == LEARNER) for name in budgets]
    return supervisor


def ended_in_order(supervisor, now):
    """Every component goes when it is told; the actions of it."""
    actions = []
    for name in [*WORKERS, BROKER, STORE]:
        actions += supervisor.exited(name, 0, now)
    return actions


def test_solved_ends_in_order_with_zero():
    supervisor = begun()
    assert supervisor.exited(LEARNER, 0, 100.0) == []
    assert supervisor.exited("worker-0", 0, 100.1) == []
    assert supervisor.exited("worker-1", 0, 100.2) == [Terminate(BROKER)]
    assert supervisor.exited(BROKER, 143, 100.3) == [Terminate(STORE)]
    assert supervisor.exited(STORE, 0, 100.4) == [Finish(0, None, "finished")]
    assert supervisor.phase is Phase.FINISHED


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143)])
def test_first_signal_tells_the_learner_only(number, code):
    supervisor = begun()
    assert supervisor.signalled(number, 10.0) == [Terminate(LEARNER)]
    assert supervisor.tick(11.0) == []
    assert supervisor.exited(LEARNER, code, 12.0) == []
    assert ended_in_order(supervisor, 12.5) == [Terminate(BROKER), Terminate(STORE), Finish(code, None, "signal")]


def test_second_signal_kills_everything_at_once():
    supervisor = begun()
    supervisor.signalled(2, 10.0)
    assert supervisor.signalled(15, 10.1) == [Kill(name) for name in EVERYTHING]
    for name in EVERYTHING:
        actions = supervisor.exited(name, -9, 10.2)
    assert actions == [Finish(143, None, "second signal")]


def test_second_signal_ends_the_run_though_a_process_hangs_in_the_kernel():
    supervisor = begun()
    supervisor.signalled(2, 10.0)
    supervisor.signalled(2, 10.1)
    assert supervisor.next_deadline() == pytest.approx(10.1 + KILL_SECONDS)
    assert supervisor.tick(10.1 + KILL_SECONDS) == [Finish(130, None, "second signal")]


def test_signal_before_anything_started():
    supervisor = Supervisor(EVERYTHING, 8.0, lambda: 1.0)
    assert supervisor.signalled(15, 0.0) == [Finish(143, None, "signal")]


def test_workers_that_the_learner_could_not_dismiss_are_told_after_a_grace():
    supervisor = begun()
    supervisor.exited(LEARNER, 0, 100.0)
    supervisor.exited("worker-0", 0, 100.5)
    assert supervisor.next_deadline() == pytest.approx(100.0 + WORKER_GRACE_SECONDS)
    assert supervisor.tick(100.0 + WORKER_GRACE_SECONDS) == [Terminate("worker-1")]
    assert supervisor.exited("worker-1", 143, 103.0) == [Terminate(BROKER)]


def test_what_outlives_the_drain_is_killed():
    supervisor = begun()
    supervisor.exited(LEARNER, 0, 100.0)
    supervisor.tick(103.0)
    assert supervisor.tick(108.0) == [Kill(name) for name in EVERYTHING if name != LEARNER]
    for name in (*WORKERS, BROKER, STORE):
        actions = supervisor.exited(name, -9, 108.1)
    assert actions == [Finish(0, None, "finished")], "the learner had finished: the run is good"


def test_learner_that_hangs_in_the_drain_is_a_failure():
    supervisor = begun({LEARNER: 3})
    supervisor.signalled(15, 10.0)
    assert supervisor.tick(18.0) == [Kill(LEARNER)]
    (finish,) = supervisor.exited(LEARNER, -9, 18.1)
    assert finish == Finish(3, LEARNER, "learner did not end within 8 s")


@pytest.mark.parametrize("code", [2, 4])
def test_a_drain_that_fails_for_a_known_cause_ends_with_its_code(code):
    supervisor = begun({LEARNER: 3})
    supervisor.signalled(2, 10.0)
    (finish,) = supervisor.exited(LEARNER, code, 11.0)
    assert finish == Finish(code, LEARNER, f"learner ended with exit code {code} while the run was stopping")


def test_learner_that_crashes_in_the_drain_is_a_failure():
    supervisor = begun({LEARNER: 3, "worker-0": 1})
    supervisor.signalled(15, 10.0)
    assert supervisor.exited(LEARNER, -11, 11.0) == [Terminate("worker-0")]
    assert supervisor.next_deadline() == pytest.approx(11.0 + LOST_SECONDS)
    (finish,) = supervisor.exited("worker-0", 0, 11.5)
    assert (finish.code, finish.culprit) == (3, LEARNER)


@pytest.mark.parametrize("code", [3, 1, -9, -11, -15])
def test_learner_is_started_again_and_resumes(code):
    supervisor = begun()
    supervisor.trains = True
    assert supervisor.exited(LEARNER, code, 10.0) == [Delay(LEARNER, code, 0.5)]
    assert supervisor.states()[LEARNER] == "restarting"
    assert supervisor.next_deadline() == pytest.approx(10.5)
    assert supervisor.tick(10.4) == []
    assert supervisor.tick(10.5) == [Start(LEARNER, True)]
    assert supervisor.phase is Phase.RUNNING


def test_a_learner_that_fails_before_it_trains_ends_the_run():
    supervisor = begun()
    assert Terminate("worker-0") in supervisor.exited(LEARNER, 3, 10.0)
    assert supervisor.phase is Phase.DRAINING
    assert (supervisor.finish.code, supervisor.finish.culprit) == (3, LEARNER)


def test_a_worker_that_gives_up_ends_the_run():
    supervisor = begun()
    assert supervisor.exited("worker-0", 3, 10.0) == [Terminate(LEARNER)]
    assert (supervisor.finish.code, supervisor.finish.culprit) == (3, "worker-0")


def test_first_learner_of_a_resumed_run_resumes():
    begun(resume=True)


def test_somebody_stops_the_learner():
    supervisor = begun({LEARNER: 3})
    assert supervisor.exited(LEARNER, 143, 10.0) == [Finish(143, None, "signal")]


@pytest.mark.parametrize("component", [LEARNER, BROKER, "worker-0"])
@pytest.mark.parametrize("code", [2, 4])
def test_bad_configuration_or_missing_dependency_ends_the_run_at_once(component, code):
    supervisor = begun()
    actions = supervisor.exited(component, code, 5.0)
    if component == LEARNER:
        assert actions == [Terminate("worker-0"), Terminate("worker-1")]
    else:
        assert actions == [Terminate(LEARNER)]
        supervisor.exited(LEARNER, 143, 6.0)
    for name in (*WORKERS, BROKER, STORE):
        if name != component:
            actions = supervisor.exited(name, 0, 6.0)
    (finish,) = actions
    assert (finish.code, finish.culprit) == (code, component)


def test_second_failure_does_not_hide_the_first():
    supervisor = begun({LEARNER: 3, "worker-0": 3})
    supervisor.exited("worker-0", 2, 5.0)
    (finish,) = supervisor.exited(LEARNER, 3, 6.0)
    assert (finish.code, finish.culprit) == (2, "worker-0")


def test_worker_restarts_have_growing_delays_and_a_budget():
    supervisor = begun()
    assert supervisor.exited("worker-0", -11, 10.0) == [Delay("worker-0", -11, 0.5)]
    assert supervisor.tick(10.5) == [Start("worker-0", False)]
    assert supervisor.exited("worker-0", -9, 11.0) == [Delay("worker-0", -9, 1.0)]
    assert supervisor.tick(12.0) == [Start("worker-0", False)]
    assert supervisor.exited("worker-0", -9, 13.0) == [Terminate(LEARNER)], "the learner still drains"
    assert supervisor.restarts() == 2
    supervisor.exited(LEARNER, 143, 14.0)
    (finish, *_) = [a for a in ended_in_order(supervisor, 14.5) if isinstance(a, Finish)]
    assert (finish.code, finish.culprit) == (3, "worker-0")


def test_budget_is_per_window():
    supervisor = begun({LEARNER: 3, "worker-0": 1})
    for round_ in range(5):
        now = 10.0 + round_ * (WINDOW_SECONDS + 1)
        assert supervisor.exited("worker-0", -9, now) == [Delay("worker-0", -9, 0.5)]
        supervisor.tick(now + 0.5)


def test_delays_of_processes_that_die_together_differ():
    supervisor = Supervisor({LEARNER: 3, **{f"w{i}": 3 for i in range(20)}}, 8.0, random.Random(1).random)
    supervisor.begin(0.0)
    delays = [supervisor.exited(f"w{i}", -9, 1.0)[0].seconds for i in range(20)]
    assert len(set(delays)) == 20


def test_worker_that_left_while_the_run_goes_on_comes_back():
    supervisor = begun()
    (delay,) = supervisor.exited("worker-0", 0, 10.0)
    assert delay.seconds > 8.0, "not while its learner may be about to end"
    assert supervisor.tick(10.0 + delay.seconds) == [Start("worker-0", False)]


def test_restarts_are_off_while_draining():
    supervisor = begun()
    supervisor.exited("worker-0", -9, 10.0)
    supervisor.signalled(15, 10.1)
    assert supervisor.tick(12.0) == []
    supervisor.exited(LEARNER, 143, 12.5)
    assert supervisor.exited("worker-1", 0, 13.0) == [Terminate(BROKER)]


def test_store_is_started_again():
    supervisor = begun()
    assert supervisor.exited(STORE, 3, 10.0) == [Delay(STORE, 3, 0.5)]
    assert supervisor.tick(10.5) == [Start(STORE, False)]


@pytest.mark.parametrize("seed", range(200))
def test_every_history_comes_to_its_end(seed):
    """Whatever dies when: once told to end, the run finishes within drain and kill, and leaves nothing alive."""
    rng = random.Random(seed)
    supervisor = Supervisor(EVERYTHING, 8.0, rng.random)
    alive, killed, now, finish = set(), set(), 0.0, None
    pending = supervisor.begin(now)
    while finish is None:
        for action in pending:
            if isinstance(action, Start):
                assert action.component not in alive, "started twice"
                alive.add(action.component)
            elif isinstance(action, Kill):
                killed.add(action.component)
            elif isinstance(action, Finish):
                finish = action
        now += 0.1
        pending = supervisor.signalled(15, now) if now >= 50.0 and supervisor.signal is None else []
        for name in sorted(alive):
            if name in killed or rng.random() < 0.02:
                alive.discard(name)
                pending += supervisor.exited(name, rng.choice([0, 3, -9, 143, 2 if seed % 3 == 0 else 1]), now)
        pending += supervisor.tick(now)
        assert now < 50.0 + 8.0 + KILL_SECONDS + 0.5
    assert supervisor.phase is Phase.FINISHED
    assert not alive
