"""Who may connect to the binding sockets of a process, and who stays connected.

One thread for each ZeroMQ context answers ZAP requests (RFC 27), follows the sockets' monitors, reads the authorized
keys again when they changed, and cuts connections off: those of a revoked key, those above the limit, those that send
faster than may be, or a message without end. ZeroMQ has no call for that: the connection's descriptor is shut down, and
ZeroMQ closes it as if the peer had gone.
"""

from __future__ import annotations

import errno
import logging
import os
import socket as sockets
import struct
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import zmq
import zmq.utils.z85

from pipeline import files, keys
from pipeline.config.tree import BrokerSection, SecuritySection
from pipeline.connections import REASONS, Connections, Cut, Heard
from pipeline.errors import ConfigError
from pipeline.sockets import ZAP_ENDPOINT, Context, Socket
from pipeline.stopping import OwnedThread, StopToken
from pipeline.traffic import Traffic

log = logging.getLogger(__name__)

START_SECONDS = 10.0
CLOSE_SECONDS = 5.0
POLL_MILLISECONDS = 200
KEYS_SECONDS = 1.0  # how often the authorized keys are looked at
VOUCH_SECONDS = 2.0  # after a revocation, for every peer to be heard in; twice ``traffic.PERIOD_SECONDS``
LOG_SECONDS = 10.0
WAITING_REPORTS = 64  # of a socket's owner; each replaces what an older one said
_EVENT = struct.Struct("=HI")
_RECEIVED_OFFSET = 128  # of tcpi_bytes_received in Linux' struct tcp_info
_TCP_INFO_BYTES = 136


class Admission:
    """Admits clients whose public key stands in ``authorized/<role>/`` and watches all connections.

    Make it before the binding sockets of its context, close it after them. Its thread owns the ZAP socket and the
    receiving ends of the monitors. Where neither keys nor tcp endpoints are configured it does nothing: the sockets
    stand in a private folder then.

    Args:
        context: Of the sockets.
        broker: Endpoints and limits.
        security: Keys; without them everybody who can connect is admitted.
        roles: Whom the context's sockets serve: ``keys.WORKERS``, ``keys.LEARNERS``.
    """

    def __init__(
        self, context: Context, broker: BrokerSection, security: SecuritySection, roles: Sequence[str] = (keys.WORKERS,)
    ) -> None:
        """Binds before it returns, so that a socket bound afterwards is guarded.

        Raises:
            ConfigError: keys cannot be read, or another admission serves this context.
        """
        self._counts: Counter[str] = Counter({"connections_admitted": 0, "connections_refused": 0})
        self._counts.update({f"connections_cut_{reason}": 0 for reason in REASONS})
        self._stop = StopToken()
        self._released = StopToken()
        self._thread: OwnedThread | None = None
        self._most_messages = broker.max_messages_per_second
        endpoints = {keys.WORKERS: broker.bind, keys.LEARNERS: broker.learner_bind}
        self._named = security.keys is not None
        self._watched = [role for role in roles if self._named or endpoints[role].startswith("tcp://")]
        self._fleet = _Fleet(Path(security.keys), roles) if security.keys is not None else None
        if not self._watched:
            return
        self._context = context
        most = self._most(broker.max_connections)
        self._connections = {role: Connections(most[role], broker.max_message_bytes) for role in self._watched}
        self._reports: dict[str, deque[Heard]] = {role: deque(maxlen=WAITING_REPORTS) for role in self._watched}
        self._where: dict[str, str] = {}
        self._next_keys = 0.0
        self._revoked: dict[str, float] = {}
        self._said: dict[str, tuple[float, int]] = {}
        bound = StopToken()
        self._thread = OwnedThread("admission", lambda: self._serve(bound), self._stop)
        self._thread.start()
        if not bound.wait(START_SECONDS):
            raise ConfigError(f"admission did not start within {START_SECONDS:g} s")
        bound.raise_error()

    def _most(self, configured: int) -> dict[str, int]:
        """Connections to each endpoint; notes what limits them, for those who meet it."""
        limit = files.raise_limit()
        allowed = limit - files.own(limit) - (files.OTHERS if len(self._watched) > 1 else 0)
        if configured <= allowed:
            self._limit = f"there are broker.max_connections = {configured} already"
            return dict.fromkeys(self._watched, configured)
        self._limit = (
            f"the limit of open files (ulimit -n) is {limit}, of which {files.own(limit)} are this process's own, and "
            f"the rest are taken: raise the hard limit (ulimit -Hn), or use fewer workers"
        )
        log.info("at most %d connections of workers at once: the limit of open files (ulimit -n) is %d", allowed, limit)
        return {keys.WORKERS: allowed, keys.LEARNERS: files.OTHERS}

    def counts(self) -> dict[str, int]:
        """Connections so far: ``connections_admitted``, ``connections_refused`` (by key), ``connections_cut_*``."""
        return dict(self._counts)

    def monitor(self, role: str) -> str | None:
        """Where the socket of ``role`` must send its events, from before it binds; None where it is not watched."""
        return f"inproc://seedmq.monitor.{id(self):x}.{role}" if role in self._watched else None

    def traffic(self, role: str) -> Traffic | None:
        """For the owner of that socket, to say what it hears; None where it is not watched."""
        return Traffic(self._most_messages, self._named, self._reports[role].append) if role in self._watched else None

    def check(self) -> None:
        """Raises what ended the admission thread, if something did."""
        self._stop.raise_error()

    def close(self) -> None:
        """Ends the thread and closes its sockets; the context can be terminated then."""
        self._stop.stop("closed")
        self._released.stop("closed")
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def __enter__(self) -> Admission:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The thread.

    def _serve(self, bound: StopToken) -> None:
        opened: list[Socket] = []
        try:
            try:
                zap, monitors = self._open(opened)
            except (zmq.ZMQError, ConfigError) as error:
                bound.stop("error", error)
                return
            bound.stop("bound")
            poller = zmq.Poller()
            for socket in opened:
                poller.register(socket, zmq.POLLIN)
            while not self._stop.stopped:
                poller.poll(POLL_MILLISECONDS)
                self._turn(zap, monitors)
        except BaseException as error:
            self._stop.stop("error", error)
            # A monitor that nobody holds blocks ZeroMQ's own threads: stay until the owner has closed its sockets.
            self._released.wait(START_SECONDS)
            raise
        finally:
            for socket in opened:
                socket.close(linger=0)

    def _open(self, opened: list[Socket]) -> tuple[Socket | None, dict[str, Socket]]:
        zap = None
        if self._fleet is not None:
            zap = self._context.socket(zmq.ROUTER)
            opened.append(zap)
            try:
                zap.bind(ZAP_ENDPOINT)
            except zmq.ZMQError as error:
                raise ConfigError(f"another admission serves this ZeroMQ context: {error.strerror}") from error
        monitors = {}
        for role in self._watched:
            socket = self._context.socket(zmq.PAIR)
            opened.append(socket)
            socket.setsockopt(zmq.RCVHWM, 0)  # a full one would block ZeroMQ's own threads; it is emptied at once
            socket.connect(str(self.monitor(role)))
            monitors[role] = socket
        return zap, monitors

    def _turn(self, zap: Socket | None, monitors: dict[str, Socket]) -> None:
        now = time.monotonic()
        for role, monitor in monitors.items():
            while monitor.poll(0):
                self._follow(role, monitor.recv_multipart())
        if zap is not None:
            if zap.poll(0) or now >= self._next_keys:
                self._read_keys(now)
                self._next_keys = now + KEYS_SECONDS
            while zap.poll(0):
                self._answer(zap)
        for role in self._watched:
            self._judge(role, now)

    def _answer(self, zap: Socket) -> None:
        """One ZAP request: version, request id, domain, address, identity, mechanism, credentials."""
        frames = zap.recv_multipart()
        split = frames.index(b"") + 1
        version, request, domain, address, _, mechanism, *credentials = frames[split:]
        user = zmq.utils.z85.encode(credentials[0]) if mechanism == b"CURVE" and len(credentials) == 1 else b""
        ok = self._fleet is not None and user in self._fleet.authorized(domain.decode(errors="replace"))
        self._counts["connections_admitted" if ok else "connections_refused"] += 1
        if not ok:
            where = address.decode(errors="replace")
            self._say("refused", f"refused a connection from {where}: its key is not authorized")
        status = (b"200", b"OK", user) if ok else (b"400", b"not authorized", b"")
        zap.send_multipart([*frames[:split], version, request, *status, b""])

    def _read_keys(self, now: float) -> None:
        assert self._fleet is not None
        for role in self._fleet.refresh():
            if role in self._watched:
                log.warning("a key of the %s was revoked: its connections are cut off", role)
                self._revoked[role] = now

    def _follow(self, role: str, event: list[bytes]) -> None:
        """One event of a monitor: number and value, endpoint."""
        kind, descriptor = _EVENT.unpack(event[0])
        connections = self._connections[role]
        if kind == zmq.EVENT_ACCEPTED:
            self._where[role] = event[1].decode()
            self._cut(role, connections.accepted(descriptor))
        elif kind in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
            connections.closed(descriptor)

    def _judge(self, role: str, now: float) -> None:
        connections, reports = self._connections[role], self._reports[role]
        while reports:
            received = {} if self._where.get(role, "").startswith("ipc:") else _received(connections.descriptors())
            authorized = self._fleet.authorized(role) if self._fleet is not None else None
            self._cut(role, connections.heard(reports.popleft(), received, authorized, now))
        if self._fleet is not None and now - self._revoked.get(role, now) > VOUCH_SECONDS:
            self._cut(role, connections.unvouched(self._fleet.authorized(role), self._revoked.pop(role)))

    def _cut(self, role: str, cuts: list[Cut]) -> None:
        for descriptor, reason in cuts:
            if shut_down(descriptor, self._where.get(role, "")):
                self._counts[f"connections_cut_{reason}"] += 1
                self._say(reason, f"cut off a connection of the {role}: {_WORDS.get(reason) or self._limit}")

    def _say(self, kind: str, text: str) -> None:
        """A warning, each kind seldom: whoever may connect must not fill the disk."""
        now = time.monotonic()
        since, more = self._said.get(kind, (float("-inf"), 0))
        if now - since < LOG_SECONDS:
            self._said[kind] = since, more + 1
            return
        log.warning("%s%s", text, f" ({more} more since the last such line)" if more else "")
        self._said[kind] = now, 0


_WORDS = {
    "rate": "it sends more than broker.max_messages_per_second",
    "revoked": "its key is not authorized any more, or it has not said with which key it came",
    "unfinished": "it has sent more than broker.max_message_bytes without ending a message",
}


class _Fleet:
    """The authorized keys of each role, as last read."""

    def __init__(self, directory: Path, roles: Sequence[str]) -> None:
        self._directory = directory
        self._stamps = {role: keys.authorized_stamp(directory, role) for role in roles}
        self._keys = {role: keys.authorized(directory, role) for role in roles}

    def authorized(self, role: str) -> frozenset[bytes]:
        """Keys that may connect as ``role``."""
        return self._keys.get(role, frozenset())

    def refresh(self) -> list[str]:
        """Reads what changed; the roles that a key was taken from.

        A directory that is gone admits nobody. One that cannot be read says nothing: those who are in stay, and so do
        the keys that were read before.
        """
        fewer = []
        for role, before in self._keys.items():
            try:
                stamp = keys.authorized_stamp(self._directory, role)
                if stamp == self._stamps[role]:
                    continue
                self._keys[role] = keys.authorized(self._directory, role)
                self._stamps[role] = stamp
            except ConfigError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    self._keys[role], self._stamps[role] = frozenset(), ()
                else:
                    log.error("the authorized keys stay as they were read last: %s", error)
            if before - self._keys[role]:
                fewer.append(role)
        return fewer


def shut_down(descriptor: int, endpoint: str) -> bool:
    """Ends a connection of a socket bound to ``endpoint``; False where the descriptor is no such connection any more.

    It is checked and shut down by a second descriptor, which keeps it from becoming another's in between; by the first
    one where there is no other to be had.
    """
    try:
        second = os.dup(descriptor)
    except OSError as error:
        if error.errno != errno.EMFILE:
            return False
        second = descriptor
    try:
        connection = sockets.socket(fileno=second)
    except OSError:  # closed meanwhile, and perhaps something else by now
        if second != descriptor:
            os.close(second)
        return False
    try:
        name = connection.getsockname()
        ours = endpoint.endswith(f":{name[1]}") if isinstance(name, tuple) else endpoint == f"ipc://{name}"
        if ours:
            connection.shutdown(sockets.SHUT_RDWR)
        return ours
    except OSError:
        return False
    finally:
        if second == descriptor:
            connection.detach()
        connection.close()


def _received(descriptors: list[int]) -> dict[int, int]:
    """Bytes received over each TCP connection since it was accepted; nothing where the system does not tell."""
    found: dict[int, int] = {}
    if not hasattr(sockets, "TCP_INFO"):
        return found
    for descriptor in descriptors:
        try:
            connection = sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM, 0, fileno=descriptor)
        except OSError:  # closed meanwhile
            continue
        try:
            info = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _TCP_INFO_BYTES)
        except OSError:
            continue
        finally:
            connection.detach()
        if len(info) == _TCP_INFO_BYTES:
            found[descriptor] = struct.unpack_from("=Q", info, _RECEIVED_OFFSET)[0]
    return found
