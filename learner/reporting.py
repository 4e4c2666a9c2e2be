"""What a learner says about itself: ``summary.json``, TensorBoard and its part of ``seedmq status``. One thread.

Definitions: ``agent_steps`` are trained valid transitions; ``seconds`` runs from the first environment step to the last
update, ``startup_seconds`` before it; rates in the status are over the last interval.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from learner.episodes import Episodes
from learner.evaluation import Evaluation
from learner.inference import InferenceLoop
from learner.live import LiveSettings
from learner.paths import Path
from learner.training import TrainingLoop
from learner.writes import Writes
from pipeline.ledger import Ledger
from pipeline.run_dir import RunDirectory, write_json
from pipeline.stopping import StopToken

log = logging.getLogger(__name__)

WAITING_SHARE = 0.5  # of an interval: the training loop waits for unrolls
REPLAY_EVENTS = ("unrolls", "samples_per_insert", "samples_per_insert_target", "replay_ratio")


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
    """What earlier processes of the same run have behind them, from the checkpoint."""

    seconds: float = 0.0
    updates: int = 0


class Reporter:
    """Reports every interval, and once at the end.

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
        self._frame_skip = frame_skip
        self._interval = interval_seconds
        self._began = began
        self._stop = stop
        self._last: tuple[float, int, int, float, int] = (time.monotonic(), 0, 0, 0.0, 0)
        self._idle = False  # no update in the last interval
        self._status: dict[str, Any] = {"state": "waiting for the first worker"}
        self._rates: dict[str, float] = {}

    def status(self) -> dict[str, Any]:
        """The latest report, for the broker. Any thread."""
        return self._status

    def starting(self, words: str) -> None:
        """What the learner does before it trains."""
        self._status = {"state": words}
        log.info(words)

    def run(self, parts: Parts, before: Before) -> None:
        """The thread's body."""
        writer = tf.summary.create_file_writer(str(self._directory.events))
        with writer.as_default():
            while not self._stop.wait(self._interval):
                parts.live.look()
                summary = self.report(parts, before, None)
                self._writes.attempt("events", lambda: _translated(lambda: self._write_events(summary, parts)))  # noqa: B023
        self._writes.attempt("events", lambda: _translated(writer.close))

    def report(self, parts: Parts, before: Before, stop_reason: str | None) -> dict[str, Any]:
        """Writes ``summary.json`` and refreshes the status."""
        summary = self.summary(parts, before, stop_reason)
        self._writes.attempt("summary", lambda: write_json(self._directory.summary, summary))
        self._status = {"state": "training", **summary}
        return summary

    def summary(self, parts: Parts, before: Before, stop_reason: str | None) -> dict[str, Any]:
        training, ledger = parts.training, parts.ledger.snapshot()
        started, updated = parts.inference.first_step, training.last_update
        seconds = before.seconds + (max(0.0, updated - started) if started and updated else 0.0)
        steps = parts.ledger.agent_steps
        self._measure(steps, ledger["taken"], training)
        metrics = training.metrics.fetch() if training.metrics is not None else {}
        return {
            "stop_reason": stop_reason,
            "frames": steps * self._frame_skip,
            "agent_steps": steps,
            "seconds": seconds,
            "startup_seconds": (started or time.monotonic()) - self._began,
            "frames_per_second": steps * self._frame_skip / seconds if seconds else 0.0,
            "agent_steps_per_second": steps / seconds if seconds else 0.0,
            "environment_steps_per_second": ledger["taken"] / seconds if seconds else 0.0,
            "updates": before.updates + training.updates,
            "updates_since_checkpoint": training.updates - training.updates_saved,
            "version": training.version,
            **parts.episodes.snapshot(),
            "evaluation": {**parts.evaluations.snapshot(), **parts.evaluation.status()},
            "policy_lag_mean": training.lag.mean,
            "policy_lag_max": training.lag.max,
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
            "waiting_for": self._waiting_for(parts),
            "ledger": ledger,
        }

    def _measure(self, steps: int, taken: int, training: TrainingLoop) -> None:
        now, (then, steps_then, taken_then, waited, updates_then) = time.monotonic(), self._last
        elapsed = now - then
        if elapsed < self._interval / 2:
            return
        self._rates = {
            "agent_steps_per_second": (steps - steps_then) / elapsed,
            "environment_steps_per_second": (taken - taken_then) / elapsed,
            "training_wait_share": min(1.0, (training.wait_seconds - waited) / elapsed),
        }
        self._idle = training.updates == updates_then
        self._last = (now, steps, taken, training.wait_seconds, training.updates)

    def _waiting_for(self, parts: Parts) -> str | None:
        held = parts.inference.held_back
        if held is not None:
            return f"workers are held back: {held}"
        starved = self._idle and not parts.path.feed.waiting  # a checkpoint may take what would be waiting time
        if starved or self._rates.get("training_wait_share", 0.0) > WAITING_SHARE:
            return parts.path.feed.why_waiting()
        return None

    def _write_events(self, summary: dict[str, Any], parts: Parts) -> None:
        step = summary["frames"]
        scalars = {
            "episodes/return_mean": summary["episode_return_mean"],
            "episodes/length_mean": summary["episode_length_mean"],
            "episodes/count": summary["episodes"],
            "evaluation/return_mean": summary["evaluation"]["last_return_mean"],
            "flow/agent_steps_per_second": self._rates.get("agent_steps_per_second"),
            "flow/environment_steps_per_second": self._rates.get("environment_steps_per_second"),
            "flow/training_wait_share": self._rates.get("training_wait_share"),
            "flow/unrolls_before_the_store": parts.path.writer.backlog,
            "flow/transitions_in_the_store": summary["ledger"]["waiting"]["store"],
            "lag/mean": summary["policy_lag_mean"],
            "lag/max": summary["policy_lag_max"],
            **{f"replay/{name}": summary["replay"][name] for name in REPLAY_EVENTS if "replay" in summary},
            **{f"training/{name}": value for name, value in summary["metrics"].items()},
        }
        for name, value in scalars.items():
            if value is not None:
                tf.summary.scalar(name, value, step=step)


def _translated(write: Callable[[], object]) -> None:
    """Calls it; what TensorFlow's file system refuses is an OSError.

    Raises:
        OSError: see above.
    """
    try:
        write()
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
