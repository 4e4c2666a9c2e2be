"""The installed command, as a process of its own."""

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.system

COMMANDS = {"run", "store", "broker", "learner", "worker", "status", "adjust", "eval", "config", "keys", "envs"}


def seedmq(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("seedmq")), *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.upper().startswith("SEEDMQ_")}
    return subprocess.run(
        command, cwd=cwd, env={**environ, **variables}, capture_output=True, text=True, timeout=60, check=False
    )


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """Exit code 2 and one line; returns it."""
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_version_and_help(tmp_path: Path) -> None:
    assert seedmq("--version", cwd=tmp_path).stdout == f"seedmq {version('seedmq')}\n"
    result = seedmq("--help", cwd=tmp_path)
    assert result.returncode == 0
    assert set(result.stdout.split()) >= COMMANDS
    for command in COMMANDS:
        assert seedmq(command, "--help", cwd=tmp_path).returncode == 0


def test_no_command_shows_the_help_and_is_a_usage_error(tmp_path: Path) -> None:
    result = seedmq(cwd=tmp_path)
    assert result.returncode == 2
    assert "Commands:" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("bogus",), "No such command 'bogus'"),
        (("run",), "Missing argument 'CONFIG'. (see seedmq run --help)"),
        (("worker",), "Missing option '--config'"),
        (("run", "cartpole_vtrace", "--resum"), "--resume"),
        (("status",), "no run under runs/"),
        (("status", "runs/x", "--broker", "tcp://127.0.0.1:1"), "give RUN_DIR or --broker ENDPOINT, not both"),
        (("adjust", "runs/x", "replay.samples_per_insert=8"), "no run directory runs/x"),
        (("adjust", "runs/x"), "Missing argument 'KEY=VALUE...'"),
        (("eval", "runs/x", "--episodes", "0"), "--episodes"),
        (("eval", "runs/x", "--mode", "best"), "'best' is not one of 'greedy', 'sample'"),
        (("--log-format", "xml", "envs"), "'xml' is not one of 'text', 'json'"),
        (("config", "check", "cartpole_vtrce"), "did you mean cartpole_vtrace?"),
        (("config", "show", "cartpole_vtrace", "--set", "run.sed=1"), "did you mean run.seed?"),
        (("worker", "--config", "cartpole_vtrace", "--set", "workers.envs=5"), "cannot be split evenly"),
        (("run", "cartpole_vtrace", "--set", "training.batch_size=0"), "training.batch_size = 0"),
    ],
)
def test_usage_errors(tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in refused(seedmq(*arguments, cwd=tmp_path))


def test_variables_are_read_and_refused(tmp_path: Path) -> None:
    result = seedmq("config", "show", "cartpole_vtrace", cwd=tmp_path, SEEDMQ_WORKERS="3")
    assert "count: 3  # variable SEEDMQ_WORKERS\n" in result.stdout
    assert "SEEDMQ_WORKERS" in refused(seedmq("config", "check", "cartpole_vtrace", cwd=tmp_path, SEEDMQ_WORKER="3"))
    message = refused(seedmq("worker", "--config", "cartpole_vtrace", cwd=tmp_path, SEEDMQ_ENVS_PER_WORKER="63"))
    assert "workers.envs = 63 cannot be split evenly over workers.groups = 2" in message


def test_config_show_can_be_given_again(tmp_path: Path) -> None:
    first = seedmq("config", "show", "atari_vtrace", "--set", "vtrace.lambda=0.9", cwd=tmp_path)
    assert first.returncode == 0
    assert "  lambda: 0.9  # --set\n" in first.stdout
    (tmp_path / "again.yaml").write_text(first.stdout)
    second = seedmq("config", "show", "again.yaml", cwd=tmp_path)
    assert yaml.safe_load(second.stdout) == yaml.safe_load(first.stdout)


@pytest.mark.parametrize("preset", sorted(path.stem for path in (Path(__file__).parents[2] / "configs").glob("*.yaml")))
def test_config_check_of_every_preset(tmp_path: Path, preset: str) -> None:
    result = seedmq("config", "check", preset, cwd=tmp_path)
    assert result.returncode == 0
    assert result.stdout.endswith(f"{preset}.yaml: ok\n")


def test_envs_lists_every_family_and_imports_none(tmp_path: Path) -> None:
    (tmp_path / "vizdoom.py").write_text("raise RuntimeError('imported')\n")
    result = seedmq("envs", cwd=tmp_path)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    families = ["classic control", "Atari", "MuJoCo", "Box2D", "ViZDoom", "DeepMind Lab"]
    assert [any(line.startswith(family) for line in lines) for family in families] == [True] * len(families)
    assert all("installed" in line or "pip install" in line or "build it" in line for line in lines)
    assert any(line.split()[:2] == ["ViZDoom", "installed"] for line in lines)


def test_keys_are_written_once_and_named(tmp_path: Path) -> None:
    result = seedmq("keys", "fleet", cwd=tmp_path)
    assert result.returncode == 0
    written = {Path(line.removeprefix("wrote ")) for line in result.stdout.splitlines()}
    assert written == {p.relative_to(tmp_path) for p in (tmp_path / "fleet").rglob("*") if p.is_file()}
    assert "secret" not in "".join((tmp_path / path).read_text() for path in written if path.suffix == ".key")
    assert "holds keys already" in refused(seedmq("keys", "fleet", cwd=tmp_path))


def test_a_client_pair_is_added_to_a_fleet(tmp_path: Path) -> None:
    assert "server.key_secret" in refused(seedmq("keys", "fleet", "--client", "farm", cwd=tmp_path))
    assert seedmq("keys", "fleet", cwd=tmp_path).returncode == 0
    result = seedmq("keys", "fleet", "--client", "farm", cwd=tmp_path)
    names = [line.removeprefix("wrote fleet/clients/farm/") for line in result.stdout.splitlines()]
    assert names == ["client.key", "client.key_secret", "server.key"]
    assert (tmp_path / "fleet/authorized/workers/farm.key").is_file()
    assert "already" in refused(seedmq("keys", "fleet", "--client", "farm", cwd=tmp_path))
    assert "a name has" in refused(seedmq("keys", "fleet", "--client", "../farm", cwd=tmp_path))


def test_off_the_loopback_needs_keys_or_insecure(tmp_path: Path) -> None:
    endpoint = "broker.bind=tcp://0.0.0.0:*"
    broker = ("broker", "--config", "cartpole_vtrace", "--set", endpoint, "--set", "broker.learner_bind=bad")
    assert "off the loopback" in refused(seedmq(*broker, cwd=tmp_path))
    assert "broker.learner_bind = bad" in refused(seedmq(*broker, "--insecure", cwd=tmp_path))
    asked = refused(seedmq("status", "--broker", "tcp://10.0.0.1:5555", cwd=tmp_path))
    assert "off the loopback: give --keys DIR" in asked
    asked = seedmq("status", "--broker", "tcp://localhost.localdomain:9", "--insecure", cwd=tmp_path)
    assert asked.returncode == 4 and "no broker answers" in asked.stderr


def test_output_that_nobody_reads_is_no_crash(tmp_path: Path) -> None:
    command = f"{Path(sys.executable).with_name('seedmq')} config show cartpole_vtrace | true"
    result = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_component_drains_on_a_signal(tmp_path: Path, number: signal.Signals, code: int) -> None:
    command = [str(Path(sys.executable).with_name("seedmq")), "--log-format", "json", "store"]
    options = ["--config", "cartpole_vtrace", "--set", f"store.url=unix://{tmp_path}/s"]
    with subprocess.Popen([*command, *options], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            entries = (json.loads(line) for line in process.stderr)
            ready = next(entry for entry in entries if entry["message"].startswith("store ready"))
            assert ready["component"] == "store"
            process.send_signal(number)
            assert process.wait(timeout=30) == code
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
    assert list(tmp_path.iterdir()) == []
