"""A disk that fills up while a run goes on: training goes on, and the end says what was not written."""

import json
import os
import signal
import subprocess

import pytest

pytestmark = pytest.mark.system

MEGABYTES = 8
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


def status(commands):
    """What the learner says of itself now."""
    shown = commands.run("status", "disk/run", "--json")
    assert shown.returncode == 0, shown.stdout
    return json.loads(shown.stdout)["learner"]


@pytest.fixture
def going(commands, disk, until):
    """A run on the small disk that has trained and saved."""

    def start(*values):
        words = ("workers.envs=8", "checkpoint.interval_seconds=1", "run.log_interval_seconds=0.2", *values)
        more = [word for value in words for word in ("--set", value)]
        process = commands.start(
            "run", "cartpole_vtrace", *more, "--set", "run.solved_return=null", "--run-dir", "disk/run"
        )

        def trained():
            assert process.poll() is None, process.communicate()[0]
            found = [path for path in (disk / "run" / "checkpoints").glob("0*") if int(path.name[:12])]
            return found and (disk / "run" / "summary.json").exists()

        until(trained, START_SECONDS, "a checkpoint after the first updates")
        return process

    return start


@pytest.mark.parametrize("ack", ["update", "checkpoint"])
def test_training_goes_on_until_there_is_room_again(commands, disk, going, until, ack):
    process = going(f"store.ack={ack}")
    (learner,) = commands.find("learner --config")
    fill(disk)
    until(lambda: "checkpoint" in status(commands).get("failing", {}), 60, "a checkpoint that does not fit")
    before = status(commands)
    assert "No space left" in before["failing"]["checkpoint"]
    if ack == "update":
        until(lambda: status(commands)["updates"] > before["updates"] + 5, 60, "training goes on")
        assert status(commands)["updates_since_checkpoint"] > 5, "are at risk"
    os.unlink(disk / "fill")
    until(lambda: not status(commands)["failing"], 60, "everything is written again")
    after = status(commands)["updates"]
    until(lambda: status(commands)["updates"] > after + 5, 60, "training goes on")
    assert commands.find("learner --config") == [learner], "nobody was restarted"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 143, output
    figures = json.loads((disk / "run" / "summary.json").read_text())
    assert figures["ledger"]["error"] == 0 and figures["failed_writes"]["checkpoint"] >= 1
    newest = max((disk / "run" / "checkpoints").glob("0*"))
    assert json.loads((newest / "meta.json").read_text())["updates"] == figures["updates"]
    assert figures["updates_since_checkpoint"] == 0


def test_an_interrupt_with_a_full_disk_ends_with_4(commands, disk, going, until):
    process = going("run.max_seconds=null")
    fill(disk)
    until(lambda: "checkpoint" in status(commands).get("failing", {}), 60, "a checkpoint that does not fit")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 4, output
    (error,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "No space left" in error and "checkpoints" in error


def test_a_last_checkpoint_that_does_not_fit_is_a_failure(commands, disk, going, until):
    process = going("run.max_seconds=12")
    fill(disk)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 4, output
    (error,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "No space left" in error and "checkpoints" in error
    assert "starts again" not in output
