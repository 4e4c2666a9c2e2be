"""The command line hands over what it parsed, and turns every ending into its exit code and one line."""

import json
import logging
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import cli, logs
from pipeline.config.load import Loaded
from pipeline.config.tree import Config, SecuritySection
from pipeline.errors import ComponentError, ConfigError, UnreachableError
from pipeline.stopping import StopToken

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _process_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts back what a command line changes for good: log handlers, signal handlers, search path."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTHONPATH", "")
    for name in [name for name in os.environ if name.startswith("SEEDMQ_")]:
        monkeypatch.delenv(name)
    yield
    root.handlers[:], root.level = handlers, level
    for number, handler in signals.items():
        signal.signal(number, handler)
    for name in logs.OURS:
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging.captureWarnings(False)


Calls = list[tuple[Any, ...]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Calls]:
    """Puts a recording function in a module's place: ``serve("broker.service", "serve", result)``."""

    def put(module: str, function: str, result: Any = 0) -> Calls:
        calls: Calls = []

        def record(*arguments: Any, **named: Any) -> int:
            calls.append((*arguments, *named.values()))
            if isinstance(result, BaseException):
                raise result
            code: int = result(*arguments) if callable(result) else result
            return code

        package, _, name = module.rpartition(".")
        fake = types.ModuleType(module)
        setattr(fake, function, record)
        monkeypatch.setitem(sys.modules, module, fake)
        monkeypatch.setattr(sys.modules[package], name, fake, raising=False)
        return calls

    __import__("pipeline.launch.report")
    __import__("broker")
    __import__("learner")
    __import__("workers")
    return put


def test_run(serve: Callable[..., Calls], tmp_path: Path) -> None:
    calls = serve("pipeline.launch.run", "run", 7)
    command = ["run", "cartpole_vtrace", "--set", "run.seed=5", "--set", "workers.count=2"]
    assert cli.run_command(command) == 7
    assert cli.run_command([*command, "--run-dir", str(tmp_path), "--resume"]) == 7
    (first,), (second,) = calls
    config = first.loaded.config
    assert (config.run.seed, config.workers.count, first.run_dir, first.resume) == (5, 2, None, False)
    assert (second.loaded.config, second.run_dir, second.resume) == (config, tmp_path, True)


@pytest.mark.parametrize(
    ("command", "module", "function"),
    [
        ("store", "pipeline.launch.store", "serve"),
        ("broker", "broker.service", "serve"),
        ("worker", "workers.supervisor", "supervise"),
    ],
)
def test_components(serve: Callable[..., Calls], command: str, module: str, function: str) -> None:
    calls = serve(module, function, 4)
    assert cli.run_command([command, "--config", "cartpole_vtrace", "--set", "run.seed=5"]) == 4
    config, stop = calls[0]
    assert isinstance(config, Config)
    assert config.run.seed == 5
    assert isinstance(stop, StopToken)
    assert logs.current().component == command


def test_learner(serve: Callable[..., Calls], tmp_path: Path) -> None:
    prepared, calls = serve("learner.start", "prepare"), serve("learner.service", "serve")
    assert cli.run_command(["learner", "--config", "cartpole_vtrace", "--run-dir", str(tmp_path), "--resume"]) == 0
    beginning, stop = calls[0]
    assert isinstance(beginning.loaded, Loaded) and prepared == [(beginning.loaded.config,)]
    assert (beginning.run_dir, beginning.resume) == (tmp_path, True)
    assert isinstance(stop, StopToken)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_component_drained_by_a_signal(serve: Callable[..., Calls], number: int, code: int) -> None:
    def drain(config: Config, stop: StopToken) -> int:
        signal.raise_signal(number)
        assert stop.wait(60.0)
        assert stop.reason == "signal"
        return 0

    serve("broker.service", "serve", drain)
    assert cli.run_command(["broker", "--config", "cartpole_vtrace"]) == code


def test_a_component_that_fails_while_it_drains_says_so(serve: Callable[..., Calls]) -> None:
    def drain(config: Config, stop: StopToken) -> int:
        signal.raise_signal(signal.SIGTERM)
        return 3

    serve("broker.service", "serve", drain)
    assert cli.run_command(["broker", "--config", "cartpole_vtrace"]) == 3


def test_status(serve: Callable[..., Calls], tmp_path: Path) -> None:
    calls = serve("pipeline.launch.status", "show")
    assert cli.run_command(["status", str(tmp_path), "--watch"]) == 0
    assert cli.run_command(["status", "--broker", "tcp://127.0.0.1:1", "--keys", "k", "--json"]) == 0
    assert cli.run_command(["status", "--broker", "tcp://10.0.0.1:1", "--insecure"]) == 0
    assert calls == [
        (tmp_path, None, SecuritySection(), True, False),
        (None, "tcp://127.0.0.1:1", SecuritySection(keys="k"), False, True),
        (None, "tcp://10.0.0.1:1", SecuritySection(insecure=True), False, False),
    ]


def test_eval(serve: Callable[..., Calls], tmp_path: Path) -> None:
    calls = serve("pipeline.launch.evaluate", "evaluate")
    assert cli.run_command(["eval", str(tmp_path)]) == 0
    options = ["--episodes", "3", "--mode", "sample", "--seed", "9", "--json", "--max-steps", "50"]
    assert cli.run_command(["eval", str(tmp_path), *options]) == 0
    assert calls == [(tmp_path, 200, "greedy", 1, False, 100_000), (tmp_path, 3, "sample", 9, True, 50)]


def test_eval_and_report_take_the_newest_run(
    serve: Callable[..., Calls], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    evaluated, reported = (serve(f"pipeline.launch.{m}", m.split(".")[0]) for m in ("evaluate", "report.page"))
    for arguments in (["eval", "--episodes", "3"], ["report", "--out", "x.html"]):
        assert cli.run_command(arguments) == 2
        assert capsys.readouterr().err == "error: no run under runs/: name a run directory\n"
    for name, time in (("older", 1), ("newer", 3), ("oldest", 0)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").touch()
        os.utime(tmp_path / "runs" / name / "config.yaml", (time, time))
    for arguments in (["eval", "--episodes", "3"], ["report", "--out", "x.html"]):
        assert cli.run_command(arguments) == 0
        assert "newest run, runs/newer" in capsys.readouterr().err
    assert evaluated == [(Path("runs/newer"), 3, "greedy", 1, False, 100_000)]
    assert reported == [(Path("runs/newer"), Path("x.html"))]
    assert cli.run_command(["report", "elsewhere", "--out", "x.html"]) == 0
    assert reported[1] == (Path("elsewhere"), Path("x.html"))


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("run.seed = 'x': no\n  integer"), 2, "error: run.seed = 'x': no integer\n"),
        (ComponentError("spent"), 3, "error: spent\n"),
        (ComponentError("\x1b]0;owned\x07"), 3, "error: ?]0;owned?\n"),
        (UnreachableError("no Redis"), 4, "error: no Redis\n"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
def test_errors_are_one_line_and_their_code(
    serve: Callable[..., Calls], capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    serve("pipeline.launch.run", "run", error)
    assert cli.run_command(["run", "cartpole_vtrace"]) == code
    assert capsys.readouterr() == ("", line)


def test_an_unexpected_exception_is_logged_with_its_traceback(
    serve: Callable[..., Calls], capsys: pytest.CaptureFixture[str]
) -> None:
    serve("pipeline.launch.run", "run", ZeroDivisionError("by zero"))
    assert cli.run_command(["--log-format", "json", "run", "cartpole_vtrace"]) == 3
    logged, said = capsys.readouterr().err.splitlines()
    line, last = json.loads(logged), json.loads(said)
    assert (line["level"], line["component"]) == ("CRITICAL", "run")
    assert "ZeroDivisionError: by zero" in line["traceback"]
    assert (last["level"], last["message"]) == ("ERROR", "unexpected ZeroDivisionError: by zero")


@pytest.mark.parametrize(
    ("module", "install"),
    [
        ("tensorflow", 'pip install "seedmq[learner]", without a GPU "seedmq[learner-cpu]"'),
        ("keras.ops", 'pip install "seedmq[learner]"'),
        ("ale_py", 'pip install "seedmq[atari]"'),
        ("plotly", 'pip install "seedmq[report]"'),
        ("jinja2", 'pip install "seedmq[report]"'),
    ],
)
def test_a_missing_extra_gives_the_install_line(
    serve: Callable[..., Calls], capsys: pytest.CaptureFixture[str], module: str, install: str
) -> None:
    serve("learner.start", "prepare", ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert cli.run_command(["learner", "--config", "cartpole_vtrace"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {module} is not installed: ")
    assert install in message


def test_another_missing_module_is_unexpected(serve: Callable[..., Calls], capsys: pytest.CaptureFixture[str]) -> None:
    serve("learner.start", "prepare", ModuleNotFoundError("No module named 'nosuch'", name="nosuch"))
    assert cli.run_command(["learner", "--config", "cartpole_vtrace"]) == 3
    assert "error: unexpected ModuleNotFoundError: No module named 'nosuch'" in capsys.readouterr().err


def test_an_interpreter_exit_of_a_command_passes(serve: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)  # of other tests: a process with it ends at once
    serve("pipeline.launch.run", "run", 130)
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "cartpole_vtrace"])
    assert caught.value.code == 130


def test_the_working_directory_is_importable_here_and_in_children(
    serve: Callable[..., Calls], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("pipeline.launch.run", "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    for _ in range(2):
        assert cli.run_command(["run", "cartpole_vtrace"]) == 0
    assert sys.path[-1] == str(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1
    assert os.environ["PYTHONPATH"] == f"/elsewhere{os.pathsep}{tmp_path}"


@pytest.mark.parametrize(
    ("options", "level", "arguments"),
    [
        ([], logging.INFO, ["--log-format", "text"]),
        (["-v"], logging.DEBUG, ["-v", "--log-format", "text"]),
        (["-q", "--log-format", "json"], logging.WARNING, ["-q", "--log-format", "json"]),
        (["-vv", "-q"], logging.DEBUG, ["-v", "--log-format", "text"]),
    ],
)
def test_log_levels(options: list[str], level: int, arguments: list[str]) -> None:
    assert cli.run_command([*options, "envs"]) == 0
    assert logging.getLogger("pipeline.cli").getEffectiveLevel() == level
    assert logging.getLogger("tensorflow_or_any").getEffectiveLevel() == logging.WARNING
    assert logs.current().arguments() == arguments


def test_lines_carry_component_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(logs.Settings(component="worker"))
    logs.identify(run_id="r1")
    logging.getLogger("workers.group").info("stepped %d", 3)
    logging.getLogger("workers.group").debug("not said")
    logging.getLogger("some.library").info("not said")
    line = capsys.readouterr().err
    assert line.endswith("Z INFO worker/r1 stepped 3\n")
    assert line.count("\n") == 1
    logging.getLogger("broker").info("a learner named %s", "x\x1b[31m\r")
    assert capsys.readouterr().err.endswith("a learner named x?[31m?\n")
    try:
        raise ValueError("\x1b]0;owned\x07\n2026-01-31T12:00:00.123Z ERROR learner/- forged")
    except ValueError as error:
        logging.getLogger("broker").exception("failed: %s", error)
    lines = capsys.readouterr().err.splitlines()
    assert all(line.isprintable() for line in lines) and all(line.startswith("  ") for line in lines[1:])
    assert any("  2026-01-31T12:00:00.123Z ERROR" in line for line in lines) and any(
        "Traceback" in line for line in lines
    )
    logs.configure(logs.Settings(component="worker", style="json"))
    logs.identify(component="learner")
    logging.getLogger("learner").warning("late")
    entry = json.loads(capsys.readouterr().err)
    assert entry["time"].endswith("Z")
    del entry["time"]
    expected = {"level": "WARNING", "component": "learner", "run": "-", "logger": "learner", "message": "late"}
    assert entry == expected
