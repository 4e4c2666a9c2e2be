"""The benchmark command: rows in the documented form, baselines in the same rounds, refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import Metric
from pipeline.cli import run_command
from pipeline.errors import EXIT_USAGE, ConfigError
from pipeline.launch import bench

pytestmark = pytest.mark.unit


def metrics(calls: list[str]) -> list[Metric]:
    def measure(name: str, *values: float) -> harness.Measure:
        left = iter(values)

        def one(seconds: float) -> float:
            assert seconds == 2.0
            calls.append(name)
            return next(left)

        return one

    first = Metric("a.b.per_second", "1/s", measure("ours", 8, 6, 10), {"peer": measure("peer", 2, 3, 2.5)})
    return [first, Metric("a.c.ms", "ms", measure("alone", 1, 3, 2))]


def test_rows_hold_medians_and_the_spread_of_ratios_of_rounds() -> None:
    calls: list[str] = []
    rows = list(harness.run(metrics(calls), 2.0, 3, lambda line: None))
    assert calls == ["ours", "peer"] * 3 + ["alone"] * 3
    assert rows[0] == {
        "metric": "a.b.per_second",
        "value": 8,
        "unit": "1/s",
        "baseline": "peer",
        "baseline_value": 2.5,
        "ratio": 3.2,
        "spread": [2.0, 4.0],
    }
    assert rows[1]["baseline"] is rows[1]["ratio"] is None
    assert rows[1]["value"] == 2 and rows[1]["spread"] == [1, 3]


def test_metrics_and_baselines_are_selected_by_name() -> None:
    found = harness.select(metrics([]), None, "peer")
    assert [one.name for one in found] == ["a.b.per_second"]
    assert [one.name for one in harness.select(metrics([]), "a.c.ms", None)] == ["a.c.ms"]
    with pytest.raises(ConfigError, match=r"no metric a: a\.b\.per_second, a\.c\.ms"):
        harness.select(metrics([]), "a", None)
    with pytest.raises(ConfigError, match="no metric with baseline b: peer"):
        harness.select(metrics([]), None, "b")


def test_json_names_machine_and_versions(capsys: pytest.CaptureFixture[str]) -> None:
    harness.report([], True)
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["machine", "versions", "rows"]
    assert found["machine"]["cpus"] >= 1 and found["versions"]["pyzmq"]


def test_outside_a_checkout_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    assert run_command(["bench", "store"]) == EXIT_USAGE
    assert "needs a checkout" in capsys.readouterr().err


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", "nonsense"]) == EXIT_USAGE
    assert capsys.readouterr().err == "error: no benchmark nonsense: transport, inference, store, limits\n"


def test_a_baseline_that_is_not_installed_is_left_out_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "PEER_ENVIRONMENTS", tmp_path)
    metric = Metric("a.b.per_second", "1/s", lambda s: 1.0, {"peer": harness.Peer("peer", lambda s: 2.0)})
    assert harness.missing([metric]) == ["peer"]
    assert harness.select([metric], None, None)[0].baselines == {}
    with pytest.raises(ConfigError, match="baseline peer is not installed: make bench-peers"):
        harness.select([metric], None, "peer")
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / ".installed").touch()
    assert harness.missing([metric]) == [] and "peer" in harness.select([metric], None, None)[0].baselines
