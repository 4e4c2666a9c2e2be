"""The compose file against the rest: its settings resolve, its commands exist, its secrets reach who needs them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from pipeline.cli import seedmq
from pipeline.config import variables
from pipeline.config.load import load

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
INTERPOLATION = re.compile(r"\$\{(\w+):-([^}]*)\}")
ROLES = ["broker", "learner", "worker"]


def services(*overrides: str) -> dict[str, Any]:
    """The services with the defaults of their variables; of overrides only what they say themselves."""
    text = (ROOT / (overrides[0] if overrides else "docker-compose.yml")).read_text("utf-8")
    found: dict[str, Any] = yaml.safe_load(INTERPOLATION.sub(r"\2", text))["services"]
    return found


def environment(service: dict[str, Any]) -> dict[str, str]:
    return {name: str(value or "") for name, value in service.get("environment", {}).items()}


def volumes(service: dict[str, Any]) -> set[str]:
    return {volume.split(":")[0] for volume in service.get("volumes", [])}


def test_base_images_are_arguments_with_exact_defaults() -> None:
    found = services()
    assert found["redis"]["image"] == "redis:8"
    assert {found[name]["build"]["args"]["PYTHON_IMAGE"] for name in ("init", *ROLES)} == {"python:3.11-slim"}
    dockerfile = (ROOT / "docker/Dockerfile").read_text("utf-8")
    assert "ARG PYTHON_IMAGE=python:3.11-slim\nFROM ${PYTHON_IMAGE}" in dockerfile
    assert "-c constraints.txt" in dockerfile
    for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"):
        assert f"ARG {name}=/build/constraints.txt" in dockerfile


def test_tensorflow_is_in_the_learner_image_only() -> None:
    found = services()
    for name in ("init", "broker", "worker"):
        assert "image" not in found[name]  # one name built by two services at once collides in Compose v2
        assert "learner" not in found[name]["build"]["args"]["EXTRAS"]
    assert "image" not in found["learner"] and "image" not in found["tensorboard"]
    assert found["learner"]["build"]["args"]["EXTRAS"].split(",")[0] == "learner-cpu"
    assert found["tensorboard"]["build"]["args"]["EXTRAS"] == "tensorboard"  # it starts faster without
    assert services("docker/gpu.yml")["learner"]["build"]["args"]["EXTRAS"].split(",")[0] == "learner"


@pytest.mark.parametrize("name", ROLES)
def test_variables_of_a_service_are_accepted_settings(name: str) -> None:
    environ = environment(services()[name])
    config = load("cartpole_vtrace", environ=environ).config
    assert config.broker.placement == "process"
    assert config.security.keys is not None and not config.security.insecure
    assert {path for variable in variables.read(environ) for path in [variable.path]} == {
        tuple(key.lower().removeprefix("seedmq_").split("__"))
        for key, value in environ.items()
        if value and "__" in key
    }


def test_endpoints_fit_together() -> None:
    found = {name: load("cartpole_vtrace", environ=environment(services()[name])).config for name in ROLES}
    broker = found["broker"].broker
    for connect, bind in (
        (found["worker"].broker.connect, broker.bind),
        (found["learner"].broker.learner_connect, broker.learner_bind),
    ):
        assert connect is not None and connect.startswith("tcp://broker:")
        assert bind.startswith("tcp://0.0.0.0:") and bind.rpartition(":")[2] == connect.rpartition(":")[2]
    assert found["learner"].store.url == "redis://redis:6379"


def test_no_container_gets_the_number_of_replicas() -> None:
    for service in services().values():
        assert "SEEDMQ_WORKERS" not in environment(service)
    assert "scale: ${SEEDMQ_WORKERS:-2}" in (ROOT / "docker-compose.yml").read_text("utf-8")


def test_environments_per_worker_of_the_configuration_stand_unless_the_variable_is_set() -> None:
    environ = environment(services()["worker"])
    own = load("cartpole_vtrace", environ={}).config.workers.envs
    assert load("cartpole_vtrace", environ=environ).config.workers.envs == own
    scaled = {**environ, "SEEDMQ_ENVS_PER_WORKER": "8"}
    assert load("cartpole_vtrace", environ=scaled).config.workers.envs == 8


def test_names_that_only_compose_reads_do_not_disturb_the_command() -> None:
    names = {name for name, _ in INTERPOLATION.findall((ROOT / "docker-compose.yml").read_text("utf-8"))}
    assert {"SEEDMQ_WORKERS", "SEEDMQ_ENVS_PER_WORKER", "SEEDMQ_CONFIG", "SEEDMQ_RUN"} <= names
    environ = {name: "1" for name in names if name.startswith("SEEDMQ_")}
    assert {variable.name for variable in variables.read(environ)} == {"SEEDMQ_WORKERS", "SEEDMQ_ENVS_PER_WORKER"}


@pytest.mark.parametrize("name", ROLES)
def test_commands_parse(name: str) -> None:
    command, *arguments = services()[name]["command"]
    assert command == name
    context = seedmq.commands[command].make_context(command, list(arguments))
    assert isinstance(context, click.Context) and context.params["source"] == "cartpole_vtrace"


def test_only_documented_ports_are_published_and_redis_is_reached_by_the_learner_only() -> None:
    found = services()
    assert {name: service["ports"] for name, service in found.items() if "ports" in service} == {
        "tensorboard": ["127.0.0.1:6006:6006"]
    }
    assert [name for name, service in found.items() if "store" in service.get("networks", [])] == ["redis", "learner"]
    assert found["tensorboard"]["networks"] == ["view"]  # it reaches nobody
    assert {name: service["ports"] for name, service in services("docker/publish.yml").items()} == {
        "broker": ["5555:5555"]
    }


def test_prometheus_and_grafana_take_the_files_of_monitoring_and_are_published_on_the_loopback() -> None:
    found = services("docker/metrics.yml")
    assert {name: service["ports"] for name, service in found.items()} == {
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    for name, service in found.items():
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"] and "healthcheck" in service, name
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"]), "pinned"
        for place in service["volumes"]:
            source, _, mode = place.partition(":")
            assert not source.startswith("./") or ((ROOT / source).exists() and mode.endswith(":ro")), place
    scraped = yaml.safe_load((ROOT / "monitoring/prometheus.yml").read_text("utf-8"))["scrape_configs"]
    asked = {(name, sd["port"]) for job in scraped for sd in job["dns_sd_configs"] for name in sd["names"]}
    assert asked == {(role, 9464) for role in ROLES}
    assert "fleet" in found["prometheus"]["networks"] and "fleet" in services()["worker"]["networks"]
    sources = yaml.safe_load((ROOT / "monitoring/grafana/provisioning/datasources/prometheus.yml").read_text("utf-8"))
    assert [source["url"] for source in sources["datasources"]] == ["http://prometheus:9090"]


def test_tensorboard_reads_the_runs_and_cannot_write_them() -> None:
    found = services()
    assert found["tensorboard"]["volumes"] == ["runs:/runs:ro"] and "runs:/runs" in found["learner"]["volumes"]
    assert found["tensorboard"]["entrypoint"] == ["tensorboard"]
    command = found["tensorboard"]["command"]
    assert command[command.index("--logdir") + 1] == "/runs" and command[command.index("--port") + 1] == "6006"


def test_every_service_has_a_health_check_of_what_it_serves() -> None:
    found = services()
    assert [name for name, service in found.items() if "healthcheck" not in service] == ["init"]
    for name in ROLES:
        config = load("cartpole_vtrace", environ=environment(found[name])).config
        assert config.metrics.bind == "0.0.0.0:9464"
        assert found[name]["healthcheck"]["test"][-2:] == ["9464", "/healthz"]
    assert found["tensorboard"]["healthcheck"]["test"][-2:] == ["6006", "/"]
    shell, test = found["redis"]["healthcheck"]["test"]  # the password stands in the environment of redis-cli alone
    assert shell == "CMD-SHELL" and test.startswith("REDISCLI_AUTH=$$(cat /run/seedmq/redis/password) redis-cli ping")


def test_secrets_reach_only_who_needs_them() -> None:
    holders = {
        volume: {name for name, service in services().items() if volume in volumes(service)}
        for volume in ("fleet-keys", "client-keys", "learner-keys", "redis-secret")
    }
    assert holders == {
        "fleet-keys": {"init", "broker"},
        "client-keys": {"init", "worker"},
        "learner-keys": {"init", "learner"},
        "redis-secret": {"init", "redis", "learner"},
    }
    init = (ROOT / "docker/init.sh").read_text("utf-8")
    assert "maxmemory-policy noeviction" in init and "requirepass" in init and "umask 077" in init


def test_containers_are_confined_and_heal() -> None:
    for name, service in services().items():
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"], name
        assert name == "init" or service["restart"] == "on-failure"  # not always: what has finished stays finished
        assert name == "init" or service["init"] is True
    assert "\nUSER 10001:10001\n" in (ROOT / "docker/Dockerfile").read_text("utf-8")
    assert services()["redis"]["user"] == "10001:10001"


def test_a_stop_leaves_time_to_drain() -> None:
    config = load("cartpole_vtrace", environ={}).config
    for name in ROLES:
        assert float(services()[name]["stop_grace_period"].removesuffix("s")) > config.run.drain_timeout_seconds + 5


def test_the_build_context_holds_only_what_is_copied() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in lines
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied: set[str] = set()
    for line in (ROOT / "docker/Dockerfile").read_text("utf-8").splitlines():
        if line.startswith("COPY "):
            copied.update(line.split()[1:-1])
    assert {path for path in copied if path.split("/")[0] not in allowed and path not in allowed} == set()
    assert all((ROOT / path).exists() for path in allowed)
