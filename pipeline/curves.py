"""The curves of a run: their names in TensorBoard, and how a plot labels them. Pure.

A learner writes them (``learner.events``), ``seedmq report`` draws them. A name is ``group/what``; TensorBoard shows a
section for each group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pipeline.stages import BUSY

SECONDS = "run/seconds"
LAG_STEPS = "lag/steps"
CONFIG = "run/config"
REPLAY = ("unrolls", "samples_per_insert", "samples_per_insert_target", "replay_ratio")


class Curve(NamedTuple):
    """One line.

    Attributes:
        title: Readable name.
        unit: Of its values, as an axis says it.
        words: What it is.
    """

    title: str
    unit: str
    words: str


CURVES = {
    "episodes/return_mean": Curve(
        "training", "return", "Mean raw return of the last episodes, environments weighed equally."
    ),
    "evaluation/return_mean": Curve("evaluation", "return", "Mean raw return of the last round of evaluation."),
    "episodes/length_mean": Curve("episode length", "agent steps", "Mean length of the last finished episodes."),
    "episodes/count": Curve("episodes", "episodes", "Episodes that workers have finished."),
    "flow/agent_steps_per_second": Curve("trained", "steps/s", "Transitions that training used, in the last interval."),
    "flow/environment_steps_per_second": Curve("taken", "steps/s", "Steps that workers took, in the last interval."),
    "flow/updates": Curve("updates", "updates", "Updates of the weights so far."),
    "flow/unrolls_before_the_store": Curve("before the store", "unrolls", "Unrolls that wait to be written to it."),
    "flow/transitions_in_the_store": Curve("in the store", "transitions", "Transitions that wait in the store."),
    "flow/prefetched_batches": Curve("prefetched", "batches", "Batches that wait on the device for training."),
    "lag/mean": Curve("mean", "updates", "Updates between the policy that acted and the one that learns: the mean."),
    "lag/max": Curve("largest", "updates", "Updates between the policy that acted and the one that learns: the most."),
    "replay/unrolls": Curve("unrolls held", "unrolls", "Unrolls that the replay holds."),
    "replay/samples_per_insert": Curve("samples per insert", "ratio", "Unrolls sampled per unroll inserted."),
    "replay/samples_per_insert_target": Curve("its target", "ratio", "replay.samples_per_insert."),
    "replay/replay_ratio": Curve("replay ratio", "ratio", "Transitions trained per transition accepted."),
    SECONDS: Curve("training time", "s", "Seconds from the first environment step to the last update, over resumes."),
}
_GROUPS = {
    "training": "of the last update, as the algorithm reports it.",
    "stages": "of the last interval's time.",
    "dropped": "Transitions that were dropped, by reason, so far.",
    "faults": "Faults of workers' environments by kind, so far.",
}
_UNITS = {"stages": "share of time", "dropped": "transitions", "faults": "faults"}
_TRAINING_UNITS = {"entropy": "nats", "kl": "nats", "valid": "transitions", "nonfinite_updates": "updates"}


def curve(tag: str) -> Curve:
    """How a name is labelled, also one that only a custom algorithm has."""
    if tag in CURVES:
        return CURVES[tag]
    group, _, name = tag.partition("/")
    title = name.replace("_", " ")
    unit = _TRAINING_UNITS.get(name, "") if group == "training" else _UNITS.get(group, "")
    return Curve(title, unit, f"{title}: {_GROUPS[group]}" if group in _GROUPS else title)


def values(summary: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and values of a learner's summary; none for what is not known yet."""
    for tag, value in _all(summary):
        if value is not None:
            yield tag, float(value)


def _all(summary: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    rates, queues, ledger = summary["rates"], summary["queues"], summary["ledger"]
    yield "episodes/return_mean", summary["episode_return_mean"]
    yield "evaluation/return_mean", summary["evaluation"]["last_return_mean"]
    yield "episodes/length_mean", summary["episode_length_mean"]
    yield "episodes/count", summary["episodes"]
    yield "flow/agent_steps_per_second", rates.get("agent_steps_per_second")
    yield "flow/environment_steps_per_second", rates.get("environment_steps_per_second")
    yield "flow/updates", summary["updates"]
    yield "flow/unrolls_before_the_store", queues["writer"]
    yield "flow/transitions_in_the_store", ledger["waiting"]["store"]
    yield "flow/prefetched_batches", queues["prefetched_batches"]
    yield "lag/mean", summary["policy_lag_mean"]
    yield "lag/max", summary["policy_lag_max"]
    yield SECONDS, summary["seconds"]
    replay = summary.get("replay", {})
    for group, numbers in (
        ("replay", {name: replay.get(name) for name in REPLAY}),
        ("training", summary["metrics"]),
        ("dropped", ledger["dropped"]),
        ("faults", summary["faults"]),
    ):
        for name, value in numbers.items():
            yield f"{group}/{name}", value
    for name, shares in summary["stages"].items():
        busy = shares.get(BUSY, 0.0)
        yield f"stages/{name}_busy", busy
        yield f"stages/{name}_waiting", 1.0 - busy
