"""The benchmark of whole runs: its window, its metrics and baselines, what it refuses; nothing is timed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import end_to_end, harness
from benchmarks.end_to_end import SECONDS, TORCHBEAST, WARM_UP_SECONDS, Readings
from benchmarks.harness import Peer
from benchmarks.peers.window import Window
from pipeline.config.load import load
from pipeline.errors import ConfigError

pytestmark = pytest.mark.unit

CARTPOLE, PONG = "end_to_end.cartpole.agent_steps_per_second", "end_to_end.pong.agent_steps_per_second"
PEERS = ["sample_factory", "sample_factory_vectorized", "rllib_impala", "rllib_impala_vectorized"]
LARGE = "sample_factory_large"


def summary(seconds: float, steps: int, updates: int = 1, wait_share: float = 0.0) -> dict[str, Any]:
    stages = {"training": {"busy": 1.0 - wait_share, "batches": wait_share / 2, "store": wait_share / 2}}
    return {"seconds": seconds, "agent_steps": steps, "updates": updates, "stages": stages}


def test_a_window_begins_after_the_warm_up_and_holds_whole_updates() -> None:
    window = Window(10.0, 5.0)
    readings = [(100.0, 7), (109.9, 20), (110.1, 30), (115.0, 90), (115.2, 81), (120.0, 999)]
    assert [window.add(now, steps) for now, steps in readings] == [False] * 4 + [True] * 2
    assert window.result() == {
        "agent_steps_per_second": pytest.approx(51 / 5.1),
        "agent_steps": 51,
        "seconds": pytest.approx(5.1),
    }


def test_a_window_that_training_did_not_outlast_has_no_result() -> None:
    window = Window(1.0, 5.0)
    for now in (0.0, 1.0, 5.9):
        assert not window.add(now, int(100 * now))
    with pytest.raises(RuntimeError, match="before the window was over"):
        window.result()


def test_a_run_is_measured_from_its_summaries_in_the_window_alone() -> None:
    begin, end = 1.0 + WARM_UP_SECONDS, 1.0 + WARM_UP_SECONDS + SECONDS
    readings = Readings(SECONDS)
    assert not readings.add(summary(0.0, 0, updates=0, wait_share=1.0))
    assert not readings.add(summary(1.0, 500, wait_share=0.9))
    assert not readings.add(summary(begin, 2_000, wait_share=0.8))
    assert not readings.add(summary(begin, 2_000, wait_share=0.8))  # read twice
    assert not readings.add(summary(begin + 1.0, 2_100, wait_share=0.1))
    assert readings.add(summary(end, 5_000, wait_share=0.3))
    assert readings.rate == 3_000 / SECONDS
    assert readings.wait_share == pytest.approx(0.2)


def test_metrics_and_baselines_have_their_documented_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with end_to_end.metrics() as metrics:
        baselines = {metric.name: sorted(metric.baselines) for metric in metrics}
    assert baselines == {
        CARTPOLE: sorted([*PEERS, LARGE]),
        PONG: sorted([*PEERS, "torchbeast", "limit", "float32"]),
        "training.wait_share": [],
    }


def test_every_peer_has_its_folder_with_pinned_requirements_and_a_script() -> None:
    with end_to_end.metrics() as metrics:
        peers = {one.name for metric in metrics for one in metric.baselines.values() if isinstance(one, Peer)}
    assert peers == {"sample_factory", "rllib_impala", "torchbeast"}
    for peer in peers:
        assert (harness.PEERS / peer / "train.py").exists()
        lines = (harness.PEERS / peer / "requirements.txt").read_text().split()
        assert lines and all("==" in line for line in lines)


def test_presets_have_the_environments_and_networks_that_the_peers_are_given() -> None:
    cartpole, pong = load(end_to_end.CARTPOLE).config, load(end_to_end.PONG).config
    assert cartpole.environment.id == "CartPole-v1" and cartpole.network.hidden == [64, 64]
    assert pong.environment.id.endswith("Pong-v5") and pong.network.name == "nature_cnn"
    assert (pong.environment.frame_skip, pong.environment.frame_stack) == (4, 4)
    assert pong.network.hidden == [512]


def test_the_large_peer_has_as_many_environments_and_as_large_batches_as_the_preset() -> None:
    config = load(end_to_end.CARTPOLE).config
    script = (harness.PEERS / "sample_factory" / "train.py").read_text()
    environments = config.workers.count * config.workers.envs
    transitions = config.training.batch_size * config.training.unroll_length
    assert f'"env_agents": {environments} // CPUS, "batch_size": {transitions}' in script


def test_torchbeast_is_left_out_or_refused_without_its_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "PEER_ENVIRONMENTS", tmp_path)
    monkeypatch.delenv(TORCHBEAST, raising=False)
    (tmp_path / "torchbeast").mkdir()
    (tmp_path / "torchbeast" / ".installed").touch()
    with end_to_end.metrics() as metrics:
        assert harness.missing(metrics) == [
            (", ".join(sorted([*PEERS, LARGE])), "make bench-peers"),
            ("torchbeast", "set TORCHBEAST to the path of a checkout"),
        ]
        assert list(harness.select(metrics, PONG, None)[0].baselines) == ["limit", "float32"]
        with pytest.raises(ConfigError, match="torchbeast is not there: set TORCHBEAST"):
            harness.select(metrics, None, "torchbeast")
        monkeypatch.setenv(TORCHBEAST, str(tmp_path))
        assert list(harness.select(metrics, None, "torchbeast")[0].baselines) == ["torchbeast"]


def peer_that_runs(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer ``some`` whose script is ``code`` and whose interpreter is this one."""
    monkeypatch.setattr(harness, "PEERS", folder)
    monkeypatch.setattr(harness, "PEER_ENVIRONMENTS", folder)
    (folder / "some" / "bin").mkdir(parents=True)
    (folder / "some" / "bin" / "python").symlink_to(sys.executable)
    (folder / "some" / "train.py").write_text(code)


def test_a_peer_gives_the_object_that_it_prints_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer_that_runs("import sys; print('talk'); print(sys.argv[1])", tmp_path, monkeypatch)
    found = {"agent_steps_per_second": 5.0}
    assert harness.run_peer("some", "train.py", [json.dumps(found)], 60.0) == found


def test_a_peer_that_fails_or_hangs_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, threading; sys.exit('broken') if sys.argv[1] == 'fail' else threading.Event().wait()"
    peer_that_runs(code, tmp_path, monkeypatch)
    with pytest.raises(RuntimeError, match="some failed with 1: broken"):
        harness.run_peer("some", "train.py", ["fail"], 60.0)
    with pytest.raises(TimeoutError, match=r"did not end within 0\.1 s"):
        harness.run_peer("some", "train.py", ["hang"], 0.1)
