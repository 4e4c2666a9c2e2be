"""Who may join: what a worker's HELLO is answered. The state machine in front of ``Router``; pure as that is."""

from __future__ import annotations

from pipeline.protocol import Cause, Hello, Kind
from pipeline.routing.leases import Lease
from pipeline.routing.router import NO_LEARNER, Router


class Joining:
    """Decides on HELLO: a lease and JOIN, WELCOME again, WAIT, REFUSED, DRAIN, or GOODBYE."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._leases = router.leases
        self._learners = router.learners

    def hello(self, peer: bytes, hello: Hello, now: float) -> None:
        """A checked HELLO: lease an index, ask the learner, or say why not."""
        router, lease = self._router, self._leases.by_run.get(hello.run)
        ended = self._leases.ended(hello.run)
        if ended is not None and ended.reason == "bye":  # it has not heard that its BYE was booked
            router.goodbye(peer, hello.run)
            return
        if router.draining is not None and lease is None:  # a leased one still has to say BYE
            router.counters["hello_drain"] += 1
            router.send(peer, Kind.DRAIN, hello.run, router.draining)
            return
        refusal = self._refusal(hello, lease, now)
        if refusal is not None:
            router.counters["hello_refused"] += 1
            router.refuse(peer, hello.run, *refusal)
            return
        index = self._replace(hello)
        if lease is not None:
            self._claim_again(lease, peer, hello, now)
        elif self._learners.choose(sum(hello.groups)) is None:
            router.send(peer, Kind.WAIT, hello.run, self._why_wait(hello))
            return
        else:
            lease = self._leases.lease(hello, peer, now, index)
            if lease is None:
                router.counters["hello_refused"] += 1
                reason = f"broker.max_workers = {router.settings.max_workers} workers are served already"
                router.refuse(peer, hello.run, reason, Cause.SESSION)
                return
            router.note(f"worker {lease.worker} ({hello.worker_id}) is here, {sum(hello.groups)} environments")
        if lease.admitted and lease.seed >= 0:  # else another broker was told the seed: its learner says it again
            router.welcome(lease)
        elif not router.ask(lease, now, again=True):
            router.send(peer, Kind.WAIT, hello.run, self._why_wait(hello))

    def _refusal(self, hello: Hello, lease: Lease | None, now: float) -> tuple[str, Cause] | None:
        ended = self._leases.ended(hello.run)
        if ended is not None and ended.reason == "replaced":
            return f"a newer run of worker {hello.worker_id} has taken over", Cause.SESSION
        if self._fits_none(hello) and self._learners.settled(now - self._router.settings.settle_seconds):
            return self._too_large(hello), Cause.CONFIGURATION
        if lease is not None and lease.hello is not None:
            old = lease.hello
            if (old.worker_id, old.groups, old.spaces) != (hello.worker_id, hello.groups, hello.spaces):
                return f"run {hello.run} has said another HELLO before", Cause.SESSION
        return None

    def _fits_none(self, hello: Hello) -> bool:
        """Whether it has more environments than any learner has slots."""
        return len(self._learners) > 0 and sum(hello.groups) > self._learners.largest()

    def _too_large(self, hello: Hello) -> str:
        return f"{sum(hello.groups)} environments do not fit learner.slots = {self._learners.largest()}"

    def _why_wait(self, hello: Hello) -> str:
        if not len(self._learners):
            return NO_LEARNER
        if self._fits_none(hello):
            return f"{self._too_large(hello)}: waiting for a larger learner"
        free = max((x.slots - x.used for x in self._learners), default=0)
        return f"{free} of learner.slots = {self._learners.largest()} are free"

    def _replace(self, hello: Hello) -> int:
        """Ends an older run of the same worker id, which is told so; the index that the new run should get."""
        old = self._leases.named(hello.worker_id)
        if old is None or old.run == hello.run:
            return hello.worker
        reason = f"a newer run of worker {hello.worker_id} has taken over"
        self._router.refuse(old.peer, old.run, reason, Cause.SESSION)
        self._router.end(old, "replaced")
        return old.worker

    def _claim_again(self, lease: Lease, peer: bytes, hello: Hello, now: float) -> None:
        before = lease.environments
        self._leases.claim(lease, peer, hello, now)
        learner = self._learners.named(lease.learner)
        if learner is not None:
            learner.used += lease.environments - before
