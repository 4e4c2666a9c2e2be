"""What a learner serves at ``metrics.bind``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client import CollectorRegistry

from learner.lag import LIMITS, Lag
from learner.slots import Verdict
from pipeline.buckets import Counted
from pipeline.metrics import routing
from pipeline.metrics.catalogue import OUTCOMES
from pipeline.metrics.endpoint import Health, health_of
from pipeline.metrics.sheet import Sheet, registry_of

if TYPE_CHECKING:
    from learner.inference import InferenceLoop
    from learner.reporting import Parts
    from learner.service import Learner

STUCK_SECONDS = 60.0
"""The inference loop turns many times a second, but while TensorFlow compiles for a new batch size."""
LAGS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, *(2**power for power in range(6, 21)))
"""Those of ``learner.lag.LIMITS`` that are shown."""
_SHOWN = np.searchsorted(LIMITS, LAGS)


def registry(learner: Learner, health: Health) -> CollectorRegistry:
    """Everything that this process counts."""

    def fill(sheet: Sheet) -> None:
        _inference(sheet, learner.inference)
        _ledger(sheet, learner)
        sheet.set("seedmq_store_away", bool(learner.reporter.store_trouble()))
        parts = learner.parts
        if parts is not None:
            _training(sheet, parts)
            _path(sheet, parts)
            sheet.set("seedmq_updates_total", learner.before.updates + parts.training.updates)
            if (loss := learner.reporter.status().get("loss")) is not None:
                sheet.set("seedmq_loss", loss)
        _store(sheet, learner)
        failed = learner.writes.status()
        sheet.by("seedmq_writes_failed_total", failed.get("failed_writes", {}))
        sheet.by("seedmq_writes_failing", dict.fromkeys(failed.get("failing", {}), 1))

    return registry_of("learner", health.ready, fill)


def health(learner: Learner) -> Health:
    """Alive: no thread has died, and inference turns. Ready: the policy is built, and a broker is there."""
    inference, stop = learner.inference, learner.stop

    def alive() -> str:
        if stop.error is not None:
            return f"{type(stop.error).__name__}: {stop.error}"
        turned = inference.turned
        still = 0.0 if turned is None else time.monotonic() - turned
        return f"inference has stood still for {still:.0f} s" if still > STUCK_SECONDS else ""

    def ready() -> str:
        doing = "" if inference.serves else learner.reporter.doing() or "the policy is not built yet"
        return inference.standing.away or doing

    return health_of(alive, ready, stop)


def _inference(sheet: Sheet, inference: InferenceLoop) -> None:
    standing, latency = inference.standing, inference.latency.read()
    if standing.broker is not None:
        routing.fill(sheet, standing.broker)
    else:
        sheet.by("seedmq_learner_messages_dropped_total", standing.dropped)
    sheet.set("seedmq_broker_connected", not standing.away)
    sheet.set("seedmq_requests_waiting", standing.waiting_requests, "learner")
    sheet.set("seedmq_request_rows_waiting", standing.waiting_rows, "learner")
    counters, served = dict(inference.counters), {Verdict.SERVE.value: sum(latency.counts)}
    sheet.by("seedmq_requests_total", {name: counters.get(name, 0) for name in OUTCOMES} | served)
    sheet.histogram("seedmq_inference_latency_seconds", latency)
    sheet.histogram("seedmq_inference_batch_rows", inference.batch_rows.read())
    sheet.set("seedmq_inference_held_back", inference.held_back is not None)
    sheet.stages([inference.stage])


def _ledger(sheet: Sheet, learner: Learner) -> None:
    ledger, steps = learner.ledger.snapshot(), learner.ledger.agent_steps
    sheet.set("seedmq_environment_steps_total", ledger["taken"])
    sheet.set("seedmq_agent_steps_total", steps)
    sheet.set("seedmq_frames_total", steps * learner.config.environment.frame_skip)
    for term in ("accepted", "trained", "undelivered", "rolled_back", "inserted", "evicted"):
        if term in ledger:
            sheet.set(f"seedmq_transitions_{term}_total", ledger[term])
    if "resident" in ledger:
        sheet.set("seedmq_transitions_resident", ledger["resident"])
    sheet.by("seedmq_transitions_dropped_total", ledger["dropped"])
    sheet.by("seedmq_transitions_waiting", ledger["waiting"])
    sheet.set("seedmq_rows_masked_total", ledger["masked"])
    sheet.set("seedmq_ledger_error", ledger["error"])
    train, evaluation = learner.episodes.snapshot(), learner.evaluations.snapshot()
    for mode, episodes in (("train", train), ("eval", evaluation)):
        sheet.set("seedmq_episodes_total", episodes["episodes"], mode)
        if episodes["episode_return_mean"] is not None:
            sheet.set("seedmq_episode_return_mean", episodes["episode_return_mean"], mode)


def _training(sheet: Sheet, parts: Parts) -> None:
    training = parts.training
    sheet.set("seedmq_updates_unsaved", training.updates - training.updates_saved)
    sheet.set("seedmq_policy_version", training.version)
    sheet.histogram("seedmq_policy_lag_updates", lag_counted(training.lag))
    sheet.histogram("seedmq_training_step_seconds", training.step_seconds.read())
    sheet.stages([training.stage])


def _path(sheet: Sheet, parts: Parts) -> None:
    writer, feed = parts.path.writer, parts.path.feed
    sheet.set("seedmq_writer_unrolls_waiting", writer.backlog)
    sheet.set("seedmq_batches_prefetched", feed.waiting)
    sheet.histogram("seedmq_store_put_seconds", writer.put_seconds.read())
    sheet.histogram("seedmq_store_take_seconds", feed.take_seconds.read())
    sheet.set("seedmq_unrolls_damaged_total", feed.damage.unrolls)
    sheet.stages([writer.stage, feed.stage])
    replay: dict[str, Any] = parts.path.status().get("replay", {})
    for name, key in (("ratio", "replay_ratio"), ("samples_per_insert", "samples_per_insert")):
        if replay.get(key) is not None:
            sheet.set(f"seedmq_replay_{name}", replay[key])


def _store(sheet: Sheet, learner: Learner) -> None:
    sheet.set("seedmq_store_capacity_unrolls", learner.store_capacity)
    seen = None if learner.depth is None else learner.depth.seen()
    if seen is not None:
        sheet.set("seedmq_store_unrolls", seen.unrolls)
        if seen.memory is not None:
            sheet.set("seedmq_store_used_bytes", seen.memory.used)
            if seen.memory.limit:
                sheet.set("seedmq_store_limit_bytes", seen.memory.limit)


def lag_counted(lag: Lag) -> Counted:
    """The histogram of policy lag, in the buckets that are shown."""
    cumulative = np.cumsum(lag.rows)
    counts = np.diff(cumulative[_SHOWN], prepend=0, append=cumulative[-1])
    return Counted(tuple(map(float, LAGS)), tuple(counts.tolist()), float(lag.sum))
