"""The learner's wiring: every thread, queue and hand-over of the role, and the order in which it starts and stops.

Threads: inference (owns the request source), writer, prefetch, report, and the main thread, which trains.

Stop order: the training loop ends; workers are dismissed and their last rows served; open unrolls are padded and put;
the writer, prefetch and report threads end; checkpoint; summary.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from learner.agent import Agent, build_agent, prepare_devices
from learner.assembler import Assembler
from learner.checkpoint import Checkpoint, load_latest, save
from learner.collector import Collector
from learner.episodes import Episodes
from learner.inference import InferenceLoop, Serving
from learner.prefetch import Prefetcher
from learner.recovery import Cut, Recovered, StoreView, Versions, by_place, checkpoint_meta, recover
from learner.reporting import Before, Parts, Reporter
from learner.roster import Roster
from learner.slots import SlotTable
from learner.training import Limits, TrainingLoop
from learner.writer import UnrollWriter
from pipeline.config.load import Loaded, config_hash
from pipeline.config.tree import Config
from pipeline.errors import EXIT_FINISHED, ConfigError, UnreachableError
from pipeline.ledger import Ledger
from pipeline.requests import RequestSource
from pipeline.run_dir import RunDirectory
from pipeline.sources import BrokerSource, EmbeddedSource
from pipeline.spaces import Spaces
from pipeline.stopping import OwnedThread, StopToken
from pipeline.store import codec
from pipeline.store.redis_store import RedisFifo

log = logging.getLogger(__name__)

LEARNER_ID = "learner"
CUT_SECONDS = 10.0
JOIN_SECONDS = 1.0
DISMISSAL_SHARE, WRITER_SHARE = 0.5, 0.2  # of run.drain_timeout_seconds; the rest is for checkpoint and summary


def serve(loaded: Loaded, run_dir: Path | None, resume: bool, stop: StopToken) -> int:
    """Runs one learner until it is solved, at its limit, or stopped.

    Args:
        loaded: The configuration.
        run_dir: The run's directory; None makes one.
        resume: Go on from the newest checkpoint, if there is one.
        stop: The process's token.

    Returns:
        The exit code.
    """
    began = time.monotonic() - (time.time() - psutil.Process().create_time())  # imports count as start-up
    config = loaded.config
    directory = _directory(loaded, run_dir)
    checkpoint = load_latest(directory.checkpoints)
    if checkpoint is not None and not resume:
        raise ConfigError(f"{directory.path} holds a run: go on with it by --resume, or choose another --run-dir")
    learner = Learner(config, directory, began, stop)
    learner.run(checkpoint)
    stop.raise_error()
    return EXIT_FINISHED


def _directory(loaded: Loaded, run_dir: Path | None) -> RunDirectory:
    if run_dir is not None and (run_dir / "config.yaml").is_file():
        return RunDirectory.open(run_dir)
    return RunDirectory.create(run_dir, loaded.source.stem, loaded.config)


@dataclass
class Learner:
    """One learner's parts that outlive the choice of network."""

    config: Config
    directory: RunDirectory
    began: float
    stop: StopToken
    ledger: Ledger = field(default_factory=Ledger)
    space: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        config = self.config
        self.drain_seconds = config.run.drain_timeout_seconds
        self.threads_stop = StopToken()  # of prefetch and report: they outlive the decision to stop
        self.spaces: Spaces | None = None
        self.spaces_known = threading.Event()
        self.version = 0
        self.training: TrainingLoop | None = None
        self.episodes = Episodes(config.run.solved_episodes)
        self.evaluations = Episodes(config.run.solved_episodes)
        self.reporter = Reporter(
            self.directory,
            config.environment.frame_skip,
            config.run.log_interval_seconds,
            self.began,
            self.threads_stop,
        )
        self.inference = InferenceLoop(
            self._source,
            batch=min(config.learner.inference_batch, config.learner.slots),
            in_flight=config.learner.inference_in_flight,
            version=self._version,
            status=self.reporter.status,
            on_spaces=self._learn_spaces,
            stop=self.stop,
        )

    def run(self, checkpoint: Checkpoint | None) -> None:
        """Start order: inference (workers are told to wait), store, spaces, network, the rest; then trains."""
        devices = prepare_devices(self.config)
        inference = OwnedThread("inference", self.inference.run, self.stop)
        inference.start()
        store = None
        try:
            store = self._store(self.stop)
            store.check()
            spaces = self._wait_for_spaces(checkpoint)
            if spaces is not None:
                self.reporter.starting("building the policy")
                self._train(build_agent(self.config, spaces, devices), store, checkpoint, inference)
        finally:
            self._dismiss(inference)
            if store is not None:
                store.close()

    # One arrow of the data flow after the other.

    def _train(self, agent: Agent, store: RedisFifo, checkpoint: Checkpoint | None, inference: OwnedThread) -> None:
        config, layout = self.config, agent.layout
        store.check(layout.nbytes)
        trainer = agent.trainer()
        recovered, before = self._restore(checkpoint, trainer, store)
        versions = Versions(self.directory.checkpoints / "versions.json")
        self.version = max(self.version, versions.reserved)
        # assembler -> writer -> store
        encoding = codec.choose(config.store.compression, layout)
        writer = UnrollWriter(
            self._store,
            lambda record: codec.encode(record, layout, encoding),
            self.ledger,
            config.training.batch_size,
            self.space,
        )
        # store -> prefetch -> training loop
        prefetcher = Prefetcher(
            make_store=self._store,
            layout=layout,
            trainer=trainer,
            ledger=self.ledger,
            batch_size=config.training.batch_size,
            depth=config.training.prefetch_batches,
            max_lag=config.training.max_lag,
            version=self._version,
            stop=self.threads_stop,
        )
        limits = Limits(config.run.max_steps, config.run.max_seconds, config.run.solved_return)
        self.training = training = TrainingLoop(
            trainer=trainer,
            prefetcher=prefetcher,
            store=store,
            ledger=self.ledger,
            episodes=self.episodes,
            limits=limits,
            frame_skip=config.environment.frame_skip,
            version=self.version,
            versions=versions,
            checkpoint=lambda: self._save(trainer, store, writer, agent.spaces, before),
            checkpoint_seconds=config.checkpoint.interval_seconds,
            space=self.space,
            stop=self.stop,
        )
        # broker -> inference -> policy -> assembler
        self.inference.serve_with(self._serving(agent, writer, recovered, checkpoint is not None))
        self._save(
            trainer, store, writer, agent.spaces, before
        )  # so that a learner that dies early is resumed like any other
        parts = Parts(self.inference, training, prefetcher, writer, self.ledger, self.episodes, self.evaluations)
        threads = [
            OwnedThread("writer", writer.run, self.stop),
            OwnedThread("prefetch", prefetcher.run, self.stop),
            OwnedThread("report", lambda: self.reporter.run(parts, before), self.stop),
        ]
        for thread in threads:
            thread.start()
        try:
            training.run(lambda: self.inference.first_step)
        finally:
            self._drain(writer, threads, inference)
        if self.stop.error is None:
            self._save(trainer, store, writer, agent.spaces, before)
            versions.release(training.version)
        self.reporter.report(parts, before, "error" if self.stop.error else self.stop.reason)

    def _serving(self, agent: Agent, writer: UnrollWriter, recovered: Recovered, restored: bool) -> Serving:
        config = self.config
        policy = agent.policy(config.learner.slots, config.run.seed)
        policy.warm_up()
        assembler = Assembler(agent.layout, config.learner.slots)
        table = SlotTable(config.learner.slots)
        self.roster = Roster(
            spaces=agent.spaces,
            config_hash=config_hash(config),
            largest_group=min(config.learner.inference_batch, config.learner.slots),
            table=table,
            assembler=assembler,
            ledger=self.ledger,
            known=recovered.known,
            settled=recovered.settled,
        )
        collector = Collector(
            assembler=assembler,
            writer=writer,
            ledger=self.ledger,
            episodes=self.episodes,
            evaluations=self.evaluations,
            gap_reason="learner_restart" if restored else "seam",
        )
        recurrent = bool(agent.layout.state_shapes)
        return Serving(policy, self.roster, collector, writer, agent.spaces.observation, recurrent)

    def _drain(self, writer: UnrollWriter, threads: list[OwnedThread], inference: OwnedThread) -> None:
        self._dismiss(inference)
        writer.close(time.monotonic() + WRITER_SHARE * self.drain_seconds)
        self.threads_stop.stop("drain")
        deadline = time.monotonic() + WRITER_SHARE * self.drain_seconds + JOIN_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _dismiss(self, inference: OwnedThread) -> None:
        """Sends the workers home; one that hangs is not waited for so long that checkpoint and summary suffer."""
        seconds = DISMISSAL_SHARE * self.drain_seconds
        self.inference.dismiss(self.stop.reason or "error", time.monotonic() + seconds)
        inference.join(seconds + JOIN_SECONDS)

    # Checkpoints.

    def _restore(self, checkpoint: Checkpoint | None, trainer: Any, store: RedisFifo) -> tuple[Recovered, Before]:
        if checkpoint is None:
            store.clear()
            return Recovered({}, {}), Before()
        trainer.load(checkpoint.arrays)
        self.version = int(checkpoint.meta["version"])
        self.episodes.count = int(checkpoint.meta["episodes"])
        recovered = recover(checkpoint, self._view(store), self.ledger)
        log.info("resumed from %s: %d updates", checkpoint.path, checkpoint.meta["updates"])
        return recovered, Before(float(checkpoint.meta["seconds"]), int(checkpoint.meta["updates"]))

    def _save(self, trainer: Any, store: RedisFifo, writer: UnrollWriter, spaces: Spaces, before: Before) -> None:
        training = self.training
        assert training is not None
        if not self._enter(self.ledger.gate):
            return  # the one at the end of the drain is still to come
        try:
            view = self._view(store)
            writer.notice(view.epoch)
            cut = self._cut(writer)
        finally:
            self.ledger.gate.release()
        started, updated = self.inference.first_step, training.last_update
        meta = checkpoint_meta(
            cut,
            view,
            version=training.version,
            updates=before.updates + training.updates,
            seconds=before.seconds + (max(0.0, updated - started) if started and updated else 0.0),
            episodes=self.episodes.count,
            spaces=spaces.to_wire(),
        )
        save(self.directory.checkpoints, trainer.snapshot(), meta, self.config.checkpoint.keep)

    def _enter(self, gate: threading.Lock) -> bool:
        """Waits for the gate, which the writer holds for as long as Redis is away; False where a stop comes meanwhile.

        Raises:
            UnreachableError: at the end of the drain.
        """
        while not gate.acquire(timeout=JOIN_SECONDS):
            if self.threads_stop.stopped:
                raise UnreachableError("no checkpoint at the stop: the store does not answer")
            if self.stop.stopped:
                return False
        return True

    def _cut(self, writer: UnrollWriter) -> Cut:
        """Ledger and frontier between two inference batches; after the inference thread has ended, as they are."""

        def read() -> Cut:
            return Cut(self.ledger.snapshot(), self.roster.frontier(writer.pending()), self.roster.settled())

        return self.inference.at_rest(read, CUT_SECONDS)

    def _view(self, store: RedisFifo) -> StoreView:
        return StoreView(store.epoch(), store.counts(), by_place(store.stored_index()))

    # Small things.

    def _source(self) -> RequestSource:
        if self.config.broker.placement == "embedded":
            return EmbeddedSource(self.config, None, LEARNER_ID, self.config.learner.slots)
        return BrokerSource(self.config, None, LEARNER_ID, self.config.learner.slots)

    def _store(self, stop: StopToken | None = None) -> RedisFifo:
        """A connection of the calling thread's own; all of one learner's take and acknowledge under one name.

        Args:
            stop: Ends its patience with a Redis that is away; the threads go on until they are told to end.
        """
        return RedisFifo.from_settings(self.config.store, LEARNER_ID, stop or self.threads_stop)

    def _version(self) -> int:
        return self.training.version if self.training is not None else self.version

    def _learn_spaces(self, spaces: Spaces) -> None:
        if self.spaces is None:
            self.spaces = spaces
            self.spaces_known.set()

    def _wait_for_spaces(self, checkpoint: Checkpoint | None) -> Spaces | None:
        if checkpoint is not None:
            return Spaces.from_wire(checkpoint.meta["spaces"])
        self.reporter.starting("waiting for the first worker")
        while not self.spaces_known.wait(0.1):
            if self.stop.stopped:
                return None
        return self.spaces
