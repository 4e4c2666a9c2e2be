"""The account of a worker's run at its end: what it says it took, against what came. A pure function.

Both sides count for themselves: the worker what its environments made, the learner the running indices of the rows that
came. They agree if, in each env group, all that was sent has come, or all but the last STEP, which then is booked as
undelivered: a group has one STEP under way at most. Anything else is a difference, an error in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pipeline.protocol import GroupReport, Report

NOTHING: Mapping[str, int] = MappingProxyType({})


class Settled(NamedTuple):
    """What is booked of a run because of its reports. All amounts are transitions.

    Attributes:
        said: Taken, as the report says that this is booked by.
        final: That was its last word: nothing more comes of it.
        undelivered: Taken, and in no STEP that came.
        dropped: At the worker, by reason.
        inherited: Came to a predecessor of this learner, which died before it stored them.
        missing: Taken, as the worker says, and not accounted for by anybody.
        surplus: Came, and were never taken, as the worker says.
    """

    said: int = 0
    final: bool = False
    undelivered: int = 0
    dropped: Mapping[str, int] = NOTHING
    inherited: int = 0
    missing: int = 0
    surplus: int = 0

    @property
    def extra(self) -> int:
        """What the worker's word adds to what came by index."""
        return self.undelivered + sum(self.dropped.values()) + self.missing - self.surplus

    def to_json(self) -> list[Any]:
        return [*self._replace(dropped=dict(self.dropped))]

    @classmethod
    def from_json(cls, entry: Sequence[Any]) -> Settled:
        """The inverse of ``to_json``; of a checkpoint of before there was one: settled for good."""
        if len(entry) != len(cls._fields):
            return cls(said=2**62, final=True, dropped=dict(entry[1]))
        return cls(*entry)


class Arrived(NamedTuple):
    """What a learner knows of a group.

    Attributes:
        sent: What the running indices of its environments add up to.
        unheard: That is what was stored by a predecessor: nothing has come since.
    """

    sent: int
    unheard: bool


def settle(report: Report, arrived: Sequence[Arrived], final: bool) -> Settled:
    """What a run comes to.

    Args:
        report: Of the run.
        arrived: Of each of the report's groups, and of what is in none of them.
        final: It is its last word; else one of before it fell silent, which later rows may have overtaken.
    """
    undelivered = min(report.unsent, sum(group.environments for group in report.groups))
    inherited, missing, surplus = 0, report.unsent - undelivered, 0
    for group, came in zip(report.groups, arrived, strict=False):
        difference = group.sent - came.sent
        if came.unheard and difference > 0:
            late = group.last if difference >= group.last else 0
            undelivered += late
            inherited += difference - late
        elif difference == group.last <= group.environments:
            undelivered += group.last
        elif difference > 0:
            missing += difference
        elif final:
            surplus -= difference
    rest = _not_of_groups(report) - sum(came.sent for came in arrived[len(report.groups) :])
    if final or report.groups:
        missing, surplus = missing + max(0, rest), surplus + max(0, -rest)
    return Settled(report.taken, final, undelivered, dict(report.dropped), inherited, missing, surplus)


def _not_of_groups(report: Report) -> int:
    """What a report says was taken and is in none of its other numbers."""
    sent = sum(group.sent for group in report.groups)
    return report.taken - sum(report.dropped.values()) - report.unsent - sent


def all_under_way(report: Report) -> bool:
    """Whether so little was sent that all of it may have been under way: else it went to another learner."""
    return all(group.sent <= group.last for group in report.groups)


def offsets(groups: Sequence[GroupReport]) -> list[range]:
    """The offsets within the worker of each group's environments."""
    found, begin = [], 0
    for group in groups:
        found.append(range(begin, begin + group.environments))
        begin += group.environments
    return found
