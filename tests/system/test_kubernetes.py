"""The pods of ``kubernetes/base`` with ``components/redis`` as processes, with the commands, variables and volumes that
the manifests give them. Only addresses and paths are this machine's: each role's volumes have a folder of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess

import pytest

from pipeline import keys
from tests.kubernetes import BASE, FOLDER, answer_of, container_of, contents, lay_out, pod_of, read
from tests.kubernetes_checks import SECRETS
from tests.runs import END_SECONDS, PATIENT, free_ports, summary

pytestmark = pytest.mark.system

PASSWORD = "drill-a+b/c="
QUICK = {
    "SEEDMQ_ENVS_PER_WORKER": "8",
    "SEEDMQ_RUN__LOG_INTERVAL_SECONDS": "0.2",
    "SEEDMQ_RUN__DRAIN_TIMEOUT_SECONDS": PATIENT.partition("=")[2],
}
"""What an operator would add to the ConfigMap for a small and patient run."""


class Pods:
    """What a kubelet does for these manifests, on the loopback of one machine."""

    def __init__(self, commands, place):
        self.commands, self.place = commands, place
        self.manifests = read(BASE, FOLDER / "components/redis")
        self.manifests.named("ConfigMap", "seedmq")["data"].update(QUICK)
        self.front, self.back, self.store = free_ports(3)
        self.fleet = place / "fleet"
        keys.write_keys(self.fleet)
        self.metrics = {}

    def volume(self, role, volume):
        """A Secret's or ConfigMap's files, by what the manifests or ``kubernetes/secrets.sh`` put in it."""
        if "secret" in volume:
            name = volume["secret"]["secretName"]
            if name == "seedmq-redis":
                return {"password": f"{PASSWORD}\n".encode(), "auth.conf": f"requirepass {PASSWORD}\n".encode()}
            return {file: (self.fleet / file).read_bytes() for file in SECRETS[name]}
        name = volume["configMap"]["name"]
        if name.startswith("seedmq-authorized-"):
            folder = self.fleet / keys.AUTHORIZED / name.removeprefix("seedmq-authorized-")
            return {file.name: file.read_bytes() for file in folder.iterdir()}
        return {file: self.here(role, text.decode()).encode() for file, text in self.maps(name).items()}

    def maps(self, name):
        found = [one for one in self.manifests.of("ConfigMap") if one["metadata"]["name"] == name]
        return contents(found[0]) if found else {}

    def here(self, role, text):
        """The same text with this machine's addresses and paths."""
        text = re.sub(r"tcp://(0\.0\.0\.0|seedmq-broker):5555", f"tcp://127.0.0.1:{self.front}", text)
        text = re.sub(r"tcp://(0\.0\.0\.0|seedmq-broker):5556", f"tcp://127.0.0.1:{self.back}", text)
        text = text.replace("redis://redis:6379", f"redis://127.0.0.1:{self.store}")
        text = text.replace("port 6379", f"port {self.store}\nbind 127.0.0.1")
        text = text.replace("0.0.0.0:9464", f"127.0.0.1:{self.metrics.get(role)}")
        return re.sub(r"(?<!\S)(/runs?|/etc/redis|/data)(?=/|$|\n)", f"{self.place / role}\\1", text)

    def start(self, pod, role):
        """Starts a pod of a role; mounts its volumes first."""
        is_ours = role != "redis"
        workload = self.manifests.workload(role) if is_ours else self.manifests.named("Deployment", "redis")
        (self.metrics[pod],) = free_ports(1)
        volumes = {one["name"]: one for one in pod_of(workload)["volumes"]}
        for mount in container_of(workload)["volumeMounts"]:
            volume, place = volumes.get(mount["name"], {}), self.place / pod / mount["mountPath"][1:]
            if "secret" in volume or "configMap" in volume:
                files = self.volume(pod, volume)
                if "subPath" in mount:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(files[mount["subPath"]])
                    place.chmod(volume["secret"]["defaultMode"])
                else:
                    lay_out(files, place, volume.get("secret", {}).get("defaultMode", 0o644))
            elif mount["mountPath"] != "/tmp":  # the process has another one, see ``Commands``
                place.mkdir(parents=True, exist_ok=True)
        words = [self.here(pod, word) for word in self.manifests.arguments(workload)]
        if not is_ours:
            return subprocess.Popen(words, stdout=subprocess.DEVNULL, env={"PATH": os.environ["PATH"]})
        variables = {name: self.here(pod, text) for name, text in self.manifests.environment(workload).items()}
        return self.commands.start(*words, **variables)

    def probe(self, pod, role, name):
        """What a probe of the manifest gets: status and body; status 0 where nobody answers."""
        path = container_of(self.manifests.workload(role))[f"{name}Probe"]["httpGet"]["path"]
        return answer_of(f"http://127.0.0.1:{self.metrics[pod]}{path}")


def needs_redis():
    if shutil.which("redis-server") is None:
        reason = "redis-server (Debian: redis-server) is not installed"
        pytest.fail(reason, pytrace=False) if os.environ.get("CI") else pytest.skip(reason)


@pytest.fixture
def pods(commands, tmp_path):
    needs_redis()
    made = Pods(commands, tmp_path / "pods")
    redis = made.start("redis", "redis")
    try:
        yield made
    finally:
        redis.terminate()
        redis.wait(END_SECONDS)
    commands.forget_sockets()


def ends(process, number):
    process.send_signal(number)
    output, _ = process.communicate(timeout=END_SECONDS)
    return process.returncode, output


def test_pods_of_the_manifests_train_are_preempted_and_close_the_books(pods, until):
    run = pods.place / "learner/runs/first"
    broker = pods.start("broker", "broker")
    until(lambda: pods.probe("broker", "broker", "startup")[0], 60, "an answer of the broker")
    assert pods.probe("broker", "broker", "liveness")[0] == 200
    assert pods.probe("broker", "broker", "readiness")[0] == 503, "there is no learner yet"
    workers = {name: pods.start(name, "worker") for name in ("worker-a", "worker-b")}
    learner = pods.start("learner", "learner")

    def ready():
        assert all(one.poll() is None for one in (broker, learner, *workers.values()))
        names = {"broker": "broker", "learner": "learner", **dict.fromkeys(workers, "worker")}
        return all(pods.probe(pod, role, "readiness")[0] == 200 for pod, role in names.items())

    until(ready, 120, "readiness of every pod")
    until(lambda: summary(run).get("updates", 0) > 3, 60, "updates")

    workers.pop("worker-a").kill()  # its node is gone
    workers["worker-c"] = pods.start("worker-c", "worker")  # the Deployment makes another
    code, output = ends(workers.pop("worker-b"), signal.SIGTERM)  # preempted with notice
    assert code == 143, output
    updates = summary(run)["updates"]
    until(lambda: summary(run)["updates"] > updates + 3, 60, "updates with the worker that came")

    code, output = ends(learner, signal.SIGTERM)  # its node is drained
    assert code == 143, output
    ledger = summary(run)["ledger"]
    assert ledger["error"] == 0 and ledger["dropped"] == {}, ledger
    learner = pods.start("learner", "learner")  # the StatefulSet makes it again, with the same volume
    updates = summary(run)["updates"]

    def goes_on():
        if workers["worker-c"].poll() == 0:  # a learner that drains sends workers home; the kubelet starts them again
            workers["worker-c"] = pods.start("worker-c", "worker")
        return summary(run)["updates"] > updates + 3

    until(goes_on, 60, "updates after the checkpoint")
    for process in (learner, *workers.values(), broker):
        code, output = ends(process, signal.SIGTERM)
        assert code == 143 or (code == 0 and process is not learner and process is not broker), output
    assert summary(run)["ledger"]["error"] == 0
    assert PASSWORD not in "".join(path.read_text() for path in run.glob("*.*"))
