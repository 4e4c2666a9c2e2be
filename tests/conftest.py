"""For all tests: a time limit by tier, and a failure where a thread, process, socket or context is left behind."""

from __future__ import annotations

import gc
import logging
import os
import socket
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import zmq
import zmq.utils.garbage

from pipeline import logs
from pipeline.stopping import OwnedThread

TIERS = {"unit": 120, "integration": 300, "system": 1200}
"""Seconds that one test may take, its fixtures included; a ``timeout`` mark of its own goes first."""
PATIENCE_SECONDS = 30.0
"""What is about to end when the test does may take so long."""

_contexts: weakref.WeakSet[zmq.Context] = weakref.WeakSet()
_make_context = zmq.Context.__init__


def _remember_context(self: zmq.Context, *args: object, **kwargs: object) -> None:
    _make_context(self, *args, **kwargs)
    _contexts.add(self)


zmq.Context.__init__ = _remember_context


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        tier = next((name for name in TIERS if item.get_closest_marker(name)), folder)
        if tier not in TIERS:
            raise pytest.UsageError(f"{item.nodeid} belongs to no tier: set pytestmark = pytest.mark.unit or the like")
        item.add_marker(getattr(pytest.mark, tier))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIERS[tier]))


@pytest.fixture(autouse=True)
def logs_end_with_the_test() -> Iterator[None]:
    """What a command that ran within the test has set up writes to a stream that pytest closes."""
    yield
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if logs.is_ours(handler):
            root.removeHandler(handler)


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fails the test that leaves something behind; what fixtures of a wider scope hold was there before it."""
    checks: list[tuple[str, Callable[[], dict[object, str]]]] = [
        ("threads", _threads),
        ("child processes", _children),
        ("ZeroMQ contexts (close their sockets, then term())", _open_contexts),
        ("listening sockets", _listening),
    ]
    before = [set(look()) for _, look in checks]
    yield
    deadline = time.monotonic() + PATIENCE_SECONDS
    found = [(what, _left(look, old, deadline)) for (what, look), old in zip(checks, before, strict=True)]
    left = [f"{what}: {names}" for what, names in found if names]
    if left:
        pytest.fail("the test left behind " + "; ".join(left), pytrace=False)


def _left(look: Callable[[], dict[object, str]], before: set[object], deadline: float) -> str:
    """What is there that was not, once nothing more goes away by itself."""
    while found := {key: name for key, name in look().items() if key not in before}:
        if time.monotonic() > deadline:
            return ", ".join(sorted(found.values()))
        gc.collect()
        threading.Event().wait(0.02)
    return ""


def _threads() -> dict[object, str]:
    """Threads that keep the process alive, and ours, which somebody has to join."""
    return {
        id(thread): thread.name
        for thread in threading.enumerate()
        if isinstance(thread, OwnedThread) or not thread.daemon
    }


def _children() -> dict[object, str]:
    found: dict[object, str] = {}
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
        except psutil.Error:
            command = child.name() if child.is_running() else ""
        # multiprocessing keeps its tracker until the interpreter ends.
        if child.is_running() and "resource_tracker" not in command:
            found[(child.pid, child.create_time())] = f"{child.pid} {command[:200]}"
    return found


def _open_contexts() -> dict[object, str]:
    """But for the one by which pyzmq hears, once it has sent something without a copy, that it is sent."""
    made = [context for context in list(_contexts) if context is not zmq.utils.garbage.gc._context]
    return {id(context): repr(context) for context in made if not context.closed}


def _listening() -> dict[object, str]:
    """Sockets of this process that accept connections: inode -> address."""
    found: dict[object, str] = {}
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            status = os.fstat(int(name))
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found[status.st_ino] = str(copy.getsockname())
        except OSError:
            # Closed since the listing, by its owner.
            continue
    return found
