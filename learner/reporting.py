"""What a learner says about itself: ``summary.json``, TensorBoard and its part of ``seedmq status``.

Definitions: ``agent_steps`` are trained valid transitions; ``seconds`` runs from the first environment step to the last
update, ``elapsed_seconds`` from there to now, ``startup_seconds`` before it; rates, stages and the bottleneck are over
the last interval, at the end over the whole run. The reporter's thread, but for what says otherwise.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from learner.episodes import Episodes
from learner.evaluation import Evaluation
from learner.events import Events
from learner.inference import InferenceLoop
from learner.live import LiveSettings
from learner.paths import Path
from learner.training import TrainingLoop
from learner.writes import Writes
from pipeline.bottleneck import Facts, Watch, diagnose, to_wire
from pipeline.ledger import Ledger
from pipeline.run_dir import RunDirectory, write_json
from pipeline.stages import ACTIONS, MESSAGES, ROOM, Meter, Shares, Stage
from pipeline.stopping import StopToken

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 30.0
"""Between two lines of the log that say how far it is."""
HELD_SHARE = 0.05  # of inference's time: workers are held back
FAULT_CHARACTERS = 300
FIRST_WORKER = "waiting for the first worker"


class Parts(NamedTuple):
    """What there is to report on, once training has begun."""

    inference: InferenceLoop
    training: TrainingLoop
    path: Path
    ledger: Ledger
    episodes: Episodes
    evaluations: Episodes
    evaluation: Evaluation
    live: LiveSettings


class Before(NamedTuple):
    """What earlier processes of the same run have behind them, from the checkpoint.

    Attributes:
        seconds: From each one's first environment step to its last update.
        updates: Of theirs.
        elapsed_seconds: From each one's first environment step to its end, as far as it is known.
        resumed: There were such.
    """

    seconds: float = 0.0
    updates: int = 0
    elapsed_seconds: float = 0.0
    resumed: bool = False

    def elapsed_with(self, since: float | None) -> float:
        """With those of this process, from its first environment step (monotonic) on."""
        return self.elapsed_seconds + (0.0 if since is None else max(0.0, time.monotonic() - since))

    def seconds_with(self, started: float | None, updated: float | None) -> float:
        """With those of this process, from its first environment step to its last update (both monotonic)."""
        return self.seconds + (max(0.0, updated - started) if started and updated else 0.0)


class Reporter:
    """Reports every interval, and once at the end.

    Attributes:
        devices: Which infer and which train, in words.
        worker_fault: The last fault that a worker told of before any was admitted; empty: none. Any thread.
        store_trouble: What keeps the store's connections from it, in words; empty: nothing. Any thread.

    Args:
        directory: Where ``summary.json`` and ``events/`` are.
        writes: Goes on where they cannot be written.
        frame_skip: Environment frames per agent step.
        interval_seconds: Between reports.
        began: Monotonic seconds of the process's start.
        stop: Ends the thread.
    """

    def __init__(
        self,
        directory: RunDirectory,
        writes: Writes,
        *,
        frame_skip: int,
        interval_seconds: float,
        began: float,
        stop: StopToken,
    ) -> None:
        self._directory = directory
        self._writes = writes
        self._events = Events(directory)
        self._frame_skip = frame_skip
        self._interval = interval_seconds
        self._began = began
        self._stop = stop
        self.worker_fault: Callable[[], str] = str
        self.store_trouble: Callable[[], str] = str
        self._last: tuple[float, int, int] = (time.monotonic(), 0, 0)
        self.devices = ""
        self._rates: dict[str, float] = {}
        self._shares: Shares = {}
        self._environments, self._broker = Stage("environments"), Stage("broker")
        self._meter = Meter([])
        self._lock = threading.Lock()  # of what follows
        self._watch = Watch()
        self._status: dict[str, Any] = {}
        self._starting: str | None = FIRST_WORKER

    def status(self) -> dict[str, Any]:
        """The latest report, for the broker. Any thread."""
        now = time.monotonic()
        with self._lock:
            if self._starting is not None:
                self._watch.observe(diagnose(self._facts_of_start(self._starting)), now)
                return {"state": self._starting, "bottleneck": self._watch.shown(now)}
            return {**self._status, "bottleneck": self._watch.shown(now)}

    def doing(self) -> str:
        """What the learner does before it trains; empty: it trains. Any thread."""
        with self._lock:
            return self._starting or ""

    def starting(self, words: str) -> None:
        """What the learner does before it trains."""
        with self._lock:
            self._starting = words
        log.info(words)

    def run(self, parts: Parts, before: Before) -> None:
        """The thread's body."""
        stages = (parts.inference.stage, parts.path.writer.stage, parts.path.feed.stage, parts.training.stage)
        self._meter = Meter([self._environments, self._broker, *stages])
        self._last = (
            time.monotonic(),
            parts.ledger.agent_steps,
            parts.ledger.snapshot()["taken"],
        )  # with what is restored
        if before.resumed:
            frames = parts.ledger.agent_steps * self._frame_skip
            self._writes.attempt("events", lambda: self._events.resume(frames))
        told = time.monotonic()
        while not self._stop.wait(self._interval):
            parts.live.look()
            summary = self.report(parts, before, None)
            if time.monotonic() >= told + PROGRESS_SECONDS:
                told = time.monotonic()
                log.info(_words(summary))
            self._write_events(summary, parts)

    def end(self, parts: Parts, before: Before, stop_reason: str | None) -> None:
        """The last report, once the thread has ended. Its curves of shares end with the last interval's."""
        shares = self._shares
        summary = self.report(parts, before, stop_reason)
        self._write_events({**summary, "stages": shares}, parts)
        self._writes.attempt("events", self._events.close)

    def _write_events(self, summary: dict[str, Any], parts: Parts) -> None:
        self._writes.attempt("events", lambda: self._events.write(summary, parts.training.lag))

    def report(self, parts: Parts, before: Before, stop_reason: str | None) -> dict[str, Any]:
        """Writes ``summary.json`` and refreshes the status."""
        summary = self.summary(parts, before, stop_reason)
        self._writes.attempt("summary", lambda: write_json(self._directory.summary, summary))
        if stop_reason is not None:
            log.info("%s after %s", stop_reason, _words(summary))
        with self._lock:
            self._status, self._starting = {"state": "training", **summary}, None
        return summary

    def summary(self, parts: Parts, before: Before, stop_reason: str | None) -> dict[str, Any]:
        training, ledger = parts.training, parts.ledger.snapshot()
        started, updated = parts.inference.first_step, training.last_update
        seconds = before.seconds_with(started, updated)
        steps = parts.ledger.agent_steps
        if stop_reason is None:
            self._measure(steps, ledger["taken"], parts)
            bottleneck = self._watch.shown(time.monotonic())
        else:
            self._shares = self._meter.total()
            found = diagnose(Facts(shares=self._shares))
            bottleneck = None if found is None else to_wire(found, None)
        metrics = training.metrics.fetch() if training.metrics is not None else {}
        return {
            "stop_reason": stop_reason,
            "bottleneck": bottleneck,
            "stages": self._shares,
            "frames": steps * self._frame_skip,
            "agent_steps": steps,
            "seconds": seconds,
            "elapsed_seconds": before.elapsed_with(started),
            "startup_seconds": (started or time.monotonic()) - self._began,
            "frames_per_second": steps * self._frame_skip / seconds if seconds else 0.0,
            "agent_steps_per_second": steps / seconds if seconds else 0.0,
            "environment_steps_per_second": ledger["taken"] / seconds if seconds else 0.0,
            "updates": before.updates + training.updates,
            "updates_since_checkpoint": training.updates - training.updates_saved,
            "version": training.version,
            **parts.episodes.snapshot(),
            "evaluation": {**parts.evaluations.snapshot(), **parts.evaluation.status()},
            **training.lag.status(),
            "loss": metrics.get("loss"),
            "metrics": metrics,
            "rates": self._rates,
            "queues": {
                "writer": parts.path.writer.backlog,
                "prefetched_batches": parts.path.feed.waiting,
            },
            "inference": dict(parts.inference.counters),
            **parts.path.status(),
            **self._writes.status(),
            "live": dict(parts.live.values),
            "devices": self.devices,
            "faults": dict(parts.inference.environments.faults),
            "newest_fault": parts.inference.environments.newest_fault,
            "ledger": ledger,
        }

    def _measure(self, steps: int, taken: int, parts: Parts) -> None:
        """Rates, shares and the bottleneck of an interval; nothing where it is too short to tell."""
        now, (then, steps_then, taken_then) = time.monotonic(), self._last
        elapsed = now - then
        if elapsed < self._interval / 2:
            return
        self._last = (now, steps, taken)
        self._rates = {
            "agent_steps_per_second": (steps - steps_then) / elapsed,
            "environment_steps_per_second": (taken - taken_then) / elapsed,
        }
        inference = parts.inference
        if inference.environments.busy is not None:
            self._environments.add(inference.environments.busy, ACTIONS, elapsed)
        if inference.broker_busy is not None:
            self._broker.add(inference.broker_busy, MESSAGES, elapsed)
        self._shares = self._meter.interval()
        if not parts.training.updates:
            self._meter.begin()  # the whole run's shares are without its start
        with self._lock:
            self._watch.observe(diagnose(self._facts(parts, self._shares)), now)

    def _facts(self, parts: Parts, shares: Shares) -> Facts:
        training, evaluating, *_, newest_fault = parts.inference.environments
        held = parts.inference.held_back
        if held is None and shares.get("inference", {}).get(ROOM, 0.0) > HELD_SHARE:
            held = parts.path.writer.why_full()
        missing = "only such that evaluate are connected" if evaluating else _none_is_connected(newest_fault)
        return Facts(
            store=self.store_trouble(),
            workers="" if training else missing,
            held_back=held or "",
            sampling=parts.path.feed.why_no_sample() or "",
            shares=shares,
        )

    def _facts_of_start(self, words: str) -> Facts:
        waits = words == FIRST_WORKER
        return Facts(
            store=self.store_trouble(),
            workers=_none_is_connected(self.worker_fault()) if waits else "",
            learner="" if waits else f"it is {words}",
        )


def _none_is_connected(fault: str) -> str:
    """Why no worker is there, as far as the last fault of one tells."""
    return "none is connected" + (f", the last fault: {fault[:FAULT_CHARACTERS]}" if fault else "")


def _words(summary: dict[str, Any]) -> str:
    """How far it is, in a line."""
    rate, returns = summary["rates"].get("agent_steps_per_second", 0.0), summary["episode_return_mean"]
    bottleneck, missing = summary["bottleneck"], summary["episode_environments_waited_for"]
    environments = summary["episode_environments"]
    turns = f" ({environments - missing} of {environments} environments have ended an episode)" if missing else ""
    return (
        f"{summary['seconds']:.0f} s: {summary['agent_steps']:,} steps, {rate:,.0f} steps/s, {summary['updates']:,} "
        f"updates, return {'-' if returns is None else format(returns, '.2f')}{turns}, "
        f"lag {summary['policy_lag_mean']:.2f}, bottleneck {bottleneck['component'] if bottleneck else '-'}"
    )
