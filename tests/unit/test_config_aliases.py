"""What others call our settings, and values that are written as another type, are understood or said in our words."""

import logging
import re
from pathlib import Path

import pytest

from pipeline.config import aliases, schema, variables
from pipeline.config.live import adjusted
from pipeline.config.load import Loaded, load
from pipeline.errors import ConfigError

pytestmark = pytest.mark.unit

ALGORITHMS = ("vtrace", "r2d2")
PRESET = {"vtrace": "cartpole_vtrace", "r2d2": "cartpole_r2d2"}
CLIP = "training.optimizer.clip_norm"
RATE = "training.optimizer.learning_rate"
THEIRS = {  # with vtrace, with r2d2
    "gamma": ("vtrace.discount", "r2d2.discount"),
    "lr": (RATE, RATE),
    "n_steps": ("training.unroll_length", "training.unroll_length; n of the targets is r2d2.n_steps"),
    "rollout_fragment_length": ("training.unroll_length", "training.unroll_length"),
    "vf_coef": ("vtrace.baseline_cost", "r2d2 learns Q-values and has no such term; vtrace has vtrace.baseline_cost"),
    "ent_coef": ("vtrace.entropy_cost", "r2d2 learns Q-values and has no such term; vtrace has vtrace.entropy_cost"),
    "gae_lambda": ("vtrace.lambda", "r2d2 learns Q-values and has no such term; vtrace has vtrace.lambda"),
    "max_grad_norm": (CLIP, CLIP),
    "num_envs": ("workers.envs, of each of workers.count workers",) * 2,
    "n_envs": ("workers.envs, of each of workers.count workers",) * 2,
    "total_timesteps": ("run.max_steps, in agent steps",) * 2,
    "clip_param": (
        "vtrace.clip_rho and vtrace.clip_pg_rho bound the importance weights; PPO's clipped loss is not there",
        "r2d2 learns Q-values and has no such term; vtrace has vtrace.clip_rho",
    ),
    "buffer_size": (
        "vtrace keeps no replay: store.capacity is how many unrolls may wait; "
        "with training.algorithm r2d2, replay.capacity",
        "replay.capacity, in unrolls of training.unroll_length transitions",
    ),
}


def refusal(source: str | Path, overrides: tuple[str, ...] = (), environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source, overrides, environ or {})
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", THEIRS)
def test_names_of_others_lead_to_ours(tmp_path: Path, name: str, algorithm: str) -> None:
    meaning = THEIRS[name][ALGORITHMS.index(algorithm)]
    override, ours = f"{name}=0.5", aliases.key_in(meaning)
    assert refusal(PRESET[algorithm], (override,)) == f"--set {override}: unknown key {name} (here: {meaning})"

    path = tmp_path / "theirs.yaml"
    path.write_text(f"{name}: 0.5\nenvironment: {{id: CartPole-v1}}\ntraining: {{algorithm: {algorithm}}}\n")
    assert refusal(path).startswith(f"unknown key {name} (here: {meaning}) (from file {path})")

    variable = f"SEEDMQ_TRAINING__{name.upper()}"
    also = f"; variable {variables.variable_name(ours)}" if ours else ""
    said = refusal(PRESET[algorithm], (), {variable: "0.5"})
    assert said == f"the variable {variable} sets no known key (here: {meaning}{also})"


def test_whichever_source_says_the_algorithm_counts() -> None:
    assert "here: r2d2.discount" in refusal("cartpole_vtrace", ("gamma=0.9", "training.algorithm=r2d2"))
    assert "here: r2d2.discount" in refusal("cartpole_vtrace", ("gamma=1",), {"SEEDMQ_TRAINING__ALGORITHM": "r2d2"})
    assert "here: r2d2.discount" in refusal(
        "cartpole_vtrace", (), {"SEEDMQ_RUN__GAMMA": "1", "SEEDMQ_TRAINING__ALGORITHM": "r2d2"}
    )


@pytest.mark.parametrize(
    ("key", "algorithm", "meaning"),
    [
        ("gaeLambda", "vtrace", "vtrace.lambda"),
        ("max-grad-norm", "vtrace", CLIP),
        ("r2d2.gamma", "vtrace", "r2d2.discount"),
        ("vtrace.gamma", "r2d2", "vtrace.discount"),
        ("evaluation.n_envs", "vtrace", "evaluation.envs"),
        ("training.optimizer.lr", "r2d2", RATE),
        ("run.sed", "vtrace", None),
    ],
)
def test_spelling_and_section(key: str, algorithm: str, meaning: str | None) -> None:
    assert aliases.meaning_of(key, algorithm) == meaning


def test_every_meaning_names_only_settings_that_are_there() -> None:
    names = [name for row in aliases.ROWS for name in row[0].split()]
    assert len(names) == len(set(names)) > 200
    for name in names:
        for algorithm in ALGORITHMS:
            meaning = aliases.meaning_of(name, algorithm)
            assert meaning, name
            keys = [tuple(word.split(".")) for word in re.findall(r"[a-z0-9_]+(?:\.[a-z0-9_]+)+", meaning)]
            assert keys, meaning
            assert all(key in schema.leaves() for key in keys), (name, meaning)
            load(PRESET[algorithm], (), {})


def test_adjust_says_it_too(tmp_path: Path) -> None:
    config = load("cartpole_r2d2", (), {}).config
    with pytest.raises(ConfigError, match=r"^unknown key replay_ratio \(here: replay\.samples_per_insert\); live"):
        adjusted(config, tmp_path / "live.yaml", ("replay_ratio=4",))


def test_a_variable_without_a_section_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load("cartpole_r2d2", (), {"SEEDMQ_GAMMA": "0.5", "SEEDMQ_BROKER_PORT": "tcp://10.0.0.1:5555"})
    (line,) = caplog.messages
    assert line == "the variable SEEDMQ_GAMMA is ignored (here: r2d2.discount; variable SEEDMQ_R2D2__DISCOUNT)"


def _from_each(tmp_path: Path, section: str, key: str, text: str) -> list[Loaded]:
    path = tmp_path / "whole.yaml"
    path.write_text(f"environment: {{id: CartPole-v1}}\n{section}: {{{key}: {text}}}\n")
    variable = variables.variable_name((section, key))
    return [
        load(path, (), {}),
        load("cartpole_vtrace", (f"{section}.{key}={text}",), {}),
        load("cartpole_vtrace", (), {variable: text}),
    ]


@pytest.mark.parametrize(
    ("text", "value"), [("1e6", 1_000_000), ("1_000_000", 1_000_000), ("1.5e3", 1500), ("64.0", 64)]
)
def test_an_integer_may_be_written_as_a_float(tmp_path: Path, text: str, value: int) -> None:
    for loaded in _from_each(tmp_path, "run", "max_steps", text):
        assert loaded.config.run.max_steps == value
        assert type(loaded.config.run.max_steps) is int


def test_integers_of_a_list_too_and_other_numbers_stay(tmp_path: Path) -> None:
    for loaded in _from_each(tmp_path, "network", "hidden", "[1e2, 64]"):
        assert loaded.config.network.hidden == [100, 64]
    loaded = load("cartpole_vtrace", ("environment.kwargs.x=1e6", "run.max_seconds=1e3"), {})
    assert type(loaded.config.environment.kwargs["x"]) is float
    assert type(loaded.config.run.max_seconds) is float
    for text in ("1.5", "1e300", "'1e6'"):
        assert "max_steps = " in refusal("cartpole_vtrace", (f"run.max_steps={text}",))


@pytest.mark.parametrize(
    ("override", "written"),
    [
        ("network.hidden=64", "[64]"),
        ("network.hidden=64, 32", "[64, 32]"),
        ("learner.training_devices=gpu:0", "['gpu:0']"),
        ("environment.wrappers=a:b", "['a:b']"),
    ],
)
def test_a_list_of_one_says_how_it_is_written(override: str, written: str) -> None:
    assert f"Input should be a valid list; write {written} (from --set)" in refusal("cartpole_vtrace", (override,))
    key, _, text = override.partition("=")
    variable = variables.variable_name(tuple(key.split(".")))
    assert f"write {written} (from variable {variable})" in refusal("cartpole_vtrace", (), {variable: text})
    load("cartpole_vtrace", (f"{key}={written}",), {})


@pytest.mark.parametrize(
    ("source", "offered"),
    [
        ("cartpole", "cartpole_vtrace, cartpole_r2d2 or cartpole_throughput"),
        ("CartPole-v1", "cartpole_vtrace, cartpole_r2d2 or cartpole_throughput"),
        ("nowhere/memory.yaml", "memory_vtrace or memory_r2d2"),
        ("ALE/Pong-v5", "atari_pong_vtrace"),
        ("cartpol_vtrace", "cartpole_vtrace"),
    ],
)
def test_presets_that_may_be_meant(source: str, offered: str) -> None:
    assert f"no configuration file or preset {source} (did you mean {offered}?); presets: " in refusal(source)
