"""What a router knows and has counted, as one value that any thread may read. Made about once a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pipeline.routing.router import Router


class Reading(NamedTuple):
    """See ``pipeline.metrics.catalogue`` for what is made of it.

    Attributes:
        learners: Learners that are known.
        silent: Of them: not heard of for longer than may be.
        known: Workers that hold a lease, also those that only a learner has told of.
        connected: Of them: that have said HELLO here.
        admitted: Of those: that a learner serves.
        environments: Of the admitted workers.
        pending_requests: Requests that wait for credit.
        pending_rows: Their rows.
        parked_requests: Requests that wait for their worker's learner.
        credit_rows: Rows that learners may be sent.
        held_back: Learners that take no more.
        counters: What was refused, dropped or repeated, by reason.
        messages: All that was looked at, by who sent it.
    """

    learners: int
    silent: int
    known: int
    connected: int
    admitted: int
    environments: int
    pending_requests: int
    pending_rows: int
    parked_requests: int
    credit_rows: int
    held_back: int
    counters: Mapping[str, int]
    messages: Mapping[str, int]


def read(router: Router) -> Reading:
    """The reading now; on the router's own thread."""
    leases, learners = list(router.leases), list(router.learners)
    admitted = [lease for lease in leases if lease.admitted and lease.hello is not None]
    return Reading(
        learners=len(learners),
        silent=sum(learner.silent for learner in learners),
        known=len(leases),
        connected=sum(lease.hello is not None for lease in leases),
        admitted=len(admitted),
        environments=sum(lease.environments for lease in admitted),
        pending_requests=sum(len(learner.batcher) for learner in learners),
        pending_rows=sum(learner.batcher.rows for learner in learners),
        parked_requests=sum(len(lease.parked) for lease in leases),
        credit_rows=sum(learner.credit for learner in learners),
        held_back=sum(bool(learner.held_back) for learner in learners),
        counters=dict(router.counters),
        messages=dict(router.messages),
    )
