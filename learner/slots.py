"""Slots: which row of the policy's tables an environment has, and what its group was answered last. A state machine.

A repeated sequence number is answered from the group's last reply and advances nothing; an older one is dropped.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from learner.exploration import SAMPLE, Exploration
from pipeline.protocol import Report
from pipeline.rows import environment_id


class Verdict(Enum):
    """What to do with a request."""

    SERVE = "serve"
    REPEAT = "repeat"  # answered before: send the last reply again
    IN_FLIGHT = "in_flight"  # the same request is being served: its reply will do
    STALE = "stale"  # older than the last answered one
    GAP = "gap"  # jumps ahead: a worker has one request outstanding per group, so this one is broken
    UNKNOWN = "unknown"  # no such run or group here


@dataclass
class Group:
    """One env group.

    Attributes:
        slots: int32 ``[n]``.
        environments: Environment ids, int64 ``[n]``.
        evaluation: An eval worker's: explores as evaluation does, feeds nothing into the store.
        sequence: Of the last answered request, -1 before the first.
        serving: Of the request in flight, or -1.
        reply: The last reply's buffer.
    """

    slots: npt.NDArray[np.int32]
    environments: npt.NDArray[np.int64]
    run: int
    evaluation: bool
    sequence: int = -1
    serving: int = -1
    reply: Any = None

    @cached_property
    def places(self) -> bytes:
        """uint32 ``[n]``, little-endian: the index of each environment within the group."""
        return np.arange(len(self.slots), dtype="<u4").tobytes()


@dataclass
class Member:
    """A worker's run: its groups and what the ledger needs when it ends."""

    worker: int
    worker_id: str
    run: int
    groups: list[Group]
    seed: int = -1  # of its first environment
    report: Report | None = None  # its last word so far
    last_word: Report | None = None  # of a run whose end others tell of
    in_flight: int = 0  # transitions taken and not here, when it reported
    reported: float = -math.inf  # when it came, monotonic seconds

    def slots(self) -> npt.NDArray[np.int32]:
        return np.concatenate([group.slots for group in self.groups])


class SlotTable:
    """Slots of all admitted runs. Owned by the inference thread.

    Attributes:
        evaluates: bool ``[slots]``.
        inherited: bool ``[slots]``: what is known of the environment is a predecessor's word.
        explores: float32 ``[slots]``, the ``exploration`` of ``learner.distributions``.

    Args:
        slots: How many there are.
        exploration: How much the environments explore. Those that train count among themselves, lowest free place
            first, whatever slots evaluation has between theirs.
    """

    def __init__(self, slots: int, exploration: Exploration = SAMPLE) -> None:
        self.capacity = slots
        self.evaluates = np.zeros(slots, np.bool_)
        self.inherited = np.zeros(slots, np.bool_)
        self.explores = np.zeros(slots, np.float32)
        self._exploration = exploration
        self._places = np.zeros(slots, np.int32)  # of slots that train: theirs among those
        self._free, self._free_places = list(range(slots)), list(range(slots))
        self._members: dict[tuple[int, int], Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    @property
    def used(self) -> int:
        return self.capacity - len(self._free)

    def get(self, worker: int, run: int) -> Member | None:
        return self._members.get((worker, run))

    def evaluating(self) -> npt.NDArray[np.int32]:
        """Slots of evaluation environments that are there now."""
        groups = [group.slots for member in list(self._members.values()) for group in member.groups if group.evaluation]
        return np.concatenate(groups) if groups else np.zeros(0, np.int32)

    def admit(self, worker: int, worker_id: str, run: int, sizes: list[int], evaluation: bool) -> Member | None:
        """Gives a run its slots, lowest first; None when too few are free."""
        if sum(sizes) > len(self._free):
            return None
        groups, offset = [], 0
        for size in sizes:
            slots = np.array([heapq.heappop(self._free) for _ in range(size)], np.int32)
            ids = np.array([environment_id(worker, offset + i) for i in range(size)], np.int64)
            groups.append(Group(slots, ids, run, evaluation))
            offset += size
        member = Member(worker, worker_id, run, groups)
        self._members[worker, run] = member
        given = member.slots()
        self.evaluates[given] = evaluation
        if evaluation:
            self._explore_evaluating()
        else:
            self._places[given] = [heapq.heappop(self._free_places) for _ in given]
            self.explores[given] = self._exploration.of_training(self._places[given])
        return member

    def release(self, worker: int, run: int) -> Member | None:
        """Takes a run's slots back."""
        member = self._members.pop((worker, run), None)
        if member is None:
            return None
        evaluated = False
        for slot in member.slots().tolist():
            heapq.heappush(self._free, slot)
            evaluated = bool(self.evaluates[slot])
            if not evaluated:
                heapq.heappush(self._free_places, int(self._places[slot]))
        if evaluated:
            self._explore_evaluating()
        return member

    def _explore_evaluating(self) -> None:
        slots = self.evaluating()
        self.explores[slots] = self._exploration.of_evaluation(len(slots))

    def judge(self, worker: int, run: int, group: int, sequence: int) -> tuple[Verdict, Group | None]:
        """What to do with a request; ``SERVE`` marks the group as being served."""
        member = self._members.get((worker, run))
        if member is None or not 0 <= group < len(member.groups):
            return Verdict.UNKNOWN, None
        state = member.groups[group]
        if sequence == state.serving:
            return Verdict.IN_FLIGHT, state
        if sequence == state.sequence:
            return Verdict.REPEAT, state
        if sequence < state.sequence or state.serving >= 0:
            return Verdict.STALE, state
        if state.sequence >= 0 and sequence != state.sequence + 1:
            return Verdict.GAP, state
        state.serving = sequence
        return Verdict.SERVE, state

    @staticmethod
    def answered(group: Group, reply: Any) -> None:
        group.sequence, group.serving, group.reply = group.serving, -1, reply
