"""A supervised worker in a thread of the test."""

from __future__ import annotations

import threading

import psutil

from pipeline.config.tree import Config
from pipeline.stopping import StopToken
from workers.supervisor import supervise


def config_of(where, kwargs=None, envs=4, groups=2, worker="w", environment="Counter-v0", limits=None, **sections):
    tree = {
        "environment": {"id": f"tests.counter_env:{environment}", "kwargs": kwargs or {}, **(limits or {})},
        "workers": {"envs": envs, "groups": groups, "id": worker},
        "run": {"drain_timeout_seconds": 60.0},
        "broker": {"bind": where if isinstance(where, str) else where.endpoint, "heartbeat_seconds": 0.2},
    }
    for name, values in sections.items():
        tree.setdefault(name, {}).update(values)
    return Config.model_validate(tree)


class Running:
    """A worker in a thread of this process; its child is a real process."""

    def __init__(self, config):
        self.stop, self.code = StopToken(), None
        self._thread = threading.Thread(target=self._run, args=(config,), daemon=True)
        self._thread.start()

    def _run(self, config):
        self.code = supervise(config, self.stop)

    def ended(self, seconds=120.0):
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the worker did not end in time"
        return self.code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop.stop("test")
        self._thread.join(120)
        assert not self._thread.is_alive()


def environments_processes():
    """Children of this process that step environments (multiprocessing's resource tracker stays)."""
    children = psutil.Process().children(recursive=True)
    return [c for c in children if c.status() != psutil.STATUS_ZOMBIE and "spawn_main" in " ".join(c.cmdline())]
