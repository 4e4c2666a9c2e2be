"""Ends what other people's code has started: simulators of environments, and what these started in turn.

Found by descent, not by name or group: a process that adopts (``adopting``) becomes the parent of each descendant whose
own parent dies, also of one that forked twice or began a session of its own. Two of them stand above an environment, so
that each may be killed: a keeper (``keep``), which is the parent of the process with the environments, and whoever
started the keeper. The keeper outlives its parent for as long as it takes to end what is left.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import psutil

log = logging.getLogger(__name__)

END = signal.SIGUSR2
"""Tells a keeper to end all it keeps; it gets it, too, when its parent dies."""
GRACE_SECONDS = 0.5
"""From SIGTERM to SIGKILL for what is left behind; none where the keeper's parent is dead."""
SWEEP_SECONDS = 5.0
"""What outlives SIGKILL for so long hangs in the kernel: it is named and left."""
LOOK_SECONDS = 1.0
_PAUSE_SECONDS = 0.01
_RELAYED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGCHLD})
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class _State:
    adopts = False


def _adopt(yes: bool) -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)
    _State.adopts = yes


@contextmanager
def adopting() -> Iterator[None]:
    """Meanwhile this process becomes the parent of descendants that have lost theirs. Children do not inherit it."""
    _adopt(True)
    try:
        yield
    finally:
        _adopt(False)


def end_orphans(spared: Collection[int]) -> None:
    """Ends children that are not ``spared``, and theirs, in a process that adopts; in others nothing."""
    if _State.adopts:
        end_descendants(spared)


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Asks the kernel for the signal when ``parent`` (its thread that started this process) dies, now if it has."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def children() -> frozenset[int]:
    """Process ids of this process' children."""
    return frozenset(child.pid for child in psutil.Process().children())


def end_descendants(spared: Collection[int] = (), grace_seconds: float = 0.0) -> None:
    """Ends and reaps all descendants, but not the children ``spared`` and theirs; warns of what cannot be ended.

    Args:
        spared: Process ids of children.
        grace_seconds: From SIGTERM to SIGKILL; 0: SIGKILL at once.
    """
    began, asked = time.monotonic(), set[psutil.Process]()
    while left := _descendants(spared):
        seconds = time.monotonic() - began
        if seconds > SWEEP_SECONDS:
            names = ", ".join(f"{process.pid} ({_name(process)})" for process in left)
            log.warning("not to be ended, they hang in the kernel: processes %s", names)
            return
        for process in left:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if seconds >= grace_seconds:
                    process.kill()
                elif process not in asked:
                    asked.add(process)
                    process.terminate()
                    process.resume()  # one that was stopped would not hear it
        time.sleep(_PAUSE_SECONDS)


def _descendants(spared: Collection[int]) -> list[psutil.Process]:
    """Those that live; children that have ended are reaped."""
    found = []
    for child in psutil.Process().children():
        if child.pid in spared:
            continue
        with suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)
                continue
            found += [child, *child.children(recursive=True)]
    return found


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.name())
    return "gone"


def keep(parent: int) -> None:
    """Goes on in a child of this process; this process itself becomes its keeper and does not return.

    The keeper begins a session, so no group is killed with it, and ends as its child did, with everything that the
    child has left. When it is told to (``END``), or its parent dies, it kills the child first. The child dies with it.

    Args:
        parent: Process id of who started this process.
    """
    _adopt(True)
    os.setsid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, END})
    die_with(parent, END)
    keeper = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries: they know of forks
        pid = os.fork()
    if pid:
        _end_as(_kept(pid, parent))
    _State.adopts = False
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    die_with(keeper)


def run_kept(work: Callable[[], int]) -> int:
    """Runs ``work`` in a process that is kept, and gives its code here as well; a signal to this one ends all at once.

    Returns in both processes: in the one that has worked, whose exception is raised there, and in this one, whose code
    is that of the other's end. Must be called on the main thread, before there are others.
    """
    spared, parent = children(), os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _RELAYED)
    with adopting():
        keeper = os.fork()
        if keeper == 0:
            keep(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return work()
        try:
            return _relayed(keeper)
        finally:
            end_descendants(spared)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _relayed(keeper: int) -> int:
    """Waits for the keeper; a signal to this process ends what is kept."""
    code = None
    while True:
        heard = signal.sigtimedwait(_RELAYED, LOOK_SECONDS)
        if heard is not None and heard.si_signo != signal.SIGCHLD:
            code = 128 + heard.si_signo
            os.kill(keeper, END)
        pid, status = os.waitpid(keeper, os.WNOHANG)
        if pid:
            ended = os.waitstatus_to_exitcode(status)
            return code if code is not None else ended if ended >= 0 else 128 - ended


def _kept(pid: int, parent: int) -> int:
    """The keeper's loop; the wait status of its child."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    status = None
    while status is None:
        heard = signal.sigtimedwait({signal.SIGCHLD, END}, LOOK_SECONDS)
        orphaned = os.getppid() != parent
        if orphaned or (heard is not None and heard.si_signo == END):
            os.kill(pid, signal.SIGKILL)
        status = _reaped(pid)
    end_descendants(grace_seconds=0.0 if os.getppid() != parent else GRACE_SECONDS)
    return status


def _reaped(pid: int) -> int | None:
    """Reaps every child that has ended; the wait status of ``pid`` if it is among them."""
    found = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found = ended[1] if ended[0] == pid else found
    return found


def _end_as(status: int) -> NoReturn:
    """Ends this process with that wait status; no core of it is written."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)
