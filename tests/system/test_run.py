"""``seedmq run`` as a whole: start, end, signals, deaths of its processes, and what can be done with its directory."""

import json
import os
import signal
import stat

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.runs import END_SECONDS, PATIENT, Stopwatch, settings, summary

pytestmark = pytest.mark.system


SMALL = settings("workers.envs=8", "checkpoint.interval_seconds=1", "run.log_interval_seconds=0.2", PATIENT)
DEFAULT_DRAIN = "run.drain_timeout_seconds=8"
PRESET = "cartpole_vtrace"
START_SECONDS = 90.0


@pytest.fixture
def going(commands, until):
    """A run that has trained a little: (process, run directory)."""

    def start(*more):
        values = settings("run.solved_return=null", *more)
        process = commands.start("run", PRESET, *SMALL, *values, "--run-dir", "run")
        directory = commands.cwd / "run"

        def training():
            assert process.poll() is None, process.communicate()[0]
            return summary(directory).get("updates", 0) > 2

        until(training, START_SECONDS, "the first updates")
        return process, directory

    return start


def ended(process, seconds=END_SECONDS):
    """(exit code, output) of a process that ends within ``seconds`` of its own, from now on."""
    watch = Stopwatch()
    output, _ = process.communicate(timeout=END_SECONDS)
    assert watch.seconds < seconds, f"{watch}: {output}"
    return process.returncode, output


def kill_learner_and_drain(commands, until, process, directory, more_updates):
    """The learner is killed and another resumes; after ``more_updates`` the run is stopped and drains."""
    (learner,) = commands.find("learner --config")
    updates = summary(directory)["updates"]
    os.kill(learner, signal.SIGKILL)
    until(lambda: commands.find("--resume"), 15, "a learner that resumes")
    until(lambda: summary(directory).get("updates", 0) > updates + more_updates, START_SECONDS, "training goes on")
    process.send_signal(signal.SIGTERM)
    code, output = ended(process)
    assert code == 143, output
    assert summary(directory)["policy_lag_max"] < 100, "the version's jump is no lag"


def test_ends_at_max_steps_and_can_be_evaluated(commands):
    result = commands.run("run", PRESET, *SMALL, *settings("run.max_steps=4000"), "--run-dir", "run")
    assert result.returncode == 0, result.stdout
    assert "max_steps after" in result.stdout
    assert "ledger error 0" in result.stdout
    directory = commands.cwd / "run"
    figures = summary(directory)
    assert figures["stop_reason"] == "max_steps"
    assert figures["agent_steps"] >= 4000
    assert figures["ledger"]["error"] == 0
    for path in [directory, *directory.rglob("*")]:
        if path.parent == directory or path.suffix == ".log":
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path

    played = commands.run("eval", "run", "--episodes", "5", "--json")
    assert played.returncode == 0, played.stdout
    assert "absl" not in played.stdout
    result = json.loads(played.stdout.splitlines()[-1])
    assert (result["episodes"], result["mode"], len(result["episode_returns"])) == (5, "greedy", 5)
    assert all(1 <= value <= 500 for value in result["episode_returns"])
    again = commands.run("eval", "run", "--episodes", "5", "--json")
    assert json.loads(again.stdout.splitlines()[-1]) == result, "a seed decides it"

    shown = commands.run("status", "run")
    assert shown.returncode == 0
    assert "has ended: max_steps" in shown.stdout


def test_solves_cartpole(commands):
    result = commands.run("run", PRESET, "--run-dir", "run", timeout=240)
    assert result.returncode == 0, result.stdout
    assert "solved after" in result.stdout
    figures = summary(commands.cwd / "run")
    curves = EventAccumulator(str(commands.cwd / "run" / "events")).Reload()
    last = curves.Tensors("episodes/return_mean")[-1]
    assert last.step == figures["frames"], "the curves end where the run did"
    assert float(last.tensor_proto.float_val[0]) == pytest.approx(figures["episode_return_mean"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_first_signal_drains(commands, going, number, code):
    process, directory = going()
    process.send_signal(number)
    result, output = ended(process, 10)
    assert result == code, output
    figures = summary(directory)
    assert figures["stop_reason"] == "signal"
    assert figures["ledger"]["error"] == 0
    assert list((directory / "checkpoints").iterdir())


def stop_learner_cold(commands):
    """A learner that is stopped (SIGSTOP) can neither drain nor end."""
    (learner,) = commands.find("learner --config")
    os.kill(learner, signal.SIGSTOP)


def test_second_signal_kills(commands, going):
    process, _ = going()
    stop_learner_cold(commands)
    process.send_signal(signal.SIGTERM)
    # Two signals of a kind that are under way together arrive as one.
    assert any("stopping in order" in line for line in process.stdout)
    process.send_signal(signal.SIGTERM)
    assert ended(process, 2)[0] == 143


def test_learner_that_does_not_drain_is_killed(commands, going):
    process, _ = going(DEFAULT_DRAIN)
    stop_learner_cold(commands)
    process.send_signal(signal.SIGTERM)
    code, output = ended(process, 10.5)
    assert code == 3, output
    assert "learner did not end within" in output


def test_a_store_that_hangs_does_not_stretch_the_stop(commands, going):
    process, _ = going(DEFAULT_DRAIN)
    (store,) = commands.find("valkey-server")
    os.kill(store, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    code, output = ended(process, 10)
    assert code == 3, output
    assert "out of reach for" in output or "the store does not answer" in output, output


def test_signal_during_the_start(commands, until):
    process = commands.start("run", PRESET, *settings(PATIENT), "--run-dir", "run")
    until(lambda: commands.find("learner --config"), 30, "the learner's start")
    process.send_signal(signal.SIGINT)
    assert ended(process, 10)[0] == 130


def test_nothing_outlives_a_killed_run(commands, going, until):
    process, _ = going()
    process.kill()
    process.communicate(timeout=END_SECONDS)
    # The folder of sockets is all that a killed process cannot take along, and the next run removes it; that no process
    # is left is always checked.
    (left,) = commands.temporary.glob("seedmq-*")
    until(lambda: not commands.alive(), 5, "the end of its processes")
    result = commands.run("run", PRESET, *SMALL, *settings("run.max_steps=500"), "--run-dir", "next")
    assert result.returncode == 0, result.stdout
    assert f"removed {left}" in result.stdout
    assert not left.exists()


def test_dead_worker_is_replaced(commands, going, until):
    process, directory = going()
    (worker,) = commands.find("worker --config")
    os.kill(worker, signal.SIGKILL)
    until(lambda: commands.find("worker --config") not in ([], [worker]), 15, "a new worker")
    before = summary(directory)["updates"]
    until(lambda: summary(directory)["updates"] > before + 5, 60, "training goes on")
    process.send_signal(signal.SIGTERM)
    code, output = ended(process)
    assert code == 143, output
    assert "worker-0 ended with signal 9, starts again" in output


def test_dead_learner_is_resumed(commands, going, until):
    process, directory = going()
    until(lambda: any((directory / "checkpoints").iterdir()), 30, "a checkpoint")
    kill_learner_and_drain(commands, until, process, directory, 5)
    assert summary(directory)["ledger"]["error"] == 0


def test_kept_until_a_checkpoint_nothing_is_rolled_back(commands, going, until):
    process, directory = going("store.ack=checkpoint", "checkpoint.interval_seconds=2")
    until(lambda: summary(directory)["updates"] > 20, START_SECONDS, "some updates")
    kill_learner_and_drain(commands, until, process, directory, 5)
    ledger = summary(directory)["ledger"]
    assert (ledger["error"], ledger["rolled_back"]) == (0, 0), ledger


def test_dead_store_is_started_again(commands, going, until):
    process, directory = going()
    (store,) = commands.find("valkey-server")
    os.kill(store, signal.SIGKILL)
    until(lambda: commands.find("valkey-server") not in ([], [store]), 15, "a store")
    before = summary(directory)["updates"]
    until(lambda: summary(directory)["updates"] > before + 5, START_SECONDS, "training goes on")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 143


def test_resume_goes_on(commands, going):
    process, directory = going()
    process.send_signal(signal.SIGTERM)
    ended(process)
    updates = summary(directory)["updates"]
    refused = commands.run("run", PRESET, *SMALL, "--run-dir", "run")
    assert refused.returncode == 2
    assert "--resume" in refused.stdout
    more = settings(f"run.max_steps={summary(directory)['agent_steps'] + 2000}", "run.solved_return=null")
    result = commands.run("run", PRESET, *SMALL, *more, "--run-dir", "run", "--resume")
    assert result.returncode == 0, result.stdout
    assert summary(directory)["updates"] > updates


def test_status_of_a_run(commands, going, until):
    process, _ = going()

    def shown():
        found = commands.run("status", "run", "--json")
        workers = json.loads(found.stdout)["workers"] if found.returncode == 0 else []
        return [worker["worker_id"] for worker in workers] == ["worker-0"]

    until(shown, 60, "status shows the worker")
    assert commands.run("status", "run").returncode == 0
    process.kill()
    process.communicate()
    unreachable = commands.run("status", "run")
    assert unreachable.returncode == 4, unreachable.stdout
    commands.forget_sockets()


def test_broker_as_a_process(commands):
    arguments = settings("broker.placement=process", "workers.count=2", "run.max_steps=4000")
    result = commands.run("run", PRESET, *SMALL, *arguments, "--run-dir", "run")
    assert result.returncode == 0, result.stdout
    assert summary(commands.cwd / "run")["ledger"]["error"] == 0
    assert (commands.cwd / "run" / "logs" / "broker.log").is_file()


def test_environment_that_does_not_exist(commands):
    result = commands.run("run", PRESET, *settings("environment.id=Nothing-v0"), "--run-dir", "run")
    assert result.returncode == 2, result.stdout
    errors = [line for line in result.stdout.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Nothing-v0" in errors[0]


def test_store_out_of_reach(commands):
    arguments = settings("store.url=redis://127.0.0.1:1", "store.unreachable_seconds=1")
    result = commands.run("run", PRESET, *SMALL, *arguments, "--run-dir", "run", timeout=90)
    assert result.returncode == 4, result.stdout
    assert "error: " in result.stdout


def test_variables_reach_the_children_once(commands):
    limit = settings("run.max_steps=1000")
    result = commands.run("run", PRESET, *SMALL, *limit, "--run-dir", "run", SEEDMQ_WORKERS="2")
    assert result.returncode == 0, result.stdout
    assert (commands.cwd / "run" / "logs" / "worker-1.log").is_file()


def test_worker_of_another_environment_is_refused(commands, going):
    bind = f"broker.bind=ipc://{commands.cwd}/b"
    process, _ = going(bind, "store.backend=memory")
    values = settings(bind, "environment.id=Acrobot-v1", "workers.envs=2")
    refused = commands.run("worker", "--config", PRESET, *values)
    assert refused.returncode == 2, refused.stdout
    (line,) = refused.stdout.splitlines()
    assert "float32[4]" in line and "at the learner" in line, line
    assert "float32[6]" in line and "at the worker" in line, line
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 143, "the run that it did not fit goes on"


@pytest.mark.parametrize("command", ["eval", "status"])
def test_directory_without_a_run(commands, command):
    (commands.cwd / "empty").mkdir()
    for path in ("missing", "empty"):
        result = commands.run(command, path)
        assert result.returncode == 2
        assert result.stdout.startswith("error: ")
        assert path in result.stdout
