"""What STATUS answers: who waits for whom. Bounded, and at most remade ten times a second."""

from __future__ import annotations

from typing import Any

from pipeline.bottleneck import Facts, Watch, diagnose
from pipeline.protocol import MAX_HEAD_BYTES, Kind, encode
from pipeline.routing.leases import Lease
from pipeline.routing.reading import read
from pipeline.routing.router import Router
from pipeline.stages import BUSY, Meter, Shares, Stage

MAX_WORKERS_SHOWN = 512
FRESH_SECONDS = 0.1
INTERVAL_SECONDS = 1.0  # of the broker's own judgement
UNHEARD = 3.0  # heartbeats: a worker that was not heard of for so long does not work
TEXT = 200


class StatusBoard:
    """The status mapping::

    {"broker": id, "draining": reason, "bottleneck": {...}, "stages": {...}, "workers_total": n, "workers": [...],
     "learners": [...], "learner": {...}, "counters": {...}, "messages": {"workers": n, "learners": n}}

    ``bottleneck`` is the broker's own judgement where learner or workers are missing, else the learner's.

    Args:
        router: Whose status.
        stage: The loop of a broker process.

    Attributes:
        shares: Of that stage, in the last second.
        reading: What the router knew and had counted at the last ``observe``. Any thread may read it.
    """

    def __init__(self, router: Router, stage: Stage | None = None) -> None:
        self._router = router
        self._made = self._observed = float("-inf")
        self._head = b""
        self._meter = Meter([] if stage is None else [stage])
        self._watch = Watch()
        self._names_own = False  # what the broker itself knows goes before what the learner says
        self.shares: Shares = {}
        self.reading = read(router)

    @property
    def busy_percent(self) -> int:
        """Of the broker's loop, in the last second; 0 before that, and where it has none of its own."""
        return round(100 * self.shares.get("broker", {}).get(BUSY, 0.0))

    def observe(self, now: float) -> None:
        """Judges what the broker sees; call it with every tick."""
        if now - self._observed >= INTERVAL_SECONDS:
            self._observed = now
            self.shares = self._meter.interval()
            self.reading = read(self._router)
            self._router.waits.settle()
            found = diagnose(self._facts(now))
            self._names_own = found is not None
            if found is None:
                self._watch = Watch()
            self._watch.observe(found, now)

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
            "bottleneck": self._bottleneck(now),
            "stages": {**_mapping(self._published().get("stages")), **self.shares},
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

    def _bottleneck(self, now: float) -> Any:
        """The learner's own where both name the same: it knows more of it."""
        own = self._watch.shown(now) if self._names_own else None
        published = self._published().get("bottleneck")
        if own is None or (own["component"] == "workers" and _mapping(published).get("component") == "workers"):
            return published
        return own

    def _facts(self, now: float) -> Facts:
        router = self._router
        if router.draining is not None:
            return Facts(stops=router.draining)
        learners = list(router.learners)
        silent = [learner for learner in learners if learner.silent]
        if not learners:
            lost = router.learners.last_lost
            last = "" if lost is None else f", {lost.name} was last heard of {now - lost.heard:.0f} s ago"
            return Facts(learner=f"none is connected{last}")
        if len(silent) == len(learners):
            return Facts(learner=f"{silent[0].name} is silent for {now - silent[0].heard:.0f} s")
        if not self._published():
            return Facts(learner="it starts")
        if _mapping(_mapping(self._published()).get("bottleneck")).get("component") == "learner":
            return Facts()  # it does not train yet: workers are not what it waits for
        return Facts(workers=self._why_no_workers(now))

    def _why_no_workers(self, now: float) -> str:
        """Empty where at least one that trains was heard of."""
        router = self._router
        if not len(router.leases):
            fault = router.leases.last_fault()
            return "none is connected" + (f", the last fault: {fault}" if fault else "")
        training = [x for x in router.leases if x.hello is None or x.hello.mode != "eval"]
        if not training:
            return "only such that evaluate are connected"
        heard = max(lease.heard for lease in training)
        if now - heard > UNHEARD * router.settings.heartbeat_seconds:
            return f"none of {len(training)} was heard of for {now - heard:.0f} s"
        return ""

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
            "silent": now - lease.heard > UNHEARD * self._router.settings.heartbeat_seconds,
            "state": state if lease.hello else "reserved",
            "reason": reason[:TEXT],
            "outstanding": len(lease.open),
            "report": report,
        }


def _mapping(value: Any) -> dict[str, Any]:
    """What came over the network need not be one."""
    return value if isinstance(value, dict) else {}
