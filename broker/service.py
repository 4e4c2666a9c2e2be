"""The broker process: context, admission, loop."""

from __future__ import annotations

import logging

import zmq

from broker import metrics
from broker.loop import BrokerLoop
from pipeline import keys
from pipeline.admission import Admission
from pipeline.config.tree import Config
from pipeline.errors import EXIT_FINISHED
from pipeline.files import require_for_workers
from pipeline.metrics.endpoint import served
from pipeline.sockets import Context
from pipeline.stopping import StopToken

log = logging.getLogger(__name__)


def serve(config: Config, stop: StopToken) -> int:
    """Serves workers and learners until the token stops.

    Returns:
        The exit code: 0, or 128 + signal where a signal asked for the end.

    Raises:
        ConfigError: an endpoint is malformed, taken, or off the loopback without keys; too few files may be open.
        Exception: what ended a thread.
    """
    require_for_workers("broker", config)
    context: Context = zmq.Context()
    try:
        with Admission(context, config.broker, config.security, (keys.WORKERS, keys.LEARNERS)) as admission:
            loop = BrokerLoop(context, config, admission)
            try:
                workers, learners = loop.endpoints()
                log.info("broker ready: workers at %s, learners at %s", workers, learners)
                health = metrics.health(loop, stop)
                with served(config.metrics, metrics.registry(loop, health), health, stop):
                    loop.run(stop)
            finally:
                loop.close()
    finally:
        context.term()  # waits at most for the sockets' linger time
    stop.raise_error()
    log.info("broker stopped: %s", stop.reason)
    return EXIT_FINISHED if stop.signal is None else 128 + stop.signal
