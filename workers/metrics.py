"""What a worker's supervisor serves at ``metrics.bind``, of itself and of the process that steps environments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from pipeline.metrics.endpoint import Health

if TYPE_CHECKING:
    from workers.supervisor import Supervisor

STUCK_SECONDS = 60.0
"""The supervisor looks many times a second, but while it waits to start environments anew."""


def registry(supervisor: Supervisor) -> CollectorRegistry:
    """Everything that this worker counts."""
    return CollectorRegistry()


def health(supervisor: Supervisor) -> Health:
    """Alive: the supervisor looks after its child, which it ends itself where that is stuck. Ready: admitted."""

    def alive() -> str:
        still = time.monotonic() - supervisor.looked
        return f"the supervisor has stood still for {still:.0f} s" if still > STUCK_SECONDS else ""

    return Health(alive, supervisor.why_not_admitted)
