"""The Kubernetes manifests as they stand: see ``tests/kubernetes_checks.py``. Rendered: ``tests/integration``."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.kubernetes import BASE, FOLDER, OVERLAYS, Manifests, kustomization, read
from tests.kubernetes_checks import CHECKS, Check, names

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    return read(BASE, FOLDER / "components/redis", FOLDER / "components/podmonitor")


@pytest.mark.parametrize("check", CHECKS, ids=names())
def test_of_the_base_with_a_redis_and_a_podmonitor(manifests: Manifests, check: Check) -> None:
    check(manifests)


def test_every_file_is_part_of_a_kustomization() -> None:
    for folder in sorted(path.parent for path in FOLDER.rglob("kustomization.yaml")):
        found = kustomization(folder)
        named = [*found.get("resources", []), *(patch["path"] for patch in found.get("patches", []) if "path" in patch)]
        files = {path.name for path in folder.iterdir()} - {"kustomization.yaml"}
        assert files == {name for name in named if not name.startswith("..")}, folder
        for name in (*named, *found.get("components", [])):
            assert (folder / name).exists(), name
        yaml_files = [folder / name for name in named if name.endswith(".yaml")]
        assert all(list(yaml.safe_load_all(file.read_text("utf-8"))) for file in yaml_files)


def test_overlays_are_there() -> None:
    assert {path.name for path in OVERLAYS} >= {"local", "gpu", "preemptible", "production"}
    components = {path.parent for path in FOLDER.glob("components/*/kustomization.yaml")}
    used = {(folder / name).resolve() for folder in OVERLAYS for name in kustomization(folder).get("components", [])}
    assert used == components, "each component is in an overlay, and so rendered and checked"


def test_redis_evicts_nothing_and_has_room_beside_its_data() -> None:
    manifests = read(FOLDER / "components/redis")
    lines = manifests.named("ConfigMap", "redis")["data"]["redis.conf"].splitlines()
    assert {"maxmemory-policy noeviction", 'save ""', "appendonly no", "maxmemory 768mb"} <= set(lines)
    assert Path(f"/{lines[1].partition('/')[2]}").name == "auth.conf"
    container = manifests.named("Deployment", "redis")["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["memory"] == "1Gi" and container["image"] == "redis:8"
