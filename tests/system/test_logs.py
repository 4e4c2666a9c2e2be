"""Logs of a whole run: one line an event, each with its run and component."""

from __future__ import annotations

import json

import pytest

from tests.runs import PATIENT, settings

pytestmark = pytest.mark.system

SHORT = ("run.max_seconds=4", "run.solved_return=null", "workers.envs=8", "broker.placement=process", PATIENT)
FIELDS = {"time", "level", "component", "run", "logger", "message"}
FEW = 20
"""Lines of a component in such a run."""


def test_json_to_the_last_line_with_run_and_component(commands, tmp_path):
    done = commands.run("-v", "--log-format", "json", "run", "cartpole_vtrace", *settings(*SHORT), "--run-dir", "run")
    assert done.returncode == 0, done.stdout
    run = (tmp_path / "run" / "run_id").read_text()
    files = {path.stem: path.read_text().splitlines() for path in (tmp_path / "run" / "logs").iterdir()}
    records = {name: [json.loads(line) for line in lines] for name, lines in files.items()}
    assert set(records) == {"broker", "learner", "worker-0"}
    for name, found in records.items():
        assert found and all(set(one) >= FIELDS for one in found), name
        assert {one["run"] for one in found} == {run} and {one["component"] for one in found} == {name}
    said = {(name, one["level"], one["message"].partition(" ")[0]) for name, found in records.items() for one in found}
    assert {
        ("broker", "DEBUG", "worker"),
        ("learner", "DEBUG", "checkpoint"),
        ("learner", "INFO", "max_seconds"),
    } <= said


def test_few_lines_by_default_and_none_that_is_quiet(commands, tmp_path):
    for options, most in (((), FEW), (("-q",), 0)):
        place = f"run{len(options)}"
        done = commands.run(*options, "run", "cartpole_vtrace", *settings(*SHORT), "--run-dir", place)
        assert done.returncode == 0, done.stdout
        for path in (tmp_path / place / "logs").iterdir():
            lines = path.read_text().splitlines()
            unrelated = [line for line in lines if "no answer from the broker" not in line]  # a machine that is slow
            assert len(unrelated) <= most and len(set(lines)) == len(lines), lines
            assert not any("Traceback" in line or "I0000" in line for line in lines), lines
