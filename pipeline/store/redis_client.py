"""Connections to Redis: every option explicit, one layer of retries, errors translated where they enter.

redis-py's own retries are off: they nest (connecting, health check, command), know no deadline and do not see the stop
token. ``RedisLink`` retries instead, with redis-py's exponential backoff and jitter, and only what
``transient_state`` names. After an error a connection is closed, never used again: its reply may still be on the way.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry

from pipeline.errors import ConfigError, StoreError, UnreachableError
from pipeline.stopping import StopToken
from pipeline.store.interface import StoreFull
from pipeline.store.trouble import Trouble

log = logging.getLogger(__name__)

T = TypeVar("T")

HEALTH_CHECK_SECONDS = 30
BACKOFF_BASE_SECONDS = 0.05
BACKOFF_CAP_SECONDS = 1.0
STOPPED_SECONDS = 2.0
LOG_SECONDS = 60.0
FENCED = "FENCED "  # guard.lua
KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
_QUERY = ("db", "ssl_ca_certs")
_TRANSIENT_CODES = ("LOADING", "MISCONF", "READONLY", "MASTERDOWN", "NOREPLICAS", "BUSY", "TRYAGAIN", "CLUSTERDOWN")


class StoreSettings(Protocol):
    """What this package reads of the configuration's section ``store``."""

    @property
    def url(self) -> str | None: ...
    @property
    def username(self) -> str | None: ...
    @property
    def password_file(self) -> str | None: ...
    @property
    def operation_timeout_seconds(self) -> float: ...
    @property
    def unreachable_seconds(self) -> float: ...
    @property
    def prefix(self) -> str: ...
    @property
    def capacity(self) -> int: ...
    @property
    def when_full(self) -> str: ...
    @property
    def lease_seconds(self) -> float: ...


@dataclass(frozen=True)
class RedisServer:
    """Where Redis is and how patient its clients are.

    Attributes:
        url: ``redis://host:port``, ``rediss://host:port`` (TLS, verified; ``?ssl_ca_certs=FILE``) or ``unix:///path``;
            each takes ``?db=N``. It holds no password.
        username: ACL user.
        password: Never shown.
        operation_timeout_seconds: Of one command and of connecting.
        unreachable_seconds: How long a transient state may last before ``UnreachableError``.
        trouble: Told of states that last, and of their end.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    operation_timeout_seconds: float = 5.0
    unreachable_seconds: float = 60.0
    trouble: Trouble = field(default_factory=Trouble, repr=False, compare=False)

    @classmethod
    def from_settings(cls, section: StoreSettings, trouble: Trouble | None = None) -> RedisServer:
        """From the section ``store`` of the configuration.

        Raises:
            ConfigError: no ``store.url``, or a password file that cannot be read.
        """
        if section.url is None:
            raise ConfigError("store.url is not set: redis://host:port, rediss://host:port or unix:///path")
        return cls(
            section.url,
            section.username,
            read_password(section.password_file),
            section.operation_timeout_seconds,
            section.unreachable_seconds,
            trouble or Trouble(),
        )


def read_password(path: str | None) -> str | None:
    """The first line of ``store.password_file``.

    Raises:
        ConfigError: unreadable or empty.
    """
    if path is None:
        return None
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"store.password_file = {path}: {error}") from error
    if not lines or not lines[0].strip():
        raise ConfigError(f"store.password_file = {path} is empty")
    return lines[0].strip()


def make_client(server: RedisServer, name: str, socket_timeout_seconds: float) -> redis.Redis:
    """A client without retries that connects at its first command.

    Args:
        server: Where to.
        name: Shown by ``CLIENT LIST``; no spaces.
        socket_timeout_seconds: Of every reply; above the block time where commands block.

    Raises:
        ConfigError: a url that we do not take.
    """
    return redis.Redis(
        **_address(server.url),
        username=server.username,
        password=server.password,
        socket_timeout=socket_timeout_seconds,
        socket_connect_timeout=server.operation_timeout_seconds,
        socket_keepalive=True,
        socket_keepalive_options=KEEPALIVE,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        health_check_interval=HEALTH_CHECK_SECONDS,
        max_connections=2,
        client_name=name,
        driver_info=None,  # no CLIENT SETINFO: Redis 7.0 does not know it
        protocol=2,
        legacy_responses=True,
        decode_responses=False,
    )


def _address(url: str) -> dict[str, Any]:
    """The part of redis-py's arguments that ``store.url`` determines."""
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
        query = {key: values[-1] for key, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()}
        db = int(query.get("db", "0"))
    except ValueError as error:
        raise ConfigError(f"store.url is malformed: {error}") from error
    if parts.scheme not in ("redis", "rediss", "unix") or set(query) - set(_QUERY):
        raise ConfigError(
            "store.url: redis://host:port, rediss://host:port or unix:///path, with ?db= or &ssl_ca_certs="
        )
    if parts.password is not None or parts.username is not None:
        raise ConfigError("store.url holds credentials: put them into store.username and store.password_file")
    if parts.scheme == "unix":
        return {"unix_socket_path": unquote(parts.path), "db": db}
    address = {"host": parts.hostname or "127.0.0.1", "port": port, "db": db, "ssl": parts.scheme == "rediss"}
    tls = {"ssl_cert_reqs": "required", "ssl_check_hostname": True, "ssl_ca_certs": query.get("ssl_ca_certs")}
    return address | tls


def transient_state(error: redis.RedisError) -> str | None:
    """Name of a state that passes by itself (``connection``, ``timeout``, ``LOADING``, ``MISCONF``...), or None."""
    if isinstance(error, (redis.AuthenticationError, redis.exceptions.AuthorizationError)):
        return None
    if isinstance(error, redis.BusyLoadingError):
        return "LOADING"
    if isinstance(error, redis.ReadOnlyError):
        return "READONLY"
    if isinstance(error, redis.TimeoutError):
        return "timeout"
    if isinstance(error, (redis.ConnectionError, redis.InvalidResponse)):
        return "connection"
    code = str(error).split(" ", 1)[0]
    return code if code in _TRANSIENT_CODES else None


class Seldom:
    """True at most once in ``seconds``: for log lines that would repeat."""

    def __init__(self, seconds: float = LOG_SECONDS) -> None:
        self._seconds = seconds
        self._next = 0.0

    def due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


class RedisLink:
    """One client and its patience. Belongs to one thread.

    Args:
        server: Where to.
        name: Of the client, in ``CLIENT LIST`` and in log lines.
        stop: While it is stopped, patience ends after ``STOPPED_SECONDS``: a stop has a deadline of its own.
        block_seconds: The longest that a command of this link blocks.
    """

    def __init__(self, server: RedisServer, name: str, stop: StopToken, block_seconds: float = 0.0) -> None:
        self.server = server
        self.client = make_client(server, name, server.operation_timeout_seconds + block_seconds)
        self._name = name
        self._stop = stop
        self._backoff = ExponentialWithJitterBackoff(base=BACKOFF_BASE_SECONDS, cap=BACKOFF_CAP_SECONDS)
        self._away_since: float | None = None
        self._failures = 0
        self._said = Seldom()
        self._full_said = Seldom()

    def call(self, operation: Callable[[redis.Redis], T]) -> T:
        """Runs an idempotent ``operation`` until it works.

        Raises:
            UnreachableError: a transient state lasted too long; names it.
            StoreFull: Redis has no memory left.
            StoreError: any other refusal.
        """
        while True:
            try:
                return self.attempt(operation)
            except TransientRedisError as transient:
                _sleep(transient.delay_seconds, self._stop)

    def attempt(self, operation: Callable[[redis.Redis], T]) -> T:
        """Runs ``operation`` once.

        Raises:
            TransientRedisError: try again after its delay; the connection is closed.
            UnreachableError, StoreFull, StoreError: as in ``call``.
        """
        began = time.monotonic()
        try:
            result = operation(self.client)
        except redis.RedisError as error:
            raise self._translated(error, began) from error
        if self._away_since is not None:
            log.info("%s: Redis is back after %.1f s", self._name, time.monotonic() - self._away_since)
            self._away_since, self._failures = None, 0
        self.server.trouble.ends(self._name)
        return result

    def close(self) -> None:
        self.client.close()

    def _translated(self, error: redis.RedisError, began: float) -> Exception:
        state = transient_state(error)
        if state is not None:
            self.client.connection_pool.disconnect()
            return self._transient(state, error, began)
        if str(error).startswith(FENCED):
            name, _, since = str(error).removeprefix(FENCED).rpartition(" since ")
            return StoreError(
                f"{name} took the store at {self.server.url} over at {utc(since)}: this learner did not renew its "
                "lease in time (was it stopped, or cut off?) and writes nothing any more"
            )
        if isinstance(error, redis.exceptions.OutOfMemoryError):
            if self._full_said.due():
                log.warning("%s: Redis is full (%s): nothing is stored until it has room", self._name, error)
            self.server.trouble.begins(self._name, "Redis is full")
            return StoreFull(f"Redis is full: {error}")
        return StoreError(f"Redis at {self.server.url} refused: {type(error).__name__}: {error}")

    def _transient(self, state: str, error: redis.RedisError, began: float) -> Exception:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = began  # a command that timed out was patience enough for a stop
        self._failures += 1
        self.server.trouble.begins(self._name, f"Redis does not serve, state {state}")
        away, server = now - self._away_since, self.server
        patience = STOPPED_SECONDS if self._stop.stopped else server.unreachable_seconds
        if away >= min(patience, server.unreachable_seconds):
            return UnreachableError(f"Redis at {server.url} out of reach for {away:.1f} s, state {state}: {error}")
        if self._said.due():
            log.warning("%s: Redis at %s, state %s: %s; trying again", self._name, server.url, state, error)
        return TransientRedisError(state, self._backoff.compute(min(self._failures, 16)))


def utc(seconds: str) -> str:
    """Unix time in words."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(float(seconds)))


class TransientRedisError(Exception):
    """Within the store only: a named state that passes by itself. ``delay_seconds`` is how long to wait."""

    def __init__(self, state: str, delay_seconds: float) -> None:
        super().__init__(state)
        self.state = state
        self.delay_seconds = delay_seconds


def _sleep(seconds: float, stop: StopToken) -> None:
    """Waits, shorter if the stop comes meanwhile, in full if it came before."""
    if stop.stopped:
        threading.Event().wait(seconds)
    else:
        stop.wait(seconds)
