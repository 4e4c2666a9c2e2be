"""Environment variables: which configure, which are refused, which are left alone."""

import logging

import pytest

from pipeline.config.load import load
from pipeline.config.variables import edit_distance
from pipeline.errors import ConfigError

pytestmark = pytest.mark.unit


def test_short_names_and_long_names_in_any_case() -> None:
    environ = {
        "SEEDMQ_WORKERS": "3",
        "seedmq_envs_per_worker": "6",
        "Seedmq_Training__Optimizer__Learning_Rate": "1e-2",
    }
    loaded = load("cartpole_vtrace", [], environ)
    assert (loaded.config.workers.count, loaded.config.workers.envs) == (3, 6)
    assert loaded.config.training.optimizer.learning_rate == 0.01
    assert loaded.origins["workers.envs"] == "variable seedmq_envs_per_worker"


def test_lists_are_yaml() -> None:
    loaded = load("cartpole_vtrace", [], {"SEEDMQ_NETWORK__HIDDEN": "[8, 4]"})
    assert loaded.config.network.hidden == [8, 4]


def test_an_empty_variable_counts_as_not_set() -> None:
    loaded = load("cartpole_vtrace", [], {"SEEDMQ_WORKERS": "", "SEEDMQ_STORE__URL": ""})
    assert loaded.config.workers.count == 1
    assert loaded.origins["workers.count"] == "file"


@pytest.mark.parametrize(
    "name",
    [
        "SEEDMQ_BROKER_PORT",
        "SEEDMQ_BROKER_PORT_5555_TCP_ADDR",
        "SEEDMQ_BROKER_SERVICE_HOST",
        "SEEDMQ_WORKERS_PORT",
        "SEEDMQ_LEARNER_SERVICE_PORT_WORKERS",
        "SEEDMQ_PORT",
        "SEEDMQ_",
        "OTHER__RUN__SEED",
    ],
)
def test_names_that_others_make_are_left_alone(name: str) -> None:
    load("cartpole_vtrace", [], {name: "tcp://10.0.0.1:5555"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SEEDMQ_WORKER", "SEEDMQ_WORKERS"),
        ("SEEDMQ_WORKRES", "SEEDMQ_WORKERS"),
        ("SEEDMQ_WORKERSS", "SEEDMQ_WORKERS"),
        ("seedmq_worker", "SEEDMQ_WORKERS"),
        ("SEEDMQ_ENV_PER_WORKERS", "SEEDMQ_ENVS_PER_WORKER"),
        ("SEEDMQ_ENVS_PER_WORKR", "SEEDMQ_ENVS_PER_WORKER"),
        ("SEEDMQ_RUN__SED", "SEEDMQ_RUN__SEED"),
        ("SEEDMQ_TRAINING__BATCHSIZE", "SEEDMQ_TRAINING__BATCH_SIZE"),
        ("SEEDMQ__RUN__SEED", "SEEDMQ_RUN__SEED"),
        ("SEEDMQ_RUN__SEED__X", "SEEDMQ_RUN__SEED"),
        ("SEEDMQ_VTRACE__LAMBDA_", "SEEDMQ_VTRACE__LAMBDA"),
    ],
)
def test_misspelt_names_are_refused_even_when_empty(name: str, meant: str) -> None:
    for value in ("1", ""):
        with pytest.raises(ConfigError) as caught:
            load("cartpole_vtrace", [], {name: value})
        assert str(caught.value) == f"the variable {name} sets no known key (did you mean {meant}?)"


def test_a_variable_like_nothing_has_no_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"^the variable SEEDMQ_QQ__ZZ sets no known key$"):
        load("cartpole_vtrace", [], {"SEEDMQ_QQ__ZZ": "1"})


def test_a_section_is_no_key() -> None:
    with pytest.raises(ConfigError, match="sets no known key"):
        load("cartpole_vtrace", [], {"SEEDMQ_TRAINING__OPTIMIZER": "{}"})


@pytest.mark.parametrize(
    "environ",
    [
        {"SEEDMQ_WORKERS": "1", "SEEDMQ_WORKERS__COUNT": "1"},
        {"SEEDMQ_RUN__SEED": "1", "seedmq_run__seed": "2"},
    ],
)
def test_two_variables_for_one_key_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"both set (workers\.count|run\.seed): unset one"):
        load("cartpole_vtrace", [], environ)


def test_values_are_refused_by_variable() -> None:
    with pytest.raises(ConfigError, match=r"^workers\.count = 'x': .*integer \(from variable SEEDMQ_WORKERS\)$"):
        load("cartpole_vtrace", [], {"SEEDMQ_WORKERS": "x"})
    with pytest.raises(
        ConfigError, match=r"network\.hidden = '\[1': no YAML value.*from variable SEEDMQ_NETWORK__HIDDEN"
    ):
        load("cartpole_vtrace", [], {"SEEDMQ_NETWORK__HIDDEN": "[1"})


def test_single_underscores_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loaded = load("cartpole_vtrace", [], {"SEEDMQ_RUN_SEED": "9"})
    assert loaded.config.run.seed == 1
    assert "SEEDMQ_RUN_SEED is ignored (did you mean SEEDMQ_RUN__SEED?)" in caplog.text


@pytest.mark.parametrize(
    ("a", "b", "distance"), [("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)]
)
def test_edit_distance(a: str, b: str, distance: int) -> None:
    assert edit_distance(a, b) == edit_distance(b, a) == distance
