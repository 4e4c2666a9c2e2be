"""A broker's part of a scrape, wherever it stands: from the reading that its loop makes once a second."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.metrics.catalogue import REFUSED_JOINS
from pipeline.metrics.sheet import Sheet
from pipeline.routing.reading import Reading

_MALFORMED, _LEFT, _CUT = "malformed_", "left_", "connections_cut_"
_SINGLE = {
    "learner_lost": "seedmq_learners_lost_total",
    "repeated_step": "seedmq_requests_repeated_total",
    "connections_admitted": "seedmq_connections_admitted_total",
    "connections_refused": "seedmq_connections_refused_total",
}


def fill(sheet: Sheet, reading: Reading) -> None:
    """Everything but the stage and what a broker process alone has."""
    sheet.by("seedmq_learners", {"connected": reading.learners - reading.silent, "silent": reading.silent})
    sheet.set("seedmq_learners_held_back", reading.held_back)
    waiting, expected = reading.connected - reading.admitted, reading.known - reading.connected
    sheet.by("seedmq_workers", {"admitted": reading.admitted, "waiting": waiting, "expected": expected})
    sheet.set("seedmq_environments", reading.environments)
    sheet.set("seedmq_credit_rows", reading.credit_rows)
    sheet.by("seedmq_messages_total", reading.messages)
    sheet.set("seedmq_requests_waiting", reading.pending_requests, "broker")
    sheet.set("seedmq_requests_waiting", reading.parked_requests, "parked")
    sheet.set("seedmq_request_rows_waiting", reading.pending_rows, "broker")
    _counters(sheet, reading.counters)


def _counters(sheet: Sheet, counters: Mapping[str, int]) -> None:
    """By what their names begin with; a name that is not known here is a reason why a message was dropped."""
    for name, metric in _SINGLE.items():
        sheet.set(metric, counters.get(name, 0))
    left, cut, malformed = (_beginning(counters, prefix) for prefix in (_LEFT, _CUT, _MALFORMED))
    sheet.by("seedmq_workers_left_total", left)
    sheet.by("seedmq_connections_cut_total", cut)
    sheet.by("seedmq_messages_malformed_total", malformed)
    sheet.by("seedmq_joins_refused_total", {name: counters.get(name, 0) for name in REFUSED_JOINS})
    elsewhere = {*_SINGLE, *REFUSED_JOINS}
    dropped = {
        name: number
        for name, number in counters.items()
        if name not in elsewhere and not name.startswith((_LEFT, _CUT, _MALFORMED))
    }
    sheet.by("seedmq_messages_dropped_total", dropped)


def _beginning(counters: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): number for name, number in counters.items() if name.startswith(prefix)}
