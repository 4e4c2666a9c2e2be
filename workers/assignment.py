"""What a supervisor hands to its child process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline import logs
from pipeline.config.tree import Config
from workers.block import Block
from workers.restarts import RestartBudget


@dataclass(frozen=True)
class Assignment:
    """One child's work.

    Attributes:
        config: The configuration.
        worker_id: Logical name of the worker.
        run: Run id of this child's environments.
        worker: Index that an earlier child held, or -1.
        reports: Last words of earlier runs: run -> ``Report.to_wire()``.
        budget: A copy of the supervisor's: faults that the child survives count as those that it does not.
        faults: Of the children before this one: kind -> number.
        last_fault: The last of them in words.
        block: Shared memory.
        dump: File for stacks.
        logs: Logging settings.
        parent: The supervisor's process id.
    """

    config: Config
    worker_id: str
    run: int
    worker: int
    reports: dict[str, Any]
    budget: RestartBudget
    faults: dict[str, int]
    last_fault: str
    block: Block
    dump: str
    logs: logs.Settings
    parent: int
