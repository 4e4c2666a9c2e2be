"""What STATUS answers: who waits for whom. Bounded, and at most remade ten times a second."""

from __future__ import annotations

from typing import Any

from pipeline.protocol import MAX_HEAD_BYTES, Kind, encode
from pipeline.routing.leases import Lease
from pipeline.routing.router import Router

MAX_WORKERS_SHOWN = 512
FRESH_SECONDS = 0.1
TEXT = 200


class StatusBoard:
    """The status mapping::

    {"broker": id, "draining": reason, "workers_total": n, "workers": [...], "learners": [...], "counters": {...},
     "messages": {"workers": n, "learners": n}}
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._made = float("-inf")
        self._head = b""

    def head(self, now: float) -> bytes:
        """STATUS_REPLY, encoded, at most ``FRESH_SECONDS`` old; fewer workers are shown where all do not fit."""
        if now - self._made >= FRESH_SECONDS:
            shown = MAX_WORKERS_SHOWN
            self._head = encode(Kind.STATUS_REPLY, self._make(now, shown))
            while len(self._head) > MAX_HEAD_BYTES and shown:
                shown //= 2
                self._head = encode(Kind.STATUS_REPLY, self._make(now, shown))
            self._made = now
        return self._head

    def _make(self, now: float, shown: int) -> dict[str, Any]:
        router = self._router
        leases = sorted(router.leases, key=lambda lease: lease.worker)
        return {
            "broker": router.broker,
            "draining": router.draining or "",
            "workers_total": len(leases),
            "workers": [self._worker(lease, now) for lease in leases[:shown]],
            "learners": [
                {
                    "learner": learner.name,
                    "epoch": learner.epoch,
                    "slots": learner.slots,
                    "slots_used": learner.used,
                    "silent": learner.silent,
                    "held_back": learner.held_back,
                    "credit_rows": learner.credit,
                    "pending_requests": len(learner.batcher),
                    "pending_rows": learner.batcher.rows,
                    "oldest_wait_seconds": learner.batcher.oldest_seconds(now),
                    "heard_seconds_ago": now - learner.heard,
                }
                for learner in router.learners
            ],
            "learner": self._published(),
            "counters": dict(router.counters),
            "messages": dict(router.messages),
        }

    def _published(self) -> dict[str, Any]:
        """The learner's own part; of several learners that of the first by name."""
        learners = sorted(self._router.learners, key=lambda learner: learner.name)
        return learners[0].published if learners else {}

    def _worker(self, lease: Lease, now: float) -> dict[str, Any]:
        state, reason = self._router.state_of(lease)
        report = dict(lease.report) if lease.report else None
        if report is not None:
            report["message"] = report["message"][:TEXT]
        info = lease.hello.info if lease.hello else {}
        return {
            "worker": lease.worker,
            "worker_id": lease.hello.worker_id[:TEXT] if lease.hello else "",
            "run": lease.run,
            "host": str(info.get("host", ""))[:TEXT],
            "mode": lease.hello.mode if lease.hello else "",
            "environments": lease.environments,
            "learner": lease.learner or "",
            "heard_seconds_ago": now - lease.heard,
            "state": state if lease.hello else "reserved",
            "reason": reason[:TEXT],
            "outstanding": len(lease.open),
            "report": report,
        }
