"""The HTTP endpoint of a process: ``/metrics``, ``/healthz`` and ``/readyz``.

Plain HTTP/1.0, GET alone. At most ``CONNECTIONS`` at once: the oldest is hung up on for one more, as is a client that
neither sends nor reads for ``CLIENT_SECONDS``. What a request reads was put there by the process's own threads: a slow
or hostile client holds up nobody else.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from pipeline.config.metrics import MetricsSection, joined, split
from pipeline.errors import ConfigError
from pipeline.stopping import OwnedThread, StopToken

log = logging.getLogger(__name__)

CONNECTIONS = 16
CLIENT_SECONDS = 5.0
LOOK_SECONDS = 0.2
JOIN_SECONDS = 2.0
NAMES = ("/metrics", "/healthz", "/readyz")


class Health(NamedTuple):
    """Both called by the endpoint's threads, so what they read must be fit for that.

    Attributes:
        alive: Why the process is to be ended and started anew; empty: it works.
        ready: Why it does not serve; empty: it does.
    """

    alive: Callable[[], str]
    ready: Callable[[], str]


def health_of(alive: Callable[[], str], ready: Callable[[], str], stop: StopToken) -> Health:
    """The same, but not ready once the process is asked to stop."""
    return Health(alive, lambda: f"stopping: {stop.reason}" if stop.stopped else ready())


@contextmanager
def served(section: MetricsSection, registry: CollectorRegistry, health: Health, stop: StopToken) -> Iterator[None]:
    """Serves at ``metrics.bind`` while the block goes on; does nothing where that is not set.

    Should the endpoint's thread die, ``stop`` is stopped with its error.

    Raises:
        ConfigError: the address cannot be bound.
    """
    if section.bind is None:
        yield
        return
    ending = StopToken()
    try:
        server = _Server(section.bind, _application(registry, health))
    except UnicodeError as error:
        raise ConfigError(f"metrics.bind = {section.bind!r}: no host has such a name") from error
    except OSError as error:
        raise ConfigError(f"metrics.bind = {section.bind!r}: {error.strerror or error}") from error

    def serve() -> None:
        while not ending.stopped:
            server.handle_request()

    thread = OwnedThread("metrics", serve, stop)
    try:
        log.info("metrics at http://%s/metrics", joined(server.server_name, server.server_port))
        thread.start()
        yield
    finally:
        ending.stop("closed")
        if thread.ident is not None:
            thread.join(JOIN_SECONDS)
        server.server_close()


def _application(registry: CollectorRegistry, health: Health) -> Callable[..., Any]:
    metrics = make_wsgi_app(registry)
    looks = {"/healthz": health.alive, "/readyz": health.ready}

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] != "GET":
            return _text(start_response, "405 Method Not Allowed", "GET alone", ("Allow", "GET"))
        if path == "/metrics":
            return metrics(environ, start_response)
        if path not in looks:
            return _text(start_response, "404 Not Found", f"here are {', '.join(NAMES)}")
        why = looks[path]()
        return _text(start_response, "503 Service Unavailable" if why else "200 OK", why or "ok")

    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        try:
            return application(environ, start_response)
        except Exception:  # Prometheus sees that the scrape failed, the log has the reason
            log.exception("%s failed", environ["PATH_INFO"])
            return _text(start_response, "500 Internal Server Error", "see the log")

    return guarded


def _text(start_response: StartResponse, status: str, line: str, *headers: tuple[str, str]) -> list[bytes]:
    body = f"{' '.join(line.split())}\n".encode()
    kind = ("Content-Type", "text/plain; charset=utf-8")
    start_response(status, [kind, ("Content-Length", str(len(body))), ("Cache-Control", "no-store"), *headers])
    return [body]


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s %s", self.client_address[0], format % args)


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """Binds and listens.

    Raises:
        OSError: the host is unknown, or the address cannot be bound.
        UnicodeError: no host can be called so.
    """

    daemon_threads = True
    block_on_close = False
    timeout = LOOK_SECONDS

    def __init__(self, address: str, application: Callable[..., Any]) -> None:
        host, port = split(address)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._open: dict[socket.socket, None] = {}  # those that are served, in the order in which they came
        super().__init__((host, port), _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        """As of ``WSGIServer``, but without asking a name server who we are."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False) and not self._free_of_oldest():
            log.debug("%s refused: %d connections at once", client_address[0], CONNECTIONS)
            self.shutdown_request(request)
            return
        self._open[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread to serve it
            self._ended(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def _free_of_oldest(self) -> bool:
        """Hangs up on the oldest client, who may be sending a byte now and then; whether that made room in time."""
        for oldest in list(self._open)[:1]:
            self._open.pop(oldest, None)
            with suppress(OSError):  # it has just ended
                oldest.shutdown(socket.SHUT_RDWR)
        return self._free.acquire(timeout=LOOK_SECONDS)

    def _ended(self, request: socket.socket) -> None:
        self._open.pop(request, None)
        self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("%s hung up or was too slow", client_address[0], exc_info=True)
