"""The pods of ``kubernetes/overlays/local`` as containers of a Docker engine: images, users, read-only file systems,
volumes, names and memory limits as the manifests say. Only with images at hand: ``make pods-test``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid

import pytest

from pipeline import keys
from tests.kubernetes import FOLDER, Manifests, answer_of, container_of, contents, documents, lay_out, pod_of, rendered
from tests.runs import END_SECONDS

pytestmark = pytest.mark.system

IMAGES = {name: os.environ.get(f"{name.upper().replace('-', '_')}_IMAGE", "") for name in ("seedmq", "seedmq-learner")}
USER = 10001
QUICK = {"SEEDMQ_ENVS_PER_WORKER": "8", "SEEDMQ_RUN__LOG_INTERVAL_SECONDS": "0.5"}


def docker(*arguments, check=True):
    command = ["docker", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=4 * END_SECONDS)
    assert done.returncode == 0 or not check, f"{command}: {done.stderr}"
    return done.stdout.strip()


class Node:
    """What a kubelet makes of the manifests, on a Docker network of its own."""

    def __init__(self, place):
        self.place, self.name = place, f"pods-{uuid.uuid4().hex[:8]}"
        self.manifests = rendered(FOLDER / "overlays/local")
        self.manifests.named("ConfigMap", "seedmq")["data"].update(QUICK)
        keys.write_keys(place / "keys")
        (place / "password").write_text("drill\n")
        made = subprocess.run(
            [str(FOLDER / "secrets.sh"), str(place / "keys"), str(place / "password")],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        self.secrets = Manifests(documents(made.stdout))
        docker("network", "create", self.name)

    def files(self, volume):
        """Of a Secret or ConfigMap; None where it is optional and not there."""
        kind, key = ("Secret", "secretName") if "secret" in volume else ("ConfigMap", "name")
        name = volume["secret" if kind == "Secret" else "configMap"][key]
        found = [
            one for one in (*self.secrets, *self.manifests) if (one["kind"], one["metadata"]["name"]) == (kind, name)
        ]
        return contents(found[0]) if found else None

    def mounts(self, pod, workload):
        """``docker run``'s options; volumes belong to root and the pod's group, as the kubelet leaves them."""
        volumes = {one["name"]: one for one in pod_of(workload)["volumes"]}
        for mount in container_of(workload)["volumeMounts"]:
            volume, path = volumes.get(mount["name"], {}), mount["mountPath"]
            place = self.place / "volumes" / (pod if volume else "claim") / mount["name"]
            place.mkdir(parents=True, exist_ok=True)
            if "secret" in volume or "configMap" in volume:
                files = self.files(volume)
                if files is not None and not (place / "..data").exists():
                    lay_out(files, place, volume.get("secret", {}).get("defaultMode", 0o644))
            elif mount["name"] == "tmp":
                yield from ("--tmpfs", f"{path}:size=256m,mode=1777")
                continue
            else:
                place.chmod(0o2770)
            for one in (place, *place.rglob("*")):  # who owns a file keeps it
                os.chown(one, one.lstat().st_uid, USER, follow_symlinks=False)
            source = place / "..data" / mount["subPath"] if "subPath" in mount else place
            yield from ("--volume", f"{source.resolve()}:{path}{':ro' if mount.get('readOnly') else ''}")

    def start(self, pod, role):
        """Starts a pod: what is in ``docker run`` stands in the manifest."""
        ours = role != "redis"
        workload = self.manifests.workload(role) if ours else self.manifests.named("Deployment", role)
        container, context = container_of(workload), pod_of(workload)["securityContext"]
        image = IMAGES.get(container["image"].partition(":")[0], container["image"])
        memory = container["resources"]["limits"]["memory"].removesuffix("i").lower()
        options = ["--user", f"{context['runAsUser']}:{context['runAsGroup']}", "--group-add", str(context["fsGroup"])]
        options += ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true", "--memory", memory]
        options += ["--network", self.name, "--network-alias", "seedmq-broker" if role == "broker" else role]
        options += ["--init"] if pod_of(workload).get("shareProcessNamespace") else []
        options += ["--restart", "always"]  # but for what was stopped or killed by hand
        for name, value in self.manifests.environment(workload).items():
            options += ["--env", f"{name}={value}"]
        command, *arguments = self.manifests.arguments(workload)
        words = [image, command, *arguments] if ours else ["--entrypoint", command, image, *arguments]
        docker("run", "--detach", "--name", f"{self.name}-{pod}", *options, *self.mounts(pod, workload), *words)

    def probe(self, pod, role, name):
        """Status and body of a probe; 0 where nobody answers."""
        path = container_of(self.manifests.workload(role))[f"{name}Probe"]["httpGet"]["path"]
        (found,) = json.loads(docker("inspect", f"{self.name}-{pod}"))
        address = found["NetworkSettings"]["Networks"][self.name]["IPAddress"]
        return answer_of(f"http://{address}:9464{path}")

    def stop(self, pod, role):
        """As the kubelet does: SIGTERM, and SIGKILL after the grace period. The exit code."""
        grace = pod_of(self.manifests.workload(role))["terminationGracePeriodSeconds"]
        docker("stop", "--time", str(grace), f"{self.name}-{pod}")
        code = int(docker("wait", f"{self.name}-{pod}"))
        docker("rename", f"{self.name}-{pod}", f"{self.name}-{pod}-{uuid.uuid4().hex[:4]}")
        return code

    def summary(self):
        path = self.place / "volumes/claim/runs/first/summary.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def end(self):
        pods = docker("ps", "--all", "--quiet", "--filter", f"name=^/{self.name}-").split()
        for pod in pods:
            print(docker("logs", "--tail", "15", pod, check=False))
        if pods:
            docker("rm", "--force", *pods)
        docker("network", "rm", self.name)


@pytest.fixture
def node(tmp_path):
    if not all(IMAGES.values()):
        pytest.skip("SEEDMQ_IMAGE and SEEDMQ_LEARNER_IMAGE name no images: make pods-test")
    made = Node(tmp_path)
    try:
        yield made
    finally:
        made.end()


def test_the_pods_of_a_small_node_train_are_preempted_and_close_the_books(node, until):
    for pod in ("broker", "redis", "learner", "worker-a", "worker-b"):
        node.start(pod, pod.partition("-")[0])
    roles = {"broker": "broker", "learner": "learner", "worker-a": "worker", "worker-b": "worker"}
    until(lambda: all(node.probe(pod, role, "readiness")[0] == 200 for pod, role in roles.items()), 120, "readiness")
    assert all(node.probe(pod, role, "liveness") == (200, "ok\n") for pod, role in roles.items())
    until(lambda: node.summary().get("updates", 0) > 3, 60, "updates")
    docker("kill", f"{node.name}-worker-a")  # its node is gone
    node.start("worker-c", "worker")
    assert node.stop("worker-b", "worker") == 143
    updates = node.summary()["updates"]
    until(lambda: node.summary()["updates"] > updates + 3, 60, "updates with the worker that came")
    assert node.stop("learner", "learner") == 143
    ledger = node.summary()["ledger"]
    assert ledger["error"] == 0, ledger
    node.start("learner", "learner")  # which had sent the worker home: its container starts again
    updates = node.summary()["updates"]
    until(lambda: node.summary()["updates"] > updates + 3, 60, "updates from the checkpoint on")
    assert node.stop("learner", "learner") == 143
    assert node.stop("broker", "broker") == 143
    assert node.summary()["ledger"]["error"] == 0
    used = re.findall(r"\d+", docker("exec", f"{node.name}-redis", "cat", "/proc/1/status").partition("Uid:")[2])
    assert used[0] == str(USER)
