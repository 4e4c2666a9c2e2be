"""CURVE keys of a fleet: pairs of the server (brokers, embedded learners), of workers, and of learners that connect.

A key directory holds, in ZeroMQ's certificate format::

    server.key   server.key_secret     of binding sockets
    client.key   client.key_secret     of workers, and of `seedmq status`
    learner.key  learner.key_secret    of learners that connect to a broker process
    authorized/workers/*.key           public keys that worker-facing sockets admit
    authorized/learners/*.key          public keys that learner-facing sockets admit
    clients/NAME/                      more pairs for workers, each with `server.key`: what goes to another host

``authorized/`` is read again whenever it changes. A worker's host needs ``server.key`` and a client pair, nothing else.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import zmq
import zmq.auth

from pipeline.errors import ConfigError

log = logging.getLogger(__name__)

AUTHORIZED = "authorized"
NAMES = ("server", "client", "learner")
WORKERS = "workers"
LEARNERS = "learners"
_ADMITTED_TO = {"client": WORKERS, "learner": LEARNERS}
_CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


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
        for role in (WORKERS, LEARNERS):
            (directory / AUTHORIZED / role).mkdir(mode=0o700)
        for name in NAMES:
            _write_pair(directory, name, directory / AUTHORIZED / _ADMITTED_TO[name] if name in _ADMITTED_TO else None)
    except OSError as error:
        raise ConfigError(f"cannot write keys to {directory}: {error.strerror or error}") from error


def write_client(directory: Path, name: str) -> Path:
    """Makes one more client pair of a fleet, in a directory that can be copied to a worker's host as it is.

    Deleting ``authorized/workers/<name>.key`` revokes it.

    Returns:
        ``directory/clients/<name>``.

    Raises:
        ConfigError: an impossible or a taken name, no keys in ``directory``, or it cannot be written.
    """
    if not _CLIENT_NAME.fullmatch(name):
        raise ConfigError(f"--client {name}: a name has 1 to 64 letters, digits, dots, dashes, underscores")
    load(directory, "server", secret=True)
    admitted, place = directory / AUTHORIZED / WORKERS, directory / "clients" / name
    if place.exists() or (admitted / f"{name}.key").exists():
        raise ConfigError(f"{directory} has a client {name} already: revoke and remove it to make a new one")
    try:
        place.parent.mkdir(mode=0o700, exist_ok=True)
        place.mkdir(mode=0o700)
        _write(place / "server.key", (directory / "server.key").read_text("utf-8"))
        _write_pair(place, "client", admitted, name)
    except OSError as error:
        shutil.rmtree(place, ignore_errors=True)
        raise ConfigError(f"cannot write keys to {place}: {error.strerror or error}") from error
    return place


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


def authorized(directory: Path, role: str) -> frozenset[bytes]:
    """Public keys (Z85) that may connect as ``workers`` or ``learners``. A file that is no certificate is logged.

    Raises:
        ConfigError: the directory is missing or unreadable.
    """
    found = set()
    for name, _, _ in authorized_stamp(directory, role):
        try:
            found.add(zmq.auth.load_certificate(directory / AUTHORIZED / role / name)[0])
        except (OSError, ValueError) as error:
            log.error("security.keys = %s: %s/%s/%s admits nobody: %s", directory, AUTHORIZED, role, name, error)
    return frozenset(found)


def authorized_stamp(directory: Path, role: str) -> tuple[tuple[str, int, int], ...]:
    """Names, times and sizes of the authorized keys: another one means that they must be read again.

    Raises:
        ConfigError: the directory is missing or unreadable.
    """
    place, found = directory / AUTHORIZED / role, []
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.name.endswith(".key"):
                    with suppress(FileNotFoundError):  # deleted meanwhile: it is not there
                        found.append((entry.name, entry.stat()))
    except OSError as error:
        raise ConfigError(f"security.keys = {directory}: cannot read {place}: {error.strerror}") from error
    return tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in found))


def _write_pair(directory: Path, name: str, admitted: Path | None, admitted_as: str | None = None) -> None:
    public, secret = zmq.curve_keypair()
    _write(directory / f"{name}.key", _text(public, b""))
    _write(directory / f"{name}.key_secret", _text(public, secret))
    if admitted is not None:
        _write(admitted / f"{admitted_as or name}.key", _text(public, b""))


def _text(public: bytes, secret: bytes) -> str:
    lines = ["metadata", '    origin = "seedmq keys"', "curve", f'    public-key = "{public.decode()}"']
    if secret:
        lines.append(f'    secret-key = "{secret.decode()}"')
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
