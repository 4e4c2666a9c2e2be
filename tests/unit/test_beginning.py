"""A run begins under what is said, and goes on under its own configuration with what is said then on top."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.beginning import begin
from pipeline.config.load import DEFAULT, RUN, dump
from pipeline.errors import ConfigError
from pipeline.launch.run import run as launch
from pipeline.run_dir import RunDirectory, write_json

pytestmark = pytest.mark.unit

MINE = "environment: {id: CartPole-v1}\nnetwork: {hidden: [64, 64]}\ntraining: {batch_size: 16}\n"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.yaml"
    file.write_text(MINE)
    return file


@pytest.fixture
def run(mine: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """Of a file, a variable and two ``--set``."""
    monkeypatch.setenv("SEEDMQ_WORKERS__ENVS", "4")
    with begin("mine.yaml", ["training.batch_size=8", "run.seed=7"], Path("run"), False).of_run() as directory:
        monkeypatch.delenv("SEEDMQ_WORKERS__ENVS")
    return directory


def said(differences: object) -> list[str]:
    return [str(difference) for difference in differences]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("source", "run_dir"), [("run", None), ("run", Path("run")), ("mine.yaml", Path("run"))])
def test_a_run_goes_on_under_its_own_configuration(run: RunDirectory, source: str, run_dir: Path | None) -> None:
    again = begin(source, [], run_dir, True)
    assert again.loaded.config == run.read_config()
    assert again.loaded.config.training.batch_size == 8 and again.loaded.config.workers.envs == 4
    assert (again.run_dir, again.resume, again.differences) == (Path("run"), True, [])
    assert again.loaded.origins["training.batch_size"] == RUN
    assert again.loaded.origins["broker.bind"] == DEFAULT, "what nobody has set is a private socket again"


def test_what_is_said_at_the_resume_lies_on_top_and_is_told(
    run: RunDirectory, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEDMQ_WORKERS__COUNT", "3")
    mine.write_text(MINE + "checkpoint: {keep: 9}\n")
    again = begin("mine.yaml", ["run.seed=8"], Path("run"), True)
    assert said(again.differences) == [
        "run.seed = 8, was 7 (from --set)",
        "workers.count = 3, was 1 (from variable SEEDMQ_WORKERS__COUNT)",
        "checkpoint.keep = 9, was 3 (from file mine.yaml)",
    ]
    assert again.loaded.config.training.batch_size == 8, "the file says 16, as it did when --set said 8"
    with again.of_run():
        monkeypatch.delenv("SEEDMQ_WORKERS__COUNT")
    third = begin("run", [], None, True)
    assert (third.loaded.config.run.seed, third.loaded.config.workers.count, third.differences) == (8, 3, [])


def test_a_second_run_in_the_directory_is_refused_before_it_writes_and_whatever_the_learner_does(
    run: RunDirectory, mine: Path
) -> None:
    new = begin("mine.yaml", [], Path("other"), False)
    for first, where in ((begin("run", [], None, True), run.path), (new, Path("other"))):
        with first.of_run() as directory:  # its learner starts, or starts again: it holds no lock
            before = {file: file.read_bytes() for file in where.iterdir() if file.is_file()}
            second = begin(str(where), ["run.seed=9"], None, True)
            with pytest.raises(ConfigError, match=r"`seedmq run` runs in .* already: end it first"), second.of_run():
                pytest.fail("two at once")
            assert {file: file.read_bytes() for file in directory.path.iterdir() if file.is_file()} == before
        with second.of_run() as directory:
            assert directory.read_config().run.seed == 9


def test_a_run_that_has_had_its_time_stays_as_it_is(run: RunDirectory) -> None:
    write_json(run.summary, {"elapsed_seconds": 5.0, "stop_reason": "max_seconds"})
    before = {file: file.read_bytes() for file in run.path.iterdir() if file.is_file()}
    with pytest.raises(ConfigError, match=r"run.max_seconds = 3: the run has had 5.0 s already"):
        launch(begin("run", ["run.max_seconds=3", "run.seed=9"], None, True))
    assert {file: file.read_bytes() for file in run.path.iterdir() if file.is_file()} == before


def test_an_edited_line_of_the_file_is_said(run: RunDirectory, mine: Path) -> None:
    mine.write_text(MINE.replace("16", "64"))
    assert said(begin("mine.yaml", [], Path("run"), True).differences) == [
        "training.batch_size = 64, was 8 (from file mine.yaml)"
    ]


def test_a_setting_keeps_its_value_when_the_default_is_another_one(run: RunDirectory) -> None:
    text = run.config.read_text()
    assert "\n  unroll_length: 20\n" in text
    run.config.write_text(text.replace("\n  unroll_length: 20\n", "\n  unroll_length: 10\n"))  # of an older version
    assert begin("run", [], None, True).loaded.config.training.unroll_length == 10


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.unroll_length=40", r"^training.unroll_length = 40: the run in run has 20, which cannot change"),
        ("network.hidden=[8]", r"^network.hidden = \[8\]: the run in run has \[64, 64\]"),
        ("environment.id=Acrobot-v1", r"^environment.id = 'Acrobot-v1': the run in run has 'CartPole-v1'"),
    ],
)
def test_what_cannot_change_is_refused_with_both_values(run: RunDirectory, override: str, message: str) -> None:
    before = {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    with pytest.raises(ConfigError, match=message):
        begin("run", [override], None, True)
    assert {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()} == before


def test_another_configuration_does_not_go_on_with_the_run(run: RunDirectory) -> None:
    with pytest.raises(ConfigError, match=r"^cartpole_vtrace: the run in run was started with mine; .*SEEDMQ_RUN=NAME"):
        begin("cartpole_vtrace", [], Path("run"), True)


def test_a_run_without_resume_is_not_begun_again(run: RunDirectory) -> None:
    with pytest.raises(ConfigError, match=r"^run holds a run: go on with it by --resume, or .* run/config.yaml$"):
        begin("run", [], None, False)
    with pytest.raises(ConfigError, match=r"^run is the run to go on with, --run-dir other another directory"):
        begin("run", [], Path("other"), True)
    like_it = begin("run/config.yaml", [], None, False)
    assert (like_it.loaded.config, like_it.loaded.file.name) == (run.read_config(), "mine")


def test_the_directory_of_an_older_version(run: RunDirectory) -> None:
    """What its configuration was resolved from is not known: all that the file says now counts as new."""
    run.source.unlink()
    assert begin("run", [], None, True).loaded.config == run.read_config()
    assert said(begin("mine.yaml", [], Path("run"), True).differences) == [
        "training.batch_size = 16, was 8 (from file mine.yaml)"
    ]


def test_a_damaged_source_is_named(run: RunDirectory) -> None:
    run.source.write_text('{"file": 3}')
    with pytest.raises(ConfigError, match=r"^cannot read run/source.json: "):
        begin("run", [], None, True)


def test_what_may_be_secret_is_not_told(run: RunDirectory) -> None:
    again = begin("run", ["store.url=redis://user@other:6379"], None, True)
    assert said(again.differences) == ["store.url = (not shown), was (not shown) (from --set)"]


def test_a_learner_by_itself_begins_goes_on_and_keeps_what_is_said(mine: Path) -> None:
    first = begin("mine.yaml", ["run.seed=7"], Path("run"), True)
    assert first.of_component().read_config().run.seed == 7
    again = begin("mine.yaml", ["training.batch_size=4"], Path("run"), True)
    kept = again.of_component().read_config()
    assert (kept.run.seed, kept.training.batch_size) == (7, 4)
    with pytest.raises(ConfigError, match=r"^network.hidden = \[8\]"):
        begin("mine.yaml", ["network.hidden=[8]"], Path("run"), True)


def test_the_learner_of_a_run_takes_what_the_run_has_written_for_it(run: RunDirectory, tmp_path: Path) -> None:
    config = run.read_config()
    private = config.model_copy(update={"broker": config.broker.model_copy(update={"bind": "ipc:///tmp/x/broker"})})
    (tmp_path / "learner.yaml").write_text(dump(private, {"config": "mine", "launched": True}))
    before = run.config.read_bytes()
    beginning = begin("learner.yaml", [], Path("run"), True)
    assert (beginning.loaded.config, beginning.differences) == (private, ())
    assert beginning.of_component().path == Path("run") and run.config.read_bytes() == before
