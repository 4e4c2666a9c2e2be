"""Who is served: admission, the end of runs, and what the ledger books for them. Owned by the inference thread.

Joined -> spaces compared, slots given -> admit | reject
Left   -> open unrolls flushed, slots taken back, the run settled (``learner.accounts``): by its last word where it had
          one (BYE, or what its worker says of it later), else by its last heartbeat, until it comes back or has one
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from learner.accounts import Arrived, Settled, all_under_way, offsets, settle
from learner.assembler import Assembler, Unroll
from learner.episodes import Episodes
from learner.faults import WorkerFaults
from learner.slots import Group, Member, SlotTable
from pipeline.errors import SpaceError, UnwrittenError
from pipeline.ledger import Ledger
from pipeline.protocol import Cause, Report
from pipeline.requests import Joined, Left, Reported
from pipeline.rows import offset_of
from pipeline.spaces import Spaces
from pipeline.streams import Lane

log = logging.getLogger(__name__)

REMEMBERED_RUNS = 4096
Place = tuple[int, int]
"""(run, offset within the worker): an environment whatever index its worker has; a run that comes back may get another.
"""
Known = Mapping[Place, int]
"""Running index of the last known transition."""
Frontier = dict[Place, tuple[int, int]]
"""(index up to which all is put or booked as lost, running index of the last transition)."""


class Refusal(NamedTuple):
    """Why a worker is not admitted."""

    reason: str
    cause: Cause


class Environments(NamedTuple):
    """What admitted workers say.

    Attributes:
        training: Workers that train.
        evaluating: Workers that evaluate.
        busy: Mean share of the last second that training workers' environments stepped, of those that were heard of;
            None where none was.
        faults: Of all workers since the learner began: kind -> number.
        newest_fault: Whose it is, and in words; empty: there was none.
    """

    training: int
    evaluating: int
    busy: float | None
    faults: Mapping[str, int] = MappingProxyType({})
    newest_fault: str = ""


class Roster:
    """Admitted runs.

    Args:
        spaces: What every worker must have.
        config_hash: What every worker's must equal, where it says one.
        largest_group: Rows that one inference batch can hold.
        assembler: Opened at admission, flushed at the end of a run.
        ledger: Books undelivered transitions and drops at the worker.
        known: What a predecessor accepted of each environment's run: empty for a new lineage.
        settled: What it booked of runs that ended.
        seeds: The seed of the first of so many new environments.
        restored: There was a predecessor: a run that is not known here may have been at it.
        evaluates_now: Whether evaluation environments can be acted for yet; asked when their workers join.
        silent_seconds: A worker whose last report is older does not step: it is stopped, hangs, or is cut off.
        episodes: Is told which training environments are there.
        evaluations: The same of evaluation environments.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        spaces: Spaces,
        config_hash: str,
        largest_group: int,
        table: SlotTable,
        assembler: Assembler,
        ledger: Ledger,
        known: Known,
        settled: Mapping[int, Settled],
        seeds: Callable[[Lane, int], int],
        restored: bool = False,
        evaluates_now: Callable[[], bool] = lambda: True,
        silent_seconds: float = 3.0,
        episodes: Episodes | None = None,
        evaluations: Episodes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spaces = spaces
        self._config_hash = config_hash
        self._largest_group = largest_group
        self.table = table
        self._assembler = assembler
        self._ledger = ledger
        self._seeds = seeds
        self._evaluates_now = evaluates_now
        self._silent_seconds = silent_seconds
        self._clock = clock
        self._episodes = {False: episodes, True: evaluations}
        self._faults = WorkerFaults()
        # Of runs that are not here (not back yet, or ended).
        self._known: OrderedDict[int, dict[int, int]] = OrderedDict()
        for (run, offset), index in known.items():
            self._known.setdefault(run, {})[offset] = index
        self._settled = OrderedDict(settled)
        self._restored = restored
        self._heard: OrderedDict[int, set[int]] = OrderedDict()  # of those that left: the offsets that rows came from

    def join(self, event: Joined) -> Refusal | None:
        """Admits a run (again, where it is admitted already); None means admitted."""
        hello = event.hello
        for run, wire in hello.reports.items() if hello.mode != "eval" else ():
            report = Report.from_wire(wire)
            self._faults.hear(hello.worker_id, report)
            self._last_word(int(run), report)
        if self.table.get(event.worker, event.run) is not None:
            return None
        try:
            difference = self._spaces.difference(Spaces.from_wire(hello.spaces), "at the learner", "at the worker")
        except SpaceError as error:
            return Refusal(str(error), Cause.CONFIGURATION)
        if difference is not None:
            return Refusal(f"other spaces than the learner's: {difference}", Cause.CONFIGURATION)
        if hello.config_hash and self._config_hash and hello.config_hash != self._config_hash:
            reason = "the environment section of the worker's configuration differs from the learner's"
            return Refusal(reason, Cause.CONFIGURATION)
        if max(hello.groups) > self._largest_group:
            return Refusal(
                f"a group of {max(hello.groups)} environments does not fit an inference batch of {self._largest_group} "
                "(learner.inference_batch, learner.slots)",
                Cause.CONFIGURATION,
            )
        if hello.mode == "eval" and not self._evaluates_now():
            return Refusal("the learner is building its evaluation policy", Cause.NOT_YET)
        member = self.table.admit(event.worker, hello.worker_id, event.run, hello.groups, hello.mode == "eval")
        if member is None:
            free = self.table.capacity - self.table.used
            wanted = sum(hello.groups)
            reason = f"{wanted} environments wanted, {free} of learner.slots = {self.table.capacity} free"
            return Refusal(reason, Cause.NOT_YET)
        try:
            member.seed = self._seeds(Lane.EVALUATION if hello.mode == "eval" else Lane.TRAINING, sum(hello.groups))
        except UnwrittenError as error:
            self.table.release(event.worker, event.run)
            return Refusal(str(error), Cause.NOT_YET)
        indices, heard = self._known.get(event.run, {}), self._heard.get(event.run, set())
        for group in member.groups:
            places = [offset_of(int(environment)) for environment in group.environments]
            known = [indices.get(offset, 0) for offset in places]
            self._assembler.open(group.slots, group.environments, event.run, np.array(known))
            self.table.inherited[group.slots] = [self._restored and offset not in heard for offset in places]
        if (settled := self._settled.get(event.run)) is not None and not settled.final:
            self._book(event.run, Settled())  # it was not the end: what did not come may still do so
        if (episodes := self._episodes[self._evaluates(member)]) is not None:
            episodes.join(member.slots())
        log.info("worker %d (%s) joined with %d environments", event.worker, hello.worker_id, sum(hello.groups))
        return None

    def seed_of(self, worker: int, run: int) -> int:
        """Of an admitted run's first environment."""
        member = self.table.get(worker, run)
        assert member is not None
        return member.seed

    def leave(self, event: Left) -> list[Unroll]:
        """Ends a run, or hears the last word on one that has left; gives its open unrolls, padded."""
        member = self.table.release(event.worker, event.run)
        if member is None:
            if event.reason == "bye" and event.report is not None:
                self._last_word(event.run, event.report)
            return []
        fault = "" if event.report is None or not event.report.message else f"; its last fault: {event.report.message}"
        log.info("worker %d (%s) left: %s%s", event.worker, member.worker_id, event.reason, fault)
        if event.report is not None:
            self._faults.hear(member.worker_id, event.report)
        if not self._evaluates(member):  # else in no book: it had nothing to deliver
            self._remember(member)
        unrolls = self._assembler.flush(member.slots())
        if (episodes := self._episodes[self._evaluates(member)]) is not None:
            episodes.leave(member.slots())
        if not self._evaluates(member):
            last_word = event.report if event.reason == "bye" else member.last_word
            self._settle(event.run, last_word or event.report or member.report, last_word is not None)
            self._flies(member, 0)
        return unrolls

    def report(self, event: Reported) -> None:
        """A living run's counters: kept for the time when it ends without a last word."""
        member = self.table.get(event.worker, event.run)
        if member is None:
            return
        member.report, member.reported = event.report, self._clock()
        self._faults.hear(member.worker_id, event.report)
        if not self._evaluates(member):
            came = (int(self._assembler.last_index(group.slots).sum()) for group in member.groups)
            flying = (group.sent - here for group, here in zip(event.report.groups, came, strict=False))
            self._flies(member, event.report.unsent + sum(max(0, number) for number in flying))

    def environments(self) -> Environments:
        """What the admitted workers said last."""
        members = list(self.table)
        training = [member for member in members if not self._evaluates(member)]
        heard = [member for member in training if self._clock() - member.reported <= self._silent_seconds]
        busy = [member.report.busy_percent / 100 for member in heard if member.report is not None]
        share = sum(busy) / len(busy) if busy else None
        faults = self._faults
        return Environments(len(training), len(members) - len(training), share, faults.total(), faults.newest)

    def frontier(self, pending: Known) -> Frontier:
        """Where every training environment stands, also of runs that are not back yet or whose unrolls are being put.

        Args:
            pending: Running index where the first unroll that is not put yet begins, if there is one.
        """
        frontier: Frontier = {}
        for run, indices in self._known.items():
            frontier |= {(run, offset): (pending.get((run, offset), index), index) for offset, index in indices.items()}
        for member in self.table:
            for group in member.groups if not self._evaluates(member) else []:
                for offset, begun, index in self._entries(group):
                    frontier[member.run, offset] = (pending.get((member.run, offset), begun), index)
        return frontier

    def settled(self) -> dict[int, Settled]:
        """What is booked of runs that ended: their last words may be said again."""
        return dict(self._settled)

    def flush(self) -> list[Unroll]:
        """All open unrolls, padded: at the drain. Those who are still here are settled by what they said last."""
        for member in self.table:
            if not self._evaluates(member):
                self._remember(member)
                self._settle(member.run, member.last_word or member.report, member.last_word is not None)
                self._flies(member, 0)
        return [unroll for member in self.table for unroll in self._assembler.flush(member.slots())]

    def _entries(self, group: Group) -> Iterator[tuple[int, int, int]]:
        """(offset, index where its open unroll begins, last index) of each environment."""
        begun, last = self._assembler.open_index(group.slots), self._assembler.last_index(group.slots)
        return zip(map(offset_of, group.environments.tolist()), begun.tolist(), last.tolist(), strict=True)

    @staticmethod
    def _evaluates(member: Member) -> bool:
        return any(group.evaluation for group in member.groups)

    def _remember(self, member: Member) -> None:
        """Where its environments stand, for the time when it is not here."""
        known, heard = self._known.setdefault(member.run, {}), self._heard.setdefault(member.run, set())
        for group in member.groups:
            known.update((offset, index) for offset, _, index in self._entries(group))
            came = group.environments[~self.table.inherited[group.slots]]
            heard.update(map(offset_of, came.tolist()))
        for by_run in (self._known, self._heard):
            by_run.move_to_end(member.run)
            _bound(by_run)

    def _last_word(self, run: int, report: Report) -> None:
        """On a run that died without a BYE; it may still hold its lease here."""
        living = next((member for member in self.table if member.run == run), None)
        if living is not None:
            living.last_word = report
        elif run in self._known or run in self._settled or self._restored or all_under_way(report):
            self._settle(run, report, final=True)
        else:
            log.info("run %d has ended, whose steps another learner had", run)

    def _settle(self, run: int, report: Report | None, final: bool) -> None:
        """Books what the report says of a run that is not served any more. Idempotent; an older report says nothing."""
        before = self._settled.get(run, Settled())
        if report is None or (before.final and (not final or report.taken <= before.said)):
            return
        settled = settle(report, self._arrived(run, report), final)
        if settled.missing or settled.surplus:
            log.error(
                "run %d: of %d steps that its worker says it took %d are in no book, and %d came that it does not "
                "know of: %s",
                run, report.taken, settled.missing, settled.surplus, report.groups,
            )  # fmt: skip
        self._book(run, settled)

    def _arrived(self, run: int, report: Report) -> list[Arrived]:
        """What came of each group of a run, and then of what the report has in no group."""
        known, heard = self._known.get(run, {}), self._heard.get(run, set())
        found, places = [], offsets(report.groups)
        for group in [*places, [offset for offset in known if not any(offset in place for place in places)]]:
            unheard = self._restored and not any(offset in heard for offset in group)
            found.append(Arrived(sum(known.get(offset, 0) for offset in group), unheard))
        return found

    def _book(self, run: int, settled: Settled) -> None:
        """In the place of what was booked of the run before."""
        before = self._settled.get(run, Settled())
        reasons = settled.dropped.keys() | before.dropped.keys()
        self._ledger.settled(
            undelivered=settled.undelivered - before.undelivered,
            dropped={reason: settled.dropped.get(reason, 0) - before.dropped.get(reason, 0) for reason in reasons},
            missing=settled.missing - before.missing,
            surplus=settled.surplus - before.surplus,
            inherited=settled.inherited - before.inherited,
        )
        self._settled[run] = settled
        self._settled.move_to_end(run)
        _bound(self._settled)

    def _flies(self, member: Member, number: int) -> None:
        """So many transitions of a member are in flight."""
        self._ledger.flies(number - member.in_flight)
        member.in_flight = number


def _bound(by_run: OrderedDict[int, Any]) -> None:
    """Forgets the oldest runs."""
    while len(by_run) > REMEMBERED_RUNS:
        by_run.popitem(last=False)
