"""What a flood of idle connections costs admitted workers: requests per second with and without it, in turn, and the
broker's own CPU time per request, which what else the machine does hardly changes.

``python -m benchmarks.flood [--connections N] [--seconds S] [--repeats R]``: a broker process with keys, one worker
with two groups and one learner that answers at once, all on this machine. The flood is a process of its own that opens
TCP connections, says nothing, and opens each again that the broker closes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from benchmarks.harness import cpu_seconds
from pipeline import keys
from pipeline.config.tree import BrokerSection, Config, EnvironmentSection, SecuritySection
from pipeline.protocol import Hello, Kind, Report, decode, encode
from pipeline.requests import Joined, Reply
from pipeline.rows import ROW
from pipeline.run_dir import write_text
from pipeline.sockets import worker_socket
from pipeline.sources import BrokerSource
from pipeline.spaces import Leaf, Spaces

SPACES = Spaces((Leaf("observation", "box", "uint8", (84, 84)),), Leaf("action", "discrete", "int64", (), n=4))
ROWS, RUN, GROUPS = 8, 1, 2
START_SECONDS = 60.0
WARM_UP_SECONDS = 1.0


class Pair:
    """A worker and a learner in one loop: each request is sent as soon as the one before is answered."""

    def __init__(self, config: Config) -> None:
        self._context: Any = zmq.Context()
        self._socket = worker_socket(self._context, config.broker, config.security)
        self._source = BrokerSource(config, None, "learner", 1024)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._sequences = [0] * GROUPS
        rows = np.zeros(ROWS, ROW)
        rows["environment"] = np.arange(ROWS)
        self._buffers = [rows.tobytes(), bytes(ROWS * 84 * 84)]
        self.answered = 0
        self._heartbeat = 0.0

    def join(self) -> None:
        """Until the worker is welcome, then the first requests."""
        hello = Hello("w", RUN, "train", SPACES.to_wire(), [ROWS] * GROUPS, "", -1, {}, {})
        deadline, due, welcome = time.monotonic() + START_SECONDS, 0.0, False
        while not welcome:
            if time.monotonic() > deadline:
                raise TimeoutError("the broker does not welcome the worker")
            if time.monotonic() >= due and self._socket.poll(0, zmq.POLLOUT):
                self._socket.send(encode(Kind.HELLO, hello.to_wire()))
                due = time.monotonic() + 0.5
            self._learn()
            while self._socket.poll(0):
                welcome = decode(self._socket.recv_multipart()).kind == Kind.WELCOME or welcome
        for group in range(GROUPS):
            self._ask(group)

    def rate(self, seconds: float) -> float:
        """Requests answered per second."""
        began, before = time.monotonic(), self.answered
        while time.monotonic() < began + seconds:
            self._learn()
            while self._socket.poll(0):
                self._take(decode(self._socket.recv_multipart()))
        return (self.answered - before) / (time.monotonic() - began)

    def close(self) -> None:
        self._source.close()
        self._socket.close(linger=0)
        self._context.term()

    def _learn(self) -> None:
        requests, events = self._source.poll(512, 0.001)
        for event in events:
            if isinstance(event, Joined):
                self._source.admit(event.worker, event.run, event.worker, False)
        self._source.reply([Reply(x.worker, x.run, x.group, x.sequence, bytes(8 * x.replies)) for x in requests])
        if time.monotonic() >= self._heartbeat and self._socket.poll(0, zmq.POLLOUT):
            self._socket.send(encode(Kind.HEARTBEAT, RUN, Report().to_wire()))
            self._heartbeat = time.monotonic() + 1.0

    def _take(self, message: Any) -> None:
        if message.kind == Kind.ACTIONS and message.fields[2] == self._sequences[message.fields[1]]:
            self.answered += 1
            self._sequences[message.fields[1]] += 1
            self._ask(message.fields[1])

    def _ask(self, group: int) -> None:
        head = encode(Kind.STEP, RUN, group, self._sequences[group], ROWS, ROWS)
        self._socket.send_multipart([head, *self._buffers])


def flood(port: int, connections: int) -> None:
    """Runs until it is killed; prints a line once all connections stand."""
    poll, open_ = select.poll(), {}

    def connect() -> None:
        made = socket.create_connection(("127.0.0.1", port))
        open_[made.fileno()] = made
        poll.register(made, select.POLLRDHUP | select.POLLHUP | select.POLLERR)

    for _ in range(connections):
        connect()
    print("flooding", flush=True)
    while True:
        for descriptor, _ in poll.poll(1000):
            poll.unregister(descriptor)
            open_.pop(descriptor).close()
            connect()


@contextlib.contextmanager
def flooding(port: int, connections: int) -> Iterator[None]:
    """A flood for as long as the block lasts."""
    command = [sys.executable, "-m", "benchmarks.flood", "--flood", str(port), "--connections", str(connections)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"flooding\n"
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def broker_with_keys(folder: Path) -> Iterator[tuple[Config, int]]:
    """A broker process on the loopback; gives the configuration of its clients and its process id."""
    keys.write_keys(folder / "keys")
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    broker = BrokerSection(bind=f"tcp://127.0.0.1:{ports[0]}", learner_bind=f"tcp://127.0.0.1:{ports[1]}")
    security = SecuritySection(keys=str(folder / "keys"))
    config = Config(environment=EnvironmentSection(id="none"), broker=broker, security=security)
    file = folder / "config.yaml"
    write_text(file, json.dumps(config.model_dump(mode="json", by_alias=True)))
    command = [sys.executable, "-m", "pipeline.cli", "-q", "broker", "--config", str(file)]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield config, process.pid
        finally:
            process.terminate()


def one(pair: Pair, pid: int, seconds: float) -> tuple[float, float]:
    """Requests per second, and CPU seconds of the broker per request."""
    cpu, before = cpu_seconds([pid]), pair.answered
    rate = pair.rate(seconds)
    return rate, (cpu_seconds([pid]) - cpu) / max(1, pair.answered - before)


def measure(connections: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Alternates without and with the flood; a ratio is the median of the pairs' ratios."""
    with tempfile.TemporaryDirectory(prefix="flood-") as name, broker_with_keys(Path(name)) as (config, pid):
        port = int(config.broker.bind.rpartition(":")[2])
        pair = Pair(config)
        try:
            pair.join()
            pair.rate(WARM_UP_SECONDS)
            quiet, loud = [], []
            for _ in range(repeats):
                quiet.append(one(pair, pid, seconds))
                with flooding(port, connections):
                    loud.append(one(pair, pid, seconds))
        finally:
            pair.close()
    ratios = [[a / b for a, b in zip(flooded, alone, strict=True)] for flooded, alone in zip(loud, quiet, strict=True)]
    return {
        "connections": connections,
        "cpus": os.cpu_count(),
        "requests_per_second": statistics.median(rate for rate, _ in quiet),
        "requests_per_second_flooded": statistics.median(rate for rate, _ in loud),
        "requests_per_second_ratio": statistics.median(rate for rate, _ in ratios),
        "broker_cpu_microseconds_per_request": 1e6 * statistics.median(cpu for _, cpu in quiet),
        "broker_cpu_microseconds_per_request_flooded": 1e6 * statistics.median(cpu for _, cpu in loud),
        "broker_cpu_ratio": statistics.median(cpu for _, cpu in ratios),
        "ratios": ratios,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--flood", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flood is not None:
        flood(options.flood, options.connections)
    print(json.dumps(measure(options.connections, options.seconds, options.repeats), indent=1))


if __name__ == "__main__":
    main()
