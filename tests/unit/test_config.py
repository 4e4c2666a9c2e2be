"""Loading: precedence, origins, presets, round trips, and what learner and worker must agree on."""

from pathlib import Path

import pytest
import yaml

from pipeline.config.document import document
from pipeline.config.load import child_environment, config_hash, dump, load, presets, resolve, show
from pipeline.errors import ConfigError

pytestmark = pytest.mark.unit

MINIMAL = "environment:\n  id: CartPole-v1\n"


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    return write(tmp_path, MINIMAL)


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def test_defaults_file_variable_set_in_this_order(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "run: {seed: 2, max_seconds: 2, max_steps: 2}\n")
    environ = {"SEEDMQ_RUN__MAX_SECONDS": "3", "SEEDMQ_RUN__MAX_STEPS": "3"}
    loaded = load(path, ["run.max_steps=4"], environ)
    run = loaded.config.run
    assert (run.solved_episodes, run.seed, run.max_seconds, run.max_steps) == (100, 2, 3.0, 4)
    keys = ("run.solved_episodes", "run.seed", "run.max_seconds", "run.max_steps")
    assert [loaded.origins[key] for key in keys] == [
        "default",
        "file",
        "variable SEEDMQ_RUN__MAX_SECONDS",
        "--set",
    ]
    assert loaded.source == path


def test_the_later_of_two_sets_counts(minimal: Path) -> None:
    assert load(minimal, ["run.seed=1", "run.seed=2"], {}).config.run.seed == 2


def test_set_takes_yaml_scalars_and_lists(minimal: Path) -> None:
    overrides = [
        "network.hidden=[32, 16]",
        "run.max_steps=1_000",
        "training.optimizer.learning_rate=5e-4",
        "learner.jit_compile=true",
        "vtrace.reward_clip=null",
        "store.url='redis://host:6379/0'",
    ]
    config = load(minimal, overrides, {}).config
    assert config.network.hidden == [32, 16]
    assert config.run.max_steps == 1000
    assert config.training.optimizer.learning_rate == 5e-4
    assert config.learner.jit_compile is True
    assert config.vtrace.reward_clip is None
    assert config.store.url == "redis://host:6379/0"


@pytest.mark.parametrize("text", ["123", "1e3", "yes", "true", "@host", "a: b", "- x"])
def test_text_settings_take_text_that_yaml_reads_otherwise(minimal: Path, text: str) -> None:
    assert load(minimal, [f"workers.id={text}"], {}).config.workers.id == text
    assert load(minimal, [], {"SEEDMQ_WORKERS__ID": text}).config.workers.id == text


def test_null_is_nothing_even_where_text_can_stand(minimal: Path) -> None:
    assert load(minimal, ["workers.id=null"], {"SEEDMQ_WORKERS__ID": "x"}).config.workers.id is None


def test_lambda_goes_by_its_name_everywhere(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "vtrace:\n  lambda: 0.5\n")
    assert load(path, [], {}).config.vtrace.lambda_ == 0.5
    assert load(path, [], {"SEEDMQ_VTRACE__LAMBDA": "0.25"}).config.vtrace.lambda_ == 0.25
    loaded = load(path, ["vtrace.lambda=0.125"], {})
    assert loaded.config.vtrace.lambda_ == 0.125
    assert loaded.origins["vtrace.lambda"] == "--set"
    assert "  lambda: 0.125  # --set\n" in show(loaded)


def test_keyword_arguments_merge_key_by_key_and_an_empty_mapping_clears(tmp_path: Path) -> None:
    path = write(tmp_path, "environment:\n  id: X-v0\n  kwargs: {a: 1, b: {c: 2, d: 3}}\n")
    loaded = load(path, ["environment.kwargs.b.c=x"], {"SEEDMQ_ENVIRONMENT__KWARGS__A": "[5]"})
    assert loaded.config.environment.kwargs == {"a": [5], "b": {"c": "x", "d": 3}}
    assert loaded.origins["environment.kwargs.b.c"] == "--set"
    assert loaded.origins["environment.kwargs.b.d"] == "file"
    assert load(path, ["environment.kwargs={e: 1}"], {}).config.environment.kwargs["e"] == 1
    cleared = load(path, ["environment.kwargs={}"], {})
    assert cleared.config.environment.kwargs == {}
    assert cleared.origins["environment.kwargs"] == "--set"
    assert load(path, ["environment.kwargs.b=7"], {}).config.environment.kwargs == {"a": 1, "b": 7}


def test_a_section_with_nothing_in_it_is_its_defaults(tmp_path: Path) -> None:
    assert load(write(tmp_path, MINIMAL + "run:\n"), [], {}).config.run.seed == 1


def test_the_process_environment_is_the_default_one(minimal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEDMQ_RUN__SEED", "77")
    assert load(minimal).config.run.seed == 77


@pytest.mark.parametrize("name", sorted(presets()))
def test_presets_load_and_round_trip(name: str, tmp_path: Path) -> None:
    loaded = load(name, [], {})
    assert loaded.source == resolve(name + ".yaml")
    for text in (dump(loaded.config), show(loaded)):
        again = load(write(tmp_path, text), [], {}).config
        assert again == loaded.config
    assert yaml.safe_load(dump(loaded.config))["environment"]["id"] == loaded.config.environment.id


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_takes_twice_its_workers(name: str) -> None:
    before = load(name, environ={}).config
    loaded = load(name, environ={"SEEDMQ_WORKERS": str(2 * before.workers.count)}).config
    assert loaded.environments == before.environments + before.workers.count * before.workers.envs <= loaded.slots


def test_slots_follow_the_environments_unless_they_are_set(minimal: Path) -> None:
    assert load(minimal, environ={}).config.slots == 1024, "room for workers of other machines"
    many = load(minimal, ["workers.count=100", "evaluation.workers=2", "evaluation.envs=30"], {}).config
    assert (many.environments, many.slots) == (6460, 12920)
    assert load(minimal, ["learner.slots=64"], {}).config.slots == 64


def test_the_presets_are_packaged() -> None:
    expected = {"cartpole_vtrace", "cartpole_throughput", "atari_pong_vtrace", "atari_vtrace", "dmlab_vtrace"}
    expected |= {"cartpole_r2d2", "atari_r2d2", "memory_r2d2", "memory_vtrace"}
    assert expected <= set(presets())


def test_a_file_goes_before_a_preset_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cartpole_vtrace").write_text(MINIMAL)
    monkeypatch.chdir(tmp_path)
    assert load("cartpole_vtrace", [], {}).config.run.solved_return is None


def test_a_run_directorys_config_loads_again(tmp_path: Path) -> None:
    config = load(
        "cartpole_vtrace", ["workers.id='12'", "environment.kwargs={x: '1e3', y: 'a\n b', z: .inf}"], {}
    ).config
    path = write(tmp_path, dump(config, {"seedmq": "0.1.0", "tensorflow": "2.21.0"}))
    assert yaml.safe_load(path.read_text())["versions"]["seedmq"] == "0.1.0"
    assert load(path, [], {}).config == config


def test_a_run_that_knew_no_normalization_goes_on_without_it(tmp_path: Path) -> None:
    """Its own ``config.yaml`` says every setting that there was; where somebody writes a file, defaults hold."""
    written = tmp_path / "config.yaml"
    config = load("cartpole_vtrace", [], {}).config
    for about in ({"seedmq": "0.1.0"}, None):
        known = dump(config, about).splitlines()
        written.write_text("\n".join(line for line in known if " normalize_" not in line))
        found = load(written, [], {}).config
        assert found.network.normalize_observations is found.vtrace.normalize_values is (about is None)
    written.write_text(
        dump(load("cartpole_vtrace", ["network.normalize_observations=true"], {}).config, {"seedmq": "1"})
    )
    assert load(written, [], {}).config.network.normalize_observations


def test_origins_cover_every_value_that_show_prints() -> None:
    loaded = load("atari_vtrace", ["network.name=a:B", "network.kwargs.k=[1]"], {"SEEDMQ_WORKERS": "2"})
    text = show(loaded)
    assert "count: 2  # variable SEEDMQ_WORKERS" in text
    assert "frameskip" not in text
    assert text.count("  # ") == len(loaded.origins)


def test_the_hash_is_of_what_learner_and_worker_agree_on(minimal: Path) -> None:
    def hashed(*overrides: str) -> str:
        return config_hash(load(minimal, overrides, {}).config)

    same = [
        "workers.envs=8",
        "workers.id=w",
        "workers.mode=eval",
        "broker.connect=tcp://127.0.0.1:1",
        "environment.step_timeout_seconds=1",
        "environment.reset_timeout_seconds=1",
        "environment.fault_budget=0",
        "environment.non_finite=drop",
        "run.seed=9",
    ]
    other = [
        "environment.id=Acrobot-v1",
        "environment.kwargs.a=1",
        "environment.wrappers=[a.b:C]",
        "environment.vectorization=sync",
        "environment.frame_stack=2",
        "environment.stack_padding=repeat",
        "environment.frame_skip=2",
    ]
    assert {hashed(override) for override in same} == {hashed()}
    assert len({hashed(), *map(hashed, other)}) == len(other) + 1
    first = hashed("environment.kwargs.a=1", "environment.kwargs.b=2")
    assert first == hashed("environment.kwargs.b=2", "environment.kwargs.a=1")
    assert len(hashed()) == 64


def test_child_environment_keeps_what_does_not_configure() -> None:
    kept = {"PATH": "/bin", "SEEDMQ_BROKER_PORT": "tcp://10.0.0.1:5555", "TF_CPP_MIN_LOG_LEVEL": "2"}
    environ = {**kept, "SEEDMQ_WORKERS": "2", "seedmq_run__seed": "3", "SEEDMQ_NOT__THERE": "x"}
    assert child_environment(environ) == kept


def test_the_document_is_up_to_date() -> None:
    written = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert written.read_text() == document(), "run: python -m pipeline.config.document > docs/configuration.md"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("cartpole_vtrce", r"no configuration file or preset cartpole_vtrce \(did you mean cartpole_vtrace\?\)"),
        ("no/such.yaml", "no configuration file or preset no/such.yaml.*presets: atari_pong_vtrace"),
    ],
)
def test_a_source_that_is_not_there(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(source, [], {})
