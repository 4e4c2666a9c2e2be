"""What the broker process serves at ``metrics.bind``."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry

from broker.loop import BrokerLoop
from pipeline.metrics import routing
from pipeline.metrics.endpoint import Health, health_of
from pipeline.metrics.sheet import Sheet, registry_of
from pipeline.stopping import StopToken

STUCK_SECONDS = 10.0
"""The loop turns at least once a tick; one that has not for so long is stuck."""


def registry(loop: BrokerLoop, health: Health) -> CollectorRegistry:
    """Everything that this process counts."""

    def fill(sheet: Sheet) -> None:
        routing.fill(sheet, loop.board.reading)
        sheet.histogram("seedmq_broker_wait_seconds", loop.waits.read())
        sheet.stages([loop.stage])

    return registry_of("broker", health.ready, fill)


def health(loop: BrokerLoop, stop: StopToken) -> Health:
    """Alive: the loop turns. Ready: a learner is there, and not silent."""

    def alive() -> str:
        still = time.monotonic() - loop.turned
        return f"the loop has stood still for {still:.0f} s" if still > STUCK_SECONDS + 2 * loop.tick_seconds else ""

    def ready() -> str:
        reading = loop.board.reading
        if not reading.learners:
            return "no learner is connected"
        return "every learner is silent" if reading.silent == reading.learners else ""

    return health_of(alive, ready, stop)
