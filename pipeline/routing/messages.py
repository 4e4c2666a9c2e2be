"""From frames to calls of the router: every message is checked here, refused and counted where it is malformed.

No message raises out of here, and an answer to a malformed one is never longer than the message itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.errors import ProtocolError, SpaceError
from pipeline.protocol import (
    MAX_HEAD_BYTES,
    Cause,
    Hello,
    Kind,
    Message,
    Report,
    are_integers,
    decode,
    encode,
    fields_of,
)
from pipeline.requests import Reply, StepRequest
from pipeline.routing.joining import Joining
from pipeline.routing.learners import Learner, Ready
from pipeline.routing.leases import Lease
from pipeline.routing.router import Router
from pipeline.routing.status import StatusBoard
from pipeline.spaces import Spaces
from pipeline.streams import SEED_BITS

MAX_PUBLISHED_BYTES = MAX_HEAD_BYTES // 4
MAX_OTHER_BYTES = 1 << 14  # of frame 0, but for HELLO and STEP


class WorkerMessages:
    """Messages that arrive on the worker-facing socket."""

    def __init__(self, router: Router, board: StatusBoard) -> None:
        self._router = router
        self._board = board
        self._by_run = router.leases.by_run
        self._joining = Joining(router)
        self._handlers: dict[Kind, tuple[Callable[[bytes, Message, float], None], int]] = {
            Kind.STEP: (self._step, 256),
            Kind.HEARTBEAT: (self._heartbeat, MAX_OTHER_BYTES),
            Kind.HELLO: (self._hello, MAX_HEAD_BYTES // 4),
            Kind.BYE: (self._bye, MAX_OTHER_BYTES),
            Kind.STATUS: (self._status, MAX_OTHER_BYTES),
        }

    def take(self, peer: bytes, frames: list[Any], now: float) -> None:
        """One message: ``frames`` without the routing id."""
        self._router.messages["workers"] += 1
        kind: Kind | None = None
        try:
            message = decode(frames)
            handler, most = self._handlers.get(message.kind, (None, 0))
            if handler is None:
                raise ProtocolError(f"{message.kind.name} is not a worker's message")
            kind = message.kind
            if len(frames[0]) > most:
                raise ProtocolError(f"frame 0 of a {kind.name} has {len(frames[0])} bytes")
            handler(peer, message, now)
        except ProtocolError as error:
            name = "head" if kind is None else kind.name.lower()
            self._router.counters["malformed_" + name] += 1
            answer = encode(Kind.REFUSED, 0, str(error)[:300], int(Cause.SESSION))
            if len(answer) <= sum(len(frame) for frame in frames):
                self._router.refuse(peer, 0, str(error)[:300], Cause.SESSION)

    def _step(self, peer: bytes, message: Message, now: float) -> None:
        run, group, sequence, rows, replies = fields_of(message, int, int, int, int, int)
        lease = self._heard(peer, run, now)
        if lease is None:
            return
        request = StepRequest(lease.worker, run, group, sequence, rows, replies, message.buffers)
        if not lease.fits(request):
            raise ProtocolError(
                f"STEP does not fit the HELLO of run {run}: group {group}, {rows} rows, {replies} replies"
            )
        self._router.step(lease, request, now)

    def _heartbeat(self, peer: bytes, message: Message, now: float) -> None:
        run, data = fields_of(message, int, dict)
        report = Report.from_wire(data).to_wire()
        lease = self._heard(peer, run, now)
        if lease is None:
            return
        router = self._router
        learner = router.learners.named(lease.learner)
        if report != lease.report and learner is not None and lease.admitted:
            router.tell(learner, Kind.REPORT, lease.worker, run, report)
        lease.report = report
        if router.draining is not None:
            router.send(peer, Kind.DRAIN, run, router.draining)
        else:
            router.send(peer, Kind.ALIVE, run, *router.state_of(lease))

    def _hello(self, peer: bytes, message: Message, now: float) -> None:
        (data,) = fields_of(message, dict)
        hello = Hello.from_wire(data)
        for report in hello.reports.values():
            Report.from_wire(report)
        try:
            Spaces.from_wire(hello.spaces)
        except SpaceError as error:
            self._router.counters["hello_refused"] += 1
            self._router.refuse(peer, hello.run, str(error)[:300], Cause.CONFIGURATION)
            return
        self._joining.hello(peer, hello, now)

    def _bye(self, peer: bytes, message: Message, now: float) -> None:
        run, data = fields_of(message, int, dict)
        report = Report.from_wire(data).to_wire()
        lease = self._by_run.get(run)
        if lease is not None and lease.hello is not None:
            lease.report = report
            self._router.end(lease, "bye")
            self._router.goodbye(peer, run)
            return
        if self._router.last_word(run, report):
            self._router.goodbye(peer, run)
        else:
            if report["message"]:
                self._router.leases.end_unknown(report)
                self._router.note(f"a run without a lease has ended; its last fault: {report['message']}")
            self._router.send(peer, Kind.UNKNOWN, run)

    def _status(self, peer: bytes, message: Message, now: float) -> None:
        fields_of(message)
        self._router.send_head(peer, self._board.head(now))

    def _heard(self, peer: bytes, run: int, now: float) -> Lease | None:
        """The lease of a run, heard of now under this routing id; UNKNOWN or REFUSED is sent where there is none."""
        lease = self._by_run.get(run)
        if lease is None or lease.hello is None:
            ended = self._router.leases.ended(run)
            if ended is not None and ended.reason == "replaced":
                self._router.refuse(peer, run, "a newer run of this worker has taken over", Cause.SESSION)
            elif 0 < run < 2**63:
                self._router.counters["unknown_run"] += 1
                self._router.send(peer, Kind.UNKNOWN, run)
            else:
                raise ProtocolError("impossible run")
            return None
        lease.peer, lease.heard = peer, now
        return lease


class LearnerMessages:
    """Messages that arrive on the learner-facing socket."""

    def __init__(self, router: Router, board: StatusBoard) -> None:
        self._router = router
        self._board = board
        self._handlers: dict[Kind, Callable[[Learner, Message, float], None]] = {
            Kind.CREDIT: self._credit,
            Kind.REPLIES: self._replies,
            Kind.ADMIT: self._admit,
            Kind.REJECT: self._reject,
            Kind.DISMISS: self._dismiss,
        }

    def take(self, peer: bytes, frames: list[Any], now: float) -> None:
        """One message: ``frames`` without the routing id."""
        router = self._router
        router.messages["learners"] += 1
        kind: Kind | None = None
        try:
            message = decode(frames)
            kind = message.kind
            if message.kind == Kind.READY:
                self._ready(peer, message, now)
                return
            learner = router.learners.at(peer)
            if learner is None:
                router.counters["unknown_learner"] += 1
            elif message.kind == Kind.PUBLISH:
                self._publish(learner, message, len(frames[0]))
            else:
                handler = self._handlers.get(message.kind)
                if handler is None:
                    raise ProtocolError(f"{message.kind.name} is not a learner's message")
                handler(learner, message, now)
        except ProtocolError:
            router.counters["malformed_" + ("head" if kind is None else kind.name.lower())] += 1

    def _ready(self, peer: bytes, message: Message, now: float) -> None:
        (data,) = fields_of(message, dict)
        learner = self._router.ready(peer, Ready.from_wire(data), now)
        if learner is not None:
            answer = {
                "broker": self._router.broker,
                "session": learner.session,
                "workers": len(self._router.leases),
                "busy_percent": self._board.busy_percent,
            }
            self._router.tell(learner, Kind.BROKER, answer)

    def _credit(self, learner: Learner, message: Message, now: float) -> None:
        (rows,) = fields_of(message, int)
        if not 0 <= rows <= learner.batch:
            raise ProtocolError(f"CREDIT: {rows} rows")
        if learner.session:  # else it was granted before the learner knew that its credit is void
            learner.credit = min(learner.credit + rows, learner.batch)

    def _replies(self, learner: Learner, message: Message, now: float) -> None:
        (items,) = fields_of(message, list)
        if len(items) != len(message.buffers):
            raise ProtocolError("REPLIES: one frame each")
        if not all(are_integers(x, 4) for x in items):
            raise ProtocolError("REPLIES: items are [worker, run, group, sequence]")
        for (worker, run, group, sequence), buffer in zip(items, message.buffers, strict=True):
            self._router.reply(learner, Reply(worker, run, group, sequence, buffer))

    def _admit(self, learner: Learner, message: Message, now: float) -> None:
        worker, run, seed, anew = fields_of(message, int, int, int, bool)
        if not 0 <= seed < 2**SEED_BITS:
            raise ProtocolError(f"ADMIT: seed {seed}")
        self._router.admit(learner, worker, run, seed=seed, anew=anew, now=now)

    def _reject(self, learner: Learner, message: Message, now: float) -> None:
        worker, run, reason, cause = fields_of(message, int, int, str, int)
        try:
            self._router.reject(learner, worker, run, reason, Cause(cause))
        except ValueError as error:
            raise ProtocolError(f"REJECT: {error}") from error

    def _publish(self, learner: Learner, message: Message, nbytes: int) -> None:
        (status,) = fields_of(message, dict)
        if nbytes > MAX_PUBLISHED_BYTES:
            raise ProtocolError(f"PUBLISH has {nbytes} bytes, at most {MAX_PUBLISHED_BYTES} are taken")
        decode([encode(Kind.STATUS_REPLY, {"learner": status})])  # one level deeper there: it must still be taken
        learner.published = status

    def _dismiss(self, learner: Learner, message: Message, now: float) -> None:
        (reason,) = fields_of(message, str)
        self._router.dismiss(reason)
