"""Live settings: what may change, how a run takes it, and what `seedmq adjust` says."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from learner.limiter import Limiter
from learner.live import LiveSettings
from learner.replay import Sampling
from learner.replay_index import ReplayIndex
from pipeline import cli
from pipeline.config.live import adjusted, dump_live
from pipeline.config.load import value_of
from pipeline.config.schema import live_keys
from pipeline.config.tree import Config
from pipeline.errors import ConfigError
from pipeline.ledger import Ledger
from pipeline.run_dir import RunDirectory, write_json, write_text

pytestmark = pytest.mark.unit

KEY = "replay.samples_per_insert"


def config(algorithm: str = "r2d2", **sections: Any) -> Config:
    return Config.model_validate(
        {"environment": {"id": "CartPole-v1"}, "training": {"algorithm": algorithm, "unroll_length": 80}, **sections}
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "live.yaml"


def test_assignments_are_laid_over_what_was_adjusted_before(file: Path) -> None:
    assert value_of(adjusted(config(), file).config, KEY) == 1.5
    write_text(file, dump_live(adjusted(config(), file, [f"{KEY}=8"])))
    assert file.read_text() == "replay:\n  samples_per_insert: 8.0\n"
    assert value_of(adjusted(config(replay={"samples_per_insert": 3.0}), file).config, KEY) == 8.0
    assert value_of(adjusted(config(), file, [f"{KEY}=9", f"{KEY} = 1e1"]).config, KEY) == 10.0


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (f"{KEY}=0", rf"^{KEY} = 0: Input should be greater than 0 \(from adjust\)$"),
        (f"{KEY}=many", rf"^{KEY} = 'many': Input should be a valid number \(from adjust\)$"),
        (f"{KEY}=.nan", "finite number"),
        (f"{KEY}=[", "no YAML value"),
        (KEY, "not of the form section.key=value"),
        ("replay.samples_per_insret=8", rf"unknown key .* \(did you mean {KEY}\?\); live settings: {KEY}"),
        ("replay=8", f"unknown key replay.*; live settings: {KEY}"),
        ("=8", f"live settings: {KEY}"),
        ("training.batch_size=8", rf"^training.batch_size does not change while a run goes on; live settings: {KEY}$"),
    ],
)
def test_what_may_not_be_adjusted(file: Path, assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        adjusted(config(), file, [assignment])


class Taken(list[float]):
    """Values that were taken."""


def live(file: Path, **sections: Any) -> tuple[LiveSettings, Taken]:
    taken = Taken()
    return LiveSettings(config(**sections), file, {KEY: taken.append}), taken


def test_a_change_is_taken_once_and_logged(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    settings, taken = live(file)
    settings.look()
    assert taken == [] and settings.values == {KEY: 1.5}
    write_text(file, "replay: {samples_per_insert: 4}\n")
    settings.look()
    settings.look()
    assert taken == [4.0] and settings.values == {KEY: 4.0}
    assert [record.getMessage() for record in caplog.records] == [f"{KEY}: 1.5 -> 4.0 (live.yaml)"]
    file.unlink()
    settings.look()
    assert taken == [4.0, 1.5], "the configuration's value again"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("replay: {samples_per_insert: -1}", "greater than 0 (from file"),
        ("replay: {samples_per_insert: 4", "line 1"),
        ("training: {batch_size: 4}", "training.batch_size does not change while a run goes on"),
        ("", "it holds no mapping"),
        ("\x00", "cannot read"),
    ],
)
def test_a_damaged_file_is_a_warning(file: Path, caplog: pytest.LogCaptureFixture, text: str, problem: str) -> None:
    settings, taken = live(file)
    write_text(file, "replay: {samples_per_insert: 4}")
    settings.look()
    write_text(file, text)
    settings.look()
    settings.look()
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert problem in record.getMessage() and "live.yaml" in record.getMessage()
    assert taken == [4.0] and settings.values == {KEY: 4.0}, "training goes on with the old value"
    write_text(file, "replay: {samples_per_insert: 5}")
    settings.look()
    assert taken == [4.0, 5.0]


def a_loop(file: Path) -> None:
    file.symlink_to(file)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (Path.mkdir, "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (a_loop, "symbolic links"),
        (lambda file: file.write_text("[" * 100_000), "nested too deeply"),
        (lambda file: file.write_text("# " + "x" * 10**6), "larger than"),
        (lambda file: file.symlink_to("/dev/zero"), "not a regular file"),
    ],
    ids=["folder", "pipe", "loop", "deep", "large", "device"],
)
def test_whatever_stands_there_training_goes_on(
    file: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], Any], problem: str
) -> None:
    settings, taken = live(file)
    make(file)
    settings.look()
    settings.look()
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert problem in record.getMessage() and "live.yaml" in record.getMessage()
    with pytest.raises(ConfigError, match=problem):
        adjusted(config(), file, [f"{KEY}=8"])
    file.rmdir() if file.is_dir() else file.unlink()
    write_text(file, "replay: {samples_per_insert: 5}")
    settings.look()
    assert taken == [5.0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_becomes_readable_is_taken(file: Path) -> None:
    settings, taken = live(file)
    write_text(file, "replay: {samples_per_insert: 5}")
    file.chmod(0)
    settings.look()
    assert taken == []
    file.chmod(0o600)
    settings.look()
    assert taken == [5.0]


def test_what_a_run_does_not_use_is_a_warning(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_text(file, "replay: {samples_per_insert: 4}")
    LiveSettings(config("vtrace"), file, {}).look()
    assert f"{KEY} in {file} changes nothing" in caplog.text


def test_both_ratios_are_over_one_window() -> None:
    """Unrolls of ten valid transitions, each learnt as often as it is sampled."""
    ledger = Ledger(replay=True)
    limiter = Limiter(samples_per_insert=2.0, min_size=10, tolerance=8.0)
    sampling = Sampling(ReplayIndex(100, 0.9), limiter, ledger)

    def insert(unrolls: int) -> None:
        ledger.arrived(10 * unrolls, 10 * unrolls, 0)
        ledger.moved("assembler", "store", 10 * unrolls)
        sampling.inserted(unrolls, 10 * unrolls)

    def sample(times: int) -> None:
        for _ in range(times):
            assert sampling.try_sample(4)
            ledger.trained(40)

    def ratios() -> tuple[float | None, float | None, float]:
        status = sampling.status()
        return status["samples_per_insert"], status["replay_ratio"], status["samples_per_insert_target"]

    insert(5)
    insert(5)
    assert ratios() == (None, None, 2.0)
    insert(20)
    sample(10)
    assert ratios() == (2.0, 2.0, 2.0), "the first ten give no credit and do not count"
    sampling.set_samples_per_insert(4.0)
    assert ratios() == (None, None, 4.0)
    insert(10)
    sample(10)
    assert ratios() == (4.0, 4.0, 4.0)
    sampling.begin_again()
    assert ratios() == (None, None, 4.0)
    insert(12)
    sample(2)
    assert ratios() == (4.0, 4.0, 4.0), "of an insert that reaches the smallest size the surplus counts"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunDirectory]:
    def make(algorithm: str = "r2d2", **summary: Any) -> RunDirectory:
        directory = RunDirectory.create(tmp_path / "run", "run", config(algorithm))
        if summary:
            write_json(directory.summary, summary)
        return directory

    return make


def adjust(directory: RunDirectory, *assignments: str) -> int:
    return cli.run_command(["adjust", str(directory.path), *assignments])


def test_adjusting_writes_a_private_file_and_sees_it_taken(
    run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = run(stop_reason=None, live={KEY: 8.0})
    assert adjust(directory, f"{KEY}=8") == 0
    assert f"{KEY} = 8.0: taken" in capsys.readouterr().out
    assert stat.S_IMODE(directory.live.stat().st_mode) == 0o600
    assert not [path for path in directory.path.iterdir() if path.name.startswith(".")], "no temporary file stays"


def test_an_ended_run_is_adjusted_for_its_resume(
    run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = run(stop_reason="max_steps", live={KEY: 1.5})
    assert adjust(directory, f"{KEY}=8") == 0
    assert "has ended (max_steps), --resume takes it" in capsys.readouterr().out
    RunDirectory.create(directory.path, "run", config(), resume=True)
    settings, taken = live(directory.live)
    settings.look()
    assert taken == [8.0]


def test_a_run_that_takes_nothing_exits_4(
    run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.launch.adjust.LEAST_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr("pipeline.launch.adjust.PATIENCE_INTERVALS", 0.1)
    directory = run(stop_reason=None, live={KEY: 1.5})
    assert adjust(directory, f"{KEY}=8") == 4
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "no learner trains there now, the next one takes it" in error
    assert directory.live.exists()


@pytest.mark.parametrize(
    ("algorithm", "before", "assignment", "message"),
    [
        ("r2d2", None, "run.seed=2", "run.seed does not change while a run goes on"),
        ("r2d2", None, f"{KEY}=-8", "greater than 0"),
        ("r2d2", "replay: [", f"{KEY}=8", "live.yaml"),
        ("vtrace", None, f"{KEY}=8", "does not use it (vtrace)"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(
    run: Callable[..., RunDirectory],
    capsys: pytest.CaptureFixture[str],
    algorithm: str,
    before: str | None,
    assignment: str,
    message: str,
) -> None:
    directory = run(algorithm, stop_reason=None, live={KEY: 1.5} if algorithm == "r2d2" else {})
    if before is not None:
        write_text(directory.live, before)
    assert adjust(directory, assignment) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error
    assert (directory.live.read_text() if directory.live.exists() else None) == before


def test_there_must_be_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(["adjust", str(tmp_path / "none"), f"{KEY}=8"]) == 2
    assert "no run directory" in capsys.readouterr().err
    assert cli.run_command(["adjust", str(tmp_path)]) == 2


def test_the_live_settings() -> None:
    assert live_keys() == (KEY,)
    assert json.dumps(value_of(config(), KEY)) == "1.5"
