"""What a learner does before TensorFlow is there: refuse, and load it without its notes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

REFUSED = """
import sys
from pipeline.cli import run_command
code = run_command(["learner", "--config", "cartpole_vtrace", *sys.argv[1:]])
assert "tensorflow" not in sys.modules
sys.exit(code)
"""
TENSORFLOW = """
import os, sys
os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n")
os.write(2, b"I0000 00:00:1.2 7 port.cc:153] a note\\n")
os.write(2, b"E0000 00:00:1.2 7 cuda.cc:1] a trouble\\n")
print("python's own", file=sys.stderr)
"""
LOAD = """
import sys
from pipeline import logs
logs.configure(logs.Settings(verbosity=int(sys.argv[1])))
from learner.start import load_tensorflow
load_tensorflow()
print("afterwards", file=sys.stderr)
"""
ENDED = """
import atexit, os, sys, types
from pipeline import cli
sys.modules["tensorflow"] = types.ModuleType("tensorflow")
atexit.register(lambda: os.write(2, b"taken apart"))
cli.run_command = lambda arguments: print("written") or int(sys.argv[1])
if sys.argv[2:]:
    sys.stdout = open("/dev/full", "w")
cli.main()
"""


def run(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(cwd)!r})\n{script}", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((), "store.url is not set"),
        (
            ("--set", "store.url=unix:///s", "--set", "store.password_file=/nowhere/p"),
            "store.password_file = /nowhere/p",
        ),
    ],
)
def test_a_store_that_cannot_be_meant_is_refused_without_tensorflow(
    tmp_path: Path, settings: tuple[str, ...], message: str
) -> None:
    result = run(REFUSED, *settings, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: ") and message in result.stderr and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("verbosity", "notes"), [(0, False), (1, False), (2, True)])
def test_notes_of_tensorflow_are_for_those_who_ask(tmp_path: Path, verbosity: int, notes: bool) -> None:
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    result = run(LOAD, str(verbosity), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    expected = ["E0000 00:00:1.2 7 cuda.cc:1] a trouble", "python's own", "afterwards"]
    assert [line for line in lines if line in expected] == expected
    assert (len(lines) > len(expected)) == notes, lines


def test_what_tensorflow_says_before_it_aborts_comes_through(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(f"{TENSORFLOW}\nos.write(2, b'no AVX here\\n')\nos.abort()\n")
    result = run(LOAD, "0", cwd=tmp_path)
    assert result.returncode < 0
    assert "no AVX here" in result.stderr and "a note" not in result.stderr


def test_an_absent_tensorflow_is_an_error_as_ever(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(
        "raise ModuleNotFoundError('No module named tensorflow', name='tensorflow')"
    )
    result = run(LOAD, "0", cwd=tmp_path)
    assert result.returncode == 1
    assert "ModuleNotFoundError" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "written"),
    [("0", 0, "written\n"), ("3", 3, "written\n"), ("0 full", 3, ""), ("4 full", 4, "")],
)
def test_a_process_with_tensorflow_ends_at_once_when_all_is_written(
    tmp_path: Path, arguments: str, code: int, written: str
) -> None:
    """On a busy machine TensorFlow's end alone took longer than the time that a stop has."""
    result = run(ENDED, *arguments.split(), cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (code, written, "")
