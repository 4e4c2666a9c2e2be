"""Kubernetes manifests as tests see them: read as they stand, or as an overlay renders, and what a container gets."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "kubernetes"
BASE = FOLDER / "base"
OVERLAYS = sorted(path.parent for path in (FOLDER / "overlays").glob("*/kustomization.yaml"))
WORKLOADS = ("Deployment", "StatefulSet")
ROLES = ("broker", "learner", "worker")
Object = dict[str, Any]
_OLDEST_KUSTOMIZE = (4, 0)  # components, and folders among the resources


class Manifests:
    """Objects that are applied together."""

    def __init__(self, objects: Sequence[Object]) -> None:
        self.objects = list(objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(self.objects)

    def of(self, *kinds: str) -> list[Object]:
        """Those of a kind."""
        return [one for one in self.objects if one["kind"] in kinds]

    def named(self, kind: str, name: str) -> Object:
        """The one of a kind and name."""
        (found,) = [one for one in self.of(kind) if one["metadata"]["name"] == name]
        return found

    def workload(self, role: str) -> Object:
        """What runs a role's pods."""
        (found,) = [one for one in self.of(*WORKLOADS) if labels_of(one).get("app.kubernetes.io/component") == role]
        return found

    def selected(self, selector: Object) -> list[Object]:
        """Workloads whose pods match ``matchLabels``."""
        assert set(selector) <= {"matchLabels"}, "only matchLabels are looked at here"
        wanted = selector.get("matchLabels", {}).items()
        return [one for one in self.of(*WORKLOADS) if wanted <= labels_of(one).items()]

    def environment(self, workload: Object) -> dict[str, str]:
        """The variables of a workload's container: ``env`` over ``envFrom``."""
        container, found = container_of(workload), dict[str, str]()
        for source in container.get("envFrom", []):
            found |= self.named("ConfigMap", source["configMapRef"]["name"])["data"]
        return found | {one["name"]: one["value"] for one in container.get("env", [])}

    def arguments(self, workload: Object) -> list[str]:
        """``command`` and ``args``, with ``$(NAME)`` replaced as the kubelet does."""
        container, environment = container_of(workload), self.environment(workload)
        words = [*container.get("command", []), *container.get("args", [])]
        return [re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], word) for word in words]


def read(*folders: Path) -> Manifests:
    """The manifests of kustomizations as they stand: without patches, namespaces and image tags."""
    files = [folder / name for folder in folders for name in kustomization(folder).get("resources", [])]
    return Manifests([one for file in files for one in documents(file.read_text("utf-8"))])


def kustomization(folder: Path) -> Object:
    """``kustomization.yaml`` of a folder."""
    found: Object = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    return found


def rendered(folder: Path) -> Manifests:
    """What ``kubectl apply -k`` would apply; skips where there is no kubectl."""
    return Manifests(documents(kubectl("kustomize", str(folder))))


def documents(text: str) -> list[Object]:
    """The YAML documents of ``text`` that hold something."""
    return [one for one in yaml.safe_load_all(text) if one]


def kubectl(*arguments: str) -> str:
    """What kubectl prints without a cluster."""
    program = need_kubectl()
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


def need_kubectl() -> str:
    """Its path. Where it is missing the test is skipped, and fails under CI. Where it is too old it is skipped there
    too: Debian 12 has no newer one.
    """
    program = shutil.which("kubectl")
    if program is None:
        reason = "kubectl (Debian: kubernetes-client) is not installed"
        pytest.fail(reason, pytrace=False) if os.environ.get("CI") else pytest.skip(reason)
    version = subprocess.run(
        [program, "version", "--client", "--output=json"], capture_output=True, text=True, check=True, timeout=60
    )
    kustomize = json.loads(version.stdout).get("kustomizeVersion", "v0.0")  # said since kubectl 1.24
    if tuple(int(number) for number in re.findall(r"\d+", kustomize)[:2]) < _OLDEST_KUSTOMIZE:
        pytest.skip(f"kubectl's kustomize {kustomize} is older than {_OLDEST_KUSTOMIZE}")
    return program


def pod_of(workload: Object) -> Object:
    """Its pods' spec."""
    found: Object = workload["spec"]["template"]["spec"]
    return found


def container_of(workload: Object) -> Object:
    """Its pods' one container."""
    (found,) = pod_of(workload)["containers"]
    assert isinstance(found, dict)
    return found


def labels_of(workload: Object) -> dict[str, str]:
    """Its pods' labels."""
    found: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return found


def contents(one: Object) -> dict[str, bytes]:
    """Files of a Secret or a ConfigMap."""
    data = one.get("data") or {}
    if one["kind"] == "Secret":
        return {name: base64.b64decode(value) for name, value in data.items()}
    return {name: value.encode() for name, value in data.items()}


def lay_out(files: dict[str, bytes], place: Path, mode: int) -> None:
    """Writes a volume as the kubelet does: a folder of its own for each version, ``..data`` leads to the newest, and
    each file's name leads through that. Called again, it replaces the version at once.
    """
    place.mkdir(parents=True, exist_ok=True)
    old = (place / "..data").resolve() if (place / "..data").is_symlink() else None
    version = place / f"..{time.time_ns()}"
    version.mkdir(mode=0o755)
    for name, content in files.items():
        (version / name).write_bytes(content)
        (version / name).chmod(mode)
    (place / "..data_tmp").symlink_to(version.name)
    (place / "..data_tmp").rename(place / "..data")
    for name in files:
        if not (place / name).is_symlink():
            (place / name).symlink_to(f"..data/{name}")
    for path in place.iterdir():
        if path.is_symlink() and not path.name.startswith("..") and path.name not in files:
            path.unlink()
    if old is not None:
        shutil.rmtree(old)


def answer_of(url: str) -> tuple[int, str]:
    """Status and body of what a probe asks; status 0, and why, where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)
