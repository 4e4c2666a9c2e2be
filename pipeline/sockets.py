"""Every ZeroMQ socket of seedmq is made here, with every option that matters set explicitly.

    worker   DEALER connect -- ROUTER bind  worker-facing (``broker.connect`` / ``broker.bind``)
    learner  DEALER connect -- ROUTER bind  learner-facing (``broker.learner_connect`` / ``broker.learner_bind``)

Sockets never block: ``send`` and ``recv`` raise ``zmq.Again`` where they would, so waiting is done with a poller and a
deadline. A connecting socket holds nothing for a peer that is not there (``IMMEDIATE``): until the connection stands,
and again when it is lost, ``send`` raises ``zmq.Again`` and ``POLLOUT`` says when to go on. Routing ids are made by
ZeroMQ: the logical worker id travels in HELLO, so two workers with one name never steal each other's messages.

A socket belongs to the thread that made it.
"""

from __future__ import annotations

import ipaddress
import logging
import os
from pathlib import Path
from types import TracebackType

import zmq
import zmq.utils.z85

from pipeline import keys
from pipeline.config.tree import BrokerSection, SecuritySection
from pipeline.errors import ConfigError
from pipeline.stopping import OwnedThread, StopToken

log = logging.getLogger(__name__)

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
ZAP_DOMAIN = b"seedmq"


def worker_socket(context: Context, broker: BrokerSection, security: SecuritySection) -> Socket:
    """A worker's DEALER, connected to the worker-facing endpoint.

    Raises:
        ConfigError: the endpoint is malformed, or off the loopback without keys.
    """
    key, endpoint = ("broker.connect", broker.connect) if broker.connect else ("broker.bind", broker.bind)
    return _connected(context, key, endpoint, broker, security, queue=WORKER_QUEUE)


def learner_socket(context: Context, broker: BrokerSection, security: SecuritySection) -> Socket:
    """A learner's DEALER, connected to the learner-facing endpoint of a broker process.

    Raises:
        ConfigError: the endpoint is malformed, or off the loopback without keys.
    """
    key, endpoint = "broker.learner_connect", broker.learner_connect
    if not endpoint:
        key, endpoint = "broker.learner_bind", broker.learner_bind
    return _connected(context, key, endpoint, broker, security, queue=LEARNER_QUEUE)


def worker_facing(context: Context, broker: BrokerSection, security: SecuritySection) -> Socket:
    """The ROUTER that workers connect to. With ``security.keys`` an ``Admission`` of the context must run.

    Raises:
        ConfigError: the endpoint is malformed, taken, or off the loopback without keys.
    """
    return _bound(context, "broker.bind", broker.bind, broker, security, queue=WORKER_QUEUE)


def learner_facing(context: Context, broker: BrokerSection, security: SecuritySection) -> Socket:
    """The ROUTER that learners connect to. With ``security.keys`` an ``Admission`` of the context must run.

    Raises:
        ConfigError: the endpoint is malformed, taken, or off the loopback without keys.
    """
    return _bound(context, "broker.learner_bind", broker.learner_bind, broker, security, queue=LEARNER_QUEUE)


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
            raise ConfigError(
                f"{key} = {endpoint} is off the loopback: set security.keys (see `seedmq keys`), or security.insecure"
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name or an interface: it may lead anywhere


def _connected(
    context: Context, key: str, endpoint: str, broker: BrokerSection, security: SecuritySection, *, queue: int
) -> Socket:
    check_endpoint(key, endpoint, security)
    socket = context.socket(zmq.DEALER)
    try:
        _set_common(socket, endpoint, broker, queue)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MILLISECONDS)
        if security.keys:
            mine = keys.load(Path(security.keys), "client", secret=True)
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


def _bound(
    context: Context, key: str, endpoint: str, broker: BrokerSection, security: SecuritySection, *, queue: int
) -> Socket:
    check_endpoint(key, endpoint, security)
    socket = context.socket(zmq.ROUTER)
    try:
        _set_common(socket, endpoint, broker, queue)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
        socket.setsockopt(zmq.BACKLOG, 1024)
        if security.keys:
            mine = keys.load(Path(security.keys), "server", secret=True)
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, mine.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, mine.secret)
            socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an Admission nobody comes in
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        reason = "something else listens there" if error.errno == zmq.EADDRINUSE else error.strerror
        raise ConfigError(f"{key} = {endpoint}: {reason}") from error
    except ConfigError:
        socket.close(linger=0)
        raise
    return socket


def _set_common(socket: Socket, endpoint: str, broker: BrokerSection, queue: int) -> None:
    socket.setsockopt(zmq.LINGER, LINGER_MILLISECONDS)
    socket.setsockopt(zmq.SNDHWM, queue)
    socket.setsockopt(zmq.RCVHWM, queue)
    socket.setsockopt(zmq.SNDTIMEO, 0)
    socket.setsockopt(zmq.RCVTIMEO, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, broker.max_message_bytes)
    socket.setsockopt(zmq.HANDSHAKE_IVL, CONNECT_MILLISECONDS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MILLISECONDS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MILLISECONDS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, SILENCE_MILLISECONDS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))


class Admission:
    """Admits clients whose public key stands in ``authorized/`` (ZAP, RFC 27), for all binding sockets of one context.

    Its thread owns the ZAP socket. The directory is read again when it has changed, at the next handshake; where it
    cannot be read nobody is admitted. Without ``security.keys`` it does nothing.
    """

    def __init__(self, context: Context, security: SecuritySection) -> None:
        """Binds before it returns, so that a socket bound afterwards is guarded.

        Raises:
            ConfigError: keys cannot be read, or another admission serves this context.
        """
        self.admitted = 0
        self.refused = 0
        self._stop = StopToken()
        self._thread: OwnedThread | None = None
        if security.keys is None:
            return
        self._directory = Path(security.keys)
        self._stamp: tuple[tuple[str, int, int], ...] | None = None
        self._keys: frozenset[bytes] = keys.authorized(self._directory)
        self._context = context
        bound = StopToken()
        self._thread = OwnedThread("admission", lambda: self._serve(bound), self._stop)
        self._thread.start()
        if not bound.wait(10.0):
            raise ConfigError("admission did not start within 10 s")
        bound.raise_error()

    def check(self) -> None:
        """Raises what ended the admission thread, if something did."""
        self._stop.raise_error()

    def close(self) -> None:
        """Ends the thread and closes its socket; the context can be terminated then."""
        self._stop.stop("closed")
        if self._thread is not None:
            self._thread.join(5.0)

    def __enter__(self) -> Admission:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self, bound: StopToken) -> None:
        socket = self._context.socket(zmq.ROUTER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            try:
                socket.bind(ZAP_ENDPOINT)
            except zmq.ZMQError as error:
                bound.stop("error", ConfigError(f"another admission serves this ZeroMQ context: {error.strerror}"))
                return
            bound.stop("bound")
            while not self._stop.stopped:
                if socket.poll(200):
                    self._answer(socket)
        finally:
            socket.close()

    def _answer(self, socket: Socket) -> None:
        """One ZAP request: version, request id, domain, address, identity, mechanism, credentials."""
        frames = socket.recv_multipart()
        split = frames.index(b"") + 1
        version, request, _, address, _, mechanism, *credentials = frames[split:]
        ok = mechanism == b"CURVE" and len(credentials) == 1 and zmq.utils.z85.encode(credentials[0]) in self._current()
        self.admitted += ok
        self.refused += not ok
        if not ok:
            log.warning("refused a connection from %s: its key is not authorized", address.decode(errors="replace"))
        status = (b"200", b"OK", b"fleet") if ok else (b"400", b"not authorized", b"")
        socket.send_multipart([*frames[:split], version, request, *status, b""])

    def _current(self) -> frozenset[bytes]:
        try:
            stamp = keys.authorized_stamp(self._directory)
            if stamp != self._stamp:
                self._keys, self._stamp = keys.authorized(self._directory), stamp
        except ConfigError as error:
            log.error("nobody is admitted: %s", error)
            self._keys, self._stamp = frozenset(), None
        return self._keys
