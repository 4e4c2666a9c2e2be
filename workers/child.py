"""The process that steps environments. Its loop is ``workers.loop``; here it begins, and here it is said how it ended.

The supervisor (``workers.supervisor``) watches it through shared memory; signals are its business alone.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from pipeline import logs, reaping
from pipeline.errors import EXIT_FAILED, EXIT_FINISHED, EnvironmentFailure, SeedmqError
from workers.assignment import Assignment
from workers.block import At, Block
from workers.group import NonFinite
from workers.loop import Worker
from workers.place import place_of, words_of

log = logging.getLogger(__name__)

FAULT_EXIT = 10


def child_main(assignment: Assignment) -> NoReturn:
    """Entry point of the spawned process, which keeps its child with the environments; exits 0 after an orderly end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not ignored by name: what environments start would inherit that, and their own ``terminate`` not work.
        signal.signal(number, _unmoved)
    logs.configure(assignment.logs)
    reaping.keep(assignment.parent)
    assignment.block.numbers[At.PID] = os.getpid()
    with open(assignment.dump, "w") as dump:
        faulthandler.enable(dump)
        faulthandler.register(signal.SIGUSR1, dump, all_threads=True, chain=False)
        sys.exit(_guarded(assignment))


def _unmoved(number: int, frame: FrameType | None) -> None:
    """The supervisor decides when this process ends."""


def _guarded(assignment: Assignment) -> int:
    block = assignment.block
    try:
        Worker(assignment).run()
    except NonFinite as fault:
        numbers = block.numbers
        numbers[At.NON_FINITE] += 1
        text = f"worker {numbers[At.WORKER]}, environment {fault.environment}, group step {numbers[At.STEP]}: {fault}"
        block.set_error(EnvironmentFailure(text))
        return EXIT_FAILED
    except EnvironmentFailure as error:
        block.set_error(EnvironmentFailure(f"{error} ({place_of(error)})"))
        return error.exit_code
    except SeedmqError as error:
        block.set_error(error)
        return error.exit_code
    except BaseException as error:  # an environment may raise anything; the supervisor decides
        where = _where(block)
        log.error("%s: %s: %s", where, type(error).__name__, error, exc_info=True)
        block.set_text(words_of(error, where))
        return FAULT_EXIT
    return EXIT_FINISHED


def _where(block: Block) -> str:
    numbers, phase = block.numbers, block.phase
    place = f"environment {numbers[At.ENVIRONMENT]}" if numbers[At.ENVIRONMENT] >= 0 else f"group {numbers[At.GROUP]}"
    return f"worker {numbers[At.WORKER]}, {place}, {phase.name.lower()}, step {numbers[At.STEP]}"
