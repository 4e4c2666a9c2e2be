"""Checkpoints of a learner that runs: the cut through its books, and what belongs to it. Training thread.

gate held (nothing moves into the store) -> store's books -> ledger and frontier, between two inference batches
gate free -> weights -> file -> acknowledged, where the store keeps unrolls for it
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path as FilePath

from learner.checkpoint import Arrays, Checkpoint, load_latest, save
from learner.episodes import Episodes
from learner.inference import InferenceLoop
from learner.lineage import Lineage
from learner.paths import Path
from learner.recovery import Cut, checkpoint_meta
from learner.reporting import Before
from learner.roster import Roster
from learner.trainer import Trainer
from learner.training import TrainingLoop
from pipeline.errors import ConfigError, UnreachableError
from pipeline.ledger import Ledger
from pipeline.run_dir import RunDirectory
from pipeline.spaces import Spaces
from pipeline.stopping import StopToken

log = logging.getLogger(__name__)

CUT_SECONDS = 10.0
GATE_SECONDS = 1.0


@dataclass(frozen=True)
class Saver:
    """Writes the checkpoints of one process.

    Attributes:
        directory: Where they stand.
        keep: How many of them.
        before: What earlier processes of the run have behind them.
        lineage: From versions to updates.
        stop: Of the learner; ``threads_stop`` of the threads that outlive the decision to stop.
    """

    directory: FilePath
    keep: int
    trainer: Trainer
    path: Path
    ledger: Ledger
    inference: InferenceLoop
    roster: Roster
    episodes: Episodes
    spaces: Spaces
    before: Before
    lineage: Lineage
    stop: StopToken
    threads_stop: StopToken

    def save(self, training: TrainingLoop, more: Arrays) -> None:
        """One checkpoint, with ``more`` arrays beside the weights; none where a stop comes while the store is away.

        Raises:
            UnwrittenError: the file system refuses.
            UnreachableError: at the end of the drain the store does not answer.
            TimeoutError: the inference loop did not come to the cut.
        """
        began = time.monotonic()
        if not self._enter(self.ledger.gate):
            return  # the one at the end of the drain is still to come
        try:
            view = self.path.view()
            self.path.epochs.notice(view.epoch, view.lost_total)
            cut = self.inference.at_rest(self._cut, CUT_SECONDS)
        finally:
            self.ledger.gate.release()
        started, updated, before = self.inference.first_step, training.last_update, self.before
        meta = checkpoint_meta(
            cut,
            view,
            version=training.version,
            branches=self.lineage.branches,
            updates=before.updates + training.updates,
            seconds=before.seconds_with(started, updated),
            elapsed_seconds=before.elapsed_with(started),
            episodes=self.episodes.count,
            spaces=self.spaces.to_wire(),
            **self.path.books(),
        )
        save(self.directory, {**self.trainer.snapshot(), **more}, meta, self.keep)
        training.updates_saved = training.updates
        log.debug("checkpoint of version %d written in %.2f s", training.version, time.monotonic() - began)
        self.path.saved()

    def _enter(self, gate: threading.Lock) -> bool:
        """Waits for the gate, which the writer holds for as long as Redis is away; False where a stop comes meanwhile.

        Raises:
            UnreachableError: at the end of the drain.
        """
        while not gate.acquire(timeout=GATE_SECONDS):
            if self.threads_stop.stopped:
                raise UnreachableError("no checkpoint at the stop: the store does not answer")
            if self.stop.stopped:
                return False
        return True

    def _cut(self) -> Cut:
        """On the inference thread; after that has ended, on this one."""
        return Cut(self.ledger.snapshot(), self.roster.frontier(self.path.writer.pending()), self.roster.settled())


def newest(directory: RunDirectory, resume: bool) -> Checkpoint | None:
    """The checkpoint that a learner goes on from; None where it begins.

    Raises:
        ConfigError: there is a run, and ``resume`` is not said; or there was one, and its checkpoints are gone.
        CheckpointError: none of those that are there can be used.
    """
    checkpoint = load_latest(directory.checkpoints)
    if checkpoint is not None and not resume:
        raise ConfigError(f"{directory.path} holds a run: go on with it by --resume, or choose another --run-dir")
    updates = (directory.read_summary() or {}).get("updates")
    if checkpoint is None and updates:
        raise ConfigError(
            f"the run in {directory.path} made {updates} updates, and its checkpoints are gone: put them back into "
            f"{directory.checkpoints}, or start another run in another --run-dir"
        )
    return checkpoint
