"""Cases of ``docs/field-cases.md`` that belong to no other file: whole runs, as a user sees them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

from learner.checkpoint import load_latest
from pipeline.config.tree import SecuritySection
from pipeline.launch.status import ask
from tests.runs import END_SECONDS, PATIENT, Stopwatch, processor_seconds, settings, summary

pytestmark = pytest.mark.system

PRESET = "cartpole_vtrace"
FROZEN = settings("training.optimizer.learning_rate=1e-30")
REPOSITORY = str(Path(__file__).parents[2])
ENDLESS = settings("run.solved_return=null", "run.log_interval_seconds=0.5", "run.max_seconds=2000", PATIENT)


def test_a_run_that_plays_well_is_killed_and_plays_as_well_when_it_is_resumed(commands, until):
    """Weights and version come back: a mean return above 400 before, at least 350 after.

    The run that goes on updates with a learning rate of nothing, so that its mean is of the policy that came back, and
    not of what learning makes of it meanwhile, which on CartPole is worse for seconds now and then.
    """
    arguments = [*ENDLESS, *settings("checkpoint.interval_seconds=1", "run.solved_episodes=100")]
    run = commands.start("run", PRESET, *arguments, "--run-dir", "run")
    directory = commands.cwd / "run"
    until(lambda: (summary(directory).get("episode_return_mean") or 0) >= 450, 300, "a mean return of 450")
    run.send_signal(signal.SIGKILL)
    run.communicate()
    commands.forget_sockets()
    assert "is gone, killed or with its machine, and did not end in order" in commands.run("status", "run").stdout
    before = summary(directory)
    watch = Stopwatch()
    run = commands.start("run", PRESET, *arguments, *FROZEN, "--run-dir", "run", "--resume")

    def again():
        """What the learner that goes on says of itself: its episodes and losses are its own."""
        found = summary(directory)
        return found if found["startup_seconds"] != before["startup_seconds"] else {}

    until(lambda: again().get("loss") is not None, 90, "the first update")
    print(f"the first update took {watch}")
    assert watch.seconds < 30
    resumed = again()["episodes"]
    # Of the episodes that begin together the short ones end first: the last 100 of 300 are those that tell.
    until(lambda: again()["episodes"] >= resumed + 300, 120, "300 episodes")
    assert again()["episode_return_mean"] >= 350
    run.send_signal(signal.SIGTERM)
    output, _ = run.communicate(timeout=END_SECONDS)
    assert run.returncode == 143, output
    assert summary(directory)["ledger"]["error"] == 0


def test_eval_samples_as_training_did_with_the_same_weights(commands):
    """Weights that do not move: both means are of one policy, and differ by 5 % at most (five standard errors)."""
    short = settings("run.solved_episodes=100000", "run.max_steps=140000")
    result = commands.run("run", PRESET, *ENDLESS, *FROZEN, *short, "--run-dir", "run", timeout=200)
    assert result.returncode == 0, result.stdout
    trained = summary(commands.cwd / "run")
    played = commands.run("eval", "run", "--episodes", "6000", "--mode", "sample", "--json", timeout=120)
    assert played.returncode == 0, played.stdout
    found = json.loads(played.stdout.splitlines()[-1])
    assert trained["episodes"] > 5000 and found["mode"] == "sample" and found["episodes"] == 6000
    assert found["episode_return_mean"] == pytest.approx(trained["episode_return_mean"], rel=0.05)


@pytest.mark.parametrize("placement", ["embedded", "process"])
def test_the_learner_dies_and_workers_say_so_and_stop_and_the_same_go_on(commands, until, placement):
    counted, endpoint = commands.cwd / "steps", f"ipc://{commands.cwd}/b"
    values = [
        "environment.id=tests.counter_env:Counter-v0", "environment.kwargs={step_seconds: 0.01}",
        "environment.wrappers=[tests.counter_env:Counted]", "workers.envs=4", "training.unroll_length=8",
        "training.batch_size=8", "store.backend=memory", "checkpoint.interval_seconds=1", f"broker.bind={endpoint}",
        f"broker.learner_bind=ipc://{commands.cwd}/l", f"broker.placement={placement}",
    ]  # fmt: skip
    arguments = ["--config", PRESET, *ENDLESS, *settings(*values)]
    variables = {"PYTHONPATH": REPOSITORY, "COUNTED_STEPS": str(counted)}
    broker = commands.start("broker", *arguments, **variables) if placement == "process" else None
    learner = commands.start("learner", *arguments, "--run-dir", "run", **variables)
    worker = commands.start("worker", *arguments, **variables)
    directory = commands.cwd / "run"
    until(lambda: summary(directory).get("updates", 0) > 5, 120, "training")
    until(lambda: load_saved(directory), 30, "a checkpoint")

    def run():
        (one,) = ask(endpoint, SecuritySection(), END_SECONDS)["workers"]
        return one["run"], psutil.Process(worker.pid).children(recursive=True)

    before = run()
    learner.kill()
    learner.communicate()
    watch = Stopwatch()
    assert any("not stepping" in line for line in worker.stdout)
    assert watch.seconds < 10, watch
    steps = counted.stat().st_size
    assert worker.poll() is None
    with pytest.raises(psutil.TimeoutExpired):
        psutil.Process(worker.pid).wait(5)
    assert counted.stat().st_size == steps, "no environment is stepped"

    updates = summary(directory)["updates"]
    learner = commands.start("learner", *arguments, "--run-dir", "run", "--resume", **variables)
    until(lambda: summary(directory)["updates"] > updates + 3, 90, "training goes on")
    assert run() == before, "the same run of the same processes"
    for process in (learner, worker, broker):
        if process is not None:
            process.terminate()
            output, _ = process.communicate(timeout=END_SECONDS)
            assert process.returncode in (143, 0), output
    assert summary(directory)["ledger"]["error"] == 0


def load_saved(directory):
    """Whether there is a checkpoint."""
    return any((directory / "checkpoints").glob("0*"))


@pytest.mark.parametrize("fault", ["nan", "nan_reward"])
def test_weights_and_checkpoints_stay_finite_whatever_environments_say(commands, fault):
    kwargs = f"environment.kwargs={{fault: {fault}}}"
    values = settings(
        "environment.id=tests.counter_env:Counter-v0", kwargs, "environment.non_finite=drop", "workers.envs=4",
        "training.unroll_length=8", "training.batch_size=8", "checkpoint.interval_seconds=0.5", "run.max_steps=3000",
    )  # fmt: skip
    result = commands.run("run", PRESET, *ENDLESS, *values, "--run-dir", "run", PYTHONPATH=REPOSITORY)
    assert result.returncode == 0, result.stdout
    figures = summary(commands.cwd / "run")
    assert figures["ledger"]["dropped"]["worker_non_finite"] > 0 and figures["ledger"]["error"] == 0
    saved = load_latest(commands.cwd / "run" / "checkpoints")
    assert saved is not None and saved.meta["version"] == figures["updates"] > 0
    assert len(saved.arrays) > 6
    for name, array in saved.arrays.items():
        assert np.isfinite(array.astype(np.float64)).all(), name


SPACE = """
import gymnasium
from gymnasium import spaces

class Odd(gymnasium.Env):
    observation_space, action_space = {space}, spaces.Discrete(2)

gymnasium.register("Odd-v0", entry_point=Odd)
"""


@pytest.mark.parametrize("space", ["Sequence(spaces.Discrete(2))", "Graph(spaces.Box(0, 1), None)", "Text(3)"])
def test_a_space_that_is_not_supported_ends_a_worker_within_5_seconds(commands, space):
    (commands.cwd / "odd.py").write_text(SPACE.format(space=f"spaces.{space}"))
    watch, spent = Stopwatch(), processor_seconds()
    odd = settings("environment.id=odd:Odd-v0")
    result = commands.run("worker", "--config", PRESET, *odd, PYTHONPATH=f".:{REPOSITORY}")
    spent = processor_seconds() - spent
    print(f"refused within {watch}; a processor worked {spent:.1f} s")
    assert result.returncode == 2 and "not supported" in result.stdout, result.stdout
    assert "MultiBinary" in result.stdout and "Dict" in result.stdout, result.stdout
    assert spent < 5, "what it takes where nothing else has the processor"


@pytest.mark.parametrize("key", ["inference_devices", "training_devices"])
def test_a_demanded_device_that_is_missing_ends_the_run(commands, key):
    result = commands.run("run", PRESET, *settings(f"learner.{key}=[gpu:7]"), "--run-dir", "run")
    assert result.returncode == 2, result.stdout
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("error: ")]
    assert f"learner.{key} demands 'gpu:7'" in line and "CPU:0" in line
