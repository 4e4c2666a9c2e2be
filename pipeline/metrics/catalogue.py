"""Every metric: name, type, labels, who has it, and what it means. ``docs/metrics.md`` is made of it.

Terms are those of the ledger (``docs/architecture.md``): a transition is one valid environment step.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

Role = Literal["broker", "learner", "worker"]
BROKER: tuple[Role, ...] = ("broker",)
EITHER: tuple[Role, ...] = ("broker", "learner")
LEARNER: tuple[Role, ...] = ("learner",)
WORKER: tuple[Role, ...] = ("worker",)
ALL: tuple[Role, ...] = ("broker", "learner", "worker")

EMBEDDED = "of a learner: with `broker.placement: embedded`"
PROCESS = "with `broker.placement: process`"
REPLAY = "with a replay"
FIFO = "with the FIFO"
KNOWN = "where the store says it"
EPISODES = "once each environment has ended an episode, and after the first update"
STORE_LOOKED_AT = "once the store was looked at, and while it answers"


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: As Prometheus has it, ``_total`` included.
        kind: Its type.
        roles: Who has it.
        meaning: A sentence or two.
        labels: Label -> its values; a counter begins at 0 for each of them. None known: as they come.
        unit: Where the name does not end with it.
        when: Only then; empty: always, once the role works.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    roles: tuple[Role, ...]
    meaning: str
    labels: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    unit: str = ""
    when: str = ""


STAGES = {
    "stage": ("environments", "broker", "inference", "writer", "feed", "training"),
    "activity": ("busy", "actions", "messages", "requests", "unrolls", "room", "batches", "store", "checkpoint"),
}
DROPPED_MESSAGES = (
    "stale_step", "unknown_run", "unknown_learner", "request_of_gone_worker", "reply_to_gone_worker",
    "reply_not_awaited", "answer_for_gone_worker", "worker_unreachable", "worker_does_not_read", "learner_unreachable",
    "learner_does_not_read", "worker_too_many_messages", "learner_too_many_messages",
)  # fmt: skip
MALFORMED = (
    "head", "hello", "step", "heartbeat", "bye", "status", "ready", "credit", "replies", "admit", "reject", "publish",
    "dismiss",
)  # fmt: skip
REFUSED_JOINS = ("hello_refused", "hello_drain", "learner_refused")
LEFT = ("bye", "lease", "replaced", "refused")
CUT = ("limit", "rate", "revoked", "unfinished")
FAULTS = ("env_errors", "env_hangs", "env_memory", "fatal", "non_finite")
OUTCOMES = ("serve", "repeat", "in_flight", "stale", "gap", "unknown", "malformed")
DROPPED = (
    "oldest", "stale", "damaged", "store_lost", "seam", "learner_restart", "worker_non_finite",
)  # fmt: skip
WRITES = ("summary", "events", "checkpoint", "versions")

COMMON = (
    Metric("seedmq_info", "gauge", ALL, "1; what runs here.", {"version": (), "role": (), "run": ()}),
    Metric("seedmq_ready", "gauge", ALL, "1 where `/readyz` answers 200, else 0."),
    Metric(
        "seedmq_stage_seconds_total",
        "counter",
        ALL,
        "What the stages of the data path did, by whether each was busy or what it waited for. Its rates are the "
        "stage's shares. `environments` is a worker's, `broker` a broker process's, the others are the learner's.",
        STAGES,
    ),
)

OF_BROKER = (
    Metric("seedmq_learners", "gauge", EITHER, "Learners that the broker knows.", {"state": ("connected", "silent")},
           when=EMBEDDED),
    Metric("seedmq_learners_held_back", "gauge", EITHER, "Of them: those that take no more requests, so that "
           "environments wait.", when=EMBEDDED),
    Metric("seedmq_learners_lost_total", "counter", EITHER, "Learners that were not heard of for a lease.",
           when=EMBEDDED),
    Metric("seedmq_workers", "gauge", EITHER, "Workers that hold a lease: served by a learner, waiting for that, or "
           "expected back after the broker's restart.", {"state": ("admitted", "waiting", "expected")}, when=EMBEDDED),
    Metric("seedmq_environments", "gauge", EITHER, "Environments of the admitted workers.", when=EMBEDDED),
    Metric("seedmq_workers_left_total", "counter", EITHER, "Leases that ended: in order (`bye`), unheard of (`lease`), "
           "`replaced` by another process of the same worker, or `refused`.", {"reason": LEFT}, when=EMBEDDED),
    Metric("seedmq_joins_refused_total", "counter", EITHER, "Who asked to join and was refused: workers "
           "(`hello_refused`, or `hello_drain` at the end of a run) and learners.", {"reason": REFUSED_JOINS},
           when=EMBEDDED),
    Metric("seedmq_connections_admitted_total", "counter", EITHER, "Connections whose key is authorized.",
           when=EMBEDDED),
    Metric("seedmq_connections_refused_total", "counter", EITHER, "Connections whose key is not authorized.",
           when=EMBEDDED),
    Metric("seedmq_connections_cut_total", "counter", EITHER, "Connections that were cut off.", {"reason": CUT},
           when=EMBEDDED),
    Metric("seedmq_messages_total", "counter", EITHER, "Messages that the broker looked at.",
           {"sender": ("workers", "learners")}, when=EMBEDDED),
    Metric("seedmq_messages_dropped_total", "counter", EITHER, "Messages that led to nothing; who sent them repeats "
           "them where they still matter.", {"reason": DROPPED_MESSAGES}, when=EMBEDDED),
    Metric("seedmq_messages_malformed_total", "counter", EITHER, "Messages that do not follow `docs/protocol.md`.",
           {"kind": MALFORMED}, when=EMBEDDED),
    Metric("seedmq_requests_repeated_total", "counter", EITHER, "Requests that a worker sent again.", when=EMBEDDED),
    Metric("seedmq_requests_waiting", "gauge", EITHER, "Requests that wait: at the broker for a learner's credit, "
           "`parked` there while their worker has no learner, or taken from a broker process by the learner.",
           {"place": ("broker", "parked", "learner")}),
    Metric("seedmq_request_rows_waiting", "gauge", EITHER, "Their rows, but for the parked ones.",
           {"place": ("broker", "learner")}),
    Metric("seedmq_credit_rows", "gauge", EITHER, "Rows that learners may be sent now.", when=EMBEDDED),
    Metric("seedmq_broker_wait_seconds", "histogram", BROKER, "From a request's arrival at the broker process to its "
           "way to a learner."),
)  # fmt: skip

OF_LEARNER = (
    Metric("seedmq_environment_steps_total", "counter", LEARNER, "Valid transitions that workers took."),
    Metric("seedmq_agent_steps_total", "counter", LEARNER, "Valid transitions that count as the run's steps: trained, "
           "or with a replay accepted."),
    Metric("seedmq_frames_total", "counter", LEARNER, "Environment frames of the agent steps: times "
           "`environment.frame_skip`."),
    Metric("seedmq_transitions_accepted_total", "counter", LEARNER, "Transitions that reached the assembler."),
    Metric("seedmq_transitions_trained_total", "counter", LEARNER, "Transitions that updates used; with a replay "
           "repeats count."),
    Metric("seedmq_transitions_undelivered_total", "counter", LEARNER, "Transitions that workers took and died with."),
    Metric("seedmq_transitions_rolled_back_total", "counter", LEARNER, "Transitions whose updates were lost with a "
           "learner."),
    Metric("seedmq_transitions_inserted_total", "counter", LEARNER, "Transitions inserted into the replay.",
           when=REPLAY),
    Metric("seedmq_transitions_evicted_total", "counter", LEARNER, "Transitions evicted from the replay.", when=REPLAY),
    Metric("seedmq_transitions_dropped_total", "counter", LEARNER, "Transitions that were lost or left out, by reason; "
           "the others of `docs/architecture.md` as they come.", {"reason": DROPPED}),
    Metric("seedmq_transitions_waiting", "gauge", LEARNER, "Transitions on their way to an update.",
           {"place": ("assembler", "store", "prefetch")}),
    Metric("seedmq_transitions_resident", "gauge", LEARNER, "Transitions in the replay.", when=REPLAY),
    Metric("seedmq_rows_masked_total", "counter", LEARNER, "Rows that are no transition: after an episode's end."),
    Metric("seedmq_ledger_error", "gauge", LEARNER, "Transitions by which the ledger fails to close: 0.",
           unit="transitions"),
    Metric("seedmq_updates_total", "counter", LEARNER, "Updates of the weights, over all processes of the run."),
    Metric("seedmq_updates_unsaved", "gauge", LEARNER, "Updates since the last checkpoint."),
    Metric("seedmq_policy_version", "gauge", LEARNER, "Version of the policy that acts."),
    Metric("seedmq_policy_lag_updates", "histogram", LEARNER, "Updates between the policy that acted and the one that "
           "learns, by trained transition."),
    Metric("seedmq_episodes_total", "counter", LEARNER, "Finished episodes.", {"mode": ("train", "eval")}),
    Metric("seedmq_episode_return_mean", "gauge", LEARNER, "Mean return of the last `run.solved_episodes` episodes, "
           "environments weighed equally.",
           {"mode": ("train", "eval")}, when=EPISODES),
    Metric("seedmq_loss", "gauge", LEARNER, "Loss of the last update that was reported.", when="once there was one"),
    Metric("seedmq_broker_connected", "gauge", LEARNER, "1 where the learner's broker answers, else 0."),
    Metric("seedmq_requests_total", "counter", LEARNER, "Requests of workers by what became of them: `serve` is the "
           "ordinary one.", {"outcome": OUTCOMES}),
    Metric("seedmq_learner_messages_dropped_total", "counter", LEARNER, "Messages between learner and broker process "
           "that led to nothing.", {"reason": ("malformed", "unsent", "request_of_gone_worker")}, when=PROCESS),
    Metric("seedmq_inference_latency_seconds", "histogram", LEARNER, "From a request's arrival at the learner (or its "
           "embedded broker) to its reply."),
    Metric("seedmq_inference_batch_rows", "histogram", LEARNER, "Rows of an inference batch. Its count is the batches, "
           "its sum the rows."),
    Metric("seedmq_inference_held_back", "gauge", LEARNER, "1 while the writer's queue is full, so that environments "
           "wait, else 0."),
    Metric("seedmq_writer_unrolls_waiting", "gauge", LEARNER, "Unrolls that wait to be put into the store."),
    Metric("seedmq_batches_prefetched", "gauge", LEARNER, "Prepared batches that wait for training."),
    Metric("seedmq_training_step_seconds", "histogram", LEARNER, "An update and what belongs to it, to its "
           "acknowledgement."),
    Metric("seedmq_store_put_seconds", "histogram", LEARNER, "Encoding at most 64 unrolls and putting them."),
    Metric("seedmq_store_take_seconds", "histogram", LEARNER, "Taking unrolls that are there (with a replay: fetching "
           "them)."),
    Metric("seedmq_store_unrolls", "gauge", LEARNER, "Unrolls in the store.", when=STORE_LOOKED_AT),
    Metric("seedmq_store_capacity_unrolls", "gauge", LEARNER, "`store.capacity` or `replay.capacity`."),
    Metric("seedmq_store_used_bytes", "gauge", LEARNER, "Memory of the store's server, whoever filled it; with "
           "`store.backend: memory` the payloads.", when=STORE_LOOKED_AT),
    Metric("seedmq_store_limit_bytes", "gauge", LEARNER, "What it may use (`maxmemory`).",
           when=STORE_LOOKED_AT + ", if it has a bound"),
    Metric("seedmq_store_away", "gauge", LEARNER, "1 while something keeps the learner from its store, else 0."),
    Metric("seedmq_unrolls_damaged_total", "counter", LEARNER, "Unrolls in the store that did not open."),
    Metric("seedmq_replay_ratio", "gauge", LEARNER, "Transitions trained for each one inserted.", when=REPLAY),
    Metric("seedmq_replay_samples_per_insert", "gauge", LEARNER, "Unrolls sampled for each one inserted.", when=REPLAY),
    Metric("seedmq_writes_failed_total", "counter", LEARNER, "Writes that the disk of the run directory refused.",
           {"file": WRITES}),
    Metric("seedmq_writes_failing", "gauge", LEARNER, "1 where the last try failed, else 0.", {"file": WRITES}),
)  # fmt: skip

OF_WORKER = (
    Metric("seedmq_worker_environments", "gauge", WORKER, "Environments of this worker."),
    Metric("seedmq_worker_environment_steps_total", "counter", WORKER, "Valid transitions that its environments took."),
    Metric("seedmq_worker_steps_dropped_total", "counter", WORKER, "Of them: left out here.",
           {"reason": ("non_finite",)}),
    Metric("seedmq_worker_rows_masked_total", "counter", WORKER, "Rows that are no transition: after an episode's "
           "end."),
    Metric("seedmq_worker_faults_total", "counter", WORKER, "Faults of its environments: exceptions and deaths "
           "(`env_errors`), hangs, too much memory, values that are not finite, and what no restart cures (`fatal`).",
           {"kind": FAULTS}),
    Metric("seedmq_worker_restarts_total", "counter", WORKER, "How often its environments were made anew."),
    Metric("seedmq_worker_reconnects_total", "counter", WORKER, "How often it gave up a connection to the broker and "
           "made another."),
    Metric("seedmq_worker_phase_seconds", "gauge", WORKER, "How long its environments' process has been where it is.",
           {"phase": ("making", "reset", "step", "waiting", "closing")}, when="while that process lives"),
)  # fmt: skip

PROCESS_METRICS = (
    Metric("process_cpu_seconds_total", "counter", ALL, "CPU time of the process."),
    Metric("process_resident_memory_bytes", "gauge", ALL, "Its memory."),
    Metric("process_virtual_memory_bytes", "gauge", ALL, "Its address space."),
    Metric("process_start_time_seconds", "gauge", ALL, "When it started, in Unix time."),
    Metric("process_open_fds", "gauge", ALL, "Its open file descriptors."),
    Metric("process_max_fds", "gauge", ALL, "How many it may have."),
)
ENVIRONMENTS = "seedmq_environments"
"""The prefix of the same six, for the process in which a worker's environments are."""

OF_ENVIRONMENTS = tuple(
    metric._replace(
        name=f"{ENVIRONMENTS}_{metric.name}",
        roles=WORKER,
        meaning=f"{metric.meaning[:-1]}, of the process that a worker's environments are in.",
        when="while that process lives",
    )
    for metric in PROCESS_METRICS
)

METRICS = (*COMMON, *OF_BROKER, *OF_LEARNER, *OF_WORKER, *PROCESS_METRICS, *OF_ENVIRONMENTS)
BY_NAME = {metric.name: metric for metric in METRICS}
