"""What a worker's child process tells its supervisor through shared memory: where it is, since when, and its counters.

The child writes, the supervisor reads; only ``STOP`` goes the other way. No locks: the child may be stuck in C code or
killed at any moment. ``SINCE``, and what is said of the place, is written before ``PHASE`` where a phase begins, so
that a reader never pairs a new phase with an old time. While it is written it reads 0 for an instant.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from multiprocessing.context import SpawnContext
from time import monotonic_ns
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
TEXT_BYTES = 4096  # of each of two texts
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
    # The place; from SINCE on in the order in which ``begin`` and ``mark`` write it at once.
    GROUP = 2
    ENVIRONMENT = 3  # offset within the worker, -1 where a whole group is stepped at once
    SEED = 4  # of the environment (of the group's first, where it is stepped at once)
    STEP = 5  # of the group: how often it was stepped
    ACTION_LENGTH = 6
    WORKER = 7  # leased index, -1 before WELCOME
    TAKEN = 8
    MASKED = 9
    DROPPED = 10  # non-finite
    NON_FINITE = 11  # steps that were not finite
    FATAL = 12  # 1 + position in ERRORS of an error that a restart does not cure, else 0
    DONE = 13  # the session ended in order
    TEXT_LENGTH = 14
    STOP = 15  # supervisor -> child: drain (1); the child drains for that (2) and for no other reason
    WELCOMED = 16  # the broker has taken the HELLO
    BYE = 17  # the broker has booked BYE
    ACTION_KIND = 18  # numpy's character for the actions' dtype
    SERVING = 19  # a learner has admitted the worker, and its connection stands
    RECONNECTS = 20
    BUSY = 21  # nanoseconds of its loop, as are the next
    ACTIONS = 22  # waiting for them
    RENEWED = 23  # environments that failed and were made anew by themselves
    FAULT_LENGTH = 24  # of the last such fault in words
    PID = 25  # of the process that steps environments, 0 before there is one


COUNTED = {"non_finite": At.NON_FINITE, "env_errors": At.RENEWED}
"""Faults that a child counts itself: it goes on after them."""
# On the path of every message: enumerations are slow.
_PHASE, _SINCE, _ACTION_LENGTH, _WAITING = int(At.PHASE), int(At.SINCE), int(At.ACTION_LENGTH), int(Phase.WAITING)
_BEGUN = struct.Struct("6q")  # SINCE to ACTION_LENGTH
_MARKED = struct.Struct("4q")  # SINCE to SEED
_SINCE_OFFSET = 8 * _SINCE


class Block:
    """The shared memory of one child.

    Args:
        context: The spawn context of the child.
    """

    def __init__(self, context: SpawnContext) -> None:
        self._shared: Any = context.RawArray("q", len(At) + (ACTION_BYTES + 2 * TEXT_BYTES) // 8)
        self._open()
        self.numbers[At.SINCE] = monotonic_ns()
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
        self._bytes = view[:end]
        self.numbers: Any = view[:end].cast("q")
        self._action = view[end : end + ACTION_BYTES]
        end += ACTION_BYTES
        self._text, self._fault = view[end : end + TEXT_BYTES], view[end + TEXT_BYTES :]

    def enter(self, phase: Phase) -> None:
        """The child begins something, now."""
        self.numbers[At.SINCE] = monotonic_ns()
        self.numbers[At.PHASE] = phase

    def begin(self, phase: Phase, group: int, seed: int, step: int, actions: bytes = b"") -> int:
        """A group is about to be reset or stepped.

        Args:
            phase: RESET or STEP.
            group: Its index.
            seed: Of its first environment.
            step: How often it was stepped.
            actions: Of the step; what is longer than ``ACTION_BYTES`` is cut. Of a reset none: the last ones stand.

        Returns:
            Monotonic nanoseconds.
        """
        numbers, since = self.numbers, monotonic_ns()
        length = min(len(actions), ACTION_BYTES) or numbers[_ACTION_LENGTH]
        if actions:
            self._action[:length] = actions[:length]
        _BEGUN.pack_into(self._bytes, _SINCE_OFFSET, since, group, -1, seed, step, length)
        numbers[_PHASE] = phase
        return since

    def mark(self, phase: Phase, group: int, environment: int, seed: int) -> int:
        """A single environment of the group that has begun is about to run: it has the whole timeout for itself.

        Args:
            phase: RESET or STEP.
            group: The group's index.
            environment: Offset within the worker.
            seed: Of the environment.

        Returns:
            Monotonic nanoseconds.
        """
        since = monotonic_ns()
        _MARKED.pack_into(self._bytes, _SINCE_OFFSET, since, group, environment, seed)
        self.numbers[_PHASE] = phase
        return since

    def wait(self) -> int:
        """The child waits for the broker: it is alive, and in nobody's code. Returns monotonic nanoseconds."""
        numbers = self.numbers
        numbers[_PHASE] = _WAITING
        numbers[_SINCE] = since = monotonic_ns()
        return since

    @property
    def phase(self) -> Phase:
        return Phase(self.numbers[At.PHASE])

    @property
    def since_seconds(self) -> float:
        """Monotonic seconds; 0 while it is written."""
        return float(self.numbers[At.SINCE]) / 1e9

    def action(self) -> bytes:
        return bytes(self._action[: self.numbers[At.ACTION_LENGTH]])

    def set_text(self, text: str) -> None:
        """Why the child is about to end; long texts are cut."""
        self._write(text, self._text, At.TEXT_LENGTH)

    def text(self) -> str:
        return bytes(self._text[: self.numbers[At.TEXT_LENGTH]]).decode(errors="replace")

    def renew(self, text: str) -> None:
        """One environment has failed, and is made anew; the child goes on."""
        self._write(text, self._fault, At.FAULT_LENGTH)
        self.numbers[At.RENEWED] += 1

    def fault(self) -> str:
        """The last fault of an environment that was made anew by itself."""
        return bytes(self._fault[: self.numbers[At.FAULT_LENGTH]]).decode(errors="replace")

    def _write(self, text: str, where: Any, length: At) -> None:
        data = text.encode(errors="replace")[:TEXT_BYTES]
        where[: len(data)] = data
        self.numbers[length] = len(data)

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
        for kind, at in COUNTED.items():
            if numbers[at]:
                counted[kind] = counted.get(kind, 0) + int(numbers[at])
        return Report(int(numbers[At.TAKEN]), dropped, int(numbers[At.MASKED]), counted, message[:2000])
