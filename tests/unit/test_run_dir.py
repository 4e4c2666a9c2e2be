"""The run directory: made once, private, gone on with only by the same kind of run."""

import json
import shutil
import stat

import pytest
import yaml

from pipeline import run_dir
from pipeline.config.load import load
from pipeline.config.tree import Config
from pipeline.errors import ConfigError
from pipeline.run_dir import RunDirectory, read_json, write_json

pytestmark = pytest.mark.unit


def config(**sections):
    return Config.model_validate({"environment": {"id": "CartPole-v1"}, **sections})


def test_holds_the_resolved_configuration_with_versions(tmp_path):
    directory = RunDirectory.create(tmp_path / "a" / "run", "name", config(run={"seed": 7}))
    assert directory.read_config() == config(run={"seed": 7})
    versions = yaml.safe_load(directory.config.read_text())["versions"]
    assert {"python", "numpy", "gymnasium", "pyzmq"} <= versions.keys()
    assert load(directory.config, environ={"SEEDMQ_RUN__SEED": "8"}).config.run.seed == 8


def test_a_start_that_was_cut_off_is_begun_again(tmp_path):
    """Whatever restarts a learner that was killed in its first moments must not be refused for ever."""
    run = tmp_path / "run"
    for left in ([], ["checkpoints", "events"], ["checkpoints", "events", "logs", ".config.yaml.17"]):
        run.mkdir(mode=0o755)
        for name in left:
            (run / name).mkdir() if name[0] != "." else (run / name).write_text("half of")
        RunDirectory.create(run, "name", config())
        assert RunDirectory.open(run).read_config() == config()
        assert stat.S_IMODE(run.stat().st_mode) == 0o700
        shutil.rmtree(run)


@pytest.mark.parametrize("name", ["notes.txt", "checkpoints/000000000000", "lost+found/x"])
def test_a_directory_with_anything_in_it_is_left_alone(tmp_path, name):
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(ConfigError, match=r"exists.*--resume"):
        RunDirectory.create(tmp_path / "run", "name", config())
    assert file.read_text() == "mine"
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == [file]


def test_one_learner_at_a_time_and_one_id_for_ever(tmp_path):
    RunDirectory.create(tmp_path / "run", "name", config())
    with (
        RunDirectory.open(tmp_path / "run").locked() as first,
        pytest.raises(ConfigError, match=r"a learner runs in .*run already"),
        RunDirectory.open(tmp_path / "run").locked(),
    ):
        pytest.fail("two learners")
    with RunDirectory.open(tmp_path / "run").locked() as again:
        assert again == first
    RunDirectory.create(tmp_path / "other", "name", config())
    with RunDirectory.open(tmp_path / "other").locked() as other:
        assert other != first


def test_a_copy_is_another_run_and_a_moved_one_the_same(tmp_path):
    """Both may be gone on with at once: as one run they would take the store from each other for ever."""
    RunDirectory.create(tmp_path / "run", "name", config())
    with RunDirectory.open(tmp_path / "run").locked() as first:
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        with RunDirectory.open(tmp_path / "copy").locked() as copied:
            assert copied != first
    (tmp_path / "run").rename(tmp_path / "moved")
    with RunDirectory.open(tmp_path / "moved").locked() as moved:
        assert moved == first


def test_a_directory_that_cannot_be_locked_is_refused(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", "name", config())
    directory.run_id.mkdir()
    with pytest.raises(ConfigError, match=r"cannot lock .*run_id: Is a directory"), directory.locked():
        pytest.fail("locked")


def test_is_readable_by_its_owner_only(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", "name", config())
    write_json(directory.summary, {})
    for path in [directory.path, *directory.path.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_existing_one_is_refused(tmp_path):
    RunDirectory.create(tmp_path / "run", "name", config())
    with pytest.raises(ConfigError, match=r"exists.*--resume"):
        RunDirectory.create(tmp_path / "run", "name", config())


def test_default_is_unique_within_a_second(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_dir.time, "strftime", lambda *_: "20260131-120000")
    paths = [RunDirectory.create(None, "cartpole", config()).path for _ in range(3)]
    assert [path.name for path in paths] == [
        "cartpole-20260131-120000",
        "cartpole-20260131-120000-2",
        "cartpole-20260131-120000-3",
    ]
    assert RunDirectory.newest().path == paths[-1]


def test_resume_goes_on_with_the_same_kind_of_run(tmp_path):
    first = RunDirectory.create(tmp_path / "run", "name", config(run={"max_steps": 10}))
    write_json(first.summary, {"updates": 3, "stop_reason": "max_steps"})
    again = RunDirectory.create(tmp_path / "run", "name", config(run={"max_steps": 20}), resume=True)
    assert again.read_config().run.max_steps == 20
    assert again.read_summary() == {"updates": 3, "stop_reason": None}, "it is going on"


def test_resume_writes_nothing_where_a_learner_runs(tmp_path):
    first = RunDirectory.create(tmp_path / "run", "name", config(run={"max_steps": 10}))
    write_json(first.summary, {"updates": 3, "stop_reason": None})
    with first.locked():
        before = {path: path.read_bytes() for path in first.path.iterdir() if path.is_file()}
        with pytest.raises(ConfigError, match="a learner runs in"):
            RunDirectory.create(tmp_path / "run", "name", config(run={"max_steps": 20}), resume=True)
        assert {path: path.read_bytes() for path in first.path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("other", "key"),
    [
        ({"network": {"hidden": [32]}}, r"^network.hidden = \[32\]: the run in .* has None"),
        ({"environment": {"id": "Acrobot-v1"}}, "environment.id"),
        ({"environment": {"id": "CartPole-v1", "frame_stack": 4}}, "environment.frame_stack"),
        ({"training": {"unroll_length": 40}}, r"^training.unroll_length = 40: the run in .* has 20, .*SEEDMQ_RUN=NAME"),
        ({"training": {"optimizer": {"name": "rmsprop"}}}, "training.optimizer.name"),
    ],
)
def test_resume_refuses_another_kind_of_run(tmp_path, other, key):
    RunDirectory.create(tmp_path / "run", "name", config())
    with pytest.raises(ConfigError, match=key):
        RunDirectory.create(tmp_path / "run", "name", config(**other), resume=True)


@pytest.mark.parametrize("path", [None, "missing", "empty"])
def test_resume_needs_a_run(tmp_path, path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError):
        RunDirectory.create(path and tmp_path / path, "name", config(), resume=True)


def test_path_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/run"):
        RunDirectory.create(tmp_path / "file" / "run", "name", config())


def test_json_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    assert read_json(path) == {"a": 1}
    assert [x.name for x in tmp_path.iterdir()] == ["summary.json"], "no temporary file stays"


def test_json_that_is_missing_or_damaged(tmp_path):
    assert read_json(tmp_path / "none.json") is None
    for text in ('{"a": ', json.dumps([1])):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError, match=r"bad\.json"):
            read_json(tmp_path / "bad.json")
