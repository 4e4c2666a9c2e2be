"""Real processes and sockets: a supervised worker against a minimal broker."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import zmq

from pipeline.admission import Admission
from pipeline.config.tree import BrokerSection, SecuritySection
from pipeline.keys import write_keys
from pipeline.protocol import Kind
from pipeline.sockets import worker_facing
from pipeline.stopping import StopToken
from tests.counter_env import LEAK_BYTES
from tests.integration.supervised import Running, config_of
from tests.mini_broker import MiniBroker, Tally
from tests.runs import Stopwatch, free_ports
from workers.supervisor import Supervisor

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


def check_rows(run):
    """Every (episode, step) of each environment once, in order."""
    tallies, last = {}, {}
    for group, records, leaves in run.rows:
        for record, observation in zip(records, leaves[0], strict=True):
            name = (group, int(record["environment"]))
            tallies.setdefault(name, Tally()).add(record)
            assert record["index"] == tallies[name].valid
            step = (int(observation[1]), int(observation[2]))
            assert name not in last or step > last[name]
            last[name] = step


def test_groups_step_and_a_stop_delivers_all_that_was_taken(broker):
    with Running(config_of(broker)) as worker:
        broker.until(lambda: broker.transitions > 1000)
        worker.stop.stop("test")
        assert worker.ended() == 0
    (run,) = broker.runs.values()
    (bye,) = broker.byes.values()
    assert bye.taken == run.transitions and bye.dropped == {} and bye.faults == {}
    assert run.hello.groups == [2, 2]
    check_rows(run)


@pytest.mark.parametrize("environment", ["CounterDict-v0", "CounterTuple-v0", "CounterVector-v0"])
def test_other_observations_arrive_whole(broker, environment):
    kwargs = {"autoreset_mode": "SameStep"} if "Vector" in environment else {}
    with Running(config_of(broker, kwargs, environment=environment)):
        broker.until(lambda: broker.transitions > 500)
    (run,) = broker.runs.values()
    assert next(iter(broker.byes.values())).taken == run.transitions
    if "Vector" in environment:
        check_rows(run)


def test_large_observations_are_not_torn():
    with MiniBroker() as broker:
        config = config_of(broker, envs=24, groups=2)  # 12 frames of 84 x 84: above the size that is copied
        config = config.model_copy(update={"environment": config.environment.model_copy(update=ATARI)})
        with Running(config):
            broker.until(lambda: broker.transitions > 240)
        (run,) = broker.runs.values()
        assert next(iter(broker.byes.values())).taken == run.transitions
        assert all(len(np.unique(leaves[0])) > 1 for _, _, leaves in run.rows)


ATARI = {"id": "ALE/Pong-v5", "kwargs": {}, "frame_skip": 4}


def test_dismissal_by_the_learner_ends_with_0(broker):
    with Running(config_of(broker)) as worker:
        broker.until(lambda: broker.transitions > 100)
        broker.dismissed = True
        assert worker.ended() == 0
    (run,) = broker.runs.values()
    assert next(iter(broker.byes.values())).taken == run.transitions


@pytest.mark.parametrize("fault", ["hang", "hang_gil", "hang_reset"])
def test_a_hang_is_found_told_and_ended_and_others_go_on(broker, fault, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    once = {"fault": fault, "at": 3, "episode": 3, "once": str(tmp_path / "once")}
    # Whoever is not served by a busy machine for so long hangs as well; the second holds for a child's start too.
    limits = {"step_timeout_seconds": 5.0, "reset_timeout_seconds": 20.0}
    with (
        Running(config_of(broker, {"step_seconds": 0.001}, worker="other")),
        Running(config_of(broker, once, worker="sick", limits=limits)),
    ):
        broker.until(lambda: sum(hello.worker_id == "sick" for hello in broker.hellos) >= 2)
        again = broker.hellos[-1]
        broker.until(lambda: broker.runs[again.run].transitions > 200)
        broker.until(lambda: broker.runs[again.run].report is not None)
        told = broker.runs[again.run].report
        assert told.faults == {"env_hangs": 1} and "hung" in told.message, "status shows it while the worker goes on"
        assert sum(hello.worker_id == "other" for hello in broker.hellos) == 1
    dead, living = [number for number, run in broker.runs.items() if run.hello.worker_id == "sick"]
    report = again.reports[str(dead)]
    assert report["faults"] == {"env_hangs": 1} and "hung" in report["message"]
    assert report["taken"] >= broker.runs[dead].transitions
    assert broker.runs[dead].worker == broker.runs[living].worker
    (text,) = [record.getMessage() for record in caplog.records if "its stack" in record.getMessage()]
    assert "counter_env.py" in text and "in misbehave" in text
    place = r"hung for [\d.]+ s in (step|reset) of environment \d+ .*step \d+, seed \d+, last actions \["
    assert re.search(place, text)


@pytest.mark.parametrize(
    ("fault", "words"),
    [("raise", "the counter was told to fail"), ("shape", "has shape (4,), its space says (3,)")],
)
def test_one_environment_that_fails_is_made_anew_and_the_others_go_on(broker, fault, words, tmp_path, capfd):
    kwargs = {"fault": fault, "episode": 4, "once": str(tmp_path / "once")}
    with Running(config_of(broker, kwargs)) as worker:
        broker.until(lambda: broker.hellos and (told := next(iter(broker.runs.values())).report) and told.faults)
        (run,) = broker.runs.values()
        told, before = run.report, run.transitions
        broker.until(lambda: run.transitions > before + 200)
        worker.stop.stop("test")
        assert worker.ended() == 0
    assert len(broker.hellos) == 1, "its process goes on"
    assert told.faults == {"env_errors": 1} and words in told.message and "environment " in told.message
    (bye,) = broker.byes.values()
    assert bye.faults == {"env_errors": 1} and bye.taken == run.transitions, "no step of the others is unbooked"
    numbers = {}
    for group, records, leaves in run.rows:
        for environment, number in zip(records["environment"], leaves[0][:, 0].tolist(), strict=True):
            numbers.setdefault((group, int(environment)), set()).add(number)
    assert sorted(map(len, numbers.values())) == [1, 1, 1, 2], "one of four has begun another stream"
    assert "this environment is made anew" in capfd.readouterr().err


@pytest.mark.parametrize(("fault", "words"), [("exit", "exit code 77"), ("segfault", "SIGSEGV")])
def test_a_fault_is_survived_and_told(broker, fault, words, tmp_path, caplog):
    kwargs = {"fault": fault, "episode": 4, "once": str(tmp_path / "once")}
    with Running(config_of(broker, kwargs)):
        broker.until(lambda: len(broker.hellos) >= 2)
        again = broker.hellos[-1]
        broker.until(lambda: broker.runs[again.run].transitions > 200 and broker.runs[again.run].report is not None)
    told = broker.runs[again.run].report
    assert told.faults == {"env_errors": 1} and words in told.message, "status shows it while the worker goes on"
    (report,) = again.reports.values()
    assert report["faults"] == {"env_errors": 1} and words in report["message"]
    assert report["taken"] >= broker.runs[int(next(iter(again.reports)))].transitions > 0
    assert words in caplog.text


def test_environments_that_leak_are_ended_in_order_and_made_anew(broker, tmp_path, caplog):
    kwargs = {"fault": "leak", "episode": 4, "once": str(tmp_path / "once")}
    with Running(config_of(broker, kwargs, limits={"max_memory_bytes": LEAK_BYTES})):
        broker.until(lambda: len(broker.hellos) >= 2)
        first, again = (hello.run for hello in broker.hellos)
        broker.until(lambda: broker.runs[again].transitions > 200 and broker.runs[again].report is not None)
        told = broker.runs[again].report
    assert told.faults == {"env_memory": 1}, "status shows it while the worker goes on"
    assert re.search(r"process has \d{9} bytes, above environment.max_memory_bytes = \d+", told.message), told.message
    assert told.message in caplog.text
    assert broker.hellos[-1].reports == {}, "it has said all of it itself"
    assert broker.byes[first].taken == broker.runs[first].transitions > 0
    assert broker.runs[first].worker == broker.runs[again].worker


def test_environments_that_never_fit_spend_the_budget(broker, caplog):
    with Running(config_of(broker, limits={"max_memory_bytes": 2**20, "fault_budget": 2})) as worker:
        assert worker.ended() == 3
    assert "fault_budget = 2 faults in ten minutes is spent: the environments' process has" in caplog.text


def test_a_fault_at_every_episode_spends_the_budget_and_fails_with_the_message(broker, caplog):
    with Running(config_of(broker, {"fault": "raise"}, limits={"fault_budget": 2})) as worker:
        assert worker.ended() == 3
    assert len(broker.hellos) == 2, "the first fault was survived by the process"
    assert "fault_budget = 2" in caplog.text and "the counter was told to fail at step 3" in caplog.text
    last = broker.hellos[-1].run
    assert broker.byes[last].faults == {"env_errors": 3} and "told to fail" in broker.byes[last].message


def test_environments_that_fail_again_and_again_spend_the_budget_one_by_one(broker, caplog, capfd):
    kwargs = {"fault": "raise", "episode": 2}
    with Running(config_of(broker, kwargs, limits={"fault_budget": 3})) as worker:
        assert worker.ended() == 3
    assert len(broker.hellos) == 1 and capfd.readouterr().err.count("is made anew in") == 3
    assert "fault_budget = 3 faults in ten minutes is spent: RuntimeError: the counter was told to fail" in caplog.text
    (bye,) = broker.byes.values()
    assert bye.faults == {"env_errors": 4} and bye.taken >= broker.transitions


@pytest.mark.parametrize(
    ("fault", "words", "faults"),
    [  # the first environment to fail is made anew alone, at the second one the process ends
        ("raise", "RuntimeError: the counter was told to fail at step 3 (tests/counter_env.py:", 6),
        ("shape", "has shape (4,), its space says (3,) (tests/counter_env.py:", 6),
        ("cancelled", "CancelledError: the environment was told to be cancelled (tests/counter_env.py:", 3),
        ("segfault", "SIGSEGV", 3),
    ],
)
def test_a_fault_in_the_first_steps_of_every_try_fails_with_the_message_and_the_place(
    broker, fault, words, faults, caplog
):
    with Running(config_of(broker, {"fault": fault})) as worker:
        assert worker.ended() == 3
    assert len(broker.hellos) == 3
    last = caplog.records[-1].getMessage()
    assert words in last and "the same in 3 tries" in last
    told = broker.byes[broker.hellos[-1].run]
    assert told.faults == {"env_errors": faults} and words in told.message


def test_an_environment_of_another_convention_fails_at_once_with_the_place(broker, caplog):
    with Running(config_of(broker, limits={"wrappers": ["tests.counter_env:Old"]})) as worker:
        assert worker.ended() == 3
    assert len(broker.hellos) == 1
    last = caplog.records[-1].getMessage()
    assert "reset returns (observation, info)" in last and "(tests/counter_env.py:" in last and "Old.reset)" in last


def test_environments_that_cannot_be_made_fail_with_the_message_and_the_place(broker, caplog):
    with Running(config_of(broker, {"kind": "none"})) as worker:
        assert worker.ended() == 3
    assert not broker.hellos
    last = caplog.records[-1].getMessage()
    assert "KeyError: 'none' (tests/counter_env.py:" in last and "the same in 3 tries" in last


def test_a_value_that_is_not_finite_fails_by_default_and_is_dropped_on_demand(broker, caplog):
    with Running(config_of(broker, {"fault": "nan"})) as worker:
        assert worker.ended() == 3
    assert "worker 0, environment 0, group step 3" in caplog.text
    (told,) = broker.byes.values()
    assert told.faults == {"non_finite": 1} and "not finite" in told.message
    assert told.taken >= broker.transitions
    kwargs, limits = {"fault": "nan", "episode": 2}, {"non_finite": "drop"}
    with Running(config_of(broker, kwargs, worker="dropping", limits=limits)):
        broker.until(lambda: any(run.transitions > 200 for run in broker.runs.values()))
    run = list(broker.runs.values())[-1]
    bye = list(broker.byes.values())[-1]
    assert bye.dropped == {"non_finite": 4} and bye.faults == {"non_finite": 4}
    assert bye.taken == run.transitions + 4


@pytest.mark.parametrize(
    ("environment", "code", "words"), [("Missing-v0", 2, "Missing"), ("Counter-v0", 4, "no broker answered")]
)
def test_what_a_restart_does_not_cure_ends_at_once(environment, code, words, caplog):
    config = config_of("tcp://127.0.0.1:1", environment=environment, workers={"connect_timeout_seconds": 1.0})
    with Running(config) as worker:
        assert worker.ended() == code
    assert words in caplog.text


def test_a_worker_without_keys_at_a_broker_with_keys_says_what_it_looks_like(tmp_path, caplog):
    """So does one with keys that are not admitted: neither is answered, so neither can know."""
    (port,) = free_ports(1)
    endpoint, context = f"tcp://127.0.0.1:{port}", zmq.Context()
    write_keys(tmp_path / "keys")
    write_keys(tmp_path / "others")
    section, guarded = BrokerSection(bind=endpoint), SecuritySection(keys=str(tmp_path / "keys"))
    words = {None: "it has keys and answers only workers that have some too", "others": "it does not admit the keys in"}
    with Admission(context, section, guarded) as admission:
        socket = worker_facing(context, section, guarded, admission.monitor("workers"))
        for keys, said in words.items():
            security = {"keys": None if keys is None else str(tmp_path / keys)}
            with Running(config_of(endpoint, workers={"connect_timeout_seconds": 1.5}, security=security)) as worker:
                assert worker.ended() == 4
            assert f"no broker answered within 1.5 s at {endpoint}: either none is there, or {said}" in caplog.text
        socket.close(linger=0)
    context.term()


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"broker": {"max_message_bytes": 40}}, "2 x 2 x 12 bytes in a message exceed"),
        ({"security": {"keys": "/nowhere"}}, "/nowhere"),
    ],
)
def test_a_setting_that_cannot_work_ends_with_2(broker, sections, words, caplog):
    with Running(config_of(broker, **sections)) as worker:
        assert worker.ended() == 2
    assert words in caplog.text and not broker.hellos


def test_a_broker_that_restarts_is_joined_again_and_nothing_is_lost(tmp_path):
    endpoint = f"ipc://{tmp_path}/b"
    broker = MiniBroker(endpoint)
    with Running(config_of(broker)) as worker:
        for _ in range(5):
            broker.until(lambda b=broker: b.transitions > 200)
            broker.close()
            (before,) = broker.runs.values()
            number = next(iter(broker.runs))
            broker = MiniBroker(endpoint)
            broker.until(lambda b=broker: b.transitions > 200)
            (after,) = broker.runs.values()
            assert next(iter(broker.runs)) == number and after.worker == before.worker
            for group in (0, 1):
                first = next(rows for rows in after.rows if rows[0] == group)[1]
                for record in first:
                    known = before.delivered[group, int(record["environment"])]
                    assert known <= record["index"] <= known + 1
        worker.stop.stop("test")
        assert worker.ended() == 0
    broker.close()
    assert broker.byes[number].taken == after.transitions


def test_a_lost_reply_is_asked_for_again(broker):
    broker.mute.add(Kind.STEP)
    with Running(config_of(broker, workers={"reply_timeout_seconds": 0.3})):
        broker.until(lambda: broker.runs and next(iter(broker.runs.values())).report is not None)
        broker.mute.clear()
        broker.until(lambda: broker.transitions > 100)


def test_slow_environments_keep_their_lease_and_their_connection(broker):
    with Running(config_of(broker, {"step_seconds": 0.8}, envs=16)):
        broker.until(lambda: broker.transitions >= 16)  # 6.4 s for a step of a group: longer than a silence
        (run,) = broker.runs.values()
        beats = broker.heartbeats
        broker.until(lambda: broker.transitions >= 32)
        assert broker.heartbeats - beats >= 10
    assert len(broker.hellos) == 1 and run.repeats == 0


def test_an_environment_that_forks_at_every_step(broker):
    with Running(config_of(broker, {"fault": "fork"})) as worker:
        broker.until(lambda: broker.transitions >= 50)
        worker.stop.stop("test")
        assert worker.ended() == 0
    assert len(broker.hellos) == 1, "nothing was made anew"
    for run in broker.runs.values():
        check_rows(run)


def test_a_hang_at_the_drain_is_killed_in_time(broker):
    kwargs = {"fault": "hang_gil", "episode": 2}
    with Running(config_of(broker, kwargs, run={"drain_timeout_seconds": 1.5})) as worker:
        broker.until(lambda: broker.transitions >= 7)
        watch = Stopwatch()
        worker.stop.stop("test")
        assert worker.ended() == 0
        assert watch.seconds < 5, watch
    (run,) = broker.runs.values()
    (bye,) = broker.byes.values()
    assert bye.taken >= run.transitions


def test_an_environment_that_hangs_in_close_is_ended_and_all_is_delivered(broker, caplog):
    with Running(config_of(broker, {"fault": "hang_close"}, run={"drain_timeout_seconds": 6.0})) as worker:
        broker.until(lambda: broker.transitions > 100)
        worker.stop.stop("test")
        assert worker.ended() == 0
    assert next(iter(broker.byes.values())).taken == broker.transitions
    assert "closing of environment" in caplog.text and "in misbehave" in caplog.text, "the stack stands in the log"


def test_twenty_restarts_under_load_are_all_served(broker):
    with Running(config_of(broker, worker="steady")):
        for number in range(20):
            worker = Supervisor(config_of(broker, worker="restarted"), StopToken())
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            broker.until(
                lambda n=number: len({r for r, x in broker.runs.items() if x.hello.worker_id == "restarted"}) > n
            )
            run = next(r for r in reversed(broker.runs.values()) if r.hello.worker_id == "restarted")
            broker.until(lambda run=run: run.transitions > 20)
            worker._stop.stop("test")
            thread.join(120)
            assert not thread.is_alive()
