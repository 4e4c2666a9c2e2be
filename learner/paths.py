"""The data path behind the assembler, chosen by the algorithm: through the FIFO, or through the replay.

assembler -> writer -> sink -> store -> feed -> training loop
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from learner.agent import Agent
from learner.checkpoint import Checkpoint
from learner.damage import Damage
from learner.epochs import Epochs
from learner.feed import Feed
from learner.fifo import OLDEST, FifoFeed, FifoSink
from learner.limiter import Limiter
from learner.lineage import Lineage
from learner.recovery import Recovered, StoreView, by_place, recover, trained_after
from learner.replay import ReplayFeed, ReplaySink, Sampling
from learner.replay_index import INDEX_BYTES, ReplayIndex
from learner.staleness import Staleness
from learner.trainer import Trainer
from learner.writer import UnrollWriter
from pipeline import host
from pipeline.config.tree import Config
from pipeline.errors import CapacityError
from pipeline.ledger import EVICTED, Ledger
from pipeline.stopping import StopToken
from pipeline.store import codec
from pipeline.store.backends import Stores
from pipeline.store.interface import Fifo, Item, Replay, StoreCounts

LEARNER_ID = "learner"


Summary = Mapping[str, Any] | None
"""What a learner wrote last of itself, if anything."""


class Path(NamedTuple):
    """One data path, opened.

    Attributes:
        writer: Takes finished unrolls.
        feed: Gives batches.
        view: The store's books, read on the training thread, which holds the ledger's gate where others work.
        begin: Forgets what is in the store, for a run that begins anew. Training thread.
        restore: Closes a predecessor's books, of whom this is the last summary. Training thread.
        books: What the path adds to a checkpoint.
        status: What the path adds to the status.
        saved: A checkpoint was written. Training thread.
        live: Key -> what sets it while the run goes on. Any thread.
        release: At the drain: what still waits for room may go on where room can be made.
        close: Closes the training thread's connection.
    """

    writer: UnrollWriter
    feed: Feed
    epochs: Epochs
    view: Callable[[], StoreView]
    begin: Callable[[], None]
    restore: Callable[[Checkpoint, Summary], Recovered]
    books: Callable[[], dict[str, Any]]
    status: Callable[[], dict[str, Any]]
    saved: Callable[[], None]
    live: Mapping[str, Callable[[Any], None]]
    release: Callable[[], None]
    close: Callable[[], None]


class Context(NamedTuple):
    """What both paths are made of.

    Attributes:
        version: Reads the current policy version.
        lineage: From versions to updates.
        draws: Of the replay.
        stop: Ends the training thread's patience with a store that is away.
        threads_stop: Ends the other threads; they outlive the decision to stop.
    """

    config: Config
    stores: Stores
    agent: Agent
    trainer: Trainer
    ledger: Ledger
    version: Callable[[], int]
    lineage: Lineage
    draws: np.random.Generator
    stop: StopToken
    threads_stop: StopToken


def _view(store: Fifo | Replay, counts: Callable[[str], tuple[StoreCounts, int]]) -> StoreView:
    """All of one epoch, whatever Redis does meanwhile; ``counts`` gives that epoch's counters and ``lost_total``."""
    while True:
        epoch = store.epoch()  # first: where Redis came back with older data, this sees to it
        read, lost_total = counts(epoch)
        view = StoreView(epoch, read, by_place(store.stored_index()), lost_total, store.mark())
        if store.epoch() == epoch and store.mark() == view.mark:
            return view


def _find_again(store: Fifo | Replay, checkpoint: Checkpoint) -> None:
    """The store as the checkpoint knew it, or an empty one.

    Under another epoch stands what another run left there, or this run at an earlier time under this prefix, or since
    Redis lost its data (at most a checkpoint's interval ago): which of them it is nobody knows, so none is trained on.
    """
    known = checkpoint.meta["store"]
    store.expect(str(known["mark"]))
    if store.epoch() != known["epoch"]:
        store.clear()


def is_replay(config: Config) -> bool:
    """Whether the algorithm learns from a replay."""
    return config.training.algorithm == "r2d2"


def open_path(context: Context) -> Path:
    """The path of ``training.algorithm``.

    Raises:
        UnreachableError: the store stayed away.
        StoreError: it cannot hold what it may come to hold.
        CapacityError: nor can this host.
    """
    return _replay(context) if is_replay(context.config) else _fifo(context)


def _encoder(context: Context) -> Callable[[Any], bytes]:
    layout = context.agent.layout
    encoding = codec.choose(context.config.store.compression, layout)
    return lambda record: codec.encode(record, layout, encoding)


def _staleness(context: Context) -> Staleness | None:
    max_lag = context.config.training.max_lag
    return None if max_lag is None else Staleness(max_lag, context.lineage, time.monotonic())


def _damaged(damage: Damage) -> dict[str, Any]:
    return {"damaged_unrolls": damage.unrolls} if damage.unrolls else {}


def _fifo(context: Context) -> Path:
    config, agent, ledger = context.config, context.agent, context.ledger
    staleness = _staleness(context)

    def connect() -> Fifo:
        return context.stores.fifo(LEARNER_ID, context.threads_stop)

    store = context.stores.fifo(LEARNER_ID, context.stop)
    space, epochs, encode = threading.Event(), Epochs(ledger), _encoder(context)
    store.check(agent.layout.nbytes)
    writer = UnrollWriter(
        lambda: FifoSink(connect(), encode, ledger, epochs),
        config.training.batch_size,
        space,
        lambda: "the store is full: training is slower than the workers",
    )
    feed = FifoFeed(
        make_store=connect,
        training_store=store,
        layout=agent.layout,
        trainer=context.trainer,
        ledger=ledger,
        batch_size=config.training.batch_size,
        depth=config.training.prefetch_batches,
        staleness=staleness,
        updates=lambda: context.lineage.updates(context.version()),
        keep=max(1, config.store.capacity // 2) if config.store.ack == "checkpoint" else None,
        space=space,
        stop=context.threads_stop,
    )

    def counts(epoch: str) -> tuple[StoreCounts, int]:
        epochs.notice(epoch, 0)  # first: what was kept of another is not in these books
        return feed.as_acknowledged(store.counts()), 0

    def view() -> StoreView:
        return _view(store, counts)

    def restore(checkpoint: Checkpoint, summary: Summary) -> Recovered:
        _find_again(store, checkpoint)
        # A predecessor that died between its checkpoint and the acknowledgement left what that covers.
        store.acknowledge([Item(handle, valid, b"") for handle, valid in checkpoint.meta["kept"]])
        return recover(checkpoint, view(), ledger, OLDEST, trained_after(checkpoint.meta, summary))

    return Path(
        writer=writer,
        feed=feed,
        epochs=epochs,
        view=view,
        begin=store.clear,
        restore=restore,
        books=lambda: {"kept": [[item.handle, item.valid] for item in feed.kept()]},
        status=lambda: _damaged(feed.damage) | ({} if staleness is None else {"stale": staleness.status()}),
        saved=feed.acknowledge_kept,
        live={},
        release=lambda: None,
        close=store.close,
    )


def _sampling(config: Config, ledger: Ledger) -> Sampling:
    """
    Raises:
        CapacityError: the index does not fit this host's memory.
    """
    settings = config.replay
    index_bytes, here = INDEX_BYTES * settings.capacity, host.memory()
    if index_bytes > host.MEMORY_SHARE * here.nbytes:
        raise CapacityError(
            f"{INDEX_BYTES} bytes of the sampling index x {settings.capacity} unrolls (replay.capacity) = "
            f"{index_bytes / 2**30:.2f} GiB, at most {host.MEMORY_SHARE:.0%} of {here.whose} "
            f"{here.nbytes / 2**30:.2f} GiB are taken: set replay.capacity to "
            f"{int(host.MEMORY_SHARE * here.nbytes) // INDEX_BYTES} or less"
        )
    limiter = Limiter(
        samples_per_insert=settings.samples_per_insert,
        min_size=settings.min_size,
        tolerance=settings.tolerance or 2.0 * config.training.batch_size,
        hold_inserts=settings.hold_inserts,
    )
    return Sampling(ReplayIndex(settings.capacity, settings.priority_exponent), limiter, ledger)


def _replay_view(store: Replay) -> StoreView:
    """A replay's books in the FIFO's terms: residents wait, nothing is acknowledged, what is evicted is dropped."""

    def counts(epoch: str) -> tuple[StoreCounts, int]:
        found = store.counts()
        same = StoreCounts(found.inserted_total, 0, found.evicted_total, found.resident, found.items)
        return same, found.lost_total

    return _view(store, counts)


def _replay(context: Context) -> Path:
    config, agent, ledger = context.config, context.agent, context.ledger

    def connect() -> Replay:
        return context.stores.replay(LEARNER_ID, context.threads_stop)

    store = context.stores.replay(LEARNER_ID, context.stop)
    store.check(agent.layout.nbytes)
    sampling = _sampling(config, ledger)
    space, epochs, encode = threading.Event(), Epochs(ledger, sampling.begin_again), _encoder(context)
    writer = UnrollWriter(
        lambda: ReplaySink(
            store=connect(),
            layout=agent.layout,
            encode=encode,
            settings=config.r2d2,
            ledger=ledger,
            epochs=epochs,
            sampling=sampling,
        ),
        config.training.batch_size,
        space,
        lambda: f"inserting {sampling.why_no_insert() or 'waits for the store'}",
    )
    feed = ReplayFeed(
        make_store=connect,
        layout=agent.layout,
        rows_before=agent.method.rows_before,
        trainer=context.trainer,
        ledger=ledger,
        sampling=sampling,
        batch_size=config.training.batch_size,
        depth=config.training.prefetch_batches,
        importance_exponent=config.replay.importance_exponent,
        rng=context.draws,
        space=space,
        stop=context.threads_stop,
    )

    def restore(checkpoint: Checkpoint, summary: Summary) -> Recovered:
        _find_again(store, checkpoint)
        recovered = recover(checkpoint, _replay_view(store), ledger, EVICTED)
        sampling.restore(store, int(checkpoint.meta["sampled_unrolls"]))
        return recovered

    return Path(
        writer=writer,
        feed=feed,
        epochs=epochs,
        view=lambda: _replay_view(store),
        begin=store.clear,
        restore=restore,
        books=lambda: {"sampled_unrolls": sampling.limiter.samples},
        status=lambda: _damaged(feed.damage) | {"replay": sampling.status()},
        saved=lambda: None,
        live={"replay.samples_per_insert": sampling.set_samples_per_insert},
        release=sampling.release_inserts,
        close=store.close,
    )
