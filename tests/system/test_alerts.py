"""A real Prometheus sees every role of a real pipeline, and each alert rule fires in the fault that it is for.

The rules are those of ``monitoring/alerts.yml`` with windows of seconds and without ``for``. ``SeedmqLedgerError`` only
fires in series made for it: its fault would be an error of seedmq.
"""

import os
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml
import zmq

from pipeline import keys, sockets
from pipeline.config.tree import BrokerSection, SecuritySection
from pipeline.metrics.catalogue import EMBEDDED, EPISODES, METRICS, PROCESS, REPLAY
from tests.prometheus import MONITORING, Prometheus, panels, promtool, rules
from tests.runs import free_ports, settings

pytestmark = pytest.mark.system

PASSWORD = "correct-horse-battery"
FAULT_SECONDS = 40.0
START_SECONDS = 90.0
MADE_FOR_IT = "SeedmqLedgerError"
TOO_STRICT = "SeedmqTransitionsDropped"
"""Fires all the time in a pipeline whose ``training.max_lag`` is 0."""
HELD = {"SeedmqEnvironmentsHeldBack", "SeedmqInferenceLatencyHigh", "SeedmqPolicyLagHigh"}
"""Fire in a run whose training is far slower than its workers."""
MANY_MESSAGES = 3000
"""More than ``broker.max_messages_per_second`` below."""
ENVIRONMENTS = "seedmq_environments_process_"


class Pipeline:
    """Broker, learner and two workers as processes of their own, with keys."""

    def __init__(self, commands, server):
        self._commands = commands
        front, back, *self.ports = free_ports(7)
        self.fleet, self.endpoint = commands.cwd / "fleet", f"tcp://127.0.0.1:{front}"
        keys.write_keys(self.fleet)
        password = commands.cwd / "password"
        password.write_text(PASSWORD)
        password.chmod(0o600)
        self._values = settings(
            "broker.placement=process", f"broker.bind={self.endpoint}", f"broker.learner_bind=tcp://127.0.0.1:{back}",
            "broker.heartbeat_seconds=0.3", "broker.lease_seconds=4", "broker.max_workers=2",
            f"broker.max_messages_per_second={MANY_MESSAGES - 1000}", f"security.keys={self.fleet}",
            f"store.url=redis://{server.tcp[0]}:{server.tcp[1]}", f"store.password_file={password}",
            "store.operation_timeout_seconds=1", "training.max_lag=0", "workers.envs=8",
            "environment.step_timeout_seconds=4", "environment.reset_timeout_seconds=30",
            "environment.fault_budget=1000", "checkpoint.interval_seconds=1",
            "run.log_interval_seconds=0.5", "run.solved_return=null", "run.max_seconds=null", "run.max_steps=null",
        )  # fmt: skip
        self.broker = self._start("broker", 0)
        self.learner = self._start("learner", 1, "--run-dir", "run")
        self.workers = [self.worker(number) for number in range(2)]

    def targets(self) -> dict[str, list[str]]:
        broker, learner, *workers = (f"127.0.0.1:{port}" for port in self.ports[:4])
        return {"broker": [broker], "learner": [learner], "worker": workers}

    def worker(self, number: int):
        return self._start("worker", 2 + number, *settings(f"workers.id=w{number}"))

    def resume(self) -> None:
        self.learner = self._start("learner", 1, "--run-dir", "run", "--resume")

    def children(self) -> list[psutil.Process]:
        """The processes that step environments: children of those that keep them."""
        found = []
        for child in (child for worker in self.workers for child in psutil.Process(worker.pid).children()):
            try:
                found += [one for one in child.children() if "spawn_main" in " ".join(one.cmdline())]
            except psutil.Error:  # it has just ended
                continue
        return found

    def _start(self, role: str, place: int, *arguments: str):
        bind = f"127.0.0.1:{self.ports[place]}"
        command = ("-q", role, "--config", "cartpole_vtrace", *self._values, *arguments)
        return self._commands.start(*command, SEEDMQ_METRICS__BIND=bind)


@pytest.fixture
def prometheus(tmp_path) -> Iterator:
    made = []

    def start(targets):
        made.append(Prometheus(tmp_path / "prometheus", targets))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def fault(until):
    """Stages one: its alerts do not fire before it, and do after it."""
    staged = set()

    @contextmanager
    def stage(seen: Prometheus, *names: str) -> Iterator[None]:
        wanted, found = set(names), set()
        until(lambda: not wanted & seen.firing(), FAULT_SECONDS, f"none of {names} fires before its fault")
        yield

        def fire(name: str) -> bool:
            found.update(seen.firing())
            return name in found

        for name in names:
            until(lambda name=name: fire(name), FAULT_SECONDS, f"{name} fires")
        staged.update(names)

    stage.staged = staged
    return stage


def expected(role: str, *conditions: str) -> set[str]:
    """Names of series that a role must have, where these conditions of the catalogue hold."""
    metrics = [metric for metric in METRICS if role in metric.roles]
    names = {metric.name + ("_count" if metric.kind == "histogram" else "") for metric in metrics
             if not metric.when or metric.when in conditions or metric.name.startswith(ENVIRONMENTS)}  # fmt: skip
    return names | {"seedmq_worker_phase_seconds"} if role == "worker" else names


def missing(seen: Prometheus, job: str, names: set[str]) -> set[str]:
    series = seen.get("series", **{"match[]": f'{{job="{job}"}}'}) or []
    return names - {one["__name__"] for one in series}


def foreign(pipeline: Pipeline, folder: Path) -> None:
    """Somebody with keys of another fleet tries to connect."""
    keys.write_keys(folder)
    for name in ("server.key", "server.key_secret"):
        (folder / name).unlink()
    shutil.copy(pipeline.fleet / "server.key", folder)
    _send(pipeline.endpoint, folder, 1)


def _send(endpoint: str, folder: Path, messages: int) -> None:
    """Messages that are none of the protocol, by a real socket."""
    context = zmq.Context()
    broker = BrokerSection(bind=endpoint)
    with sockets.worker_socket(context, broker, SecuritySection(keys=str(folder))) as socket:
        for _ in range(messages):
            socket.poll(1000, zmq.POLLOUT) and socket.send(b"nonsense")
        socket.poll(1000)
        socket.close(linger=2000)
    context.term()


def ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def all_is_seen(seen, until):
    """What is documented of each role, and what the dashboard shows, but for panels of other runs."""
    for role, conditions in (("broker", [EMBEDDED]), ("learner", [PROCESS, EPISODES]), ("worker", [])):
        names = expected(role, *conditions) - ({"seedmq_broker_wait_seconds_count"} if role == "learner" else set())
        names -= {"seedmq_broker_wait_seconds"}
        until(lambda role=role, names=names: not missing(seen, role, names), 30, f"all that is documented of {role}")
    until(lambda: seen.query("seedmq_store_unrolls"), 30, "the store's depth")
    empty = {title for title, expression in panels() if not seen.query(expression)}
    assert empty <= {"Replay ratio", "Transitions in the replay", "Inserted and evicted per second", "Store's memory",
                     "Messages dropped per second", "Learner started"}, empty  # fmt: skip


def test_each_rule_fires_in_its_fault_in_a_pipeline_of_processes(commands, until, their_redis, prometheus, fault):
    server, client = their_redis
    pipeline = Pipeline(commands, server)
    seen = prometheus(pipeline.targets())
    until(lambda: seen.up() == {"broker": 1, "learner": 1, "worker": 2}, START_SECONDS, "all targets up")
    until(lambda: seen.query("seedmq_updates_total > 5"), START_SECONDS, "training")
    all_is_seen(seen, until)
    until(lambda: seen.firing() == {TOO_STRICT}, FAULT_SECONDS, "nothing else fires while all is well")

    # At once: who may not come in, and what may not stand in the store.
    names = "AuthenticationFailures", "MessagesRefused", "ConnectionsCut", "JoinsRefused", "UnrollsDamaged"
    with fault(seen, *(f"Seedmq{name}" for name in names)):
        third = pipeline.worker(2)
        foreign(pipeline, commands.cwd / "other")
        client.xadd("seedmq:unrolls", {"v": 1, "p": b"garbage"})
        _send(pipeline.endpoint, pipeline.fleet, MANY_MESSAGES)
    with fault(seen, "SeedmqStoreMemory"):
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 0.95))
    client.config_set("maxmemory", 0)
    ended(third)

    # Environments die, again and again; one hangs.
    with fault(seen, "SeedmqEnvironmentFaults", "SeedmqWorkersRestarting"):
        for _ in range(3):
            children = pipeline.children()
            for child in children:
                child.kill()
            until(lambda old=children: len(set(pipeline.children()) - set(old)) == 2, 30, "their successors")
    until(lambda: seen.query("sum(seedmq_worker_phase_seconds{phase=~'step|waiting'} < 1) >= 0"), 60, "they step again")
    with fault(seen, "SeedmqEnvironmentHangs"):
        pipeline.children()[0].suspend()

    # The store stands still; then the disk takes nothing.
    with fault(seen, "SeedmqStoreAway", "SeedmqTrainingStalled"):
        os.kill(server.pid, signal.SIGSTOP)
    os.kill(server.pid, signal.SIGCONT)
    until(lambda: seen.query("rate(seedmq_updates_total[5s]) > 0"), START_SECONDS, "training goes on")
    with fault(seen, "SeedmqDiskRefusesWrites"):
        before = resource.prlimit(pipeline.learner.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    resource.prlimit(pipeline.learner.pid, resource.RLIMIT_FSIZE, before)

    # The learner dies and comes back; the workers die; the broker dies.
    with fault(seen, "SeedmqLearnerDown", "SeedmqNoLearner", "SeedmqNotReady"):
        ended(pipeline.learner)
    with fault(seen, "SeedmqLearnerRestarted"):
        pipeline.resume()
    until(lambda: seen.query("sum(seedmq_ready) == 4"), START_SECONDS, "all are ready again")
    with fault(seen, "SeedmqWorkerDown", "SeedmqWorkersDown", "SeedmqNoWorkers"):
        for worker in pipeline.workers:
            ended(worker)
    with fault(seen, "SeedmqBrokerDown", "SeedmqBrokerUnreachable"):
        ended(pipeline.broker)
    ended(pipeline.learner)
    client.close()
    server.stop()
    commands.forget_sockets()
    assert {*fault.staged, *HELD, TOO_STRICT, MADE_FOR_IT} == {rule["alert"] for rule in rules()}


def test_a_run_whose_training_is_too_slow(commands, until, prometheus):
    """Also: ports of ``seedmq run``, and what a learner says that holds the broker."""
    (port,) = free_ports(1)
    values = settings(
        "workers.count=2", "workers.envs=256", "training.batch_size=1", "store.capacity=128",
        "network.hidden=[1024, 1024]", "run.solved_return=null", "run.log_interval_seconds=0.5",
        "run.max_seconds=null", "run.max_steps=null", f"metrics.bind=127.0.0.1:{port}",
    )  # fmt: skip
    run = commands.start("-q", "run", "cartpole_vtrace", *values, "--run-dir", "run")
    seen = prometheus({"learner": [f"127.0.0.1:{port}"], "worker": [f"127.0.0.1:{port + n}" for n in (2, 3)]})
    until(lambda: seen.up() == {"learner": 1, "worker": 2}, START_SECONDS, "all targets up")
    until(lambda: seen.query("seedmq_updates_total > 5"), START_SECONDS, "training")
    until(lambda: seen.firing() >= HELD, FAULT_SECONDS, f"{HELD} fire")
    names = expected("learner", EMBEDDED) - {"seedmq_broker_wait_seconds_count"}
    until(lambda: not missing(seen, "learner", names), 30, "all that is documented")
    assert "SeedmqBrokerDown" not in seen.firing() and not seen.query("seedmq_ledger_error != 0")
    run.send_signal(signal.SIGKILL)
    run.communicate()
    commands.forget_sockets()


def test_a_run_with_a_replay(commands, until, prometheus):
    (port,) = free_ports(1)
    values = settings("workers.count=1", "workers.envs=8", "run.solved_return=null", "store.backend=memory",
                      "replay.min_size=32", f"metrics.bind=127.0.0.1:{port}")  # fmt: skip
    run = commands.start("-q", "run", "cartpole_r2d2", *values, "--run-dir", "run")
    seen = prometheus({"learner": [f"127.0.0.1:{port}"], "worker": [f"127.0.0.1:{port + 2}"]})
    until(lambda: seen.query("seedmq_updates_total > 5"), START_SECONDS, "training")
    names = expected("learner", EMBEDDED, REPLAY, EPISODES)
    until(lambda: not missing(seen, "learner", names), 60, "all that is documented")
    replay = {"Replay ratio", "Transitions in the replay", "Inserted and evicted per second"}
    until(lambda: all(seen.query(expression) for title, expression in panels() if title in replay), 30, "its panels")
    run.send_signal(signal.SIGKILL)
    run.communicate()
    commands.forget_sockets()


@pytest.mark.parametrize("role", ["broker", "worker", "learner"])
def test_a_taken_address_ends_a_process_with_its_name(commands, role):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        values = settings(f"metrics.bind={bind}", f"broker.bind=ipc://{commands.cwd}/b", "store.backend=memory",
                          f"broker.learner_bind=ipc://{commands.cwd}/l", "broker.placement=process")  # fmt: skip
        result = commands.run(role, "--config", "cartpole_vtrace", *values, timeout=60)
    assert result.returncode == 2, result.stdout
    assert f"metrics.bind = '{bind}'" in result.stdout and "in use" in result.stdout


def test_the_rules_in_series_made_for_them(tmp_path):
    """A ledger that does not close, as no pipeline has it; and nothing fires where all is well."""
    well = {
        'up{job="broker"}': "1x60", 'up{job="learner"}': "1x60", 'up{job="worker",instance="a"}': "1x60",
        'seedmq_learners{job="broker",state="connected"}': "1x60", 'seedmq_ready{job="learner"}': "1x60",
        'seedmq_workers{job="broker",state="admitted"}': "2x60", 'seedmq_broker_connected{job="learner"}': "1x60",
        'process_start_time_seconds{job="learner"}': "100x60", 'seedmq_updates_total{job="learner"}': "0+60x60",
        'seedmq_connections_refused_total{job="broker"}': "0x60", 'seedmq_store_away{job="learner"}': "0x60",
    }  # fmt: skip
    broken = {**well, 'seedmq_ledger_error{job="learner"}': "0x20 5x40"}
    names = [rule["alert"] for rule in rules()]
    (error,) = [rule for rule in rules() if rule["alert"] == "SeedmqLedgerError"]
    annotations = {**error["annotations"], "summary": error["annotations"]["summary"].replace("{{ $value }}", "5")}
    fired = {"exp_labels": {"job": "learner", "severity": "critical"}, "exp_annotations": annotations}

    def case(series, at_minute, name, alerts=()):
        return {
            "interval": "1m",
            "input_series": [{"series": key, "values": values} for key, values in series.items()],
            "alert_rule_test": [{"eval_time": f"{at_minute}m", "alertname": name, "exp_alerts": list(alerts)}],
        }

    cases = [case(well, 50, name) for name in names]
    cases += [case(broken, 19, "SeedmqLedgerError"), case(broken, 30, "SeedmqLedgerError", [fired])]
    file = tmp_path / "rules_test.yml"
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    file.write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": cases}))
    checked = subprocess.run([promtool(), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
