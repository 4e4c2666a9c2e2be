"""What holds of the Kubernetes manifests, as they stand and as each overlay renders. ``CHECKS`` are run on both.

Beside the API's own schemas: what refers to something finds it, each container's settings are accepted by the real
loader and its command by the real command line, secrets reach who needs them, and the network lets through what flows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

import kubernetes_validate
import pytest

from pipeline import __version__
from pipeline.cli import seedmq
from pipeline.config import variables
from pipeline.config.load import config_hash, load, presets
from pipeline.config.metrics import split
from pipeline.config.tree import Config
from tests.kubernetes import ROLES, WORKLOADS, Manifests, Object, container_of, labels_of, pod_of

API_VERSIONS = ("1.28", "1.33", "1.37")
"""Of those that the package carries; unhealthyPodEvictionPolicy came before the first of them."""
CUSTOM = {"PodMonitor"}
"""Kinds that the API does not have by itself."""
NAME = "app.kubernetes.io/name"
COMPONENT = "app.kubernetes.io/component"
PORTS = {"workers": 5555, "learners": 5556, "metrics": 9464}
KEYS = "/run/seedmq/keys"
SECRETS = {
    "seedmq-broker-keys": {"server.key", "server.key_secret"},
    "seedmq-learner-keys": {"server.key", "learner.key", "learner.key_secret"},
    "seedmq-worker-keys": {"server.key", "client.key", "client.key_secret"},
    "seedmq-redis": {"password", "auth.conf"},
}
"""What kubernetes/secrets.sh makes, with the files of each."""
AUTHORIZED = {"seedmq-authorized-workers", "seedmq-authorized-learners"}
"""ConfigMaps that it makes."""
HOLDERS = {
    "seedmq-broker-keys": {"broker"},
    "seedmq-learner-keys": {"learner"},
    "seedmq-worker-keys": {"worker"},
    "seedmq-redis": {"learner", "redis"},
}
DRAINED_SECONDS = 5.0
"""The last checkpoint, and leaving the interpreter, beyond run.drain_timeout_seconds."""


def config_of(manifests: Manifests, role: str) -> Config:
    """What the loader makes of a role's variables."""
    environment = manifests.environment(manifests.workload(role))
    return load(environment["SEEDMQ_CONFIG"], environ=environment).config


def check_schemas(manifests: Manifests) -> None:
    for one in manifests:
        for version in API_VERSIONS:
            try:
                kubernetes_validate.validate(one, version, strict=True)
            except kubernetes_validate.SchemaNotFoundError:
                assert one["kind"] in CUSTOM, f"{one['kind']} {one['apiVersion']} is not in Kubernetes {version}"
            except kubernetes_validate.ValidationError as error:
                pytest.fail(
                    f"{one['kind']} {one['metadata']['name']}, {version}: {error.message} at {list(error.path)}"
                )


def check_selectors_find_their_pods(manifests: Manifests) -> None:
    for one in manifests.of(*WORKLOADS):
        assert one["spec"]["selector"]["matchLabels"].items() <= labels_of(one).items()
        assert manifests.selected(one["spec"]["selector"]) == [one], "no other's pods"
        for spread in pod_of(one).get("topologySpreadConstraints", []):
            assert manifests.selected(spread["labelSelector"]) == [one]
        near = pod_of(one).get("affinity", {}).get("podAffinity", {})
        for term in near.get("preferredDuringSchedulingIgnoredDuringExecution", []):
            assert manifests.selected(term["podAffinityTerm"]["labelSelector"])
    for one in manifests.of("Service"):
        assert len(manifests.selected({"matchLabels": one["spec"]["selector"]})) == 1, one["metadata"]["name"]
    for one in manifests.of("PodDisruptionBudget"):
        assert len(manifests.selected(one["spec"]["selector"])) == 1, one["metadata"]["name"]
    for one in manifests.of("HorizontalPodAutoscaler"):
        target = one["spec"]["scaleTargetRef"]
        assert "replicas" not in manifests.named(target["kind"], target["name"])["spec"], "two would set it"
    for one in manifests.of("PodMonitor"):
        selected = manifests.selected(one["spec"]["selector"])
        assert {labels_of(workload)[COMPONENT] for workload in selected} == set(ROLES)
        assert one["spec"]["jobLabel"] == COMPONENT, "the alerts know roles by their job"
    for one in manifests.of("StatefulSet"):
        assert manifests.named("Service", one["spec"]["serviceName"])["spec"]["clusterIP"] == "None"


def check_ports(manifests: Manifests) -> None:
    """What is bound, exposed, connected to and probed is one number."""
    for one in manifests.of("Service"):
        (workload,) = manifests.selected({"matchLabels": one["spec"]["selector"]})
        exposed = {port["name"]: port["containerPort"] for port in container_of(workload)["ports"]}
        for port in one["spec"]["ports"]:
            assert exposed[port["targetPort"]] == port["port"], "a client of a headless Service sees the pod's port"
    for role in ROLES:
        workload, config = manifests.workload(role), config_of(manifests, role)
        exposed = {port["name"]: port["containerPort"] for port in container_of(workload)["ports"]}
        assert exposed.items() <= PORTS.items()
        assert config.metrics.bind is not None
        assert split(config.metrics.bind) == ("0.0.0.0", exposed["metrics"])
        for name, path in (("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")):
            assert container_of(workload)[f"{name}Probe"]["httpGet"] == {"path": path, "port": "metrics"}, role
        annotations = workload["spec"]["template"]["metadata"]["annotations"]
        assert annotations["prometheus.io/port"] == str(exposed["metrics"])
        for monitor in manifests.of("PodMonitor"):
            assert {end["port"] for end in monitor["spec"]["podMetricsEndpoints"]} <= set(exposed)
    broker, learner, worker = (config_of(manifests, role).broker for role in ("broker", "learner", "worker"))
    assert (broker.bind, broker.learner_bind) == ("tcp://0.0.0.0:5555", "tcp://0.0.0.0:5556")
    service = manifests.named("Service", "seedmq-broker")
    assert {port["port"] for port in service["spec"]["ports"]} == {5555, 5556}
    assert worker.connect == "tcp://seedmq-broker:5555" and learner.learner_connect == "tcp://seedmq-broker:5556"
    assert service["spec"]["publishNotReadyAddresses"], "a broker without a learner is not ready, and has to be found"


def check_settings_are_accepted(manifests: Manifests) -> None:
    for role in ROLES:
        environment = manifests.environment(manifests.workload(role))
        config = config_of(manifests, role)
        named = {name for name in environment if name not in ("SEEDMQ_CONFIG", "SEEDMQ_RUN")}
        assert all(variables.configures(name) for name in named), "each of the others is a setting"
        assert config.broker.placement == "process"
        assert config.security.keys == KEYS and not config.security.insecure
        run = config.run
        assert (run.solved_return, run.max_steps, run.max_seconds) == (None, None, None), "what ends is started again"
        assert config.evaluation.solved_return is None
        assert "SEEDMQ_WORKERS" not in environment, "a container runs one worker"
    assert len({config_hash(config_of(manifests, role)) for role in ROLES}) == 1
    worker, most = manifests.workload("worker"), config_of(manifests, "worker").environment.max_memory_bytes
    limit = container_of(worker)["resources"]["limits"]["memory"]
    assert most is not None and most <= 0.8 * int(limit.removesuffix("Gi")) * 2**30, "else it is killed for its memory"
    store = config_of(manifests, "learner").store
    assert store.url is not None and "@" not in store.url
    assert not any(name.startswith("SEEDMQ_STORE") for name in manifests.environment(manifests.workload("worker")))


def check_names_of_services_disturb_nobody(manifests: Manifests) -> None:
    """Kubernetes makes variables of services' names; with enableServiceLinks off ours get none, and none would harm."""
    made = {}
    for one in manifests.of("Service"):
        prefix = one["metadata"]["name"].upper().replace("-", "_")
        made |= {f"{prefix}_SERVICE_HOST": "10.0.0.1", f"{prefix}_PORT": "tcp://10.0.0.1:5555"}
        for port in one["spec"]["ports"]:
            made[f"{prefix}_SERVICE_PORT_{port['name'].upper()}"] = str(port["port"])
            for part in ("", "_PROTO", "_PORT", "_ADDR"):
                made[f"{prefix}_PORT_{port['port']}_TCP{part}"] = "x"
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("pipeline.config").addHandler(handler)
    try:
        assert variables.read(made) == []
    finally:
        logging.getLogger("pipeline.config").removeHandler(handler)
    assert heard == []
    assert all(pod_of(one)["enableServiceLinks"] is False for one in manifests.of(*WORKLOADS))


def check_commands_parse(manifests: Manifests) -> None:
    for role in ROLES:
        workload = manifests.workload(role)
        assert "command" not in container_of(workload), "the image's entry point is seedmq"
        command, *arguments = manifests.arguments(workload)
        assert command == role
        context = seedmq.commands[command].make_context(command, list(arguments))
        assert context.params["source"] == manifests.environment(workload)["SEEDMQ_CONFIG"]
        if role == "learner":
            assert context.params["resume"] and str(context.params["run_dir"]).startswith("/runs/")


def check_references(manifests: Manifests) -> None:
    accounts = {one["metadata"]["name"] for one in manifests.of("ServiceAccount")}
    maps = {one["metadata"]["name"] for one in manifests.of("ConfigMap")}
    for one in manifests.of(*WORKLOADS):
        pod = pod_of(one)
        assert pod.get("serviceAccountName", None) in {None, *accounts}
        for volume in pod["volumes"]:
            if "secret" in volume:
                assert volume["secret"]["secretName"] in SECRETS
            if "configMap" in volume and not volume["configMap"].get("optional"):
                assert volume["configMap"]["name"] in maps | AUTHORIZED
        declared = {volume["name"] for volume in pod["volumes"]}
        declared |= {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])}
        assert declared == {mount["name"] for mount in container_of(one)["volumeMounts"]}
        paths = [mount["mountPath"] for mount in container_of(one)["volumeMounts"]]
        assert len(set(paths)) == len(paths)


def check_secrets_reach_only_who_needs_them(manifests: Manifests) -> None:
    holders: dict[str, set[str]] = {}
    for one in manifests.of(*WORKLOADS):
        volumes = {volume["name"]: volume for volume in pod_of(one)["volumes"]}
        assert pod_of(one)["securityContext"]["fsGroup"] == 10001, "whose group may read what follows"
        for mount in container_of(one)["volumeMounts"]:
            volume = volumes.get(mount["name"], {})
            if "secret" in volume:
                component = labels_of(one).get(COMPONENT, labels_of(one)[NAME])
                holders.setdefault(volume["secret"]["secretName"], set()).add(component)
                assert volume["secret"]["defaultMode"] == 0o440 and mount["readOnly"] is True
            elif "configMap" in volume:
                assert mount["readOnly"] is True
    assert all(roles <= HOLDERS[name] for name, roles in holders.items()), holders
    for role in ROLES:
        assert role in holders[f"seedmq-{role}-keys"]
    config = config_of(manifests, "learner")
    assert config.store.password_file == "/run/seedmq/redis/password"
    mounts = {mount["mountPath"] for mount in container_of(manifests.workload("broker"))["volumeMounts"]}
    assert {f"{KEYS}/{name}" for name in (*SECRETS["seedmq-broker-keys"], "authorized/workers")} <= mounts
    for one in manifests.of("ConfigMap"):
        assert not any("password" in value for value in one["data"].values() if not value.startswith("/run/"))


def check_pods_are_confined(manifests: Manifests) -> None:
    """What the Pod Security Standard `restricted` asks for, and a little more."""
    (namespace,) = manifests.of("Namespace") or [None]
    if namespace is not None:
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for one in manifests.of("ServiceAccount"):
        assert one["automountServiceAccountToken"] is False
    for one in manifests.of(*WORKLOADS):
        pod, container = pod_of(one), container_of(one)
        context = pod["securityContext"]
        assert pod["automountServiceAccountToken"] is False
        assert (context["runAsNonRoot"], context["runAsUser"], context["runAsGroup"]) == (True, 10001, 10001)
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert all({"secret", "configMap", "emptyDir"} & set(volume) for volume in pod["volumes"])
        assert all("sizeLimit" in volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume)
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]
        assert "cpu" not in container["resources"]["limits"], "throttled in the midst of a step"
    for role in ROLES:
        mounts = {mount["mountPath"] for mount in container_of(manifests.workload(role))["volumeMounts"]}
        assert "/tmp" in mounts and ("/runs" in mounts) == (role == "learner"), "what is written to"


def check_images(manifests: Manifests) -> None:
    """One image with TensorFlow, for the learner; tags are this version's where an overlay has set one."""
    images = {role: container_of(manifests.workload(role))["image"] for role in ROLES}
    assert images["broker"] == images["worker"] != images["learner"]
    for image in images.values():
        _, colon, tag = image.rpartition("/")[2].partition(":")
        assert not colon or tag.removesuffix("-gpu") == __version__


def check_a_stop_leaves_time_to_drain(manifests: Manifests) -> None:
    longest = max(load(name, environ={}).config.run.drain_timeout_seconds for name in presets())
    for role in ROLES:
        longest = max(longest, config_of(manifests, role).run.drain_timeout_seconds)
    for one in manifests.of(*WORKLOADS):
        assert pod_of(one)["terminationGracePeriodSeconds"] >= longest + DRAINED_SECONDS


def check_the_autoscaler_stays_within_the_slots(manifests: Manifests) -> None:
    for one in manifests.of("HorizontalPodAutoscaler"):
        most = one["spec"]["maxReplicas"] * config_of(manifests, "worker").workers.envs
        assert most <= config_of(manifests, "learner").slots
        target = manifests.named("Deployment", one["spec"]["scaleTargetRef"]["name"])
        assert "cpu" in container_of(target)["resources"]["requests"], "utilization is measured by it"


def check_the_network_lets_through_what_flows(manifests: Manifests) -> None:
    broker, learner, worker = (manifests.workload(role) for role in ROLES)
    redis = [one for one in manifests.of("Deployment") if labels_of(one)[NAME] == "redis"]
    flows = [(worker, broker, 5555), (learner, broker, 5556), *((learner, one, 6379) for one in redis)]
    pods = [broker, learner, worker, *redis]
    for source in pods:
        for to in pods:
            for port in (*PORTS.values(), 6379):
                wanted = any(source is a and to is b and port == number for a, b, number in flows)
                passes = _lets_out(manifests, source, to, port) and _lets_in(manifests, to, source, port)
                assert passes == wanted, (labels_of(source), labels_of(to), port)
    for one in (broker, learner, worker):
        assert _lets_in(manifests, one, "monitoring", 9464) and not _lets_in(manifests, one, "default", 9464)
        assert not _lets_in(manifests, one, "monitoring", 5555)
        assert _lets_out(manifests, one, "kube-system", 53) and not _lets_out(manifests, one, "kube-system", 443)
    assert _lets_out(manifests, learner, None, 6380) and not _lets_out(manifests, worker, None, 6380)
    assert not _lets_out(manifests, learner, None, 443), "nothing else of the world"


Peer = Object | str | None
"""A workload of ours, a namespace of others, or an address."""


def _lets_out(manifests: Manifests, pod: Object, to: Peer, port: int) -> bool:
    return _lets(manifests, "Egress", pod, to, port)


def _lets_in(manifests: Manifests, pod: Object, source: Peer, port: int) -> bool:
    return _lets(manifests, "Ingress", pod, source, port)


def _lets(manifests: Manifests, direction: str, pod: Object, peer: Peer, port: int) -> bool:
    """As the API says: who is selected by no policy of a direction is free, else what any of them allows."""
    policies = [
        one["spec"]
        for one in manifests.of("NetworkPolicy")
        if direction in one["spec"]["policyTypes"] and pod in manifests.selected(one["spec"]["podSelector"])
    ]
    rules = [rule for policy in policies for rule in policy.get(direction.lower(), [])]
    side = "to" if direction == "Egress" else "from"
    return not policies or any(
        (side not in rule or any(_is(manifests, one, peer) for one in rule[side]))
        and ("ports" not in rule or any(one["port"] == port for one in rule["ports"]))
        for rule in rules
    )


def _is(manifests: Manifests, named: Object, peer: Peer) -> bool:
    if isinstance(peer, dict):
        return set(named) == {"podSelector"} and peer in manifests.selected(named["podSelector"])
    labels = named.get("namespaceSelector", {}).get("matchLabels", {})
    return peer is not None and labels == {"kubernetes.io/metadata.name": peer}


Check = Callable[[Manifests], None]
CHECKS: list[Check] = [value for name, value in sorted(globals().items()) if name.startswith("check_")]


@cache
def names() -> list[str]:
    """Of the checks, for pytest."""
    return [check.__name__.removeprefix("check_") for check in CHECKS]
