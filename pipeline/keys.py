"""CURVE keys of a fleet: one server pair (brokers, embedded learners), one client pair (workers, learners).

A key directory holds ``server.key``, ``server.key_secret``, ``client.key``, ``client.key_secret`` in ZeroMQ's
certificate format, and ``authorized/``: the public keys that binding sockets admit, re-read whenever it changes. A host
that only connects needs ``server.key`` and the client pair.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

import zmq
import zmq.auth

from pipeline.errors import ConfigError

log = logging.getLogger(__name__)

AUTHORIZED = "authorized"
NAMES = ("server", "client")


class Certificate(NamedTuple):
    """A CURVE pair in Z85: ``secret`` is empty where only the public half is known."""

    public: bytes
    secret: bytes


def write_keys(directory: Path) -> None:
    """Makes a new fleet's keys: directories 0700, files 0600. Touches nothing where keys stand already.

    Raises:
        ConfigError: the directory holds keys already, or cannot be written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        taken = [x.name for x in directory.iterdir() if x.name == AUTHORIZED or x.name.split(".")[0] in NAMES]
        if taken:
            raise ConfigError(
                f"{directory} holds keys already ({', '.join(sorted(taken))}): remove them to make new ones"
            )
        directory.chmod(0o700)
        (directory / AUTHORIZED).mkdir(mode=0o700)
        for name in NAMES:
            public, secret = zmq.curve_keypair()
            _write(directory / f"{name}.key", _text(public, b""))
            _write(directory / f"{name}.key_secret", _text(public, secret))
            if name == "client":
                _write(directory / AUTHORIZED / f"{name}.key", _text(public, b""))
    except OSError as error:
        raise ConfigError(f"cannot write keys to {directory}: {error.strerror or error}") from error


def load(directory: Path, name: str, secret: bool) -> Certificate:
    """Reads ``server`` or ``client``, with or without its secret half.

    Raises:
        ConfigError: the file is missing, unreadable or no certificate.
    """
    path = directory / (f"{name}.key_secret" if secret else f"{name}.key")
    try:
        public, private = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"security.keys = {directory}: cannot read {path.name}: {error}") from error
    if secret and private is None:
        raise ConfigError(f"security.keys = {directory}: {path.name} has no secret key")
    return Certificate(public, private or b"")


def authorized(directory: Path) -> frozenset[bytes]:
    """Public keys (Z85) that may connect. A file that is no certificate is passed over and logged.

    Raises:
        ConfigError: the directory is missing or unreadable.
    """
    keys = set()
    for name, _, _ in authorized_stamp(directory):
        try:
            keys.add(zmq.auth.load_certificate(directory / AUTHORIZED / name)[0])
        except (OSError, ValueError) as error:
            log.error("security.keys = %s: %s/%s admits nobody: %s", directory, AUTHORIZED, name, error)
    return frozenset(keys)


def authorized_stamp(directory: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, times and sizes of the authorized keys: another one means that they must be read again.

    Raises:
        ConfigError: the directory is missing or unreadable.
    """
    try:
        with os.scandir(directory / AUTHORIZED) as entries:
            found = [(x.name, x.stat()) for x in entries if x.name.endswith(".key")]
    except OSError as error:
        raise ConfigError(f"security.keys = {directory}: cannot read {AUTHORIZED}: {error.strerror}") from error
    return tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in found))


def _text(public: bytes, secret: bytes) -> str:
    lines = ["metadata", '    origin = "seedmq keys"', "curve", f'    public-key = "{public.decode()}"']
    if secret:
        lines.append(f'    secret-key = "{secret.decode()}"')
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
