"""Every ZeroMQ socket of seedmq is made here, with every option that matters set explicitly.

    worker   DEALER connect -- ROUTER bind  worker-facing (``broker.connect`` / ``broker.bind``)
    learner  DEALER connect -- ROUTER bind  learner-facing (``broker.learner_connect`` / ``broker.learner_bind``)

Sockets do not block: ``send`` and ``recv`` raise ``zmq.Again`` where they would, so waiting is done with a poller and a
deadline; a worker, which has but one socket, waits in ``recv``, whose limit it sets. A connecting socket holds nothing
for a peer that is not there (``IMMEDIATE``): until the connection stands, and again when it is lost, ``send`` raises
``zmq.Again`` and ``POLLOUT`` says when to go on. What was received and not read by then is lost too, so a binding side
that says its last word waits until the other has hung up (``Frontend.close``). Routing ids are made by ZeroMQ: the
logical worker id travels in HELLO, so two workers with one name never steal each other's messages.

Connecting sides say ZeroMQ's heartbeats, binding sides answer: one of its own would abort a process (libzmq 4.3.5:
``!_io_error``) that has not read a peer's full queue for so long when the peer is gone, and there the peer may be
anybody. A host that is gone both sides notice by TCP within the same time.

A socket belongs to the thread that made it.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket as system_socket
from pathlib import Path
from weakref import WeakKeyDictionary

import zmq

from pipeline import keys
from pipeline.config.tree import BrokerSection, SecuritySection
from pipeline.errors import ConfigError

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

IPC_PATH_BYTES = 107  # sun_path, less its final zero
WORKER_QUEUE = 128  # messages per worker and direction: 64 groups with one outstanding request each, and control
LEARNER_QUEUE = 1024  # messages per learner and direction: what is on the way is bounded by the credit
LINGER_MILLISECONDS = 1000
HEARTBEAT_MILLISECONDS = 2000
SILENCE_MILLISECONDS = 10_000  # a peer silent for so long, though the flow looks established, is disconnected
CONNECT_MILLISECONDS = 5000
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
MONITORED = zmq.EVENT_ACCEPTED | zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED


def worker_socket(context: Context, broker: BrokerSection, security: SecuritySection) -> Socket:
    """A worker's DEALER, connected to the worker-facing endpoint.

    Raises:
        ConfigError: the endpoint is malformed, or off the loopback without keys.
    """
    key, endpoint = ("broker.connect", broker.connect) if broker.connect else ("broker.bind", broker.bind)
    return _connected(context, key, endpoint, broker, security, pair="client", queue=WORKER_QUEUE)


def learner_socket(context: Context, broker: BrokerSection, security: SecuritySection) -> Socket:
    """A learner's DEALER, connected to the learner-facing endpoint of a broker process.

    Raises:
        ConfigError: the endpoint is malformed, or off the loopback without keys.
    """
    key, endpoint = "broker.learner_connect", broker.learner_connect
    if not endpoint:
        key, endpoint = "broker.learner_bind", broker.learner_bind
    return _connected(context, key, endpoint, broker, security, pair="learner", queue=LEARNER_QUEUE)


def worker_facing(
    context: Context, broker: BrokerSection, security: SecuritySection, monitor: str | None = None
) -> Socket:
    """The ROUTER that workers connect to. With ``security.keys`` an ``Admission`` of the context must run.

    Args:
        context: Of the socket.
        broker: Endpoint and limits.
        security: Keys.
        monitor: ``Admission.monitor``: where the socket's events go.

    Raises:
        ConfigError: the endpoint is malformed, taken, or off the loopback without keys.
    """
    key, endpoint = "broker.bind", broker.bind
    check_endpoint(key, endpoint, security)
    socket = _router(context, broker, security, role=keys.WORKERS, endpoint=endpoint, queue=WORKER_QUEUE)
    return _bound(socket, key, endpoint, monitor)


def learner_facing(
    context: Context, broker: BrokerSection, security: SecuritySection, monitor: str | None = None
) -> Socket:
    """The ROUTER that learners connect to, as ``worker_facing``.

    Raises:
        ConfigError: the endpoint is malformed, taken, or off the loopback without keys.
    """
    key, endpoint = "broker.learner_bind", broker.learner_bind
    check_endpoint(key, endpoint, security)
    socket = _router(context, broker, security, role=keys.LEARNERS, endpoint=endpoint, queue=LEARNER_QUEUE)
    return _bound(socket, key, endpoint, monitor)


def close_bound(socket: Socket) -> None:
    """Closes a binding socket once; what is under way has the linger time. Nothing goes to its monitor any more.

    The file of an ipc endpoint goes first, if it is still the one that was made: somebody may have put something else
    there since.
    """
    if not socket.closed:
        socket.disable_monitor()
        path, made = _ipc_path(endpoint_of(socket)), _files.pop(socket, None)
        if path is not None and made is not None and _file(path) == made:
            path.unlink(missing_ok=True)
        socket.close()


def endpoint_of(socket: Socket) -> str:
    """Where a bound socket listens, wildcards of its endpoint resolved."""
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def check_endpoint(key: str, endpoint: str, security: SecuritySection) -> None:
    """Refuses what ZeroMQ would take silently or refuse obscurely.

    Raises:
        ConfigError: names the setting ``key``, its value and the reason.
    """
    scheme, separator, address = endpoint.partition("://")
    if not separator or not address or scheme not in ("tcp", "ipc", "inproc"):
        raise ConfigError(f"{key} = {endpoint}: not an endpoint (tcp://HOST:PORT or ipc://PATH)")
    if scheme == "ipc" and len(os.fsencode(address)) > IPC_PATH_BYTES:
        raise ConfigError(
            f"{key} = {endpoint}: the path has {len(os.fsencode(address))} bytes, ipc takes at most {IPC_PATH_BYTES}"
        )
    if scheme == "tcp":
        host, separator, port = address.rpartition(":")
        if not separator or not host or not (port == "*" or (port.isdecimal() and int(port) < 2**16)):
            raise ConfigError(f"{key} = {endpoint}: tcp endpoints are tcp://HOST:PORT")
        if not (_is_loopback(host) or security.keys or security.insecure):
            if key.startswith("--"):
                raise ConfigError(f"{key} = {endpoint} is off the loopback: give --keys DIR, or say --insecure")
            raise ConfigError(
                f"{key} = {endpoint} is off the loopback: set security.keys (see `seedmq keys`), or say --insecure"
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name or an interface: it may lead anywhere


def _connected(
    context: Context,
    key: str,
    endpoint: str,
    broker: BrokerSection,
    security: SecuritySection,
    *,
    pair: str,
    queue: int,
) -> Socket:
    check_endpoint(key, endpoint, security)
    socket = context.socket(zmq.DEALER)
    try:
        _set_common(socket, endpoint, broker, queue)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MILLISECONDS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MILLISECONDS)
        socket.setsockopt(zmq.HEARTBEAT_TTL, SILENCE_MILLISECONDS)  # after which the binding side ends it
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MILLISECONDS)
        if security.keys:
            mine = keys.load(Path(security.keys), pair, secret=True)
            socket.setsockopt(zmq.CURVE_SERVERKEY, keys.load(Path(security.keys), "server", secret=False).public)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, mine.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, mine.secret)
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise ConfigError(f"{key} = {endpoint}: {error.strerror}") from error
    except ConfigError:
        socket.close(linger=0)
        raise
    return socket


def _router(
    context: Context, broker: BrokerSection, security: SecuritySection, *, role: str, endpoint: str, queue: int
) -> Socket:
    mine = keys.load(Path(security.keys), "server", secret=True) if security.keys else None
    socket = context.socket(zmq.ROUTER)
    _set_common(socket, endpoint, broker, queue)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    socket.setsockopt(zmq.BACKLOG, 1024)
    if mine is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, mine.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, mine.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, role.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an Admission nobody comes in
    return socket


def _bound(socket: Socket, key: str, endpoint: str, monitor: str | None) -> Socket:
    try:
        _make_free(key, endpoint)
        if monitor is not None:
            socket.monitor(monitor, MONITORED)
        socket.bind(endpoint)
        path = _ipc_path(endpoint_of(socket))
        if path is not None and (made := _file(path)) is not None:
            _files[socket] = made
    except zmq.ZMQError as error:
        socket.disable_monitor()
        socket.close(linger=0)
        reason = "something else listens there" if error.errno == zmq.EADDRINUSE else error.strerror
        raise ConfigError(f"{key} = {endpoint}: {reason}") from error
    except ConfigError:
        socket.close(linger=0)
        raise
    return socket


_File = tuple[int, int]
_files: WeakKeyDictionary[Socket, _File] = WeakKeyDictionary()
"""What bound ipc sockets have made: device and inode."""


def _file(path: Path) -> _File | None:
    """Device and inode; None where nothing is."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _ipc_path(endpoint: str) -> Path | None:
    """The file of an ipc endpoint; None for other endpoints, and for ipc endpoints without one."""
    scheme, _, address = endpoint.partition("://")
    return Path(address) if scheme == "ipc" and address[:1] not in ("@", "*") else None


def _make_free(key: str, endpoint: str) -> None:
    """Removes the socket file that a killed process left; ZeroMQ itself would also take one on which another listens.

    Raises:
        ConfigError: somebody listens there, or it is another kind of file.
    """
    path = _ipc_path(endpoint)
    if path is None:
        return
    if path.is_symlink() and not path.exists():
        raise ConfigError(f"{key} = {endpoint}: {path} is a link to nothing")
    with system_socket.socket(system_socket.AF_UNIX) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(os.fsencode(path))
    if code == errno.ENOENT:
        return
    if code != errno.ECONNREFUSED:  # also EAGAIN: there is a queue
        reason = "something else listens there" if code in (0, errno.EAGAIN) else os.strerror(code)
        raise ConfigError(f"{key} = {endpoint}: {reason}")
    if not path.is_socket():
        raise ConfigError(f"{key} = {endpoint}: {path} is there and is no socket")
    path.unlink(missing_ok=True)


def _set_common(socket: Socket, endpoint: str, broker: BrokerSection, queue: int) -> None:
    socket.setsockopt(zmq.LINGER, LINGER_MILLISECONDS)
    socket.setsockopt(zmq.SNDHWM, queue)
    socket.setsockopt(zmq.RCVHWM, queue)
    socket.setsockopt(zmq.SNDTIMEO, 0)
    socket.setsockopt(zmq.RCVTIMEO, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, broker.max_message_bytes)
    socket.setsockopt(zmq.HANDSHAKE_IVL, CONNECT_MILLISECONDS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, SILENCE_MILLISECONDS // 2500)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, SILENCE_MILLISECONDS // 5000)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
    socket.setsockopt(zmq.TCP_MAXRT, SILENCE_MILLISECONDS)
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))
