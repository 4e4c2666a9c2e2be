"""The embedded server: private, without data on disk, gone with its parent, and errors instead of hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from pipeline.config.tree import Config
from pipeline.errors import ConfigError, StoreError
from pipeline.launch.store import serve
from pipeline.stopping import StopToken
from pipeline.store.embedded import EmbeddedServer

pytestmark = pytest.mark.integration

LIMIT_SECONDS = 60.0


def client_of(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(server.socket_path), decode_responses=True, driver_info=None)


def test_it_is_private_and_keeps_nothing(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "store") as server:
        assert server.url == f"unix://{server.socket_path}" and server.pid is not None
        client = client_of(server)
        settings = {name: client.config_get(name)[name] for name in ("port", "save", "appendonly", "maxmemory-policy")}
        assert settings == {"port": "0", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}
        assert server.directory.stat().st_mode & 0o077 == 0 and server.socket_path.stat().st_mode & 0o077 == 0
        assert not psutil.Process(server.pid).net_connections("inet")
        assert os.getsid(server.pid) != os.getsid(0), "the terminal's Ctrl-C must not reach it before the drain is over"
        client.set("key", "value")
        pid = server.pid
    assert not psutil.pid_exists(pid) and not server.socket_path.exists()
    assert not list(server.directory.glob("**/*.rdb")) + list(server.directory.glob("**/*.aof"))
    server.stop()


def test_slow_commands_do_not_make_it_grow(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        client.config_set("slowlog-log-slower-than", 0)
        for _ in range(50):
            client.eval("return 1", 0, *[b"x" * 300] * 100)
        assert 0 < client.slowlog_len() <= 8


def test_it_starts_again(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    for _ in range(2):
        with server:
            assert client_of(server).ping()
            with pytest.raises(StoreError, match="started already"):
                server.start()


def test_it_starts_over_what_a_killed_one_left(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    deadline = time.monotonic() + LIMIT_SECONDS
    with pytest.raises(StoreError, match="ended with code -9"):
        while time.monotonic() < deadline:
            server.check()
    server.stop()
    server.socket_path.touch()
    with server:
        assert client_of(server).ping()


OWNER = """
import sys
from pathlib import Path
from pipeline.store.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None and owner.stdin is not None
    server = psutil.Process(int(owner.stdout.readline()))
    owner.kill()
    owner.wait(LIMIT_SECONDS)
    gone, alive = psutil.wait_procs([server], LIMIT_SECONDS)
    assert gone and not alive
    owner.stdout.close()
    owner.stdin.close()


def test_a_server_that_ends_at_once_is_named(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(StoreError, match=r"ended with code 1: .*max-memory"):
        program(tmp_path, "echo max-memory is wrong; exit 1").start()
    with pytest.raises(StoreError, match=r"ended with code 1: .*FileNotFoundError"):
        EmbeddedServer(tmp_path, binary=tmp_path / "missing").start()
    assert time.monotonic() - begun < LIMIT_SECONDS


def test_a_server_that_never_answers_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"did not answer within 0.3 s"):
        program(tmp_path, "exec sleep 60", start_timeout_seconds=0.3).start()


def program(directory: Path, text: str, **options: Any) -> EmbeddedServer:
    path = directory / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return EmbeddedServer(directory, binary=path, **options)


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"socket path of .* bytes, at most 107"):
        EmbeddedServer(tmp_path, socket_path=tmp_path / ("x" * 107)).start()
    tmp_path.chmod(0o755)
    with pytest.raises(StoreError, match="open to others"):
        EmbeddedServer(tmp_path).start()


def test_another_thread_may_not_start_it(tmp_path: Path) -> None:
    errors: list[StoreError] = []

    def start() -> None:
        with pytest.raises(StoreError, match="main thread") as caught:
            EmbeddedServer(tmp_path).start()
        errors.append(caught.value)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(LIMIT_SECONDS)
    assert errors


def config_of(**store: Any) -> Config:
    return Config.model_validate({"environment": {"id": "CartPole-v1"}, "store": store})


def stop_when_it_answers(client: redis.Redis, stop: StopToken, answers: list[bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        try:
            answers.append(bool(client.ping()))
            break
        except redis.ConnectionError as error:
            assert str(error)
    stop.stop("test")


@pytest.mark.parametrize("scheme", ["unix", "redis"])
def test_serve_runs_until_it_is_stopped(tmp_path: Path, scheme: str, free_port: int) -> None:
    (tmp_path / "password").write_text('two words "quoted"\\ ü\n')
    url = f"unix://{tmp_path}/served.sock" if scheme == "unix" else f"redis://localhost:{free_port}"
    client = redis.Redis.from_url(
        url.replace("localhost", "127.0.0.1"), password='two words "quoted"\\ ü', driver_info=None
    )
    stop, answers = StopToken(), []
    thread = threading.Thread(target=stop_when_it_answers, args=(client, stop, answers))
    thread.start()
    assert serve(config_of(url=url, password_file=str(tmp_path / "password")), stop) == 0
    thread.join(LIMIT_SECONDS)
    assert answers == [True]
    assert not (tmp_path / "served.sock").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (None, "needs store.url"),
        ("redis://0.0.0.0:6379", "only with store.password_file"),
        ("redis://some.host:6379", "listens on an address"),
        ("redis://127.0.0.1:99999", "store.url"),
        ("rediss://127.0.0.1:6379", "not 'rediss'"),
    ],
)
def test_serve_refuses(url: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        serve(config_of(url=url), StopToken())
