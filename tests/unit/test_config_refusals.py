"""Every way to get a configuration wrong, and the message that says so."""

import os
import re
from pathlib import Path

import pytest

from pipeline.config.load import load
from pipeline.config.schema import leaves
from pipeline.config.yaml_text import MAX_BYTES
from pipeline.errors import EXIT_USAGE, ConfigError

pytestmark = pytest.mark.unit

MINIMAL = "environment:\n  id: CartPole-v1\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def refusal(source: Path, overrides: tuple[str, ...] = (), environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source, overrides, environ or {})
    assert caught.value.exit_code == EXIT_USAGE
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trainig: {batch_size: 1}", "unknown key trainig (did you mean training?) (from file {path})"),
        ("run: {sed: 1}", "unknown key run.sed (did you mean run.seed?) (from file {path})"),
        (
            "training: {optimizer: {learning_rat: 1}}",
            "unknown key training.optimizer.learning_rat (did you mean training.optimizer.learning_rate?) "
            "(from file {path})",
        ),
        ("zzz: 1", "unknown key zzz (from file {path})"),
        ("vtrace: {lambda_: 0.5}", "unknown key vtrace.lambda_ (did you mean vtrace.lambda?) (from file {path})"),
        ("run: 5", "run = 5: a section, not a value: set run.seed, or another of its keys (seed, max_steps, "),
        ("run: [seed]", "run = ['seed']: a section, not a value: set run.seed, "),
        ("run: {seed: '1'}", "run.seed = '1': Input should be a valid integer (from file {path})"),
        ("run: {seed: 1.5}", "run.seed = 1.5: Input should be a valid integer (from file {path})"),
        ("run: {seed: true}", "run.seed = True: Input should be a valid integer (from file {path})"),
        ("run: {seed: null}", "run.seed = None: Input should be a valid integer (from file {path})"),
        ("run: {seed: -1}", "run.seed = -1: Input should be greater than or equal to 0 (from file {path})"),
        ("vtrace: {discount: .nan}", "vtrace.discount = nan: Input should be a finite number (from file {path})"),
        ("run: {max_seconds: .inf}", "run.max_seconds = inf: Input should be a finite number (from file {path})"),
        ("workers: {id: 12}", "workers.id = 12: Input should be a valid string (from file {path})"),
        (
            "learner: {jit_compile: no}",
            "learner.jit_compile = 'no': Input should be a valid boolean (from file {path})",
        ),
        ("learner: {jit_compile: 1}", "learner.jit_compile = 1: Input should be a valid boolean (from file {path})"),
        ("network: {hidden: 64}", "network.hidden = 64: Input should be a valid list; write [64] (from file {path})"),
        ("network: {hidden: [64, 0]}", "network.hidden.1 = 0: Input should be greater than 0 (from file {path})"),
        (
            "store: {when_full: drop}",
            "store.when_full = 'drop': Input should be 'block' or 'drop_oldest' (from file {path})",
        ),
        ("learner: {inference_devices: [tpu]}", "learner.inference_devices.0 = 'tpu': String should match pattern"),
        ("learner: {training_devices: []}", "learner.training_devices = []: List should have at least 1 item"),
        ("store: {url: 'http://x'}", "store.url: not a redis://, rediss:// or unix:// URL (from file {path})"),
    ],
)
def test_values_of_a_file(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, f"{MINIMAL}{text}\n")
    assert expected.format(path=path) in refusal(path)


@pytest.mark.parametrize(
    "url", ["redis://:hunter2@host", "rediss://user:hunter2@host:1/0", "unix:///s.sock?password=hunter2"]
)
def test_a_password_in_the_url_is_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    message = refusal(write(tmp_path, MINIMAL), (f"store.url={url}",))
    assert "store.password_file" in message
    assert "hunter2" not in message


def test_no_wait_is_longer_than_an_operating_system_can(tmp_path: Path) -> None:
    keys = [".".join(path) for path in leaves() if path[-1].endswith("_seconds") and path != ("run", "max_seconds")]
    assert len(keys) > 10
    for key in keys:
        message = refusal(write(tmp_path, MINIMAL), (f"{key}=1e300",))
        assert message == f"{key} = 1e+300: Input should be less than or equal to 1000000 (from --set)"


def test_the_environment_is_required(tmp_path: Path) -> None:
    assert refusal(write(tmp_path, "run: {seed: 1}\n")) == "environment: required, but set nowhere"
    assert refusal(write(tmp_path, "environment: {frame_skip: 4}\n")) == "environment.id: required, but set nowhere"


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, MINIMAL), ("run.seed=x", "vtrace.discount=2"))
    assert message == (
        "run.seed = 'x': Input should be a valid integer (from --set); "
        "vtrace.discount = 2: Input should be less than or equal to 1 (from --set)"
    )


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ("evaluation.workers=1", "evaluation.envs=513"),
            "evaluation.envs = 513 are one group, which does not fit learner.inference_batch = 512 "
            "(evaluation.envs from --set, learner.inference_batch from default)",
        ),
        (
            ("workers.envs=100000000000000000000",),
            "learner.slots = 200000000000000000000, or twice the environments of workers.envs = 100000000000000000000 "
            "and evaluation.envs = 20, is above 1048576 (learner.slots from default, workers.envs from --set, "
            "evaluation.envs from default)",
        ),
        (
            ("workers.envs=5",),
            "workers.envs = 5 cannot be split evenly over workers.groups = 2 "
            "(workers.envs from --set, workers.groups from default)",
        ),
        (
            ("training.batch_size=129",),
            "store.capacity = 128 unrolls can never fill training.batch_size = 129 "
            "(store.capacity from default, training.batch_size from --set)",
        ),
        (
            ("workers.count=17", "learner.slots=1024"),
            "workers.count = 17 times workers.envs = 64 environments do not fit learner.slots = 1024 "
            "(workers.count from --set, workers.envs from default, learner.slots from --set)",
        ),
        (
            ("broker.min_rows=513",),
            "broker.min_rows = 513 can never be reached in learner.inference_batch = 512 "
            "(broker.min_rows from --set, learner.inference_batch from default)",
        ),
        (
            ("broker.heartbeat_seconds=10",),
            "broker.lease_seconds = 10 must be longer than broker.heartbeat_seconds = 10 "
            "(broker.lease_seconds from default, broker.heartbeat_seconds from --set)",
        ),
        (
            ("environment.vectorization=native", "environment.wrappers=[a:b]"),
            "environment.vectorization = native takes no environment.wrappers: a vector entry point refuses them "
            "(environment.vectorization from --set, environment.wrappers from --set)",
        ),
        (
            ("training.optimizer.learning_rate_schedule.kind=linear",),
            "training.optimizer.learning_rate_schedule: a linear schedule needs frames",
        ),
    ],
)
def test_impossible_combinations(tmp_path: Path, overrides: tuple[str, ...], expected: str) -> None:
    assert refusal(write(tmp_path, MINIMAL), overrides) == expected


def test_a_combination_names_the_variable_it_comes_from(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, MINIMAL), (), {"SEEDMQ_ENVS_PER_WORKER": "63"})
    assert "workers.envs from variable SEEDMQ_ENVS_PER_WORKER" in message


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("run.seed", "--set run.seed: not of the form section.key=value"),
        ("=1", "--set =1: not of the form section.key=value"),
        ("run=1", "--set run=1: run is a section, not a value: set run.seed, or another of its keys (seed, "),
        ("training.optimizer={}", "training.optimizer is a section, not a value: set training.optimizer.name, or"),
        ("run.sed=1", "--set run.sed=1: unknown key run.sed (did you mean run.seed?)"),
        ("batch_size=1", "unknown key batch_size (did you mean training.batch_size?)"),
        ("run.seed.x=1", "unknown key run.seed.x (did you mean run.seed?)"),
        ("vtrace.lambda_=1", "unknown key vtrace.lambda_ (did you mean vtrace.lambda?)"),
        ("versions.seedmq=1", "unknown key versions.seedmq"),
        ("environment.kwargs.=1", "unknown key environment.kwargs. (did you mean environment.kwargs?)"),
        ("run.seed=[1", "run.seed = '[1': no YAML value: line 1"),
        ("run.seed=x", "run.seed = 'x': Input should be a valid integer (from --set)"),
        ("run.seed=", "run.seed = None: Input should be a valid integer (from --set)"),
    ],
)
def test_overrides(tmp_path: Path, override: str, expected: str) -> None:
    assert expected in refusal(write(tmp_path, MINIMAL), (override,))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it holds no mapping of sections"),
        ("- a\n", "it holds no mapping of sections"),
        ("just text\n", "it holds no mapping of sections"),
        ("run: {seed: 1\n", "line 2: "),
        ("run: {seed: 1}\nrun: {seed: 2}\n", "line 2: the key 'run' stands twice"),
        ("environment:\n  kwargs:\n    a: 1\n    a: 2\n", "line 4: the key 'a' stands twice"),
        ("1: {seed: 1}\n", "line 1: the key 1 is not a string"),
        ("run: &a {seed: 1}\n", "line 1: anchors and aliases are not taken"),
        ("run: *a\n", "line 1: anchors and aliases are not taken"),
        ("run: {seed: !!python/object:os.system 1}\n", "line 1: tags are not taken"),
        ("run: {seed: !!bool maybe}\n", "line 1: tags are not taken"),
        ("--- {}\n--- {}\n", "expected a single document"),
        ("versions: 3\n", "versions is no mapping"),
        ("[" * 5000, "nested too deeply"),
        ("# " + "x" * MAX_BYTES, f"larger than {MAX_BYTES} bytes"),
        ("run: \x07\n", "special characters are not allowed"),
    ],
)
def test_texts_that_are_no_configuration(tmp_path: Path, text: str, reason: str) -> None:
    path = write(tmp_path, text)
    message = refusal(path)
    assert message.startswith(f"cannot read {path}: ")
    assert reason in message


def test_a_file_that_is_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"run: \xff\xfe")
    assert "can't decode" in refusal(path)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, MINIMAL)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Path, "open", refuse)
    assert "Permission denied" in refusal(path)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path} is a directory, not a configuration file"


def test_an_unknown_key_in_versions_is_not_looked_at(tmp_path: Path) -> None:
    load(write(tmp_path, MINIMAL + "versions: {anything: 1}\n"), [], {})


def test_a_nested_versions_key_is_unknown(tmp_path: Path) -> None:
    assert "unknown key run.versions" in refusal(write(tmp_path, MINIMAL + "run: {versions: {}}\n"))


def test_long_values_are_cut(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, MINIMAL), ("run.seed=" + "x" * 10_000,))
    assert message.endswith("xxx...: Input should be a valid integer (from --set)")
    assert len(message) < 300


def test_messages_name_keys_by_dots(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, MINIMAL), ("training.optimizer.epsilon=0",))
    assert re.fullmatch(r"training\.optimizer\.epsilon = 0: Input should be greater than 0 \(from --set\)", message)
