"""The Kubernetes overlays as kubectl renders them, and the secrets that ``kubernetes/secrets.sh`` makes of keys."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.auth

from pipeline import keys
from pipeline.store.redis_client import read_password
from tests.kubernetes import (
    BASE,
    FOLDER,
    OVERLAYS,
    Manifests,
    contents,
    documents,
    lay_out,
    need_kubectl,
    pod_of,
    rendered,
)
from tests.kubernetes_checks import AUTHORIZED, CHECKS, SECRETS, Check, names

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", params=[BASE, *OVERLAYS], ids=lambda folder: folder.name)
def overlay(request: pytest.FixtureRequest) -> Manifests:
    return rendered(request.param)


@pytest.mark.parametrize("check", CHECKS, ids=names())
def test_of_each_overlay(overlay: Manifests, check: Check) -> None:
    check(overlay)


def test_everything_is_in_one_namespace(overlay: Manifests) -> None:
    names = {one["metadata"].get("namespace") for one in overlay if one["kind"] != "Namespace"}
    assert names == {"seedmq"}


def test_a_small_node_has_no_autoscaler_and_a_redis() -> None:
    manifests = rendered(FOLDER / "overlays/local")
    assert manifests.of("HorizontalPodAutoscaler") == []
    assert manifests.workload("worker")["spec"]["replicas"] == 2
    assert manifests.named("Service", "redis")["spec"]["ports"][0]["port"] == 6379


@pytest.mark.parametrize("name", ["gpu", "production"])
def test_the_gpu_is_demanded_by_the_learner_alone(name: str) -> None:
    manifests = rendered(FOLDER / "overlays" / name)
    limits = {
        role: pod_of(manifests.workload(role))["containers"][0]["resources"]["limits"] for role in ("learner", "worker")
    }
    assert limits["learner"]["nvidia.com/gpu"] == 1 and "nvidia.com/gpu" not in limits["worker"]
    assert pod_of(manifests.workload("learner"))["containers"][0]["image"].endswith("-gpu")


@pytest.mark.parametrize("name", ["preemptible", "production"])
def test_workers_alone_stand_on_nodes_that_may_be_taken_away(name: str) -> None:
    manifests = rendered(FOLDER / "overlays" / name)
    terms = {
        role: pod_of(manifests.workload(role))["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]["nodeSelectorTerms"]
        for role in ("broker", "learner", "worker")
    }
    on = {(one["key"], *one["values"]) for term in terms["worker"] for one in term["matchExpressions"]}
    assert all(one["operator"] == "In" for term in terms["worker"] for one in term["matchExpressions"])
    for role in ("broker", "learner"):
        (term,) = terms[role]
        assert {(one["key"], *one["values"]) for one in term["matchExpressions"]} == on
        assert all(one["operator"] == "NotIn" for one in term["matchExpressions"])
        assert "tolerations" not in pod_of(manifests.workload(role)) or role == "learner"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    keys.write_keys(folder / "keys")
    keys.write_client(folder / "keys", "farm")
    (folder / "password").write_text("a+b/c=\n")
    return folder


def secrets_of(fleet: Path, *more: str) -> Manifests:
    need_kubectl()
    command = [str(FOLDER / "secrets.sh"), str(fleet / "keys"), str(fleet / "password"), *more]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return Manifests(documents(result.stdout))


def test_secrets_are_what_the_manifests_refer_to(fleet: Path) -> None:
    made = secrets_of(fleet)
    found = {one["metadata"]["name"]: set(contents(one)) for one in made.of("Secret")}
    assert found == SECRETS
    maps = {one["metadata"]["name"]: contents(one) for one in made.of("ConfigMap")}
    assert set(maps) == AUTHORIZED
    assert set(maps["seedmq-authorized-workers"]) == {"client.key", "farm.key"}
    assert not any(b"secret-key" in text for files in maps.values() for text in files.values())
    assert {one["metadata"]["namespace"] for one in made} == {"seedmq"}
    assert contents(made.named("Secret", "seedmq-redis"))["auth.conf"] == b"requirepass a+b/c=\n"


def test_a_ca_stands_beside_the_password(fleet: Path) -> None:
    (fleet / "ca.pem").write_text("a certificate\n")
    made = secrets_of(fleet, str(fleet / "ca.pem"))
    assert contents(made.named("Secret", "seedmq-redis"))["ca.crt"] == b"a certificate\n"


def test_without_keys_or_password_nothing_is_printed(tmp_path: Path) -> None:
    command = [str(FOLDER / "secrets.sh"), str(tmp_path), str(tmp_path / "none")]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and result.stdout == "" and "missing or empty" in result.stderr


def test_keys_are_read_from_volumes_as_the_kubelet_makes_them(fleet: Path, tmp_path: Path) -> None:
    """Links that lead through ``..data``, files that their group may read; a new version appears at once."""
    made, place = secrets_of(fleet), tmp_path / "keys"
    lay_out(contents(made.named("Secret", "seedmq-worker-keys")), place, 0o440)
    assert (place / "client.key_secret").is_symlink() and os.readlink(place / "..data").startswith("..")
    own = keys.load(fleet / "keys", "client", secret=True)
    assert keys.load(place, "client", secret=True) == own
    assert keys.load(place, "server", secret=False).public == keys.load(fleet / "keys", "server", secret=True).public
    lay_out(contents(made.named("Secret", "seedmq-redis")), tmp_path / "redis", 0o440)
    assert read_password(str(tmp_path / "redis/password")) == "a+b/c="

    admitted = place / "authorized/workers"
    files = contents(made.named("ConfigMap", "seedmq-authorized-workers"))
    lay_out(files, admitted, 0o644)
    before = keys.authorized_stamp(place, "workers")
    assert [name for name, _, _ in before] == ["client.key", "farm.key"], "and not the links that lead there"
    assert keys.authorized(place, "workers") == {own.public, *_public(fleet / "keys/clients/farm/client.key")}
    del files["farm.key"]
    lay_out(files, admitted, 0o644)
    assert keys.authorized_stamp(place, "workers") != before
    assert keys.authorized(place, "workers") == {own.public}


READ = """
import sys
from pathlib import Path
from pipeline import keys
from pipeline.errors import ConfigError
try:
    print(keys.load(Path(sys.argv[1]), "client", secret=True).public.decode())
except ConfigError as error:
    sys.exit(str(error))
"""


def test_a_pod_s_user_reads_what_is_root_s_and_its_group_s_and_nobody_else_does(fleet: Path) -> None:
    """Volumes belong to root with the group of ``fsGroup``; pods run as 10001:10001 without any capability."""
    if os.getuid() != 0:
        pytest.skip("only root can be two other users")
    with tempfile.TemporaryDirectory(prefix="volume-") as name:
        place = Path(name)
        place.chmod(0o755)
        lay_out({file: (fleet / "keys" / file).read_bytes() for file in SECRETS["seedmq-worker-keys"]}, place, 0o440)
        for path in place.rglob("*"):
            os.chown(path, 0, 10001, follow_symlinks=False)
        results = {user: _as_user(user, READ, name) for user in (10001, 10002)}
    own = keys.load(fleet / "keys", "client", secret=True).public.decode()
    assert (results[10001].returncode, results[10001].stdout.strip()) == (0, own), results[10001].stderr
    assert results[10002].returncode == 1 and "Permission denied" in results[10002].stderr


def _as_user(user: int, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    identity: dict[str, Any] = {"user": user, "group": user, "extra_groups": []}
    try:
        return subprocess.run(
            command, check=False, cwd=FOLDER.parent, capture_output=True, text=True, timeout=60, **identity
        )
    except PermissionError:
        pytest.skip("the interpreter is in a folder that other users cannot enter")


def _public(file: Path) -> set[bytes]:
    return {zmq.auth.load_certificate(file)[0]}
