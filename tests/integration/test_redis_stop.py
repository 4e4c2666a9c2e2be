"""A Redis that hangs, while the learner stops: one command's timeout is all the patience there is."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from pipeline.errors import UnreachableError
from pipeline.stopping import StopToken
from pipeline.store.embedded import EmbeddedServer
from pipeline.store.redis_client import STOPPED_SECONDS, RedisLink, RedisServer
from tests.runs import Stopwatch

pytestmark = pytest.mark.integration


def test_a_hanging_redis_is_waited_for_once_at_a_stop(make_redis: Callable[..., EmbeddedServer]) -> None:
    server, stop = make_redis(), StopToken()
    timeout = STOPPED_SECONDS + 0.2
    link = RedisLink(RedisServer(server.url, operation_timeout_seconds=timeout), "test", stop)
    assert server.pid is not None
    try:
        assert link.call(lambda client: client.ping())
        os.kill(server.pid, signal.SIGSTOP)
        stop.stop("signal")
        watch = Stopwatch()
        with pytest.raises(UnreachableError, match="state timeout"):
            link.call(lambda client: client.ping())
        assert timeout <= watch.elapsed and watch.seconds < 1.8 * timeout, watch
    finally:
        os.kill(server.pid, signal.SIGCONT)
        link.close()
