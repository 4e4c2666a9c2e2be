"""What tests say to ``seedmq run``, what they see of it, and how they measure time on a machine that others use."""

from __future__ import annotations

import os
import random
import resource
import socket
import time
from pathlib import Path
from typing import Any

from pipeline.run_dir import RunDirectory

PATIENT = "run.drain_timeout_seconds=90"
"""For runs of which a test asks what they leave: none is cut short because the machine is slow."""
END_SECONDS = 120.0
"""What such a run, or whatever else is to end by itself, may take until a test gives it up."""
LEAST = 0.05
_JIFFIES = os.sysconf("SC_CLK_TCK")
_ports: set[int] = set()


def settings(*values: str) -> list[str]:
    """``--set`` for each ``key=value``."""
    return [word for value in values for word in ("--set", value)]


def processor_seconds() -> float:
    """What children of this process that have ended have used, and theirs: their seconds where nothing else runs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def summary(directory: Path) -> dict[str, Any]:
    """``summary.json`` of a run directory; empty before it is first written."""
    return RunDirectory(directory).read_summary() or {}


class Stopwatch:
    """Seconds since it was made that are a process's own, for bounds that the product promises.

    Not counted are seconds in which work on this machine waited for a processor or a disk (``/proc/pressure``), or in
    which the host of a virtual machine gave its processors to others: a wait in the product counts in full, however
    busy the machine is. Where the kernel tells nothing of this, all seconds count; where it is always busy, a twentieth
    of them.
    """

    def __init__(self) -> None:
        self._began, self._held_up = time.monotonic(), _held_up()

    @property
    def elapsed(self) -> float:
        """All seconds."""
        return time.monotonic() - self._began

    @property
    def held_up(self) -> float:
        """Seconds that are not counted."""
        return min((1.0 - LEAST) * self.elapsed, _held_up() - self._held_up)

    @property
    def seconds(self) -> float:
        """Seconds that count."""
        held_up = self.held_up
        return self.elapsed - held_up

    def __str__(self) -> str:
        return f"{self.elapsed:.1f} s, of which the machine was busy for {self.held_up:.1f} s"


def _held_up() -> float:
    """Seconds since the machine's start in which somebody waited for it."""
    seconds = 0.0
    for name in ("cpu", "io"):
        try:
            some = Path("/proc/pressure", name).read_text().splitlines()[0]
        except OSError:  # no Linux, or one that does not count it
            continue
        seconds += int(some.rpartition("total=")[2]) / 1e6
    try:
        stolen = Path("/proc/stat").read_text().split(maxsplit=9)[8]
    except OSError:
        return seconds
    return seconds + int(stolen) / _JIFFIES


def free_ports(number: int) -> list[int]:
    """TCP ports of the loopback that nobody listens on, none of them twice in this process.

    Not those that the kernel gives to outgoing connections: one of them could be taken before the test's server binds
    its port, even by a client that tries to reach that server.
    """
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 32768
    found: list[int] = []
    while len(found) < number:
        port = random.SystemRandom().randrange(max(1024, first - 12000), first)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # somebody has it
                continue
        if port not in _ports:
            _ports.add(port)
            found.append(port)
    return found
