"""The inference loop: requests in, actions out, rows to the assembler. One thread, which owns the request source.

::

    source.poll(credit) -> judge (repeat, stale) -> open (checks) -> join -> policy.submit
                                                       Serving.in_flight batches
    policy result -> replies -> collect (episodes, ledger, assembler -> writer)

Credit is 0 while the policy is not built yet or the writer's backlog is at its limit: requests then wait in the broker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from learner.collector import Collector
from learner.policies import Acting, PendingRows
from learner.requests import Opened, StepBatch, join, open_request
from learner.roster import Environments, Refusal, Roster
from learner.slots import Group, Verdict
from learner.writer import UnrollWriter
from pipeline.buckets import LATENCIES, ROWS, Buckets
from pipeline.errors import ProtocolError, SpaceError
from pipeline.protocol import Cause
from pipeline.requests import Event, Joined, Left, Reply, Reported, RequestSource, Standing, StepRequest
from pipeline.spaces import Leaf, Spaces
from pipeline.stages import BUSY, Stage
from pipeline.stopping import StopToken

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
HELD_POLL_SECONDS = 0.002
PUBLISH_SECONDS = 0.5
MAX_EARLY = 1024  # last words that wait for the roster


T = TypeVar("T")


class Serving(NamedTuple):
    """What the loop serves with, once the spaces are known and the policy is built."""

    policy: Acting
    roster: Roster
    collector: Collector
    writer: UnrollWriter
    leaves: tuple[Leaf, ...]
    recurrent: bool  # a run whose slots are new has lost its state: it begins new episodes
    in_flight: int  # batches


class InFlight(NamedTuple):
    batch: StepBatch
    pending: PendingRows
    version: int
    arrived: Sequence[float]  # of its requests


class InferenceLoop:
    """The loop's state.

    Attributes:
        stage: Busy with policy, messages and bookkeeping, or waiting.
        environments: Of the workers, as they reported last.
        broker_busy: Busy share of a broker process; None where there is none.
        turned: Monotonic seconds of the loop's last turn; None before the first, and when it has ended.
        standing: Of the request source.
        latency: Seconds from a request's arrival to its reply.
        batch_rows: Rows of a batch.

    Args:
        make_source: Opens the request source on the loop's own thread.
        batch: Most rows in one inference batch.
        version: Reads the current policy version.
        status: Reads the learner's part of the status, published twice a second.
        on_spaces: Called with the first worker's spaces while nothing serves yet.
        stop: The learner's token.
    """

    def __init__(
        self,
        make_source: Callable[[], RequestSource],
        *,
        batch: int,
        version: Callable[[], int],
        status: Callable[[], dict[str, Any]],
        on_spaces: Callable[[Spaces], None],
        stop: StopToken,
    ) -> None:
        self._make_source = make_source
        self._batch = batch
        self._version = version
        self._status = status
        self._on_spaces = on_spaces
        self._stop = stop
        self._serving: Serving | None = None
        self._flying: deque[InFlight] = deque()
        self._cuts: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._dismissal: str | None = None
        self._finish_by: float | None = None
        self._ended = threading.Event()
        self._published = 0.0
        self._left: list[Left] = []  # before there was a roster
        self.turned: float | None = None
        self.standing = Standing("no broker has answered yet")
        self.latency, self.batch_rows = Buckets(LATENCIES), Buckets(ROWS)
        self.stage = Stage("inference")
        self.environments = Environments(0, 0, None)
        self.broker_busy: float | None = None
        self.counters: Counter[str] = Counter()
        self.first_step: float | None = None  # monotonic seconds of the first served request
        self.held_back: str | None = None

    # What other threads may call.

    @property
    def serves(self) -> bool:
        """The policy is built."""
        return self._serving is not None

    def serve_with(self, serving: Serving) -> None:
        """The policy is built: workers are admitted from now on."""
        self._serving = serving

    def at_rest(self, call: Callable[[], T], timeout_seconds: float) -> T:
        """Runs ``call`` between batches: a consistent cut through what the loop's thread owns.

        On the loop's thread while it runs, on the caller's after it has ended.

        Raises:
            TimeoutError: the loop did not come to it in time.
        """
        future: Future[T] = Future()
        self._cuts.append((call, future))
        if self._ended.is_set():
            self._run_cuts()
        return future.result(timeout_seconds)

    def dismiss(self, reason: str, deadline: float) -> None:
        """Sends every worker home; the loop ends when the last has left, at the latest at ``deadline`` (monotonic)."""
        self._finish_by = deadline
        self._dismissal = reason

    # The loop's own thread.

    def run(self) -> None:
        """The thread's body."""
        source = self._make_source()
        source.stage = self.stage
        self.stage.enter(BUSY)
        try:
            dismissed = False
            while not self._finished(source, dismissed):
                if self._dismissal is not None and not dismissed:
                    source.dismiss(self._dismissal)
                    dismissed = True
                self._turn(source)
            while self._flying:
                self._land(source)
            if self._serving is not None:
                self._serving.writer.submit(self._serving.roster.flush())
                told = self._serving.roster.environments()  # by workers that have left since
                self.environments = self.environments._replace(faults=told.faults, newest_fault=told.newest_fault)
        finally:
            self.stage.enter(None)
            self.turned = None
            self._ended.set()
            self._run_cuts()
            source.close()

    def _finished(self, source: RequestSource, dismissed: bool) -> bool:
        if self._stop.error is not None:
            return True
        if self._finish_by is None or not dismissed:
            return False
        return source.workers() == 0 or time.monotonic() > self._finish_by

    def _turn(self, source: RequestSource) -> None:
        while self._left and self._serving is not None:
            self._handle(source, self._left.pop(0))
        credit = self._credit(source)
        wait = 0.0 if self._flying else POLL_SECONDS if credit else HELD_POLL_SECONDS
        requests, events = source.poll(credit, wait)
        for event in events:
            self._handle(source, event)
        if requests and self._serving is not None:
            self._launch(source, self._serving, requests)
            if len(self._flying) >= self._serving.in_flight:
                self._land(source)
        elif self._flying:
            self._land(source)
        if self._cuts:
            while self._flying:
                self._land(source)
            self._run_cuts()
        self.turned = now = time.monotonic()
        if now - self._published > PUBLISH_SECONDS:
            self._published = now
            self.standing = source.standing(now)
            self.latency.settle()
            self.batch_rows.settle()
            if self._serving is not None:
                self.environments = self._serving.roster.environments()
            self.broker_busy = source.broker_busy
            source.publish(self._status())

    def _credit(self, source: RequestSource) -> int:
        if self._serving is None:
            return 0
        reason = self._serving.writer.why_full() if self._serving.writer.full else None
        if self._dismissal is not None:
            reason = (
                None  # the last rows are delivered even into a full store: the backlog is bounded by one batch a group
            )
        if reason != self.held_back:
            self.held_back = reason
            source.hold_back(reason)
        return 0 if reason else self._batch

    def _handle(self, source: RequestSource, event: Event) -> None:
        serving = self._serving
        if isinstance(event, Joined):
            refusal = self._admit(serving, event)
            if refusal is not None:
                source.reject(event.worker, event.run, *refusal)
            elif serving is not None:
                seed = serving.roster.seed_of(event.worker, event.run)
                source.admit(event.worker, event.run, seed, serving.recurrent)
        elif isinstance(event, Left) and serving is None:
            self._leave_later(event)
        elif isinstance(event, Left) and serving is not None:
            while self._flying:  # a batch in flight may hold rows of the slots that are taken back
                self._land(source)
            serving.writer.submit(serving.roster.leave(event))
        elif isinstance(event, Reported) and serving is not None:
            serving.roster.report(event)

    def _leave_later(self, event: Left) -> None:
        """The last word on a predecessor's run, which is booked once there are books."""
        if event.reason != "bye":
            return  # it was not served here, and may come back
        if len(self._left) < MAX_EARLY:
            self._left.append(event)
        else:
            log.warning("the last word on run %d is in no book: %d wait already", event.run, MAX_EARLY)

    def _admit(self, serving: Serving | None, event: Joined) -> Refusal | None:
        if serving is not None:
            try:
                return serving.roster.join(event)
            except ProtocolError as error:
                return Refusal(str(error), Cause.SESSION)
        try:
            self._on_spaces(Spaces.from_wire(event.hello.spaces))
        except SpaceError as error:
            return Refusal(str(error), Cause.CONFIGURATION)
        return Refusal("the learner is building its policy", Cause.NOT_YET)

    def _launch(self, source: RequestSource, serving: Serving, requests: list[StepRequest]) -> None:
        parts = [part for request in requests if (part := self._accept(source, serving, request)) is not None]
        batch = self._join(source, parts)
        if batch is None:
            return
        if self.first_step is None:
            self.first_step = time.monotonic()
        version = self._version()
        exploration = serving.roster.table.explores[batch.slots]
        pending = serving.policy.submit(batch.slots, batch.first, batch.rows["reward"], batch.observation, exploration)
        self.counters["batches"] += 1
        self.counters["rows"] += len(batch.slots)
        arrived = source.arrived
        if len(batch.parts) < len(requests):
            served = {id(part.request) for part in batch.parts}
            arrived = [at for at, request in zip(arrived, requests, strict=True) if id(request) in served]
        self._flying.append(InFlight(batch, pending, version, arrived))

    def _accept(self, source: RequestSource, serving: Serving, request: StepRequest) -> Opened | None:
        verdict, group = serving.roster.table.judge(request.worker, request.run, request.group, request.sequence)
        if verdict is Verdict.SERVE and group is not None:
            try:
                return open_request(request, group, serving.leaves)
            except ProtocolError as error:
                self._refuse(source, request, group, error)
                return None
        self.counters[verdict.value] += 1
        if verdict is Verdict.GAP:
            source.reject(request.worker, request.run, f"sequence jumped to {request.sequence}", Cause.SESSION)
        elif verdict is Verdict.REPEAT and group is not None:
            source.reply([Reply(request.worker, request.run, request.group, request.sequence, group.reply)])
        return None

    def _join(self, source: RequestSource, parts: list[Opened]) -> StepBatch | None:
        """Those whose rows are as they must be; the others are refused."""
        if not parts:
            return None
        try:
            return join(parts)
        except ProtocolError as error:
            if len(parts) == 1:
                self._refuse(source, parts[0].request, parts[0].group, error)
                return None
        sound = [part for part in parts if self._join(source, [part]) is not None]
        return join(sound) if sound else None

    def _refuse(self, source: RequestSource, request: StepRequest, group: Group, error: ProtocolError) -> None:
        group.serving = -1
        self.counters["malformed"] += 1
        source.reject(request.worker, request.run, str(error), Cause.SESSION)

    def _land(self, source: RequestSource) -> None:
        serving = self._serving
        assert serving is not None
        batch, pending, version, arrived = self._flying.popleft()
        acted = pending.result()
        actions, replies, begin = acted.env_action.tobytes(), [], 0
        nbytes = len(actions) // len(batch.slots)  # of one row
        for group, request, _, _ in batch.parts:
            end = begin + request.replies * nbytes
            buffer = actions[begin:end]  # copied, as it is kept for a repeat
            serving.roster.table.answered(group, buffer)
            replies.append(Reply(request.worker, request.run, request.group, request.sequence, buffer))
            begin = end
        source.reply(replies)
        now = time.monotonic()
        self.latency.note([now - at for at in arrived])
        self.batch_rows.note([len(batch.slots)])
        serving.collector.collect(batch, acted, version)

    def _run_cuts(self) -> None:
        while True:
            try:
                call, future = self._cuts.popleft()
            except IndexError:  # at the end of the loop two threads may be here
                return
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001 - handed to the thread that asked
                future.set_exception(error)
