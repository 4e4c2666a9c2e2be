"""The section `metrics`: where a process says what it counts, and whether it is alive and ready."""

from __future__ import annotations

import re

from pydantic import field_validator

from pipeline.config.section import Section

LARGEST_PORT = 65535
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/\[\]@]+)):(?P<port>[0-9]{1,5})")


class MetricsSection(Section):
    bind: str | None = None
    """`HOST:PORT` at which each process serves plain HTTP: `/metrics` (Prometheus), `/healthz`, `/readyz`. Default:
    none is served. Under `seedmq run` the learner takes PORT, a broker process PORT + 1, worker i PORT + 2 + i, and
    those that evaluate the ports after them; with PORT 0 each takes any free one, which it logs."""

    @field_validator("bind")
    @classmethod
    def _names_host_and_port(cls, bind: str | None) -> str | None:
        if bind is not None:
            split(bind)
        return bind

    def moved(self, by: int) -> MetricsSection:
        """The same for another process of this host: ``by`` ports further on, unless the port is 0 (any).

        Raises:
            ValueError: there is no such port.
        """
        if self.bind is None:
            return self
        host, port = split(self.bind)
        if port + by > LARGEST_PORT:
            raise ValueError(f"metrics.bind = {self.bind!r}: {by} ports after {port} are above {LARGEST_PORT}")
        return MetricsSection(bind=joined(host, port + by if port else 0))


def split(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[IPV6]:PORT``.

    Raises:
        ValueError: it is none.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError("not HOST:PORT, as in 127.0.0.1:9464 or [::1]:9464")
    if int(match["port"]) > LARGEST_PORT:
        raise ValueError(f"port {match['port']} is above {LARGEST_PORT}")
    return match["six"] or match["host"], int(match["port"])


def joined(host: str, port: int) -> str:
    """The inverse of ``split``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
