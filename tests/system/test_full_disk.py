"""A disk that fills up while a run goes on: training goes on, and the end says what was not written."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.runs import END_SECONDS, PATIENT, settings

pytestmark = pytest.mark.system

MEGABYTES = 8
SOLVED_RETURN = 1000.0
"""More than anybody gets who only plays CartPole."""
START_SECONDS = 90.0


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, of 8 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m,mode=700", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a file system")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk):
    """Writes until nothing more fits."""
    with open(disk / "fill", "wb", buffering=0) as file:
        for size in (2**16, 512, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue


@pytest.fixture
def told(commands, until):
    """Waits until the learner says of itself what is wanted; gives what it says."""

    def wait(condition, what):
        found = [None]

        def asked():
            shown = commands.run("status", "disk/run", "--json")
            found[0] = json.loads(shown.stdout)["learner"] if shown.returncode == 0 else None
            return found[0] is not None and condition(found[0])

        until(asked, 60, what)
        return found[0]

    return wait


def unsaved(learner):
    """Whether it says that a checkpoint does not fit."""
    return "No space left" in learner.get("failing", {}).get("checkpoint", "")


@pytest.fixture
def going(commands, disk, until):
    """A run on the small disk that has trained and saved."""

    def start(*values, **variables):
        words = ("workers.envs=8", "checkpoint.interval_seconds=1", "run.log_interval_seconds=0.2", PATIENT)
        more = settings(*words, "run.solved_return=null", "run.max_seconds=null", *values)
        process = commands.start("run", "cartpole_vtrace", *more, "--run-dir", "disk/run", **variables)

        def trained():
            assert process.poll() is None, process.communicate()[0]
            found = [path for path in (disk / "run" / "checkpoints").glob("0*") if int(path.name[:12])]
            return found and (disk / "run" / "summary.json").exists()

        until(trained, START_SECONDS, "a checkpoint after the first updates")
        return process

    return start


@pytest.mark.parametrize("ack", ["update", "checkpoint"])
def test_training_goes_on_until_there_is_room_again(commands, disk, going, told, ack):
    process = going(f"store.ack={ack}")
    (learner,) = commands.find("learner --config")
    fill(disk)
    before = told(unsaved, "a checkpoint that does not fit")["updates"]
    if ack == "update":
        told(lambda learner: learner["updates"] > before + 5, "training goes on")
        told(lambda learner: learner["updates_since_checkpoint"] > 5, "are at risk")
    os.unlink(disk / "fill")
    after = told(lambda learner: not learner["failing"], "everything is written again")["updates"]
    told(lambda learner: learner["updates"] > after + 5, "training goes on")
    assert commands.find("learner --config") == [learner], "nobody was restarted"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 143, output
    figures = json.loads((disk / "run" / "summary.json").read_text())
    assert figures["ledger"]["error"] == 0 and figures["failed_writes"]["checkpoint"] >= 1
    newest = max((disk / "run" / "checkpoints").glob("0*"))
    assert json.loads((newest / "meta.json").read_text())["updates"] == figures["updates"]
    assert figures["updates_since_checkpoint"] == 0


def test_a_learner_that_is_resumed_on_a_full_disk_trains_on(commands, disk, going, told, until):
    process = going()
    (learner,) = commands.find("learner --config")
    fill(disk)
    told(unsaved, "a checkpoint that does not fit")
    os.kill(learner, signal.SIGKILL)
    until(lambda: commands.find("learner --config") not in ([], [learner]), 30, "another learner")
    before = told(lambda found: found.get("state") == "training" and unsaved(found), "nor does it fit now")["updates"]
    told(lambda found: found.get("updates", 0) > before + 5, "training goes on")
    told(lambda found: "events" in found["failing"], "events do not fit either")
    assert not [path for path in (disk / "run" / "events").iterdir() if not path.stat().st_size], "no empty files"
    os.unlink(disk / "fill")
    told(lambda found: not found["failing"], "everything is written again")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 143 and output.count("starts again") == 1, output
    assert json.loads((disk / "run" / "summary.json").read_text())["ledger"]["error"] == 0


def test_an_interrupt_with_a_full_disk_ends_with_4(disk, going, told):
    process = going()
    fill(disk)
    told(unsaved, "a checkpoint that does not fit")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 4, output
    (error,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "No space left" in error and "checkpoints" in error


def test_a_last_checkpoint_that_does_not_fit_is_a_failure(disk, going, tmp_path):
    """The run ends because its task is solved, which is when the test says so: by a file that gives much reward."""
    flag = tmp_path / "solved"
    solvable = ("environment.wrappers=[tests.counter_env:SolvedByFlag]", f"run.solved_return={SOLVED_RETURN:g}")
    variables = {"SOLVED_FLAG": str(flag), "PYTHONPATH": str(Path(__file__).parents[2])}
    process = going(*solvable, "run.solved_episodes=1", **variables)
    fill(disk)
    flag.touch()
    output, _ = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 4, output
    (error,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "No space left" in error and "checkpoints" in error
    assert "starts again" not in output
