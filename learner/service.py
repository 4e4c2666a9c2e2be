"""The learner's wiring: every thread, queue and hand-over of the role, and the order in which it starts and stops.

Threads: inference (owns the request source), writer, prefetch, report, and the main thread, which trains.

Stop order: the training loop ends; workers are dismissed and their last rows served; open unrolls are padded and put;
the writer, prefetch and report threads end; checkpoint; summary.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import psutil

from learner import metrics
from learner.agent import Agent, build_agent, prepare_devices
from learner.assembler import Assembler
from learner.checkpoint import Checkpoint
from learner.collector import Collector
from learner.depth import StoreDepth
from learner.episodes import Episodes
from learner.evaluator import Evaluator
from learner.incarnation import incarnation_of
from learner.inference import InferenceLoop, Serving
from learner.lease import owned
from learner.lineage import Lineage
from learner.live import LiveSettings
from learner.memory import fitted
from learner.paths import LEARNER_ID, Context, Path, is_replay, open_path
from learner.policies import PolicyBySlot, WarmUp
from learner.recovery import Recovered, Versions
from learner.reporting import FIRST_WORKER, PROGRESS_SECONDS, Before, Parts, Reporter
from learner.roster import Roster
from learner.saving import Saver, newest
from learner.slots import SlotTable
from learner.time_limit import TimeLimit
from learner.trainer import Trainer
from learner.training import Limits, TrainingLoop
from learner.writer import UnrollWriter
from learner.writes import Writes
from pipeline import logs
from pipeline.beginning import Beginning
from pipeline.config.load import config_hash
from pipeline.config.tree import Config
from pipeline.errors import EXIT_FINISHED, ComponentError, UnwrittenError
from pipeline.ledger import Ledger
from pipeline.metrics.endpoint import served
from pipeline.requests import RequestSource
from pipeline.run_dir import RunDirectory
from pipeline.sources import BrokerSource, EmbeddedSource
from pipeline.spaces import Spaces
from pipeline.stopping import OwnedThread, StopToken, hard_end
from pipeline.store.backends import Stores
from pipeline.streams import Role

log = logging.getLogger(__name__)

JOIN_SECONDS = 1.0
SILENT_HEARTBEATS = 3.0
DISMISSAL_SHARE, WRITER_SHARE = 0.5, 0.4  # of what is left of run.drain_timeout_seconds; the rest is for the checkpoint


def serve(beginning: Beginning, stop: StopToken) -> int:
    """Runs one learner until it is solved, at its limit, or stopped.

    Args:
        beginning: The configuration, the run's directory, and whether to go on from its newest checkpoint.
        stop: The process's token.

    Returns:
        The exit code.
    """
    began = time.monotonic() - (time.time() - psutil.Process().create_time())  # imports count as start-up
    config, resume = beginning.loaded.config, beginning.resume
    directory = beginning.of_component()
    with directory.locked() as run, hard_end(stop, config.run.drain_timeout_seconds):
        if logs.current().run_id == logs.NO_RUN:
            logs.identify(run_id=run.partition("-")[0])
        checkpoint = newest(directory, resume)
        learner = Learner(config, directory, began, stop)
        health = metrics.health(learner)
        with served(config.metrics, metrics.registry(learner, health), health, stop):
            learner.run(run, checkpoint)
    stop.raise_error()
    return EXIT_FINISHED


@dataclass
class Learner:
    """One learner's parts that outlive the choice of network."""

    config: Config
    directory: RunDirectory
    began: float
    stop: StopToken

    def __post_init__(self) -> None:
        config = self.config
        self.ledger = Ledger(is_replay(config))
        self.drain_seconds = config.run.drain_timeout_seconds
        self.threads_stop = StopToken()  # of prefetch and report: they outlive the decision to stop
        self.spaces: Spaces | None = None
        self.spaces_known = threading.Event()
        self.version = 0
        self.lineage = Lineage()
        self.training: TrainingLoop | None = None
        self.parts: Parts | None = None  # once it trains
        self.before = Before()
        self.depth: StoreDepth | None = None
        self.episodes = Episodes(config.run.solved_episodes, config.slots)
        self.evaluations = Episodes(config.run.solved_episodes, config.slots)
        self.evaluations.trained = True  # of fixed weights, whichever they are
        self.writes = Writes(self.directory.path, time.monotonic)
        self.reporter = Reporter(
            self.directory,
            self.writes,
            frame_skip=config.environment.frame_skip,
            interval_seconds=config.run.log_interval_seconds,
            began=self.began,
            stop=self.threads_stop,
        )
        self.inference = InferenceLoop(
            self._source,
            batch=min(config.learner.inference_batch, config.slots),
            version=self._version,
            status=self.reporter.status,
            on_spaces=self._learn_spaces,
            stop=self.stop,
        )
        self.reporter.worker_fault = lambda: self.inference.standing.last_fault
        self.time_limit = TimeLimit(config.run.max_seconds, lambda: self.inference.first_step)

    def run(self, run: str, checkpoint: Checkpoint | None) -> None:
        """Start order: inference (workers are told to wait), store, spaces, network, the rest; then trains."""
        devices = prepare_devices(self.config)
        self.reporter.devices = devices.description
        inference = OwnedThread("inference", self.inference.run, self.stop)
        inference.start()
        try:
            stores = Stores(self.config.store, self.config.replay)
            self.reporter.store_trouble = stores.trouble.words
            with owned(stores, run, self.directory.path, self.stop):
                self._check_store(stores)
                spaces = self._wait_for_spaces(checkpoint)
                if spaces is not None:
                    self.reporter.starting("building the policy")
                    agent = build_agent(self.config, spaces, devices)
                    self.config = fitted(self.config, agent.layout, devices.infers_on_cpu)
                    self._train(agent, stores, checkpoint, inference)
        finally:
            self._dismiss(inference)

    # One arrow of the data flow after the other.

    def _train(self, agent: Agent, stores: Stores, checkpoint: Checkpoint | None, inference: OwnedThread) -> None:
        config = self.config
        self.incarnation = incarnation_of(config, self.directory.checkpoints)
        trainer = agent.trainer()
        # assembler -> writer -> store -> feed -> training loop
        policy = (self._version, self.lineage, self.incarnation.stream(Role.REPLAY).generator())
        path = open_path(Context(config, stores, agent, trainer, self.ledger, *policy, self.stop, self.threads_stop))
        try:
            recovered, before = self._restore(checkpoint, trainer, path)
            self.before = before
            live = LiveSettings(config, self.directory.live, path.live)
            live.look()

            versions = self._begin()
            # broker -> inference -> policy -> assembler
            evaluator = Evaluator(config, agent, self.inference, self.incarnation.stream(Role.EVALUATION))
            self.evaluation = evaluator.evaluation
            serving = self._serving(agent, path.writer, recovered)
            saver = self._saver(trainer, path, agent.spaces, before)

            def save_all() -> None:
                saver.save(training, evaluator.solved_weights)

            self.training = training = TrainingLoop(
                trainer=trainer,
                feed=path.feed,
                ledger=self.ledger,
                episodes=self.episodes,
                limits=Limits(config.run.max_steps, config.run.max_seconds, config.run.solved_return),
                frame_skip=config.environment.frame_skip,
                version=self.version,
                lineage=self.lineage,
                versions=versions,
                writes=self.writes,
                evaluate=lambda: evaluator.look(self.roster, self._version(), self.episodes.trained),
                checkpoint=lambda: self.writes.attempt("checkpoint", save_all),
                checkpoint_seconds=config.checkpoint.interval_seconds,
                stop=self.stop,
            )
            self.inference.serve_with(serving)
            if checkpoint is None:
                save_all()  # a learner that dies early is resumed like any other
            else:
                self.writes.attempt("checkpoint", save_all)
            episodes = (self.episodes, self.evaluations, self.evaluation)
            self.parts = parts = Parts(self.inference, training, path, self.ledger, *episodes, live)
            if config.metrics.bind is not None:
                self.depth = self._store_depth(stores)
            self._run_threads(path, parts, before, inference)
            self._end(save_all, versions, parts, before)
        finally:
            path.close()

    def _begin(self) -> Versions:
        """Before anything is published or drawn: above all versions, and apart from all streams, that ever were."""
        versions = Versions(self.directory.checkpoints / "versions.json")
        restored, self.version = self.version, versions.begin(self.version)
        self.lineage.branch(restored, self.version)
        self.incarnation.begin()
        return versions

    def _end(self, save_all: Callable[[], None], versions: Versions, parts: Parts, before: Before) -> None:
        """The last checkpoint and report; what keeps the checkpoint from being written ends the learner."""
        if self.stop.error is None:
            try:
                save_all()
                self.writes.attempt("versions", lambda: versions.release(parts.training.version))
            except UnwrittenError as error:
                self.stop.error = error
        if self.stop.reason == "max_seconds" and not before.updates + parts.training.updates:
            steps = self.ledger.snapshot()["taken"]
            taken = f"{steps:,} steps were taken" if steps else "no environment has taken a step"
            self.stop.error = self.stop.error or self._untrained(f"{taken} and nothing was trained")
        self.reporter.end(parts, before, "error" if self.stop.error else self.stop.reason)

    def _run_threads(self, path: Path, parts: Parts, before: Before, inference: OwnedThread) -> None:
        threads = [
            OwnedThread("writer", path.writer.run, self.stop),
            OwnedThread("prefetch", path.feed.run, self.stop),
            OwnedThread("report", lambda: self.reporter.run(parts, before), self.stop),
        ]
        if self.depth is not None:
            threads.append(OwnedThread("store depth", self.depth.run, self.stop))
        for thread in threads:
            thread.start()
        try:
            self.time_limit.wait()
            parts.training.run(self.time_limit.elapsed)
        finally:
            self._drain(path, threads, inference)

    def _saver(self, trainer: Trainer, path: Path, spaces: Spaces, before: Before) -> Saver:
        return Saver(
            directory=self.directory.checkpoints,
            keep=self.config.checkpoint.keep,
            trainer=trainer,
            path=path,
            ledger=self.ledger,
            inference=self.inference,
            roster=self.roster,
            episodes=self.episodes,
            spaces=spaces,
            before=before,
            lineage=self.lineage,
            stop=self.stop,
            threads_stop=self.threads_stop,
        )

    def _serving(self, agent: Agent, writer: UnrollWriter, recovered: Recovered) -> Serving:
        config = self.config
        assembler = Assembler(agent.layout, config.slots, agent.method.rows_before)
        table = SlotTable(config.slots, agent.exploration.in_mode(config.evaluation.mode))
        self.warm_up = WarmUp(self.evaluation.policy, self.stop)
        self.roster = Roster(
            spaces=agent.spaces,
            config_hash=config_hash(config),
            largest_group=min(config.learner.inference_batch, config.slots),
            table=table,
            assembler=assembler,
            ledger=self.ledger,
            known=recovered.known,
            settled=recovered.settled,
            seeds=self.incarnation.environments,
            restored=recovered.restored,
            evaluates_now=self.warm_up.ready,
            episodes=self.episodes,
            evaluations=self.evaluations,
            silent_seconds=SILENT_HEARTBEATS * config.broker.heartbeat_seconds,
        )
        collector = Collector(
            assembler=assembler,
            writer=writer,
            ledger=self.ledger,
            episodes=self.episodes,
            evaluations=self.evaluations,
            inherited=table.inherited,
            evaluation=self.evaluation,
        )
        training = agent.policy(config.slots, self.incarnation.stream(Role.ACTION))
        policy = PolicyBySlot(training, self.evaluation.policy, table.evaluates)
        policy.warm_up()
        if config.evaluation.workers:  # else when the first evaluation worker joins, while the others go on
            self.warm_up.now()
        recurrent = bool(agent.layout.state_shapes)
        in_flight = config.learner.inference_in_flight or agent.devices.in_flight
        leaves = agent.spaces.observation
        return Serving(policy, self.roster, collector, writer, leaves, recurrent, in_flight)

    def _drain(self, path: Path, threads: list[OwnedThread], inference: OwnedThread) -> None:
        self._dismiss(inference)
        self.warm_up.join(JOIN_SECONDS)
        path.release()
        path.writer.close(time.monotonic() + WRITER_SHARE * self._left())
        self.threads_stop.stop("drain")
        deadline = time.monotonic() + WRITER_SHARE * self._left() + JOIN_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _dismiss(self, inference: OwnedThread) -> None:
        """Sends the workers home; one that hangs is not waited for so long that checkpoint and summary suffer."""
        seconds = DISMISSAL_SHARE * self._left()
        self.episodes.stay()
        self.evaluations.stay()
        self.inference.dismiss(self.stop.reason or "error", time.monotonic() + seconds)
        inference.join(seconds + JOIN_SECONDS)

    def _left(self) -> float:
        """Seconds of the drain; the update that was going on at the stop may have taken many, if it was the first."""
        at = self.stop.at
        return self.drain_seconds - (0.0 if at is None else min(self.drain_seconds, time.monotonic() - at))

    # Checkpoints.

    def _restore(self, checkpoint: Checkpoint | None, trainer: Trainer, path: Path) -> tuple[Recovered, Before]:
        if checkpoint is None:
            path.begin()
            return Recovered(), Before()
        trainer.load(checkpoint.arrays)
        self.version = int(checkpoint.meta["version"])
        self.lineage.restore(checkpoint.meta.get("branches", ()))
        self.episodes.count = int(checkpoint.meta["episodes"])
        self.episodes.trained = int(checkpoint.meta["updates"]) > 0
        summary = self.directory.read_summary()
        recovered = path.restore(checkpoint, summary)
        log.info("resumed from %s: %d updates", checkpoint.path, checkpoint.meta["updates"])
        elapsed = self.time_limit.resume(checkpoint.meta, summary)
        return recovered, Before(float(checkpoint.meta["seconds"]), int(checkpoint.meta["updates"]), elapsed, True)

    # Small things.

    def _source(self) -> RequestSource:
        if self.config.broker.placement == "embedded":
            return EmbeddedSource(self.config, None, LEARNER_ID, self.config.slots)
        return BrokerSource(self.config, None, LEARNER_ID, self.config.slots)

    def _store_depth(self, stores: Stores) -> StoreDepth:
        open_store = stores.replay if is_replay(self.config) else stores.fifo
        return StoreDepth(lambda: open_store(f"{LEARNER_ID}-depth", self.threads_stop), self.threads_stop)

    @property
    def store_capacity(self) -> int:
        """Unrolls that the store may hold."""
        return self.config.replay.capacity if is_replay(self.config) else self.config.store.capacity

    def _check_store(self, stores: Stores) -> None:
        """Before a worker is waited for: is the store there, and fit for use?"""
        open_store = stores.replay if is_replay(self.config) else stores.fifo
        with closing(open_store(LEARNER_ID, self.stop)) as store:
            store.check()

    def _untrained(self, what: str) -> ComponentError:
        """A run whose time was over before its first update."""
        fault, bottleneck = self.inference.environments.newest_fault, self.reporter.status()["bottleneck"]
        return self.time_limit.untrained(what, fault, bottleneck)

    def _version(self) -> int:
        return self.training.version if self.training is not None else self.version

    def _learn_spaces(self, spaces: Spaces) -> None:
        if self.spaces is None:
            self.spaces = spaces
            self.spaces_known.set()

    def _wait_for_spaces(self, checkpoint: Checkpoint | None) -> Spaces | None:
        if checkpoint is not None:
            return Spaces.from_wire(checkpoint.meta["spaces"])
        self.reporter.starting(FIRST_WORKER)
        self.time_limit.wait()
        said = time.monotonic()
        while not self.spaces_known.wait(0.1):
            if self.stop.stopped:
                return None
            if time.monotonic() >= said + PROGRESS_SECONDS:
                said, found = time.monotonic(), self.reporter.status()["bottleneck"]
                log.info("still %s", FIRST_WORKER + (f": {found['why']}" if found else ""))
            if self.time_limit.over():
                self.stop.stop("max_seconds", self._untrained("no worker has come"))
        return self.spaces
