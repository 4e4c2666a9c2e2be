"""A worker's side of the protocol: a state machine that takes events and the time, and returns what to do.

::

    joining --WELCOME--> serving --drain--> draining --answered or late--> leaving --GOODBYE or late--> gone
       ^------UNKNOWN, reconnect------'

Each env group has at most one outstanding STEP. It is kept until its ACTIONS come, sent again when they do not, and
again with the same sequence number after every reconnect, so a broker that restarts loses nothing.

Pure: no zmq, threading or time. Invariant: a group is either outstanding or in the hands of the loop (being reset or
stepped), until the session drains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ComponentError, ConfigError, ProtocolError, UnreachableError
from pipeline.protocol import Cause, Hello, Kind, Message, Report, encode, fields_of
from pipeline.streams import SEED_BITS
from workers.actions import Abandon, Action, Begin, Finish, Reconnect, Say, Send, State, Step, Timing

HELLO_SECONDS = 1.0
SILENT_HEARTBEATS = 5.0
COMPLAINT_SECONDS = 60.0
MALFORMED_ACTIONS = 5  # in a row, and the worker gives up: another repetition brings nothing else


@dataclass(slots=True)
class _Group:
    key: str  # of its STEP among what waits to be sent
    sequence: int = -1
    busy: bool = False  # being reset or stepped
    step: Send | None = None  # outstanding
    sent_at: float = 0.0  # last sent
    waiting_since: float = 0.0


class Session:
    """One run of a worker.

    Args:
        hello: What it says of itself; ``worker`` is the index claimed, or -1.
        action_bytes: Bytes of one environment's action.
        timing: Deadlines.
        report: Gives the run's counters now.
        now: A monotonic time in seconds.

    Attributes:
        state: Where it stands.
        worker: Leased index, -1 before the first WELCOME.
    """

    def __init__(
        self, hello: Hello, action_bytes: int, timing: Timing, report: Callable[[], Report], now: float
    ) -> None:
        self.state = State.JOINING
        self.worker = -1
        self._hello = hello
        self._run = hello.run
        self._reply_bytes = [n * action_bytes for n in hello.groups]
        self._timing = timing
        self._report = report
        self._heartbeat = timing.heartbeat
        self._groups = [_Group(f"step {i}") for i in range(len(hello.groups))]
        self._begun = False
        self._joined = False  # the broker knows this run, as far as we know
        self._hello_at = now
        self._heartbeat_at = now
        self._bye_at = now
        self._heard_at = now
        self._give_up_at = now + timing.connect
        self._drain_until = now
        self._broker = "connecting"
        self._complained_at = now
        self._malformed = 0
        self._malformed_actions = 0  # in a row
        self._said: Report | None = None  # with the last BYE
        self._held_said_at = now - COMPLAINT_SECONDS
        self._held_said = False

    @property
    def stopping(self) -> bool:
        """Nothing is to be stepped any more."""
        return self.state is not State.SERVING and self.state is not State.JOINING

    @property
    def over(self) -> bool:
        """What is stepped now is in no STEP any more."""
        return self.state is State.LEAVING or self.state is State.GONE

    @property
    def serving(self) -> bool:
        """A learner has admitted this run, as far as we know, and nothing keeps it from the broker."""
        return self._joined and self.state is State.SERVING and self._broker != "no_learner"

    def outstanding(self) -> list[int]:
        """Groups that wait for their actions."""
        return [i for i, group in enumerate(self._groups) if group.step is not None]

    def deadline(self) -> float:
        """When ``tick`` has to be called at the latest."""
        if self.state is State.GONE:
            return 0.0
        times = [self._heard_at + self._silence()]
        if not self._joined:
            times.append(self._hello_at)
        elif self.state is not State.LEAVING:
            times.append(self._heartbeat_at)
        times += [self._groups[i].sent_at + self._timing.reply for i in self.outstanding() if self._joined]
        if self.state is State.JOINING and not self._begun:
            times.append(self._give_up_at)
        if self.state in (State.DRAINING, State.LEAVING):
            times.append(self._drain_until)
        if self.state is State.LEAVING and self._joined:
            times.append(self._bye_at)
        return min(times)

    def tick(self, now: float) -> list[Action]:
        """What time alone brings about."""
        if self.state is State.GONE:
            return []
        if self.state is State.JOINING and not self._begun and now >= self._give_up_at:
            self.state = State.GONE
            text = f"no broker answered within {self._timing.connect:g} s{self._timing.silence}"
            return [Finish(UnreachableError(text))]
        actions = self._drained(now)
        if any(isinstance(action, Finish) for action in actions):
            return actions
        if now >= self._heard_at + self._silence() or self._unanswered(now):
            actions += self._reconnect(now)
        if not self._joined:
            if now >= self._hello_at:
                actions.append(self._say_hello(now))
            return actions
        if now >= self._heartbeat_at and self.state is not State.LEAVING:  # after BYE the run is unknown
            self._heartbeat_at = now + self._heartbeat
            actions.append(Send("heartbeat", encode(Kind.HEARTBEAT, self._run, self._report().to_wire())))
        for i in self.outstanding():
            if now >= self._groups[i].sent_at + self._timing.reply:
                actions.append(self._resend(i, now))
        return actions

    def stepping(self, group: int) -> bool:
        """Whether the loop is to reset or step a group as it was told; if so, a drain waits for what comes of it."""
        if self.stopping:
            return False
        self._groups[group].busy = True
        return True

    def stepped(self, group: int, rows: int, replies: int, buffers: Sequence[Any], now: float) -> list[Action]:
        """The loop has reset or stepped a group; the buffers stay as they are until its next ``Step``."""
        state = self._groups[group]
        state.busy = False
        if self.over:
            return []  # too late to deliver; the next BYE counts it, or the supervisor's
        state.sequence += 1
        head = encode(Kind.STEP, self._run, group, state.sequence, rows, replies)
        state.step = Send(state.key, head, buffers)
        state.sent_at = state.waiting_since = now
        return [state.step] if self._joined else []

    def paused(self, seconds: float, now: float) -> None:
        """The loop stood still in an environment for so long: that is not the broker's silence."""
        self._heard_at = min(now, self._heard_at + seconds)
        for group in self._groups:
            group.sent_at = min(now, group.sent_at + seconds)
            group.waiting_since = min(now, group.waiting_since + seconds)

    def drain(self, reason: str, now: float) -> list[Action]:
        """Stop stepping, deliver what is taken, say BYE, end."""
        if self.state in (State.DRAINING, State.LEAVING, State.GONE):
            return []
        if not self._begun:
            self.state = State.GONE  # nothing is taken yet
            return [Say("info", f"stopping: {reason}"), Finish()]
        self.state = State.DRAINING
        self._drain_until = now + self._timing.replies_drain
        return [Say("info", f"stopping: {reason}"), *self._drained(now)]

    def received(self, message: Message, now: float) -> list[Action]:
        """A message from the broker. A malformed one is counted, said once in a while, and otherwise ignored.

        But for ACTIONS that are malformed again and again: nothing would ever be stepped.
        """
        try:
            return self._received(message, now)
        except ProtocolError as error:
            self._malformed += 1
            self._malformed_actions += message.kind is Kind.ACTIONS
            if self._malformed_actions >= MALFORMED_ACTIONS:
                return self._given_up(error)
            if self._malformed & (self._malformed - 1):  # say the 1st, 2nd, 4th, 8th...
                return []
            return [Say("error", f"ignored a malformed message from the broker ({self._malformed} so far): {error}")]

    def _given_up(self, error: ProtocolError) -> list[Action]:
        self.state = State.GONE
        text = f"{self._malformed_actions} times in a row the actions for this worker were malformed: {error}"
        return [Finish(ComponentError(f"{text}; does the learner run another version of seedmq?"))]

    def _received(self, message: Message, now: float) -> list[Action]:
        run = message.fields[0] if message.fields else None
        if run == 0 and message.kind is Kind.REFUSED:  # a message of ours was malformed in the broker's eyes
            return self._refused(message, now)
        if run != self._run:
            return []  # meant for a run before this one
        self._heard_at = now
        if not self._begun:
            self._give_up_at = now + self._timing.connect
        if self.state is State.GONE:
            return []
        if message.kind is Kind.ACTIONS:
            return self._actions(message, now)
        handlers = {
            Kind.WELCOME: self._welcome,
            Kind.WAIT: self._wait,
            Kind.REFUSED: self._refused,
            Kind.ALIVE: self._alive,
            Kind.UNKNOWN: self._unknown,
            Kind.DRAIN: self._dismissed,
            Kind.GOODBYE: self._goodbye,
        }
        handler = handlers.get(message.kind)
        if handler is None:
            raise ProtocolError(f"{message.kind.name} is not for workers")
        return handler(message, now)

    def _actions(self, message: Message, now: float) -> list[Action]:
        _, index, sequence = fields_of(message, int, int, int)
        if not 0 <= index < len(self._groups):
            raise ProtocolError(f"ACTIONS for group {index} of {len(self._groups)}")
        group = self._groups[index]
        if group.step is None or sequence != group.sequence:
            return []  # a repeat, or late
        expected = self._reply_bytes[index]
        if len(message.buffers) != 1 or len(message.buffers[0]) != expected:
            sizes = [len(buffer) for buffer in message.buffers]
            raise ProtocolError(f"ACTIONS of group {index} hold {sizes} bytes, not one buffer of {expected}")
        group.step, self._malformed_actions = None, 0
        if self.stopping:
            return self._drained(now)  # the observation is delivered; its action is not executed
        return [Step(index, message.buffers[0])]

    def _welcome(self, message: Message, now: float) -> list[Action]:
        _, lease = fields_of(message, int, dict)
        worker, seed, heartbeat = lease.get("worker"), lease.get("seed"), lease.get("heartbeat_seconds")
        if type(worker) is not int or type(seed) is not int or not isinstance(heartbeat, (int, float)):
            raise ProtocolError("WELCOME without worker, seed or heartbeat_seconds")
        if not 0 <= seed < 2**SEED_BITS:
            raise ProtocolError(f"WELCOME with seed {seed}")
        if self._joined:
            return []
        self.worker = worker
        self._hello = self._hello._replace(worker=worker)
        self._heartbeat = max(0.05, float(heartbeat))
        self._heartbeat_at = now
        self._joined = True
        if self.state is State.JOINING:
            self.state = State.SERVING
        said = self._change("serving", f"admitted as worker {worker}")
        if not self._begun:
            self._begun = True
            return [*said, Begin(seed, worker)]
        resent: list[Action] = []
        for i in self.outstanding():
            self._groups[i].waiting_since = now
            resent.append(self._abandoned(i) if lease.get("anew") is True else self._resend(i, now))
        if self.state is State.LEAVING:
            self._bye_at = now
        return [*said, *resent]

    def _abandoned(self, index: int) -> Action:
        """Instead of the outstanding STEP, which belongs to episodes that cannot go on, come first observations."""
        self._groups[index].step = None
        return Abandon(index)

    def _wait(self, message: Message, now: float) -> list[Action]:
        _, reason = fields_of(message, int, str)
        self._hello_at = now + HELLO_SECONDS
        return self._change("wait", f"the broker lets this worker wait: {reason}", about=reason)

    def _refused(self, message: Message, now: float) -> list[Action]:
        _, reason, cause = fields_of(message, int, str, int)
        self.state = State.GONE
        text = f"the broker refused this worker: {reason}"
        return [Finish(ConfigError(text) if cause == Cause.CONFIGURATION else ComponentError(text))]

    def _alive(self, message: Message, now: float) -> list[Action]:
        _, state, reason = fields_of(message, int, str, str)
        if state == "held_back":
            return self._held_back(reason, now)
        if state == "no_learner":
            return self._change(state, f"no learner: {reason or 'none is connected'}; not stepping until one is back")
        if self._broker == "held_back":
            self._broker = state
            return [Say("info", "the learner serves")] if self._held_said else []
        return self._change(state, "the learner serves")

    def _held_back(self, reason: str, now: float) -> list[Action]:
        """Back-pressure comes and goes as it should: said once a minute."""
        if self._broker == "held_back":
            return []
        self._broker = "held_back"
        self._held_said = now >= self._held_said_at + COMPLAINT_SECONDS
        if not self._held_said:
            return []
        self._held_said_at = now
        return [Say("info", f"held back: {reason}; not stepping until the learner catches up")]

    def _unknown(self, message: Message, now: float) -> list[Action]:
        if not self._joined:
            return []  # a HELLO is on its way already
        self._rejoin(now)
        return [*self._change("unknown", "the broker does not know this run any more: joining again"), *self.tick(now)]

    def _dismissed(self, message: Message, now: float) -> list[Action]:
        _, reason = fields_of(message, int, str)
        return self.drain(f"dismissed: {reason}", now)

    def _goodbye(self, message: Message, now: float) -> list[Action]:
        if self.state is not State.LEAVING:
            return []
        self.state = State.GONE
        return [Finish(booked=self._said)]

    def _drained(self, now: float) -> list[Action]:
        """Moves a drain on: BYE when all is answered, or too late; the end when GOODBYE does not come."""
        waits = self.outstanding() or any(group.busy for group in self._groups)
        if self.state is State.DRAINING and (not waits or now >= self._drain_until):
            left = self.outstanding()
            for i in left:
                self._groups[i].step = None
            self.state = State.LEAVING
            self._drain_until = now + self._timing.goodbye
            self._bye_at = now + HELLO_SECONDS
            late: list[Action] = (
                [Say("warning", f"groups {left} were not answered before the deadline")] if left else []
            )
            return [*late, *([self._bye()] if self._joined else [])]
        if self.state is State.LEAVING and now >= self._drain_until:
            self.state = State.GONE
            return [Say("warning", "the broker did not answer BYE before the deadline"), Finish()]
        if self.state is State.LEAVING and now >= self._bye_at and self._joined:
            self._bye_at = now + HELLO_SECONDS
            return [self._bye()]
        return []

    def _bye(self) -> Send:
        self._said = self._report()
        return Send("bye", encode(Kind.BYE, self._run, self._said.to_wire()))

    def _say_hello(self, now: float) -> Send:
        self._hello_at = now + HELLO_SECONDS
        return Send("hello", encode(Kind.HELLO, self._hello.to_wire()))

    def _resend(self, index: int, now: float) -> Send:
        group = self._groups[index]
        assert group.step is not None
        group.sent_at = now
        return group.step._replace(again=True)

    def _reconnect(self, now: float) -> list[Action]:
        silent = now - self._heard_at
        self._heard_at = now
        self._rejoin(now)
        if self._broker == "lost" and now < self._complained_at + COMPLAINT_SECONDS:
            return [Reconnect()]
        self._broker, self._complained_at = "lost", now
        text = f"no answer from the broker for {silent:.1f} s: not stepping, connecting anew{self._timing.silence}"
        return [Say("warning" if self._begun else "info", text), Reconnect()]  # at the start the broker may start too

    def _rejoin(self, now: float) -> None:
        if self.state is State.SERVING:
            self.state = State.JOINING
        self._joined = False
        self._hello_at = now

    def _silence(self) -> float:
        """Seconds without a word after which the broker counts as gone."""
        return max(2.0, SILENT_HEARTBEATS * self._heartbeat)

    def _unanswered(self, now: float) -> bool:
        """A broker that says it serves leaves a request unanswered: perhaps the way back is broken."""
        if not self._joined or self._broker != "serving":
            return False
        return any(now >= self._groups[i].waiting_since + 2 * self._timing.reply for i in self.outstanding())

    def _change(self, broker: str, text: str, about: str = "") -> list[Action]:
        """Says a change of the broker's state once."""
        state = f"{broker}: {about}" if about else broker
        if state == self._broker:
            return []
        self._broker = state
        return [Say("info" if broker in ("serving", "wait") else "warning", text)]
