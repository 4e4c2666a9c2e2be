"""What a worker's child process tells its supervisor through shared memory: where it is, since when, and its counters.

The child writes, the supervisor reads; only ``STOP`` goes the other way. No locks: the child may be stuck in C code or
killed at any moment. ``SINCE``, and what is said of the place, is written before ``PHASE`` where a phase begins, so
that a reader never pairs a new phase with an old time. While it is written it reads 0 for an instant.

Beside the numbers there is an account of each env group (``Of``), which is written at once: a child that is killed
between a step and its message has told that step whole or not at all. What the environments of a group have made in a
step that did not end is told by ``MADE``.
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
from pipeline.protocol import MAX_GROUPS, GroupReport, Report

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
    MADE = 5  # transitions that the group's environments have made in the step that goes on
    STEP = 6  # of the group: how often it was stepped
    ACTION_LENGTH = 7
    WORKER = 8  # leased index, -1 before WELCOME
    NON_FINITE = 9  # a step that was not finite, and ended the child
    FATAL = 10  # 1 + position in ERRORS of an error that a restart does not cure, else 0
    DONE = 11  # the session ended in order
    TEXT_LENGTH = 12
    STOP = 13  # supervisor -> child: drain (1); the child drains for that (2) and for no other reason
    WELCOMED = 14  # the broker has taken the HELLO
    BYE = 15  # 1 + the transitions taken of the BYE that the broker has booked, else 0
    ACTION_KIND = 16  # numpy's character for the actions' dtype
    SERVING = 17  # a learner has admitted the worker, and its connection stands
    RECONNECTS = 18
    BUSY = 19  # nanoseconds of its loop, as are the next
    ACTIONS = 20  # waiting for them
    RENEWED = 21  # environments that failed and were made anew by themselves
    FAULT_LENGTH = 22  # of the last such fault in words
    PID = 23  # of the process that steps environments, 0 before there is one


class Of(IntEnum):
    """Positions in the account of an env group."""

    ENVIRONMENTS = 0
    STEPS = 1  # how often it was stepped or reset
    TAKEN = 2  # valid transitions
    MASKED = 3  # rows
    DROPPED = 4  # transitions, non-finite
    NON_FINITE = 5  # steps that were not finite
    UNSENT = 6  # transitions that are in no STEP
    LAST = 7  # transitions in the last STEP


Account = tuple[int, ...]
"""In the order of ``Of``."""


# On the path of every message: enumerations are slow.
_PHASE, _SINCE, _ACTION_LENGTH, _WAITING = int(At.PHASE), int(At.SINCE), int(At.ACTION_LENGTH), int(Phase.WAITING)
_BEGUN = struct.Struct("7q")  # SINCE to ACTION_LENGTH
_MARKED = struct.Struct("5q")  # SINCE to MADE
_MADE, _STEP = int(At.MADE), int(At.STEP)
_ACCOUNT = struct.Struct("8q")
_SINCE_OFFSET = 8 * _SINCE


class Block:
    """The shared memory of one child.

    Args:
        context: The spawn context of the child.
    """

    def __init__(self, context: SpawnContext) -> None:
        words = len(At) + MAX_GROUPS * len(Of) + (ACTION_BYTES + 2 * TEXT_BYTES) // 8
        self._shared: Any = context.RawArray("q", words)
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
        begin, end = end, end + MAX_GROUPS * _ACCOUNT.size
        self._accounts = view[begin:end]
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
        _BEGUN.pack_into(self._bytes, _SINCE_OFFSET, since, group, -1, seed, 0, step, length)
        numbers[_PHASE] = phase
        return since

    def mark(self, phase: Phase, group: int, environment: int, seed: int, made: int = 0) -> int:
        """A single environment of the group that has begun is about to run: it has the whole timeout for itself.

        Args:
            phase: RESET or STEP.
            group: The group's index.
            environment: Offset within the worker.
            seed: Of the environment.
            made: Transitions that those before it have made in this step.

        Returns:
            Monotonic nanoseconds.
        """
        since = monotonic_ns()
        _MARKED.pack_into(self._bytes, _SINCE_OFFSET, since, group, environment, seed, made)
        self.numbers[_PHASE] = phase
        return since

    def wait(self) -> int:
        """The child waits for the broker: it is alive, and in nobody's code. Returns monotonic nanoseconds."""
        numbers = self.numbers
        numbers[_PHASE] = _WAITING
        numbers[_SINCE] = since = monotonic_ns()
        return since

    def made(self, transitions: int) -> None:
        """All of the group have come back from the step that goes on."""
        self.numbers[_MADE] = transitions

    def book(self, group: int, account: Account) -> None:
        """The step of a group has ended; its rows have not been sent yet."""
        _ACCOUNT.pack_into(self._accounts, group * _ACCOUNT.size, *account)

    def accounts(self) -> list[Account]:
        """Of all groups."""
        found = _ACCOUNT.iter_unpack(self._accounts)
        return [account for account in found if account[Of.ENVIRONMENTS]]

    def count(self, of: Of) -> int:
        """One of the counters, of all groups together."""
        return sum(account[of] for account in self.accounts())

    def faults(self) -> dict[str, int]:
        """Faults that a child counts itself, by kind: it goes on after them, but for its last."""
        numbers = self.numbers
        found = {
            "non_finite": self.count(Of.NON_FINITE) + int(numbers[At.NON_FINITE]),
            "env_errors": int(numbers[At.RENEWED]),
        }
        return {kind: number for kind, number in found.items() if number}

    def bury(self) -> None:
        """The child is dead: what its environments made in a step that did not end is taken, and in no STEP."""
        numbers, accounts = self.numbers, self.accounts()
        group, made = numbers[At.GROUP], numbers[_MADE]
        if made and group < len(accounts) and numbers[_STEP] == accounts[group][Of.STEPS]:
            account = list(accounts[group])
            account[Of.STEPS] += 1
            account[Of.TAKEN] += made
            account[Of.UNSENT] += made
            self.book(group, tuple(account))

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
        accounts = self.accounts()
        total = [sum(column) for column in zip(*accounts, strict=True)] or [0] * len(Of)
        dropped = {"non_finite": total[Of.DROPPED]} if total[Of.DROPPED] else {}
        counted = dict(faults)
        for kind, number in self.faults().items():
            counted[kind] = counted.get(kind, 0) + number
        return Report(
            taken=total[Of.TAKEN],
            dropped=dropped,
            masked=total[Of.MASKED],
            faults=counted,
            message=message[:2000],
            unsent=total[Of.UNSENT],
            groups=tuple(map(_report, accounts)),
        )


def _report(account: Account) -> GroupReport:
    sent = account[Of.TAKEN] - account[Of.DROPPED] - account[Of.UNSENT]
    return GroupReport(account[Of.ENVIRONMENTS], sent, account[Of.LAST])
