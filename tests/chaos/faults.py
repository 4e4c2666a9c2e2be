"""The catalogue of faults: what is done, how long the pipeline may take to recover from it, which losses it explains.

Recovered: trained transitions grow again, and every worker was heard of since and is served.
"""

from __future__ import annotations

import math
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import psutil

from pipeline.launch.processes import BROKER, LEARNER, STORE
from tests.chaos import environment
from tests.chaos.commands import CHECKPOINT_SECONDS, ENVIRONMENTS, JOINING, REMOTE, REPOSITORY
from tests.chaos.link import Link
from tests.chaos.middle import Fate
from tests.chaos.pipeline import STOP_SECONDS, Pipeline, pick
from tests.chaos.report import UNDELIVERED

Inject = Callable[[Pipeline, random.Random], None]

_RESTART, _LOST = {"learner_restart": math.inf}, {"store_lost": math.inf}
_AWAY = {"seam": float(ENVIRONMENTS)}
"""A worker that loses its lease and comes back: each of its environments' transition to its first row after it."""
_DIES = {UNDELIVERED: float(ENVIRONMENTS)}
"""A worker that ends without its last replies: each of its environments has one transition under way, at most."""
_NOT_FINITE = {"worker_non_finite": 1.0}

KILLED, TERMINATED = (-signal.SIGKILL,), (-signal.SIGTERM, 143, 0)
LEARNER_START_SECONDS = 60.0
"""Imports, building and tracing, on two cores that four workers use as well."""
WORKER_START_SECONDS = 40.0
STORE_SECONDS = 30.0
LOADED_KEYS, LOAD_SECONDS_PER_KEY = 6000, 1e-3
FILLER = "chaos:filler"
JOIN_SECONDS = 120.0
MESSAGES = {
    "duplicate": (Fate(duplicate=0.5), 4.0, ("repeated_step",)),
    "reorder": (Fate(duplicate=0.3, reorder=0.3), 4.0, ("stale_step",)),
    "late": (Fate(late=0.05), 6.0, ("repeated_step", "stale_step", "reply_not_awaited")),
    "drop": (Fate(drop=0.05), 4.0, ("repeated_step", "reply_not_awaited")),
}
"""What befalls messages, for how many seconds, and the broker's counters that show it, one of them at least."""


class Fault(NamedTuple):
    """``inject`` returns when the fault is over: what was stopped goes on, what was killed is dead.

    Attributes:
        recovery_seconds: The bound.
        explains: What it may cost: reason of the ledger, or undelivered, -> so many transitions.
    """

    name: str
    inject: Inject
    recovery_seconds: float
    explains: Mapping[str, float] = MappingProxyType({})


def _kill(role: str) -> Inject:
    def inject(pipeline: Pipeline, rng: random.Random) -> None:
        name = pick(pipeline, rng) if role == "worker" else role
        pipeline.signal(name, signal.SIGKILL, *KILLED)

    return inject


def _terminate(role: str) -> Inject:
    def inject(pipeline: Pipeline, rng: random.Random) -> None:
        name = pick(pipeline, rng) if role == "worker" else role
        pipeline.signal(name, signal.SIGTERM, *TERMINATED)
        pipeline.ends(name)

    return inject


def _suspend(role: str) -> Inject:
    """Stopped for a while that may be longer than leases and timeouts."""

    def inject(pipeline: Pipeline, rng: random.Random) -> None:
        name = pick(pipeline, rng) if role == "worker" else role
        pipeline.suspend(pipeline.pid(name), rng.uniform(0.5, 8.0))

    return inject


def _environments(number: int) -> Inject:
    """A signal to the process that steps a worker's environments."""

    def inject(pipeline: Pipeline, rng: random.Random) -> None:
        pipeline.hit(pipeline.environments(pick(pipeline, rng)), number)

    return inject


def _suspend_environments(pipeline: Pipeline, rng: random.Random) -> None:
    pipeline.suspend(pipeline.environments(pick(pipeline, rng)), rng.uniform(0.5, 8.0))


def _misbehave(fault: str) -> Inject:
    """An environment, whichever steps or resets next."""

    def inject(pipeline: Pipeline, rng: random.Random) -> None:
        flag = pipeline.flags / fault
        flag.touch()
        if not pipeline.wait(lambda: not flag.exists(), WORKER_START_SECONDS):
            raise RuntimeError(f"no environment took the fault {fault}")

    return inject


# The learner at staged moments.


def _kill_while_saving(pipeline: Pipeline, rng: random.Random) -> None:
    checkpoints = pipeline.directory / "checkpoints"
    pipeline.wait(lambda: any(checkpoints.glob(".partial-*")), 4 * CHECKPOINT_SECONDS, tick=0.0005)
    pipeline.signal(LEARNER, signal.SIGKILL, *KILLED)


def _kill_while_starting(pipeline: Pipeline, rng: random.Random) -> None:
    pipeline.signal(LEARNER, signal.SIGKILL, *KILLED)
    pipeline.ends(LEARNER)
    pipeline.pid(LEARNER)
    pipeline.hold(rng.uniform(0.0, 12.0))
    pipeline.signal(LEARNER, signal.SIGKILL, *KILLED)


def _kill_while_draining(pipeline: Pipeline, rng: random.Random) -> None:
    pid = pipeline.pid(LEARNER)
    pipeline.signal(LEARNER, signal.SIGTERM, *TERMINATED, *KILLED)
    pipeline.hold(rng.uniform(0.0, 1.0))
    pipeline.hit(pid, signal.SIGKILL)


def _kill_both(pipeline: Pipeline, rng: random.Random) -> None:
    pipeline.signal(BROKER, signal.SIGKILL, *KILLED)
    pipeline.signal(LEARNER, signal.SIGKILL, *KILLED)


def _kill_after_store_loss(pipeline: Pipeline, rng: random.Random) -> None:
    """The store is away until a checkpoint is due, comes back empty, and the learner dies right after it has saved."""
    pipeline.signal_store(signal.SIGKILL)
    pipeline.hold(CHECKPOINT_SECONDS)
    newest = pipeline.newest_checkpoint()
    pipeline.restart_store(lambda: _remove_data(pipeline))
    pipeline.wait(lambda: pipeline.newest_checkpoint() != newest, 4 * CHECKPOINT_SECONDS, tick=0.0005)
    pipeline.signal(LEARNER, signal.SIGKILL, *KILLED)


# The store.


def _kill_store(pipeline: Pipeline, rng: random.Random) -> None:
    pipeline.signal_store(signal.SIGKILL)
    pipeline.hold(rng.uniform(0.0, 4.0))
    pipeline.restart_store()


def _terminate_store(pipeline: Pipeline, rng: random.Random) -> None:
    pipeline.restart_store(lambda: pipeline.hold(rng.uniform(0.0, 4.0)))


def _empty_store(pipeline: Pipeline, rng: random.Random) -> None:
    """It comes back without its data."""
    pipeline.signal_store(signal.SIGKILL)
    pipeline.restart_store(lambda: _remove_data(pipeline))


def _remove_data(pipeline: Pipeline) -> None:
    for path in pipeline.store.directory.glob("appendonly*"):
        shutil.rmtree(path)


def _loading(pipeline: Pipeline, rng: random.Random) -> None:
    """It comes back, and answers LOADING while it reads what is not even ours."""
    with pipeline.admin() as admin:
        admin.bgrewriteaof()  # else the log holds all that happened so far
        if not pipeline.wait(lambda: not admin.info("persistence")["aof_rewrite_in_progress"], STORE_SECONDS):
            raise RuntimeError("the append-only file is not rewritten")
        for first in range(0, LOADED_KEYS, 1000):
            with admin.pipeline(transaction=False) as batch:
                for i in range(first, first + 1000):
                    batch.set(f"{FILLER}:{i}", i)
                batch.execute()
    pipeline.signal_store(signal.SIGKILL)
    pipeline.store.load_seconds_per_key = LOAD_SECONDS_PER_KEY
    try:
        pipeline.restart_store()
    finally:
        pipeline.store.load_seconds_per_key = 0.0
    with pipeline.admin() as admin:
        admin.config_set("key-load-delay", "0")
        foreign = sum(1 for _ in admin.scan_iter(f"{FILLER}:*", count=1000))
        if foreign != LOADED_KEYS:
            raise RuntimeError(f"of {LOADED_KEYS} keys that are not ours {foreign} are left")
        admin.delete(*(f"{FILLER}:{i}" for i in range(LOADED_KEYS)))


def _full(pipeline: Pipeline, rng: random.Random) -> None:
    with pipeline.admin() as admin:
        admin.config_set("maxmemory", "1")
        pipeline.hold(rng.uniform(1.0, 8.0))
        admin.config_set("maxmemory", "0")


def _pause(pipeline: Pipeline, rng: random.Random) -> None:
    seconds = rng.uniform(0.5, 6.0)
    with pipeline.admin() as admin:
        admin.client_pause(int(seconds * 1000), all=True)
    pipeline.hold(seconds)


def _cut_connections(pipeline: Pipeline, rng: random.Random) -> None:
    with pipeline.admin() as admin:
        for _ in range(rng.randint(1, 20)):
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            pipeline.hold(rng.uniform(0.0, 0.3))


def _read_only(pipeline: Pipeline, rng: random.Random) -> None:
    """A replica of a master that is not there."""
    with pipeline.admin() as admin:
        admin.replicaof("127.0.0.1", "1")
        pipeline.hold(rng.uniform(1.0, 6.0))
        admin.replicaof("NO", "ONE")


def _misconf(pipeline: Pipeline, rng: random.Random) -> None:
    """It cannot write a snapshot, and takes no writes for as long as it should."""
    blocked = pipeline.store.directory / "dump.rdb"
    blocked.mkdir()
    try:
        with pipeline.admin() as admin:
            admin.config_set("save", "3600 1")
            admin.bgsave(schedule=True)  # the append-only file may be rewritten just now
            if not pipeline.wait(lambda: admin.info("persistence")["rdb_last_bgsave_status"] != "ok", STORE_SECONDS):
                raise RuntimeError("a snapshot was written where it cannot be")
            pipeline.hold(rng.uniform(1.0, 6.0))
            admin.config_set("save", "")
    finally:
        blocked.rmdir()


# Messages between one of the workers and the broker.


def _messages(fate: Fate, seconds: float, counters: tuple[str, ...]) -> Inject:
    """The man in the middle deals it for so long, and until the broker has noticed."""

    def inject(pipeline: Pipeline, rng: random.Random) -> None:
        grown = pipeline.counter(*counters)
        before = pipeline.middle.shape(fate)
        try:
            pipeline.hold(seconds)
            noticed = pipeline.wait(grown, LEARNER_START_SECONDS, tick=0.2)
        finally:
            done = pipeline.middle.shape(Fate())
        what = {name: number - before[name] for name, number in done.items() if number != before[name]}
        print(f"          {what}; {' + '.join(counters)} grew by {grown()}", flush=True)
        if not noticed:
            raise RuntimeError(f"messages were {what}, and none of {counters} has grown")

    return inject


# What is no fault of anybody's.


def _leak(pipeline: Pipeline, rng: random.Random) -> None:
    """An environment grows by more than its worker may."""
    worker = pick(pipeline, rng)
    pid = pipeline.environments(worker)
    pipeline.leaking.add(pid)
    flag = pipeline.flags / f"{environment.LEAK}.{pid}"
    flag.touch()
    if not pipeline.wait(lambda: not psutil.pid_exists(pid), WORKER_START_SECONDS):
        raise RuntimeError(f"the environments of {worker} go on, however large they are")
    if not pipeline.wait(lambda: "above environment.max_memory_bytes" in pipeline.log(worker), WORKER_START_SECONDS):
        raise RuntimeError(f"the environments of {worker} ended before they were too large")
    flag.unlink(missing_ok=True)


def _join(pipeline: Pipeline, rng: random.Random) -> None:
    """Hundreds of workers join at once, play, and leave in order."""
    command = [*pipeline.plan.fleet, "--clients", str(JOINING), "--steps", "10", "--deadline", str(JOIN_SECONDS)]
    log = pipeline.temporary / "fleet"
    with log.open("w+") as output:
        fleet = subprocess.Popen(command, stdout=output, stderr=output, env=pipeline.environment, cwd=REPOSITORY)
        try:
            ended = pipeline.wait(lambda: fleet.poll() is not None, JOIN_SECONDS + STOP_SECONDS)
        finally:
            fleet.kill()
            fleet.wait()
    said = log.read_text().strip().splitlines()[-1:]
    log.unlink()
    print(f"          {said}", flush=True)
    if not ended or fleet.returncode:
        raise RuntimeError(f"of {JOINING} workers that join at once some do not play: {said}")


# The network between two hosts.


def network(link: Link) -> list[Fault]:
    """Faults of the link that half of the workers are behind."""

    def slow(pipeline: Pipeline, rng: random.Random) -> None:
        link.shape(delay_seconds=0.02, loss=0.01)
        try:
            pipeline.hold(20.0)
            if not pipeline.trains(WORKER_START_SECONDS):
                raise RuntimeError("nothing is trained over a link of 20 ms that loses 1 %")
        finally:
            link.shape()

    def partition(pipeline: Pipeline, rng: random.Random) -> None:
        link.shape(loss=1.0)
        try:
            pipeline.hold(20.0)
        finally:
            link.shape()

    return [
        Fault("network.slow", slow, 20.0),
        Fault("network.partition", partition, 30.0, {reason: most * REMOTE for reason, most in _AWAY.items()}),
    ]


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("learner.kill", _kill(LEARNER), LEARNER_START_SECONDS, _RESTART),
        Fault("learner.terminate", _terminate(LEARNER), LEARNER_START_SECONDS, _RESTART),
        Fault("learner.suspend", _suspend(LEARNER), 20.0),
        Fault("learner.kill_while_saving", _kill_while_saving, LEARNER_START_SECONDS, _RESTART),
        Fault("learner.kill_while_starting", _kill_while_starting, LEARNER_START_SECONDS, _RESTART),
        Fault("learner.kill_while_draining", _kill_while_draining, LEARNER_START_SECONDS, _RESTART),
        Fault("learner.kill_with_broker", _kill_both, LEARNER_START_SECONDS, _RESTART),
        Fault("learner.kill_after_store_loss", _kill_after_store_loss, LEARNER_START_SECONDS, {**_RESTART, **_LOST}),
        Fault("broker.kill", _kill(BROKER), 20.0),
        Fault("broker.terminate", _terminate(BROKER), 20.0),
        Fault("broker.suspend", _suspend(BROKER), 20.0),
        Fault("worker.kill", _kill("worker"), WORKER_START_SECONDS, _DIES),
        Fault("worker.terminate", _terminate("worker"), WORKER_START_SECONDS, _DIES),
        Fault("worker.suspend", _suspend("worker"), 20.0),
        Fault("environments.kill", _environments(signal.SIGKILL), WORKER_START_SECONDS, _DIES),
        Fault("environments.terminate", _environments(signal.SIGTERM), 20.0),
        Fault("environments.suspend", _suspend_environments, WORKER_START_SECONDS, {**_AWAY, **_DIES}),
        *(Fault(f"environment.{fault}", _misbehave(fault), WORKER_START_SECONDS, _DIES) for fault in environment.FATAL),
        *(Fault(f"environment.{fault}", _misbehave(fault), 20.0, _NOT_FINITE) for fault in environment.NON_FINITE),
        Fault("store.kill", _kill_store, STORE_SECONDS, _LOST),
        Fault("store.terminate", _terminate_store, STORE_SECONDS),
        Fault("store.suspend", _suspend(STORE), STORE_SECONDS),
        Fault("store.empty", _empty_store, STORE_SECONDS, _LOST),
        Fault("store.loading", _loading, STORE_SECONDS, _LOST),
        Fault("store.full", _full, STORE_SECONDS),
        Fault("store.pause", _pause, STORE_SECONDS),
        Fault("store.cut_connections", _cut_connections, STORE_SECONDS),
        Fault("store.read_only", _read_only, STORE_SECONDS),
        Fault("store.misconf", _misconf, STORE_SECONDS),
        *(Fault(f"messages.{name}", _messages(*what), 20.0) for name, what in MESSAGES.items()),
        Fault("environment.leak", _leak, WORKER_START_SECONDS, _DIES),
        Fault("join.storm", _join, 20.0),
    )
}
"""By name; those of the network are made with the link."""
