"""What the broker process serves at ``metrics.bind``."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry

from broker.loop import BrokerLoop
from pipeline.metrics.endpoint import Health

STUCK_SECONDS = 10.0
"""The loop turns at least once a tick; one that has not for so long is stuck."""


def registry(loop: BrokerLoop) -> CollectorRegistry:
    """Everything that this process counts."""
    return CollectorRegistry()


def health(loop: BrokerLoop) -> Health:
    """Alive: the loop turns. Ready: a learner is there, and not silent."""

    def alive() -> str:
        still = time.monotonic() - loop.turned
        return f"the loop has stood still for {still:.0f} s" if still > STUCK_SECONDS + 2 * loop.tick_seconds else ""

    def ready() -> str:
        reading = loop.board.reading
        if not reading.learners:
            return "no learner is connected"
        return "every learner is silent" if reading.silent == reading.learners else ""

    return Health(alive, ready)
