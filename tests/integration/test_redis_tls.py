"""Redis over TLS with a user of its own, where a Redis with TLS and openssl are installed."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import StoreError, UnreachableError
from pipeline.stopping import StopToken
from pipeline.store.redis_client import RedisLink, RedisServer
from tests.runs import free_ports

SERVER, OPENSSL = shutil.which("redis-server"), shutil.which("openssl")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(SERVER is None or OPENSSL is None, reason="redis-server or openssl is not installed"),
]

PASSWORD = "staple-battery-4410"


@pytest.fixture
def tls_port(tmp_path: Path) -> Iterator[int]:
    """A Redis with TLS only, the user ``trainer`` for ``mine:*`` and no other."""
    (port,) = free_ports(1)
    certificate = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    certificate += " -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem"
    subprocess.run([str(OPENSSL), *certificate.split()], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "redis.conf").write_text(
        f"port 0\ntls-port {port}\ntls-cert-file cert.pem\ntls-key-file key.pem\ntls-auth-clients no\nsave ''\n"
        f"bind 127.0.0.1\nuser default off\nuser trainer on >{PASSWORD} ~mine:* +@all\n"
    )
    with (tmp_path / "redis.log").open("wb") as log:
        process = subprocess.Popen([str(SERVER), "redis.conf"], cwd=tmp_path, stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def link(
    port: int, ca: Path | None, password: str = PASSWORD, host: str = "localhost", patience: float = 10.0
) -> RedisLink:
    query = f"?ssl_ca_certs={ca}" if ca is not None else ""
    server = RedisServer(f"rediss://{host}:{port}{query}", "trainer", password, 2.0, patience)
    return RedisLink(server, "test", StopToken())


def test_a_user_of_its_own_over_tls(tls_port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with_ca = link(tls_port, tmp_path / "cert.pem")
    assert with_ca.call(lambda client: client.set("mine:x", b"1"))
    with pytest.raises(StoreError, match="permission") as refused:
        with_ca.call(lambda client: client.set("theirs:x", b"1"))
    with pytest.raises(StoreError) as wrong:
        link(tls_port, tmp_path / "cert.pem", "not-it-77").call(lambda client: client.get("mine:x"))
    assert "invalid username-password" in str(wrong.value)
    for text in (caplog.text, str(refused.value), str(wrong.value), repr(with_ca.server)):
        assert PASSWORD not in text and "not-it-77" not in text
    with_ca.close()


def test_a_certificate_that_nobody_vouches_for_is_refused(tls_port: int, tmp_path: Path) -> None:
    link(tls_port, tmp_path / "cert.pem").call(lambda client: client.ping())
    with pytest.raises(UnreachableError, match="certificate verify failed"):
        link(tls_port, None, patience=0.5).call(lambda client: client.ping())
    with pytest.raises(UnreachableError, match="certificate"):
        link(tls_port, tmp_path / "cert.pem", host="127.0.0.1", patience=0.5).call(lambda client: client.ping())
