"""The supervision of a run's processes: what happened and the time in, what to do out. No IO here.

A run is ``running`` until something ends it, then ``draining`` in a fixed order, then ``finished``::

    the learner is told to end (it dismisses the workers, writes checkpoint and summary)
      -> workers are gone -> the broker is told to end -> the store -> finished

=================  =========================  =============================================================
component          exit code                  while running
=================  =========================  =============================================================
any                2 bad configuration,       ends the run with that code: starting it again cannot help
                   4 dependency out of reach
learner            0                          the run is over: workers leave by themselves
learner            130, 143                   somebody stopped the learner: the run ends with that code
learner            3 before its first update  ends the run: a refused checkpoint or store is not cured by another start
learner            others                     starts again with ``resume`` within its budget, else 3
worker             0                          left as told; starts again if the run still goes on after a grace
worker             3                          ends the run: it has spent a budget of its own
worker, broker     others                     starts again within its budget, else 3
store              any                        starts again within its budget, else 3
=================  =========================  =============================================================

Restarts are delayed, each within the window twice as long as the one before, with jitter, so that processes that die
together do not come back together.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from pipeline.errors import EXIT_FAILED, EXIT_FINISHED, EXIT_SIGINT, EXIT_SIGTERM, EXIT_UNREACHABLE, EXIT_USAGE

LEARNER, BROKER, STORE = "learner", "broker", "store"
WINDOW_SECONDS = 600.0
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
WORKER_GRACE_SECONDS = 2.0
"""Workers that the learner could not dismiss (they never reached it) are told to end so long after it."""
LOST_SECONDS = 3.0
"""A drain without a learner has nothing to wait for: it takes at most so long."""
KILL_SECONDS = 0.5
"""What outlives a kill for so long stays behind: it hangs in the kernel."""
_DRAINED = (EXIT_SIGINT, EXIT_SIGTERM)
_STOPPED = (*_DRAINED, -signal.SIGINT, -signal.SIGTERM)


class Start(NamedTuple):
    """Start the component; ``resume``: it is a learner that goes on."""

    component: str
    resume: bool


class Delay(NamedTuple):
    """To be told: the component ended with ``code`` and starts again in ``seconds``."""

    component: str
    code: int
    seconds: float


class Terminate(NamedTuple):
    """Ask the component to end (SIGTERM)."""

    component: str


class Kill(NamedTuple):
    """End the component and all that it started (SIGKILL)."""

    component: str


class Finish(NamedTuple):
    """The run is over. ``culprit`` is the component that ended it, if one failed."""

    code: int
    culprit: str | None
    reason: str


Action = Start | Delay | Terminate | Kill | Finish


class Phase(Enum):
    RUNNING = 1
    DRAINING = 2
    FINISHED = 3


@dataclass
class _Component:
    budget: int
    alive: bool = False
    told: bool = False
    killed: bool = False
    code: int | None = None
    start_at: float | None = None
    started: int = 0
    restarts: deque[float] = field(default_factory=deque)


class Supervisor:
    """Pure: give it every exit, every signal and, at ``next_deadline`` or earlier, the time; do what it returns.

    Args:
        budgets: component -> restarts allowed within ``WINDOW_SECONDS``. ``learner`` is required, ``broker`` and
            ``store`` may be there, all others are workers. Started in this order.
        drain_seconds: how long an orderly stop may take before what is left is killed.
        jitter: factor of a delay, from (0, 1].
        resume: the first learner goes on with an earlier run.

    Attributes:
        trains: Some learner of this run has come as far as to an update; set from outside.
    """

    def __init__(
        self, budgets: Mapping[str, int], drain_seconds: float, jitter: Callable[[], float], resume: bool = False
    ) -> None:
        self._components = {name: _Component(budget) for name, budget in budgets.items()}
        self._workers = [name for name in budgets if name not in (LEARNER, BROKER, STORE)]
        self._drain_seconds = drain_seconds
        self._jitter = jitter
        self._resume = resume
        self._deadline = 0.0
        self._terminate_workers_at: float | None = None
        self._killed_at: float | None = None
        self.trains = False
        self.phase = Phase.RUNNING
        self.signal: int | None = None
        self.finish = Finish(EXIT_FINISHED, None, "")

    def begin(self, now: float) -> list[Action]:
        """Starts everything, in the order of the budgets."""
        return [self._start(name) for name in self._components]

    def states(self) -> dict[str, str]:
        """component -> ``running``, ``restarting`` or ``ended``."""
        return {name: _state(component) for name, component in self._components.items()}

    def restarts(self) -> int:
        """How often components were started again."""
        return sum(max(0, one.started - 1) for one in self._components.values())

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do."""
        times = [one.start_at for one in self._components.values()]
        if self.phase is Phase.DRAINING:
            times += [self._terminate_workers_at, self._deadline if self._killed_at is None else None]
            times += [None if self._killed_at is None else self._killed_at + KILL_SECONDS]
        return min((at for at in times if at is not None), default=None)

    def exited(self, name: str, code: int, now: float) -> list[Action]:
        """The component ended: ``code`` is its exit code, minus the signal that killed it."""
        component = self._components[name]
        component.alive, component.code = False, code
        if self.phase is Phase.RUNNING:
            return self._exited_running(name, component, code, now)
        if self.phase is Phase.DRAINING:
            return self._exited_draining(name, component, code, now)
        return []

    def signalled(self, number: int, now: float) -> list[Action]:
        """SIGINT or SIGTERM arrived: the first drains, the second kills."""
        if self.signal is not None:
            self.finish = Finish(128 + number, None, "second signal")
            return self._kill(now)
        self.signal = number
        if self.phase is Phase.RUNNING:
            return self._drain(Finish(128 + number, None, "signal"), now)
        return []

    def tick(self, now: float) -> list[Action]:
        """What is due: delayed starts, the end of patience."""
        if self.phase is Phase.RUNNING:
            due = [n for n, one in self._components.items() if one.start_at is not None and one.start_at <= now]
            return [self._start(name) for name in due]
        if self.phase is not Phase.DRAINING:
            return []
        if self._killed_at is not None:
            return self._over() if now >= self._killed_at + KILL_SECONDS else []
        if now >= self._deadline:
            if self._components[LEARNER].alive:
                self._fail(LEARNER, f"{LEARNER} did not end within {self._drain_seconds:g} s")
            return self._kill(now)
        if self._terminate_workers_at is not None and now >= self._terminate_workers_at:
            self._terminate_workers_at = None
            return self._tell(self._workers)
        return []

    def _exited_running(self, name: str, component: _Component, code: int, now: float) -> list[Action]:
        if code in (EXIT_USAGE, EXIT_UNREACHABLE) and name != STORE:
            return self._drain(Finish(code, name, f"{name} ended with exit code {code}"), now)
        if code == EXIT_FAILED and (name in self._workers or (name == LEARNER and not self.trains)):
            return self._drain(Finish(code, name, f"{name} ended with {words(code)}"), now)
        if name == LEARNER and code == EXIT_FINISHED:
            return self._drain(Finish(EXIT_FINISHED, None, "finished"), now)
        if name == LEARNER and code in _DRAINED:
            return self._drain(Finish(code, None, "signal"), now)
        while component.restarts and component.restarts[0] <= now - WINDOW_SECONDS:
            component.restarts.popleft()
        if len(component.restarts) >= component.budget:
            budget = f"{component.budget} restarts within {WINDOW_SECONDS / 60:.0f} minutes"
            reason = f"{name} ended with {words(code)}, after {budget}"
            return self._drain(Finish(EXIT_FAILED, name, reason), now)
        delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** len(component.restarts)) * self._jitter()
        if name in self._workers and code == EXIT_FINISHED:
            # Most likely dismissed by a learner that is about to end too.
            delay += self._drain_seconds
        component.restarts.append(now)
        component.start_at = now + delay
        return [Delay(name, code, delay)]

    def _exited_draining(self, name: str, component: _Component, code: int, now: float) -> list[Action]:
        if self._killed_at is None and name == LEARNER:
            self._terminate_workers_at = now + WORKER_GRACE_SECONDS
            if code != EXIT_FINISHED and code not in _STOPPED:
                self._fail(name, f"{name} ended with {words(code)} while the run was stopping", code)
                return self._without_learner(now) + self._advance(now)
        return self._advance(now)

    def _start(self, name: str) -> Start:
        component = self._components[name]
        component.alive, component.told, component.start_at = True, False, None
        component.started += 1
        return Start(name, name == LEARNER and (self._resume or component.started > 1))

    def _drain(self, finish: Finish, now: float) -> list[Action]:
        self.phase = Phase.DRAINING
        self.finish = finish
        self._deadline = now + self._drain_seconds
        for component in self._components.values():
            component.start_at = None
        if self._components[LEARNER].alive:
            return self._tell([LEARNER]) + self._advance(now)
        if finish.culprit is None:
            self._terminate_workers_at = now + WORKER_GRACE_SECONDS
            return self._advance(now)
        return self._without_learner(now) + self._advance(now)

    def _without_learner(self, now: float) -> list[Action]:
        self._terminate_workers_at = None
        self._deadline = min(self._deadline, now + LOST_SECONDS)
        return self._tell(self._workers)

    def _advance(self, now: float) -> list[Action]:
        """The stop order: learner and workers, then the broker, then the store."""
        if any(self._components[name].alive for name in (LEARNER, *self._workers)):
            return []
        for name in (BROKER, STORE):
            if name in self._components and self._components[name].alive:
                return self._tell([name])
        return self._over()

    def _tell(self, names: list[str]) -> list[Action]:
        fresh = [name for name in names if self._components[name].alive and not self._components[name].told]
        for name in fresh:
            self._components[name].told = True
        return [Terminate(name) for name in fresh]

    def _kill(self, now: float) -> list[Action]:
        alive = [name for name, component in self._components.items() if component.alive and not component.killed]
        self.phase, self._killed_at = Phase.DRAINING, now
        for name in alive:
            self._components[name].killed = True
        return [Kill(name) for name in alive] or self._advance(now)

    def _over(self) -> list[Action]:
        self.phase = Phase.FINISHED
        return [self.finish]

    def _fail(self, culprit: str, reason: str, code: int = EXIT_FAILED) -> None:
        """An end that was clean so far becomes a failed one; what failed first stays the reason."""
        if self.finish.culprit is None:
            known = code in (EXIT_USAGE, EXIT_UNREACHABLE)
            self.finish = Finish(code if known else EXIT_FAILED, culprit, reason)


def _state(component: _Component) -> str:
    if component.alive:
        return "running"
    # One that left as told starts again only if the run goes on without it.
    return "ended" if component.start_at is None or component.code == EXIT_FINISHED else "restarting"


def words(code: int) -> str:
    """``exit code 3`` or ``signal 9``."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
