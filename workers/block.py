"""What a worker's child process tells its supervisor through shared memory: where it is, since when, and its counters.

The child writes, the supervisor reads; only ``STOP`` goes the other way. No locks: the child may be stuck in C code or
killed at any moment. ``SINCE`` is written before ``PHASE`` where a phase begins, so that a reader never pairs a new
phase with an old time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import IntEnum
from multiprocessing.context import SpawnContext
from types import MappingProxyType
from typing import Any

import numpy as np

from pipeline.errors import (
    ComponentError,
    ConfigError,
    EnvironmentFailure,
    MissingExtraError,
    SeedmqError,
    SpaceError,
    UnreachableError,
)
from pipeline.protocol import Report

ACTION_BYTES = 1024
TEXT_BYTES = 4096
ERRORS: tuple[type[SeedmqError], ...] = (
    SeedmqError,
    ConfigError,
    MissingExtraError,
    SpaceError,
    ComponentError,
    EnvironmentFailure,
    UnreachableError,
)


class Phase(IntEnum):
    """What the child is doing."""

    MAKING = 0  # the process starts, environments are made
    RESET = 1
    STEP = 2
    WAITING = 3  # for the broker
    CLOSING = 4


class At(IntEnum):
    """Positions of the numbers."""

    PHASE = 0
    SINCE = 1  # CLOCK_MONOTONIC, nanoseconds
    GROUP = 2
    ENVIRONMENT = 3  # offset within the worker, -1 where a whole group is stepped at once
    STEP = 4  # of the group: how often it was stepped
    SEED = 5  # of the environment (of the group's first, where it is stepped at once)
    WORKER = 6  # leased index, -1 before WELCOME
    TAKEN = 7
    MASKED = 8
    DROPPED = 9  # non-finite
    NON_FINITE = 10  # steps that were not finite
    FATAL = 11  # 1 + position in ERRORS of an error that a restart does not cure, else 0
    DONE = 12  # the session ended in order
    ACTION_LENGTH = 13
    TEXT_LENGTH = 14
    STOP = 15  # supervisor -> child: drain (1); the child drains for that (2) and for no other reason
    WELCOMED = 16  # the broker has taken the HELLO
    BYE = 17  # the broker has booked BYE
    ACTION_KIND = 18  # numpy's character for the actions' dtype


class Block:
    """The shared memory of one child.

    Args:
        context: The spawn context of the child.
    """

    def __init__(self, context: SpawnContext) -> None:
        self._shared: Any = context.RawArray("q", len(At) + (ACTION_BYTES + TEXT_BYTES) // 8)
        self._open()
        self.numbers[At.SINCE] = time.monotonic_ns()
        self.numbers[At.WORKER] = self.numbers[At.ENVIRONMENT] = -1

    def __getstate__(self) -> Any:
        return self._shared

    def __setstate__(self, shared: Any) -> None:
        self._shared = shared
        self._open()

    def _open(self) -> None:
        """Views: slices of them are copied at once, those of ctypes arrays byte by byte."""
        view = np.frombuffer(self._shared, np.uint8).data
        end = len(At) * 8
        self.numbers: Any = view[:end].cast("q")
        self._action = view[end : end + ACTION_BYTES]
        self._text = view[end + ACTION_BYTES :]

    def enter(self, phase: Phase) -> None:
        """The child begins something, now."""
        self.numbers[At.SINCE] = time.monotonic_ns()
        self.numbers[At.PHASE] = phase

    def wait(self) -> None:
        """The child waits for the broker: it is alive, and in nobody's code."""
        self.numbers[At.PHASE] = Phase.WAITING
        self.numbers[At.SINCE] = time.monotonic_ns()

    @property
    def phase(self) -> Phase:
        return Phase(self.numbers[At.PHASE])

    @property
    def since_seconds(self) -> float:
        return float(self.numbers[At.SINCE]) / 1e9

    def set_action(self, buffer: Any) -> None:
        """The actions of the step that begins; long ones are cut."""
        data = memoryview(buffer).cast("B")[:ACTION_BYTES]
        self.numbers[At.ACTION_LENGTH] = len(data)
        self._action[: len(data)] = data

    def action(self) -> bytes:
        return bytes(self._action[: self.numbers[At.ACTION_LENGTH]])

    def set_text(self, text: str) -> None:
        """Why the child is about to end; long texts are cut."""
        data = text.encode(errors="replace")[:TEXT_BYTES]
        self._text[: len(data)] = data
        self.numbers[At.TEXT_LENGTH] = len(data)

    def text(self) -> str:
        return bytes(self._text[: self.numbers[At.TEXT_LENGTH]]).decode(errors="replace")

    def set_error(self, error: SeedmqError) -> None:
        """An error that a restart does not cure."""
        self.set_text(str(error))
        self.numbers[At.FATAL] = 1 + (ERRORS.index(type(error)) if type(error) in ERRORS else 0)

    def error(self) -> SeedmqError | None:
        """The same error in the supervisor; None where there was none."""
        return ERRORS[self.numbers[At.FATAL] - 1](self.text()) if self.numbers[At.FATAL] else None

    def report(self, faults: Mapping[str, int] = MappingProxyType({}), message: str = "") -> Report:
        """The run's counters so far, with the faults of the runs before it and the last fault in words."""
        numbers = self.numbers
        dropped = {"non_finite": int(numbers[At.DROPPED])} if numbers[At.DROPPED] else {}
        counted = dict(faults)
        if numbers[At.NON_FINITE]:
            counted["non_finite"] = counted.get("non_finite", 0) + int(numbers[At.NON_FINITE])
        return Report(int(numbers[At.TAKEN]), dropped, int(numbers[At.MASKED]), counted, message[:2000])
