"""Killing Redis-protocol servers."""

from __future__ import annotations

import os
import signal
import time

import redis

from pipeline.store.embedded import EmbeddedServer

WRITTEN_SECONDS = 60.0


def wait_until_written(server: EmbeddedServer, password: str | None = None) -> None:
    """Until its log, if it keeps one, holds all that was answered: Redis puts writing off while the disk is busy."""
    deadline = time.monotonic() + WRITTEN_SECONDS
    with redis.Redis.from_url(server.url, password=password, socket_timeout=WRITTEN_SECONDS) as client:
        while client.info("persistence").get("aof_buffer_length"):
            assert time.monotonic() < deadline, "Redis does not write its log"


def kill(server: EmbeddedServer, password: str | None = None) -> None:
    """SIGKILL, once the log is written: that less comes back is a test of its own (test_store_rollback.py)."""
    assert server.pid is not None
    wait_until_written(server, password)
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
