"""The router: which worker is served by which learner, what waits, what is answered. Pure: the loop does the IO.

    WorkerMessages, Joining, LearnerMessages --calls--> Router --actions--> the loop that owns the sockets

Workers stay with their learner (it holds their recurrent state) for as long as it lives. All of this is soft state:
when the broker dies, workers say HELLO again with the run and index they had, learners say READY with what they have
admitted, and workers repeat the steps that were not answered.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from pipeline.buckets import LATENCIES, Buckets
from pipeline.protocol import Cause, Kind, encode
from pipeline.requests import Reply, StepRequest
from pipeline.routing.actions import Action, Say, SendLearner, SendWorker, Settings
from pipeline.routing.batching import Batcher, Waiting
from pipeline.routing.learners import MAX_LEARNERS, Learner, Learners, Ready
from pipeline.routing.leases import Lease, Leases

NO_LEARNER = "no learner is ready"
PAUSE_SECONDS = 1.0  # a gap between ticks longer than this is the loop's own pause
BATCH_FRAMES = 4096  # frames of one BATCH message, at most
MAX_PARTING = 4096
LAST_WORDS = 256  # said again to a learner that may have missed them, or died before it kept them


class Router:
    """Leases, assignment, batching and answers of one broker.

    Attributes:
        tick_seconds: How far apart ``tick`` is to be called.
        broker: Random id of this broker process.
        counters: What was refused, dropped or repeated, by reason. The reasons are a fixed set.
        messages: All that was looked at, by who sent it: ``workers`` or ``learners``.
        draining: Reason of DISMISS, or None.
        parting: Routing id -> run of those told GOODBYE last: they may not have hung up yet.
        waits: Seconds from a request's arrival to its BATCH, of a broker process.
    """

    def __init__(self, settings: Settings, broker: int) -> None:
        self.settings = settings
        self.tick_seconds = min(settings.heartbeat_seconds, settings.lease_seconds) / 4
        self.broker = broker
        self.leases = Leases(settings.max_workers)
        self.learners = Learners()
        self.counters: Counter[str] = Counter()
        self.messages = {"workers": 0, "learners": 0}
        self.draining: str | None = None
        self.parting: dict[bytes, int] = {}
        self.waits = Buckets(LATENCIES)
        self._actions: list[Action] = []
        self._ticked: float | None = None
        self._sessions = 0

    def take_actions(self) -> list[Action]:
        """What is to be sent, in order; the caller owns the list."""
        actions, self._actions = self._actions, []
        return actions

    def tick(self, now: float) -> None:
        """Expires leases and learners, asks again for what was not answered. Call about ``tick_seconds`` apart."""
        if self._ticked is not None and now - self._ticked > PAUSE_SECONDS:
            self._forgive(now - self._ticked)
        self._ticked = now
        for lease in self.leases.expired(now - self.settings.lease_seconds):
            self.end(lease, "lease")
        for learner in self.learners:
            silence = now - learner.heard
            learner.silent = silence > min(5 * self.settings.heartbeat_seconds, self.settings.lease_seconds)
            if silence > self.settings.lease_seconds:
                self._lose(learner, now)
        if self.draining is not None and not len(self.leases) and not len(self.learners):
            self.draining = None  # the dismissed run is over; who comes now waits for the next learner
        for lease in self.leases:
            if lease.hello is not None and not lease.admitted:
                self.ask(lease, now)

    def deadline(self, now: float) -> float:
        """When the loop must look again though no message comes: the next tick, or a batch that waited long enough."""
        due = (self._ticked if self._ticked is not None else now) + self.tick_seconds
        for learner in self.learners:
            waiting = learner.batcher.deadline()
            if waiting is not None and learner.credit > 0 and now < waiting < due:  # overdue: it waits for credit
                due = waiting
        return due

    def flush(self, now: float) -> None:
        """BATCH messages for what the learners' credit covers."""
        for learner in self.learners:
            if learner.credit > 0 and not learner.silent and len(learner.batcher):
                requests = self.take(learner, learner.credit, now)
                if requests:
                    self.waits.note([now - arrived for arrived in learner.batcher.arrived])
                learner.credit = max(0, learner.credit - sum(request.rows for request in requests))
                self._send_batches(learner, requests)

    # Answers to workers.

    def send(self, peer: bytes, kind: Kind, *fields: Any) -> None:
        """A message without buffers to a worker."""
        self.send_head(peer, encode(kind, *fields))

    def send_head(self, peer: bytes, head: bytes) -> None:
        """The same, encoded already."""
        self._actions.append(SendWorker(peer, head, []))

    def refuse(self, peer: bytes, run: int, reason: str, cause: Cause) -> None:
        """REFUSED to a worker."""
        self.send(peer, Kind.REFUSED, run, reason, int(cause))

    def goodbye(self, peer: bytes, run: int) -> None:
        """GOODBYE to a worker: the BYE of its run is booked."""
        self.parting.pop(peer, None)
        self.parting[peer] = run
        if len(self.parting) > MAX_PARTING:
            del self.parting[next(iter(self.parting))]
        self.send(peer, Kind.GOODBYE, run)

    def tell(self, learner: Learner, kind: Kind, *fields: Any) -> None:
        """A message without buffers to a learner."""
        self._actions.append(SendLearner(learner.peer, kind, list(fields), []))

    # Workers.

    def step(self, lease: Lease, request: StepRequest, now: float) -> None:
        """A checked STEP of a leased run: queue it, park it until a learner is there, or count it as a repeat."""
        group, sequence = request.group, request.sequence
        last = lease.last.get(group, -1)
        if sequence < last:
            self.counters["stale_step"] += 1
            return
        if sequence == last:
            self.counters["repeated_step"] += 1
        lease.last[group] = lease.open[group] = sequence
        if lease.admitted:
            learner = self.learners.named(lease.learner)
            if learner is not None:
                learner.batcher.add(request, now)
                return
        parked = lease.parked.get(group)
        if parked is None or parked.request.sequence != sequence:
            lease.parked[group] = Waiting(request, now)

    def note(self, text: str) -> None:
        """A detail for the log."""
        self._actions.append(Say(text, detail=True))

    def end(self, lease: Lease, reason: str) -> None:
        """Frees a lease: its requests are dropped and counted, its learner is told."""
        learner = self.learners.named(lease.learner)
        if learner is not None and (lease.admitted or reason != "refused"):
            self.tell(learner, Kind.LEFT, lease.worker, lease.run, reason, lease.report)
        dropped = len(lease.parked)
        if learner is not None:
            dropped += sum(learner.batcher.remove(lease.run, g) is not None for g in range(len(lease.groups)))
            learner.used -= lease.environments
        self.counters["request_of_gone_worker"] += dropped
        self.counters["left_" + reason] += 1
        who = "" if lease.hello is None else f" ({lease.hello.worker_id})"
        fault = lease.report["message"] if lease.report is not None else ""
        said = f"worker {lease.worker}{who} has left: {reason}"
        self._actions.append(Say(f"{said}; its last fault: {fault}" if fault else said, detail=not fault))
        self.leases.end(lease, reason)

    def last_word(self, run: int, report: dict[str, Any]) -> bool:
        """The report of a run that has ended, from its worker; False where there was no such run."""
        ended = self.leases.ended(run)
        if ended is None:
            return False
        if ended.reason != "bye" or ended.report != report:
            self.leases.last_word(run, report)
            learner = self.learners.named(ended.learner)
            if learner is not None:
                self.tell(learner, Kind.LEFT, ended.worker, run, "bye", report)
        return True

    def state_of(self, lease: Lease) -> tuple[str, str]:
        """What ALIVE says: state and reason."""
        learner = self.learners.named(lease.learner)
        if learner is None or learner.silent:
            return "no_learner", NO_LEARNER if learner is None else f"learner {learner.name} is silent"
        if not lease.admitted:
            return "no_learner", f"learner {learner.name} has not admitted this worker yet"
        return ("held_back", learner.held_back) if learner.held_back else ("serving", "")

    # Learners.

    def ready(self, peer: bytes, ready: Ready, now: float) -> Learner | None:
        """A learner lives: new, again, or as before. None where it is refused."""
        learner = self.learners.named(ready.learner)
        begins = learner is None or ready.epoch > learner.epoch
        if begins:
            self.draining = None  # a new learner process begins anew
        if learner is None:
            if len(self.learners) >= MAX_LEARNERS:
                self.counters["learner_refused"] += 1
                return None
            learner = Learner(ready, peer, Batcher(self.settings.min_rows, self.settings.max_wait_seconds), now)
            self.learners.add(learner)
            self._actions.append(Say(f"ready: {learner.name}, with {ready.slots} slots"))
        elif ready.epoch < learner.epoch and not learner.silent:
            self.counters["learner_refused"] += 1
            refused = f"a newer process of learner {ready.learner} has taken over"
            answer = {"broker": self.broker, "session": 0, "workers": len(self.leases), "refused": refused}
            self._actions.append(SendLearner(peer, Kind.BROKER, [answer], []))
            return None
        elif ready.epoch != learner.epoch or peer != learner.peer:
            self._renew(learner, ready, peer, now)
        else:
            learner.refresh(ready, now)
        if learner.session == 0:
            self._sessions += 1
            learner.session = self._sessions
        self._compare(learner, ready, now)
        if begins:
            for run, ended in self.leases.last_words(learner.name, LAST_WORDS):
                self.tell(learner, Kind.LEFT, ended.worker, run, "bye", ended.report)
        return learner

    def take(self, learner: Learner, credit: int, now: float) -> list[StepRequest]:
        """The oldest requests that wait for a learner, up to ``credit`` rows."""
        return learner.batcher.take(credit, learner.batch, now)

    def reply(self, learner: Learner, reply: Reply) -> None:
        """Actions for a request: sent once for each accepted request; others are counted."""
        worker, run, group, sequence, buffer = reply
        lease = self.leases.by_run.get(run)
        if lease is None or lease.worker != worker or lease.learner != learner.name:
            self.counters["reply_to_gone_worker"] += 1
            return
        if lease.open.get(group) != sequence:
            self.counters["reply_not_awaited"] += 1
            return
        del lease.open[group]
        if learner.batcher.sequence_of(run, group) == sequence:
            learner.batcher.remove(run, group)
        self._actions.append(SendWorker(lease.peer, encode(Kind.ACTIONS, run, group, sequence), [buffer]))

    def admit(self, learner: Learner, worker: int, run: int, *, seed: int, anew: bool, now: float) -> None:
        """The learner serves this run from now on, and its environments begin with seeds from ``seed`` on."""
        lease = self._lease_of(learner, worker, run)
        if lease is None:
            return
        lease.seed = seed
        self._serve(lease, learner, now)
        if lease.hello is not None:
            self.welcome(lease, anew)

    def reject(self, learner: Learner, worker: int, run: int, reason: str, cause: Cause) -> None:
        """The learner does not serve this run, or not any longer: then LEFT ``refused`` follows."""
        lease = self._lease_of(learner, worker, run)
        if lease is not None:
            if cause is Cause.NOT_YET:
                self.send(lease.peer, Kind.WAIT, run, reason[:1000])
            else:
                self.refuse(lease.peer, run, reason[:1000], cause)
            self.end(lease, "refused")

    def dismiss(self, reason: str) -> None:
        """DRAIN to every worker, and to every one that says HELLO from now on."""
        first = self.draining is None
        self.draining = reason[:300]
        for lease in self.leases if first else ():
            if lease.hello is not None:
                self.send(lease.peer, Kind.DRAIN, lease.run, self.draining)

    def learner_unreachable(self, peer: bytes) -> None:
        """What was sent to it is lost: credit is void until its next READY; workers repeat what was under way."""
        learner = self.learners.at(peer)
        if learner is not None:
            learner.credit = learner.session = 0

    def ask(self, lease: Lease, now: float, again: bool = False) -> bool:
        """JOIN to the lease's learner, chosen if it has none; False where no learner has enough free slots."""
        learner = self.learners.named(lease.learner)
        if learner is None:
            learner = self.learners.choose(lease.environments)
            if learner is None:
                return False
            lease.learner = learner.name
            learner.used += lease.environments
        elif not again and now - lease.asked < self.settings.heartbeat_seconds:
            return True
        if lease.hello is not None:
            lease.asked = now
            self.tell(learner, Kind.JOIN, lease.worker, lease.run, lease.hello.to_wire())
        return True

    def _serve(self, lease: Lease, learner: Learner, now: float) -> None:
        lease.admitted = True
        parked, lease.parked = lease.parked, {}
        for waiting in parked.values():
            learner.batcher.add(waiting.request, now)

    def welcome(self, lease: Lease, anew: bool = False) -> None:
        """WELCOME to the worker of an admitted lease."""
        settings = self.settings
        welcome = {
            "worker": lease.worker,
            "seed": lease.seed,
            "heartbeat_seconds": settings.heartbeat_seconds,
            "lease_seconds": settings.lease_seconds,
            "anew": anew,
        }
        self.send(lease.peer, Kind.WELCOME, lease.run, welcome)

    def _lease_of(self, learner: Learner, worker: int, run: int) -> Lease | None:
        lease = self.leases.by_run.get(run)
        if lease is None or lease.worker != worker or lease.learner != learner.name:
            self.counters["answer_for_gone_worker"] += 1
            return None
        return lease

    def _send_batches(self, learner: Learner, requests: list[StepRequest]) -> None:
        items: list[Any] = []
        buffers: list[Any] = []
        for request in requests:
            if buffers and len(buffers) + len(request.buffers) > BATCH_FRAMES:
                self._actions.append(SendLearner(learner.peer, Kind.BATCH, [items], buffers))
                items, buffers = [], []
            items.append([*request[:6], len(request.buffers)])
            buffers += request.buffers
        if items:
            self._actions.append(SendLearner(learner.peer, Kind.BATCH, [items], buffers))

    def _renew(self, learner: Learner, ready: Ready, peer: bytes, now: float) -> None:
        old_peer, restarted = learner.peer, ready.epoch != learner.epoch
        self._actions.append(Say(f"learner {learner.name} {'restarted' if restarted else 'reconnected'}"))
        learner.renew(ready, peer, now)
        self.learners.moved(learner, old_peer)
        for lease in self.leases if restarted else ():
            if lease.learner == learner.name:
                self._park(lease, learner)
                self.ask(lease, now, again=True)

    def _compare(self, learner: Learner, ready: Ready, now: float) -> None:
        """What the learner has admitted against the leases: reserve what is unknown here, end what is over."""
        for worker, run in zip(ready.workers, ready.runs, strict=True):
            lease = self.leases.by_run.get(run)
            if lease is not None and lease.worker == worker and lease.learner in (None, learner.name):
                if lease.learner is None:  # it was lost, and is back with what it had
                    lease.learner = learner.name
                    learner.used += lease.environments
                    self._serve(lease, learner, now)
                continue
            ended = self.leases.ended(run)
            if lease is None and ended is None and self.leases.free(worker):
                self.leases.reserve(worker, run, now).learner = learner.name
            elif ended is not None and ended.worker == worker:
                self.tell(learner, Kind.LEFT, worker, run, ended.reason, ended.report)
            else:
                self.tell(learner, Kind.LEFT, worker, run, "lease", None)

    def _lose(self, learner: Learner, now: float) -> None:
        if self.draining is None:
            self.counters["learner_lost"] += 1
            self._actions.append(Say(f"learner {learner.name} is lost: its workers wait for a learner"))
        else:
            self._actions.append(Say(f"learner {learner.name} has ended"))
        for lease in self.leases:
            if lease.learner == learner.name:
                self._park(lease, learner)
                lease.learner = None
        self.learners.remove(learner, now)

    def _park(self, lease: Lease, learner: Learner) -> None:
        lease.admitted = False
        for group in range(len(lease.groups)):
            waiting = learner.batcher.remove(lease.run, group)
            if waiting is not None:
                lease.parked[group] = waiting

    def _forgive(self, seconds: float) -> None:
        self.leases.forgive(seconds)
        for learner in self.learners:
            learner.heard += seconds
            learner.since += seconds
