"""The endpoint for real: what it answers and whom it does not; what `promtool` says of it and of ``monitoring/``."""

from __future__ import annotations

import http.client
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from pipeline.buckets import LATENCIES, Buckets
from pipeline.config.metrics import MetricsSection
from pipeline.errors import ConfigError
from pipeline.metrics.endpoint import CONNECTIONS, Health, health_of, served
from pipeline.metrics.sheet import Sheet, registry_of
from pipeline.stopping import StopToken
from tests.prometheus import promtool

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def filled(sheet: Sheet) -> None:
    buckets = Buckets(LATENCIES)
    buckets.add(0.3)
    sheet.histogram("seedmq_inference_latency_seconds", buckets.read())
    sheet.set("seedmq_updates_total", 3)
    sheet.by("seedmq_episodes_total", {"train": 4})


@contextmanager
def endpoint(stop: StopToken, alive: str = "", ready: str = "", host: str = "127.0.0.1") -> Iterator[int]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    health = health_of(lambda: alive, lambda: ready, stop)
    bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with served(MetricsSection(bind=bind), registry_of("learner", health.ready, filled), health, stop):
        yield port


def get(port: int, path: str, method: str = "GET", host: str = "127.0.0.1", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_metrics_are_served_and_pass_promtool() -> None:
    with endpoint(StopToken()) as port:
        status, text = get(port, "/metrics")
        open_metrics = get(port, "/metrics", Accept="application/openmetrics-text; version=1.0.0")[1]
    assert status == 200
    samples = {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}
    assert samples["seedmq_updates_total"] == 3 and samples["seedmq_ready"] == 1
    assert samples["seedmq_inference_latency_seconds_count"] == 1
    assert samples["process_resident_memory_bytes"] > 2**20
    assert open_metrics.endswith("# EOF\n")
    tool = promtool()
    checked = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert checked.returncode == 0 and not checked.stdout + checked.stderr, checked.stdout + checked.stderr


def test_health_and_readiness_say_why() -> None:
    with endpoint(StopToken()) as port:
        assert get(port, "/healthz") == (200, "ok\n") == get(port, "/readyz")
    stop = StopToken()
    with endpoint(stop, "a thread\nhas died", "no learner") as port:
        assert get(port, "/healthz") == (503, "a thread has died\n")
        assert get(port, "/readyz") == (503, "no learner\n")
        assert "seedmq_ready 0.0" in get(port, "/metrics")[1]
        stop.stop("signal")
        assert get(port, "/readyz") == (503, "stopping: signal\n")
        assert get(port, "/else")[0] == 404
        assert get(port, "/metrics", "POST")[0] == 405


def test_an_ipv6_address() -> None:
    try:
        with endpoint(StopToken(), host="::1") as port:
            assert get(port, "/healthz", host="::1")[0] == 200
    except OSError:
        pytest.skip("no IPv6 here")


def test_a_taken_address_is_named() -> None:
    with endpoint(StopToken()) as port:
        section = MetricsSection(bind=f"127.0.0.1:{port}")
        with (
            pytest.raises(ConfigError, match=f"metrics.bind = '127.0.0.1:{port}': .*in use"),
            served(section, CollectorRegistry(), Health(str, str), StopToken()),
        ):
            pass


def test_who_owns_a_thread_that_dies_learns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(server: object) -> None:
        raise OSError("the socket is gone")

    monkeypatch.setattr("pipeline.metrics.endpoint._Server.handle_request", broken)
    stop = StopToken()
    with endpoint(stop):
        assert stop.wait(10)
    with pytest.raises(OSError, match="the socket is gone"):
        stop.raise_error()


def test_no_address_no_endpoint() -> None:
    with served(MetricsSection(), CollectorRegistry(), Health(str, str), StopToken()):
        pass


def test_a_collector_that_fails_is_said_and_nothing_else_stops(caplog: pytest.LogCaptureFixture) -> None:
    def broken(sheet: Sheet) -> None:
        raise ValueError("a bug")

    stop = StopToken()
    health = health_of(str, str, stop)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with served(MetricsSection(bind=f"127.0.0.1:{port}"), registry_of("broker", str, broken), health, stop):
        assert get(port, "/metrics") == (500, "see the log\n")
        assert get(port, "/healthz")[0] == 200
    assert "a bug" in caplog.text and stop.error is None


def test_slow_clients_keep_nobody_out() -> None:
    with endpoint(StopToken()) as port:
        slow: list[socket.socket] = []
        try:
            for _ in range(2 * CONNECTIONS):
                slow.append(socket.create_connection(("127.0.0.1", port), 10))
                slow[-1].sendall(b"GET /metrics HTTP/1.1\r\nX-Never-Ending: ")
            assert get(port, "/healthz") == (200, "ok\n")
            for _ in range(10):  # each goes on to send a byte now and then
                for one in slow[-CONNECTIONS // 2 :]:
                    one.sendall(b"x")
                assert get(port, "/healthz") == (200, "ok\n")
            assert slow[0].recv(1) == b""  # no more than their places: the oldest were hung up on
        finally:
            for one in slow:
                one.close()


def test_a_name_that_no_host_can_have() -> None:
    with (
        pytest.raises(ConfigError, match=r"metrics.bind = 'a\.\.b:1': no host has such a name"),
        served(MetricsSection(bind="a..b:1"), CollectorRegistry(), Health(str, str), StopToken()),
    ):
        pass


def test_promtool_takes_the_files() -> None:
    tool = promtool()
    for arguments in (["check", "config", "monitoring/prometheus.yml"], ["check", "rules", "monitoring/alerts.yml"]):
        checked = subprocess.run([tool, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
