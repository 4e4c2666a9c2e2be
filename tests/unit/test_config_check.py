"""``seedmq config check`` refuses what a run would refuse, and says what has no effect."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.config.effects import without_effect
from pipeline.config.load import load, presets
from pipeline.errors import ConfigError, SeedmqError
from pipeline.launch.check import check

pytestmark = pytest.mark.unit

BROKEN = """
import gymnasium

class Broken(gymnasium.Env):
    def __init__(self):
        self.nothing.of_the_kind

gymnasium.register("Broken-v0", Broken)
"""


@pytest.fixture(autouse=True)
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_for_check.py").write_text(f"class Other: pass\n{BROKEN}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delitem(sys.modules, "own_for_check", raising=False)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (["network.name=own_for_check:Othr"], r"^network.name = 'own_for_check:Othr' cannot be imported: .*Othr"),
        (["network.name=own_for_check:Other"], r"is not a subclass of learner.networks.network.Network$"),
        (["network.name=nowhere_at_all:Other"], r"cannot be imported: No module named 'nowhere_at_all'"),
        (["network.separate_value=false", "network.name=nature_cnn"], r"picture"),
        (["environment.id=NoSuch-v0"], r"^environment.id = NoSuch-v0: "),
        (["environment.id=own_for_check:Broken-v0"], r"AttributeError: .*own_for_check.py:7, in __init__"),
        (["environment.wrappers=[own_for_check:Nope]"], r"^environment.wrappers = own_for_check:Nope: "),
        (
            ["environment.id=Pendulum-v1", "training.algorithm=r2d2", "r2d2.burn_in=2"],
            r"set training.algorithm to vtrace, which takes both$",
        ),
        (["vtrace.entropy_target=0.1", "vtrace.entropy_cost=0"], r"vtrace.entropy_cost = 0"),
    ],
)
def test_what_a_run_would_refuse_is_refused(said: list[str], message: str) -> None:
    with pytest.raises(SeedmqError, match=message):
        check(load("cartpole_vtrace", said, {}))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (["network.name=cnn"], r"^network.name = 'cnn': not one of auto, mlp, nature_cnn, impala_deep, nor a class of"),
        (["network.name=small:"], r"^network.name = 'small:': not one of"),
        (["network.lstm=8", "network.separate_value=true"], r"^network.lstm = 8 .*network.lstm from --set"),
        (
            ["network.name=impala_deep"],
            r"^network.separate_value = true is for mlp, not for network.name = impala_deep",
        ),
        (["network.kwargs={units: 3}"], r"^network.kwargs are for a class by import path"),
    ],
)
def test_what_cannot_go_together_is_refused_when_it_is_read(said: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("cartpole_vtrace", said, {})


def test_what_can_run_is_ok(capsys: pytest.CaptureFixture[str]) -> None:
    check(load("cartpole_vtrace", ["r2d2.n_steps=3"], {}))
    first, last = capsys.readouterr().out.splitlines()
    assert first == "note: r2d2.n_steps has no effect with training.algorithm = vtrace"
    assert last.endswith("cartpole_vtrace.yaml: ok")


def test_what_is_not_installed_is_not_checked(capsys: pytest.CaptureFixture[str]) -> None:
    check(load("dmlab_vtrace", [], {}))
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("not checked here, environment and network: DeepMind Lab is not installed")
    assert last.endswith("dmlab_vtrace.yaml: ok")


@pytest.mark.parametrize(
    ("said", "keys"),
    [
        (["r2d2.n_steps=3", "replay.min_size=9"], {"r2d2.n_steps", "replay.min_size"}),
        (["network.name=own:Net", "network.lstm=8", "network.hidden=[3]"], {"network.lstm", "network.hidden"}),
        (["training.optimizer.momentum=0.5"], {"training.optimizer.momentum"}),
        (["training.optimizer.name=rmsprop", "training.optimizer.beta_1=0.5"], {"training.optimizer.beta_1"}),
        (["environment.stack_padding=repeat"], {"environment.stack_padding"}),
        (["vtrace.entropy_adjustment_speed=3"], {"vtrace.entropy_adjustment_speed"}),
        (["broker.learner_bind=ipc:///tmp/x"], {"broker.learner_bind"}),
        (["network.lstm=0", "network.previous_action=false"], set()),
    ],
)
def test_what_has_no_effect_is_said(said: list[str], keys: set[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("environment: {id: CartPole-v1}\n")
    assert {line.partition(" ")[0] for line in without_effect(load(file, said, {}))} == keys


@pytest.mark.parametrize("preset", presets())
def test_every_setting_of_a_preset_has_an_effect(preset: str) -> None:
    assert without_effect(load(preset, [], {})) == []
