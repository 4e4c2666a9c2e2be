"""A second host: a network namespace behind a link that delays, loses and is cut.

The link is two TUN devices and a process that carries packets between them, so it needs root and ``/dev/net/tun``, and
no queueing discipline of the kernel's.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from types import TracebackType

import psutil

TUN = "/dev/net/tun"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKET_BYTES = 2048
QUEUE_PACKETS = 20_000
END_SECONDS = 5.0


def missing() -> str | None:
    """Why there can be no second host here; None where there can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip`"
    try:
        os.close(os.open(TUN, os.O_RDWR))
    except OSError as error:
        return f"{TUN}: {error.strerror}"
    made = subprocess.run(["ip", "netns", "add", _name("try")], capture_output=True, text=True, check=False)
    if made.returncode:
        return made.stderr.strip()
    _ip("netns", "del", _name("try"))
    return None


class Link:
    """``with Link() as link``: a command that starts with ``link.there`` runs on the other host.

    Args:
        alone: this end stands in a namespace of its own too, where nothing else listens.

    Attributes:
        address: of this host, as the other one sees it.
        here: the beginning of a command line on this host; empty where it is not ``alone``.
        there: the beginning of a command line on the other one.
    """

    def __init__(self, alone: bool = False) -> None:
        self._namespaces = [_name("host")] + [_name("here")] * alone
        network = f"198.18.{os.getpid() % 256}"
        self.address, self._other = f"{network}.1", f"{network}.2"
        self.there, *here = (["ip", "netns", "exec", name] for name in self._namespaces)
        self.here = here[0] if alone else []
        self._pump: subprocess.Popen[bytes] | None = None

    def shape(self, delay_seconds: float = 0.0, loss: float = 0.0) -> None:
        """From now on each packet takes so long, or is lost with that probability, in either direction."""
        assert self._pump is not None and self._pump.stdin is not None
        self._pump.stdin.write(f"{delay_seconds} {loss}\n".encode())
        self._pump.stdin.flush()

    def __enter__(self) -> Link:
        _sweep()
        here, there = f"chh{os.getpid()}", f"cht{os.getpid()}"
        ends = [_tun(here), _tun(there)]
        try:
            for device, name in zip((there, here), self._namespaces, strict=False):
                _ip("netns", "add", name)
                _ip("link", "set", device, "netns", name)
                _ip("-n", name, "link", "set", "lo", "up")
            for device, address, command in ((here, self.address, self.here), (there, self._other, self.there)):
                where = ["-n", command[-1]] if command else []
                _ip(*where, "addr", "add", f"{address}/30", "dev", device)
                _ip(*where, "link", "set", device, "up")
            command = [sys.executable, "-m", "tests.chaos.link", *map(str, ends)]
            self._pump = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=ends)
        except BaseException:
            self.close()
            raise
        finally:
            for end in ends:
                os.close(end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Removes the host and the link."""
        if self._pump is not None:
            assert self._pump.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._pump.stdin.close()
            self._pump.wait(END_SECONDS)
            self._pump = None
        for name in self._namespaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _name(kind: str) -> str:
    return f"chaos-{kind}-{os.getpid()}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _sweep() -> None:
    """Removes the namespaces of those that were killed."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith("chaos-")):
        pid = name.rpartition("-")[2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            _ip("netns", "del", name)


def _tun(device: str) -> int:
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH14x", device.encode(), _IFF_TUN | _IFF_NO_PI))
    return descriptor


def pump(ends: tuple[int, int], orders: int) -> None:
    """Carries packets between the two ends until ``orders`` (lines of delay and loss) is closed."""
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    delay, loss, number, words = 0.0, 0.0, 0, b""
    waiting: list[tuple[float, int, int, bytes]] = []
    chance = random.Random(0)
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        readable, _, _ = select.select([*ends, orders], [], [], patience)
        for source in readable:
            if source == orders:
                data = os.read(orders, PACKET_BYTES)
                if not data:
                    return
                *lines, words = (words + data).split(b"\n")
                for line in lines:
                    delay, loss = map(float, line.split())
                continue
            packet = os.read(source, PACKET_BYTES)
            if chance.random() >= loss and len(waiting) < QUEUE_PACKETS:
                number += 1
                heapq.heappush(waiting, (time.monotonic() + delay, number, other[source], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # a full device loses packets, as networks do
                os.write(target, packet)


if __name__ == "__main__":
    pump((int(sys.argv[1]), int(sys.argv[2])), sys.stdin.fileno())
