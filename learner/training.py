"""The training loop: batch, update, acknowledge, book, checkpoint. Runs on the learner's main thread.

An unroll is acknowledged after the update that used it, and a checkpoint is written only between updates, when every
applied one is acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from learner.episodes import Episodes
from learner.feed import Batch, Feed
from learner.lag import Lag
from learner.lineage import Lineage
from learner.recovery import Versions
from learner.trainer import Metrics, Trainer
from learner.writes import Writes
from pipeline.buckets import LATENCIES, Buckets
from pipeline.ledger import Ledger
from pipeline.stages import BATCHES, BUSY, CHECKPOINT, Stage
from pipeline.stopping import StopToken

WAIT_SECONDS = 0.1
RETRY_SECONDS = 10.0  # until a checkpoint that could not be written is tried again, at the latest


class Limits(NamedTuple):
    """When a run stops by itself; None means never."""

    max_steps: int | None
    max_seconds: float | None
    solved_return: float | None


class TrainingLoop:
    """Counters of the run and the loop itself.

    Args:
        trainer: Does the updates.
        feed: Gives batches, and is told when one is done.
        ledger: Books trained transitions.
        episodes: Decides ``solved``.
        limits: When to stop.
        frame_skip: Environment frames per agent step.
        version: Updates applied before, and reserved: a resumed run goes on above the largest version ever published.
        lineage: From versions to updates.
        versions: Reserves versions before they are published.
        writes: Goes on where that cannot be written.
        evaluate: Called between updates: whether an evaluation has solved the task.
        checkpoint: Called between updates when one is due; False where it could not be written.
        checkpoint_seconds: How often.
        stop: Ends the loop.
    """

    def __init__(
        self,
        *,
        trainer: Trainer,
        feed: Feed,
        ledger: Ledger,
        episodes: Episodes,
        limits: Limits,
        frame_skip: int,
        version: int,
        lineage: Lineage,
        versions: Versions,
        writes: Writes,
        evaluate: Callable[[], bool],
        checkpoint: Callable[[], bool],
        checkpoint_seconds: float,
        stop: StopToken,
    ) -> None:
        self._trainer = trainer
        self._feed = feed
        self._ledger = ledger
        self._episodes = episodes
        self._limits = limits
        self._frame_skip = frame_skip
        self._versions = versions
        self._writes = writes
        self._evaluate = evaluate
        self._checkpoint = checkpoint
        self._checkpoint_seconds = checkpoint_seconds
        self._stop = stop
        self.version = version
        self.updates = 0  # of this process
        self.updates_saved = 0  # of them: in a checkpoint
        self.lag = Lag(lineage)
        self.last_update: float | None = None  # monotonic seconds
        self.stage = Stage("training")
        self.step_seconds = Buckets(LATENCIES)
        self.metrics: Metrics | None = None

    def run(self, elapsed: Callable[[], float]) -> None:
        """Trains until the token stops.

        Args:
            elapsed: Seconds that count for ``run.max_seconds``.
        """
        saved = tried = time.monotonic()
        while not self._stop.stopped:
            self.stage.enter(BATCHES)
            batch = self._feed.get(WAIT_SECONDS)
            self.stage.enter(BUSY)
            now = time.monotonic()
            if batch is not None:
                self._update(batch)
            due = now - saved > self._checkpoint_seconds or self._feed.wants_checkpoint()
            if due and (saved == tried or now - tried > min(RETRY_SECONDS, self._checkpoint_seconds)):
                self.stage.enter(CHECKPOINT)
                written = self._checkpoint()
                self.stage.enter(BUSY)
                tried = time.monotonic()
                saved = tried if written else saved
            self._judge(elapsed)
        self.stage.enter(None)

    def _update(self, batch: Batch) -> None:
        begun = time.monotonic()
        self.lag.add(self.version, batch.versions)
        frames = self._ledger.agent_steps * self._frame_skip
        self.metrics = self._trainer.update(batch.prepared, frames)
        self._writes.attempt("versions", lambda: self._versions.reserve(self.version + 1))
        self.version = self._versions.after(self.version)
        self.stage.enter(self._feed.done_is)
        self._feed.done(batch, self.metrics)
        self.stage.enter(BUSY)
        self.updates += 1
        self._episodes.trained = True
        self.last_update = time.monotonic()
        self.step_seconds.add(self.last_update - begun)

    def _judge(self, elapsed: Callable[[], float]) -> None:
        limits = self._limits
        by_training = limits.solved_return is not None and self._episodes.solved(limits.solved_return)
        if by_training or self._evaluate():
            self._stop.stop("solved")
        elif limits.max_steps is not None and self._ledger.agent_steps >= limits.max_steps:
            self._stop.stop("max_steps")
        elif limits.max_seconds is not None and elapsed() >= limits.max_seconds:
            self._stop.stop("max_seconds")
