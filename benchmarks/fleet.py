"""Many workers in one process: real client state machines, each with a socket and environments of its own.

``python -m benchmarks.fleet --config PRESET --clients 500 --steps 20``. They join at once, step until each had so many
answers (or for so many seconds), and leave in order. The last line is JSON, ``Statistics``; exit code 0 if every client
joined, played and left in order.

A client is ``workers.session.Session`` on ``pipeline.sockets.worker_socket`` with the env groups of the worker; what is
missing of a worker is its supervisor. One loop drives them all, so a thousand clients share one core.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import zmq

from benchmarks.fleet_statistics import Statistics
from pipeline import protocol
from pipeline.config.load import load
from pipeline.config.tree import Config
from pipeline.errors import ConfigError
from pipeline.protocol import GroupReport, Hello, Report
from pipeline.sockets import Context, worker_socket
from pipeline.streams import environment_seeds
from workers.actions import Abandon, Action, Begin, Finish, Reconnect, Say, Send, Step, Timing
from workers.environments import make_group
from workers.rows import StepRows
from workers.session import Session

TICK_SECONDS = 0.02
"""How often deadlines are looked at, and what could not be sent is tried again."""
SPARE_FILES = 64
FILES = 2
"""Of one client: its connection, and what wakes its socket."""
LATENCIES = 100_000
"""So many of the last are kept."""


MakeGroups = Callable[[], list[Any]]


def groups_of(config: Config) -> list[Any]:
    """The env groups of one worker."""
    section = config.workers
    return [make_group(config.environment, section.envs // section.groups) for _ in range(section.groups)]


class Client:
    """One worker. Belongs to the fleet's thread.

    Args:
        context: The fleet's.
        config: Whose broker it joins.
        name: Its worker id.
        latencies: Takes the seconds of each answer.
        groups: Its env groups.

    Attributes:
        session: Its side of the protocol.
        welcomed_at: Monotonic seconds of its first WELCOME; None before it.
        acted_at: The same of its first ACTIONS.
        finish: How it ended; None while it lives.
        sent_at: By group: when its outstanding observations were sent first.
    """

    def __init__(self, context: Context, config: Config, name: str, latencies: deque[float], groups: list[Any]) -> None:
        self._context, self._config, self._groups = context, config, groups
        section = config.workers
        self._latencies = latencies
        self._outbox: dict[str, Send] = {}
        self.name = name
        self.run = secrets.randbits(62) + 1
        self.replies = self.repeated = self.reconnects = 0
        self.answers = [0] * len(groups)
        self._sent, self._last = [0] * len(groups), [0] * len(groups)  # transitions: see GroupReport
        self.welcomed_at: float | None = None
        self.acted_at: float | None = None
        self.finish: Finish | None = None
        self.sent_at = [0.0] * len(groups)
        self.socket = worker_socket(context, config.broker, config.security)
        spaces, drain = self._groups[0].spaces, config.run.drain_timeout_seconds
        sizes = [group.n for group in self._groups]
        hello = Hello(
            name, self.run, "train", spaces.to_wire(), sizes, "", -1, {}, {"host": "fleet", "pid": os.getpid()}
        )
        timing = Timing(
            reply=section.reply_timeout_seconds,
            connect=section.connect_timeout_seconds,
            replies_drain=0.5 * drain,
            goodbye=0.3 * drain,
            heartbeat=config.broker.heartbeat_seconds,
        )
        self.session = Session(hello, spaces.action.nbytes, timing, self.report, time.monotonic())

    def report(self) -> Report:
        counters = [group.counters() for group in self._groups]
        groups = [
            GroupReport(g.n, sent, last) for g, sent, last in zip(self._groups, self._sent, self._last, strict=True)
        ]
        return Report(
            sum(x.taken for x in counters),
            masked=sum(x.masked for x in counters),
            unsent=sum(x.taken for x in counters) - sum(self._sent),
            groups=tuple(groups),
        )

    def receive(self) -> None:
        """Takes what has come, and does what follows from it."""
        while self.finish is None:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._perform(self.session.received(protocol.decode(frames), time.monotonic()))

    def tick(self, now: float) -> None:
        """What time brings about."""
        if now >= self.session.deadline():
            self._perform(self.session.tick(now))
        self._flush()

    def leave(self) -> None:
        """In order: what is under way is answered, then BYE."""
        self._perform(self.session.drain("the fleet has played", time.monotonic()))

    def close(self) -> None:
        self.socket.close(linger=0)
        for group in self._groups:
            group.close()

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._outbox[action.key] = action
                    self.repeated += action.again
                case Begin():
                    self.welcomed_at = time.monotonic()
                    self._begin(action)
                case Step():
                    self._answered(action.group)
                    self._work(action.group, partial(self._groups[action.group].step, action.actions))
                case Abandon():
                    self._work(action.group, self._groups[action.group].abandon)
                case Reconnect():
                    self._outbox.clear()
                    self.reconnects += 1
                    self.socket.close(linger=0)
                    self.socket = worker_socket(self._context, self._config.broker, self._config.security)
                case Finish():
                    self.finish = action
                case Say():
                    pass  # a thousand of them say the same
        self._flush()

    def _begin(self, lease: Begin) -> None:
        offset = 0
        for index, group in enumerate(self._groups):
            seeds = environment_seeds(lease.seed, group.n, offset)
            self._work(index, partial(group.reset, seeds))
            offset += group.n

    def _answered(self, index: int) -> None:
        now = time.monotonic()
        self.acted_at = self.acted_at or now
        self.replies += 1
        self.answers[index] += 1
        self._latencies.append(now - self.sent_at[index])

    def _work(self, index: int, call: Callable[[], StepRows]) -> None:
        """Resets or steps a group and sends its rows."""
        group = self._groups[index]
        self.session.stepping(index)
        before, rows = group.counters().taken, call()
        if not self.session.over:
            self._last[index] = group.counters().taken - before
            self._sent[index] += self._last[index]
        now = self.sent_at[index] = time.monotonic()
        self._perform(self.session.stepped(index, len(rows.records), group.n, [rows.records, *rows.leaves], now))

    def _flush(self) -> None:
        while self._outbox:
            key = next(iter(self._outbox))
            message = self._outbox[key]
            try:
                self.socket.send_multipart([message.head, *message.buffers], zmq.NOBLOCK, copy=True)
            except zmq.Again:
                return
            del self._outbox[key]


class Fleet:
    """``with Fleet(config, 500) as fleet``; ``workers.envs`` and ``workers.groups`` are those of each client.

    Args:
        config: Whose broker they join, and what they play.
        clients: How many.
        name: What their worker ids begin with.
        make_groups: The env groups of a client; None: of the environment of ``config``.

    Raises:
        ConfigError: this process may not have as many descriptors.
    """

    def __init__(
        self, config: Config, clients: int, name: str = "fleet", make_groups: MakeGroups | None = None
    ) -> None:
        _allow_files(FILES * clients + SPARE_FILES)
        self._context: Context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 2 * clients + SPARE_FILES)  # those that are replaced close by and by
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self._poller = zmq.Poller()
        self._began = time.monotonic()
        make_groups = make_groups or partial(groups_of, config)
        self.clients = [
            Client(self._context, config, f"{name}-{i}", self._latencies, make_groups()) for i in range(clients)
        ]
        self._by_socket: dict[Any, Client] = {}
        self._living = list(self.clients)
        self._together = 0
        self._tick_at, self._ticked = 0.0, False
        for client in self.clients:
            self._register(client)

    def play(self, answers: int, deadline: float, seconds: float = 0.0) -> bool:
        """Until all have joined and each of their groups had so many answers, and for so many seconds at least.

        Args:
            answers: To each env group.
            deadline: Monotonic seconds: at the latest.
            seconds: Of playing, after the last has joined.

        Returns:
            Whether it came to that; not where clients ended, or time did.
        """

        def played() -> bool:
            if any(client.welcomed_at is None for client in self.clients):
                return False
            joined = max(client.welcomed_at or 0.0 for client in self.clients)
            return time.monotonic() >= joined + seconds and all(min(x.answers) >= answers for x in self.clients)

        return self.play_until(played, deadline) and played()

    def play_until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Until it holds, which is asked at every tick, or a client has ended; False: time did first."""
        return self._until(lambda: len(self._living) < len(self.clients) or condition(), deadline)

    def leave(self, deadline: float) -> bool:
        """All say BYE; whether all were answered in time."""
        for client in self._living:
            client.leave()
        self._until(lambda: not self._living, deadline)
        return all(client.finish is not None and client.finish.booked for client in self.clients)

    def statistics(self) -> Statistics:
        clients = self.clients
        welcomed = [x.welcomed_at - self._began for x in clients if x.welcomed_at is not None]
        acted = [x.acted_at - self._began for x in clients if x.acted_at is not None] or [0.0]
        latencies = sorted(self._latencies) or [0.0]
        failures = Counter(
            str(x.finish.error or "BYE was not answered")
            for x in clients
            if x.finish is not None and not x.finish.booked
        )
        return Statistics(
            clients=len(clients),
            joined=len(welcomed),
            together=self._together,
            steps=sum(x.report().taken for x in clients),
            replies=sum(x.replies for x in clients),
            repeated=sum(x.repeated for x in clients),
            reconnects=sum(x.reconnects for x in clients),
            join_seconds=round(max(welcomed, default=0.0), 3),
            first_action_seconds=(round(statistics.median(acted), 3), round(max(acted), 3)),
            latency_seconds=(
                round(statistics.median(latencies), 4), round(latencies[int(0.99 * (len(latencies) - 1))], 4)
            ),
            left=sum(x.finish is not None and x.finish.booked is not None for x in clients),
            failures=dict(failures),
        )  # fmt: skip

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self._context.term()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _until(self, condition: Callable[[], bool], deadline: float) -> bool:
        while True:
            self.turn()
            if self._ticked and condition():
                return True
            if time.monotonic() > deadline:
                return False

    def turn(self) -> None:
        """What has come, at the latest after ``TICK_SECONDS``; then what time brings about."""
        patience = max(0, int((self._tick_at - time.monotonic()) * 1000))
        for socket, _ in self._poller.poll(patience):
            client = self._by_socket[socket]
            client.receive()
            self._settle(client)
        now = time.monotonic()
        self._ticked = now >= self._tick_at
        if self._ticked:
            self._tick_at = now + TICK_SECONDS
            for client in list(self._living):
                client.tick(now)
                self._settle(client)
            held = {client.session.worker for client in self._living if client.welcomed_at is not None}
            self._together = max(self._together, len(held))

    def _register(self, client: Client) -> None:
        self._by_socket[client.socket] = client
        self._poller.register(client.socket, zmq.POLLIN)

    def _settle(self, client: Client) -> None:
        """After a client has acted: it may have ended, or have another socket."""
        if client.finish is None and self._by_socket.get(client.socket) is client:
            return
        for socket in [socket for socket, owner in self._by_socket.items() if owner is client]:
            self._poller.unregister(socket)
            del self._by_socket[socket]
        if client.finish is None:
            self._register(client)
        elif client in self._living:
            self._living.remove(client)


def _allow_files(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= number:
        return
    if hard != resource.RLIM_INFINITY and hard < number:
        raise ConfigError(f"{number} descriptors are needed, and `ulimit -Hn` allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--config", required=True, help="file or preset")
    parser.add_argument("--set", action="append", default=[], help="section.key=value; workers.envs of each client")
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--steps", type=int, default=20, help="answers to each env group, at least")
    parser.add_argument("--seconds", type=float, default=0.0, help="of playing once all have joined, at least")
    parser.add_argument("--deadline", type=float, default=120.0, help="seconds for all of it")
    parser.add_argument("--name", default="fleet", help="what worker ids begin with")
    arguments = parser.parse_args()
    config = load(arguments.config, arguments.set).config
    deadline = time.monotonic() + arguments.deadline
    with Fleet(config, arguments.clients, arguments.name) as fleet:
        played = fleet.play(arguments.steps, deadline, arguments.seconds)
        left = fleet.leave(max(deadline, time.monotonic() + config.run.drain_timeout_seconds))
        print(json.dumps(asdict(fleet.statistics())), flush=True)
    return 0 if played and left else 1


if __name__ == "__main__":
    sys.exit(main())
