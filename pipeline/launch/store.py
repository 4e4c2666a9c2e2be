"""``seedmq store``: the embedded server in the foreground, where ``store.url`` says."""

from __future__ import annotations

import ipaddress
import logging
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from pipeline import files
from pipeline.config.tree import Config
from pipeline.errors import EXIT_FINISHED, ConfigError
from pipeline.folders import private_folder
from pipeline.stopping import StopToken
from pipeline.store.embedded import EmbeddedServer
from pipeline.store.redis_client import read_password

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
DEFAULT_PORT = 6379


def serve(config: Config, stop: StopToken) -> int:
    """Runs the server until ``stop``; belongs to the main thread.

    Returns:
        The exit code, 0.

    Raises:
        ConfigError: no ``store.url``, one that this command cannot serve, or one off the loopback without a password.
        StoreError: the server did not start, or ended by itself.
    """
    files.require("store")
    password = read_password(config.store.password_file)
    socket_path, tcp = _where(config.store.url, password)
    with (
        private_folder("store-") as directory,
        EmbeddedServer(directory, socket_path=socket_path, tcp=tcp, password=password) as server,
    ):
        log.info("store ready at %s", server.url)
        while not stop.wait(CHECK_SECONDS):
            server.check()
    return EXIT_FINISHED


def _where(url: str | None, password: str | None) -> tuple[Path | None, tuple[str, int] | None]:
    """Socket path or (host, port) of ``store.url``."""
    if url is None:
        raise ConfigError("seedmq store needs store.url: unix:///path or redis://127.0.0.1:6379")
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return Path(unquote(parts.path)), None
    if parts.scheme != "redis":
        raise ConfigError(
            f"seedmq store serves unix:// and redis://, not {parts.scheme!r}; TLS needs a Redis of its own"
        )
    host, port = _host(parts), _port(parts)
    if not ipaddress.ip_address(host).is_loopback and password is None:
        raise ConfigError(f"seedmq store listens on {host} only with store.password_file")
    return None, (host, port)


def _host(parts: SplitResult) -> str:
    host = "127.0.0.1" if parts.hostname in (None, "localhost") else str(parts.hostname)
    try:
        return str(ipaddress.ip_address(host))
    except ValueError as error:
        raise ConfigError(f"seedmq store listens on an address; store.url has the host {host!r}") from error


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or DEFAULT_PORT
    except ValueError as error:
        raise ConfigError(f"store.url: {error}") from error
