"""What a worker's supervisor serves at ``metrics.bind``, of itself and of the process that steps environments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector

from pipeline.metrics.catalogue import ENVIRONMENTS
from pipeline.metrics.endpoint import Health, health_of
from pipeline.metrics.sheet import Sheet, registry_of
from pipeline.stages import ACTIONS, BUSY
from pipeline.stopping import StopToken
from workers.block import At, Of

if TYPE_CHECKING:
    from workers.supervisor import Supervisor

STUCK_SECONDS = 60.0
"""The supervisor looks many times a second, but while it waits to start environments anew."""
NO_PROCESS = 0  # an id that /proc does not have


def registry(supervisor: Supervisor, environments: int, health: Health) -> CollectorRegistry:
    """Everything that this worker counts; it has so many ``environments``."""

    def fill(sheet: Sheet) -> None:
        counted = supervisor.counted()
        numbers = counted.numbers
        sheet.set("seedmq_worker_environments", environments)
        sheet.set("seedmq_worker_environment_steps_total", numbers[Of.TAKEN])
        sheet.set("seedmq_worker_rows_masked_total", numbers[Of.MASKED])
        sheet.by("seedmq_worker_steps_dropped_total", {"non_finite": numbers[Of.DROPPED]})
        sheet.by("seedmq_worker_faults_total", counted.faults)
        sheet.set("seedmq_worker_restarts_total", counted.restarts)
        sheet.set("seedmq_worker_reconnects_total", numbers[At.RECONNECTS])
        sheet.set("seedmq_stage_seconds_total", numbers[At.BUSY] / 1e9, "environments", BUSY)
        sheet.set("seedmq_stage_seconds_total", numbers[At.ACTIONS] / 1e9, "environments", ACTIONS)
        if counted.phase is not None:
            phase, seconds = counted.phase
            sheet.set("seedmq_worker_phase_seconds", seconds, phase.name.lower())

    registry = registry_of("worker", health.ready, fill)
    ProcessCollector(namespace=ENVIRONMENTS, pid=lambda: supervisor.child_pid or NO_PROCESS, registry=registry)
    return registry


def health(supervisor: Supervisor, stop: StopToken) -> Health:
    """Alive: the supervisor looks after its child, which it ends itself where that is stuck. Ready: admitted."""

    def alive() -> str:
        still = time.monotonic() - supervisor.looked
        return f"the supervisor has stood still for {still:.0f} s" if still > STUCK_SECONDS else ""

    return health_of(alive, supervisor.why_not_admitted, stop)
