"""A run's secrets and files, and what two runs do to one Redis that holds others' keys."""

import json
import os
import stat
import subprocess
from pathlib import Path

import psutil
import pytest

from pipeline import keys
from tests.runs import END_SECONDS, PATIENT, free_ports, settings

pytestmark = pytest.mark.system

PASSWORD = "correct-horse-battery-9731"
RUN_SECONDS = 240.0


SMALL = settings(
    "workers.envs=8", "workers.count=1", "checkpoint.interval_seconds=1", "run.log_interval_seconds=0.2", PATIENT
)


@pytest.fixture
def password_file(tmp_path):
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    file.chmod(0o600)
    return file


def everything(client, prefix=None):
    """Key -> its value, serialized by Redis."""
    found = sorted(client.scan_iter(match="*"))
    return {key: client.dump(key) for key in found if prefix is None or not key.startswith(prefix)}


def exposed():
    """Command line and environment of each process that this user can see, as text."""
    for process in psutil.process_iter():
        try:
            yield f"{process.pid} {process.cmdline()} {process.environ()}"
        except (psutil.Error, OSError):
            continue


def files_of(folder):
    return [folder, *folder.rglob("*")]


def open_to_others(folder):
    """Paths that group or others can use (a socket and what it stands in alike)."""
    return [p for p in files_of(folder) if not p.is_symlink() and stat.S_IMODE(p.stat().st_mode) & 0o077]


def test_files_are_their_owner_s_and_secrets_stay_secret(commands, until, their_redis, password_file):
    redis_server, _ = their_redis
    fleet = commands.cwd / "fleet"
    keys.write_keys(fleet)
    front, back = free_ports(2)
    secrets = [PASSWORD, *(keys.load(fleet, name, secret=True).secret.decode() for name in keys.NAMES)]
    values = settings(
        f"store.url={redis_server.url}",
        f"store.password_file={password_file}",
        f"security.keys={fleet}",
        "broker.placement=process",
        f"broker.bind=tcp://127.0.0.1:{front}",
        f"broker.learner_bind=tcp://127.0.0.1:{back}",
        "run.solved_return=null",
    )
    shown = commands.run("config", "show", "cartpole_vtrace", *values)
    assert shown.returncode == 0 and str(password_file) in shown.stdout
    previous = os.umask(0)  # not what a test happens to run with is to protect the files
    try:
        process = commands.start("-v", "run", "cartpole_vtrace", *SMALL, *values, "--run-dir", "run")
    finally:
        os.umask(previous)
    directory = commands.cwd / "run"

    def training():
        assert process.poll() is None, process.communicate()[0]
        summary = directory / "summary.json"
        return summary.exists() and json.loads(summary.read_text()).get("updates", 0) > 2

    until(training, RUN_SECONDS, "the first updates")
    until(lambda: any(directory.glob("checkpoints/*")), 60, "a checkpoint")
    adjusted = commands.run("adjust", "run", "replay.samples_per_insert=8")  # refused for V-trace, and not printed
    asked = []

    def answered():
        asked.append(commands.run("status", "run", "--json"))
        return asked[-1].returncode == 0

    until(answered, 60, "an answer to status")
    processes = "\n".join(exposed())
    assert str(directory.name) in processes
    private = [path for path in commands.temporary.iterdir() if path.name.startswith("seedmq-")]
    assert private and [open_to_others(path) for path in private if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    process.terminate()
    output, _ = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 143, output
    assert open_to_others(directory) == []
    assert {p.name for p in directory.iterdir()} >= {"config.yaml", "summary.json", "checkpoints", "events", "logs"}
    texts = {str(p): p.read_bytes().decode(errors="replace") for p in directory.rglob("*") if p.is_file()}
    texts |= {"output": output, "config show": shown.stdout, "processes": processes}
    texts |= {"status": "".join(one.stdout for one in asked), "adjust": adjusted.stdout}
    assert [name for name, text in texts.items() if any(secret in text for secret in secrets)] == []


def test_a_wrong_password_is_refused_and_not_shown(commands, their_redis, tmp_path):
    redis_server, _ = their_redis
    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-password-55\n")
    values = settings(f"store.url={redis_server.url}", f"store.password_file={wrong}")
    result = commands.run("run", "cartpole_vtrace", *SMALL, *values, "--run-dir", "run", timeout=RUN_SECONDS)
    assert result.returncode == 3 and "invalid username-password" in result.stdout, result.stdout
    logs = "".join(path.read_text() for path in (commands.cwd / "run" / "logs").iterdir())
    assert "not-the-password-55" not in result.stdout + logs


def test_two_runs_and_foreign_keys_in_one_redis(commands, until, their_redis, password_file):
    redis_server, client = their_redis
    client.set("bystander", b"1")
    client.set("a", b"a prefix without its colon")
    client.hset("ab:fifo", mapping={"x": 1})
    client.xadd("a-unrolls", {"x": 1})
    client.zadd("b.priorities", {"x": 1.0})
    client.rpush("seedmq:unrolls", b"x")
    before = everything(client)
    shared = settings(f"store.url={redis_server.url}", f"store.password_file={password_file}", "run.solved_return=null")
    presets = {"a": "cartpole_vtrace", "b": "cartpole_r2d2"}
    runs = {
        prefix: commands.start("run", preset, *SMALL, *shared, *settings(f"store.prefix={prefix}"), "--run-dir", prefix)
        for prefix, preset in presets.items()
    }

    def stored(prefix):
        assert runs[prefix].poll() is None, runs[prefix].communicate()[0]
        summary = commands.cwd / prefix / "summary.json"
        return summary.exists() and json.loads(summary.read_text()).get("updates", 0) > 2

    for prefix in runs:
        until(lambda prefix=prefix: stored(prefix), RUN_SECONDS, f"updates of run {prefix}")
    names = set(client.scan_iter())
    assert {name.split(b":")[0] for name in names - set(before)} <= {b"a", b"b"}
    runs["a"].terminate()
    output, _ = runs["a"].communicate(timeout=END_SECONDS)
    assert runs["a"].returncode == 143, output
    updates = json.loads((commands.cwd / "b" / "summary.json").read_text())["updates"]

    def goes_on():
        return json.loads((commands.cwd / "b" / "summary.json").read_text())["updates"] > updates + 2

    until(goes_on, 60, "run b goes on after a has ended")
    runs["b"].terminate()
    output, _ = runs["b"].communicate(timeout=END_SECONDS)
    assert runs["b"].returncode == 143, output
    for prefix in runs:
        ledger = json.loads((commands.cwd / prefix / "summary.json").read_text())["ledger"]
        assert ledger["error"] == 0, ledger
    after = everything(client)
    assert {key: after.get(key) for key in before} == before


def test_no_pickle_and_nothing_like_it_in_the_sources():
    """Ours never load what could run code; multiprocessing's own start-up pipe to a child is the only pickle."""
    root = Path(__file__).resolve().parents[2]
    words = (
        "import pickle",
        "import dill",
        "import shelve",
        "import marshal",
        "import cloudpickle",
        "allow_pickle=True",
    )
    words += ("yaml.load(", "yaml.unsafe_load", "recv_pyobj", "send_pyobj", "eval(", "exec(", "torch.load", "joblib")
    files = subprocess.run(
        ["git", "ls-files", "pipeline", "broker", "workers", "learner"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    sources = {file: (root / file).read_text("utf-8") for file in files if file.endswith(".py")}
    assert sources
    assert [f"{file}: {word}" for file, text in sources.items() for word in words if f"{word}" in text] == []
