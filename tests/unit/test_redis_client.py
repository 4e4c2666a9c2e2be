"""Addresses, credentials and the names of Redis' transient states, without a Redis."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from pipeline.errors import ConfigError
from pipeline.store.redis_client import RedisServer, Seldom, make_client, read_password, transient_state

pytestmark = pytest.mark.unit


def options(url: str, **fields: str) -> dict[str, object]:
    client = make_client(RedisServer(url, **fields), "name", 6.5)
    return dict(client.connection_pool.connection_kwargs)


def test_every_option_is_ours() -> None:
    for url in ("redis://host:7000?db=3", "rediss://host", "unix:///run/redis.sock"):
        given = options(url)
        assert given["socket_timeout"] == 6.5 and given["protocol"] == 2 and given["health_check_interval"] == 30
        assert given["retry"].get_retries() == 0 and given["retry_on_error"] == []
        assert given["driver_info"] is None and given["decode_responses"] is False
    tcp = options("redis://host:7000?db=3")
    assert (tcp["host"], tcp["port"], tcp["db"]) == ("host", 7000, 3)
    assert tcp["socket_keepalive"] and tcp["socket_connect_timeout"] == 5.0
    assert options("unix:///run/a%20b.sock")["path"] == "/run/a b.sock"


def test_tls_is_verified() -> None:
    tls = options("rediss://host:7000?ssl_ca_certs=/etc/ca.pem")
    assert tls["ssl_cert_reqs"] == "required" and tls["ssl_check_hostname"] is True
    assert tls["ssl_ca_certs"] == "/etc/ca.pem"


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "redis://host:port",
        "redis://host:99999",
        "redis://host?db=x",
        "redis://host?retry=9",
        "host:6379",
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.url"):
        options(url)


@pytest.mark.parametrize("url", ["redis://:hush@host", "redis://me@host", "unix://me:hush@/run/redis.sock"])
def test_credentials_in_the_address_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.password_file") as caught:
        options(url)
    assert "hush" not in str(caught.value)


def test_the_password_comes_from_a_file_and_is_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("hush hush\n")
    server = RedisServer("redis://host", "me", read_password(str(path)))
    assert server.password == "hush hush"
    client = make_client(server, "name", 1.0)
    assert "hush" not in repr(server) + str(server) + repr(client) + repr(client.connection_pool)
    path.write_text("\n")
    for missing in (path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match=r"store\.password_file"):
            read_password(str(missing))
    assert read_password(None) is None


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (redis.ConnectionError("gone"), "connection"),
        (redis.TimeoutError("late"), "timeout"),
        (redis.InvalidResponse("noise"), "connection"),
        (redis.BusyLoadingError("Redis is loading"), "LOADING"),
        (redis.ReadOnlyError("You can't write against a read only replica."), "READONLY"),
        (redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "MISCONF"),
        (redis.ResponseError("BUSY Redis is busy running a script"), "BUSY"),
        (redis.ResponseError("MASTERDOWN Link with MASTER is down"), "MASTERDOWN"),
        (redis.ResponseError("WRONGTYPE Operation against a key"), None),
        (redis.AuthenticationError("invalid password"), None),
        (redis.exceptions.OutOfMemoryError("command not allowed"), None),
    ],
)
def test_only_named_states_are_retried(error: redis.RedisError, state: str | None) -> None:
    assert transient_state(error) == state


def test_seldom_is_due_once() -> None:
    seldom = Seldom(3600.0)
    assert [seldom.due() for _ in range(3)] == [True, False, False]
    assert Seldom(0.0).due()
