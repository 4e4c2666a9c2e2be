"""Environments that start simulators: other programs, which do not end by themselves and do not end when asked to.

``tests.simulators:Simulated-v0`` is a ``CounterEnv`` that starts three when it is made, as they occur: one as a child,
one that begins a session of its own, and one that forks twice and keeps nothing of its environment. Each ignores
SIGTERM and writes its process id to a file of its own in the folder ``pids``.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import psutil

from tests.counter_env import CounterEnv

_SIMULATOR = """
import os, signal, sys, time
way, folder = sys.argv[1:]
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if way == "daemon":
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
name = os.path.join(folder, str(os.getpid()))
open(name + ".part", "w").close()
os.rename(name + ".part", name)
time.sleep(600)
"""
WAYS = ("child", "session", "daemon")


class Simulated(CounterEnv):
    """Counts, and has simulators that it never looks after."""

    def __init__(self, pids: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for way in WAYS:
            command = [sys.executable, "-I", "-S", "-c", _SIMULATOR, way, pids]
            nothing = {} if way == "daemon" else None
            process = subprocess.Popen(command, start_new_session=way == "session", env=nothing)
            if way == "daemon":
                process.wait(60)


gymnasium.register("Simulated-v0", Simulated, disable_env_checker=True)


def started(folder: Path, number: int, seconds: float = 60.0) -> list[psutil.Process]:
    """So many simulators that have written their ids there, once there are; those that have ended are passed over."""
    for _ in range(int(seconds / 0.05)):
        names = [path.name for path in folder.iterdir() if path.suffix == ""]
        found = [psutil.Process(int(name)) for name in names if psutil.pid_exists(int(name))]
        if len(found) >= number:
            return found
        threading.Event().wait(0.05)
    raise AssertionError(f"{len(found)} of {number} simulators came")


def ended(processes: list[psutil.Process], seconds: float = 30.0) -> bool:
    """Whether they have within so long; a zombie has."""
    for _ in range(int(seconds / 0.05)):
        if not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
            return True
        threading.Event().wait(0.05)
    return False
