"""What everything waits for, and what to scale: from the stages' shares and the states of the parts. Pure.

Whoever keeps a state judges it and says since when: the learner its stages, its store and its workers, the broker a
learner that is missing. In this order, the first that holds is named:

    the run stops > no learner, or one that does not train yet > the store is away or full > no workers > the shares

Of the shares: training, where it waits for less than ``GOOD_WAIT`` of its time (nothing is to be gained elsewhere);
else the busiest of the others, which training waits for. Where none of them is busy, training is what is left, and
where it is not busy either, messages are on their way.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pipeline.stages import (
    ACTIONS,
    BATCHES,
    BUSY,
    CHECKPOINT,
    REQUESTS,
    ROOM,
    STORE,
    Shares,
)

GOOD_WAIT = 0.1
IDLE = 0.25  # busy for less: not what the others wait for
SHOWN_WAIT = 0.05
PATIENCE = 2  # intervals in which another component must be found, before it is named

ADVICE = {
    "stop": "",
    "learner": "start the learner, or see its log: it comes back by itself, and workers wait for it",
    "workers": "start workers, or see their logs: workers.count, SEEDMQ_WORKERS, --scale worker=N",
    "environments": "more workers (workers.count, SEEDMQ_WORKERS, --scale worker=N) on further CPUs, or more "
    "environments in each (workers.envs)",
    "broker": "fewer, larger messages (more workers.envs, fewer workers.groups), a CPU of its own for the broker, or "
    "broker.placement: embedded",
    "messages": "more workers, or more workers.groups, so that some step while others wait; look at the network and at "
    "broker.min_rows and broker.max_wait_seconds",
    "inference": "a faster or further device (learner.inference_devices), a smaller network, or a larger "
    "learner.inference_batch",
    "store": "a nearer or faster Redis with a CPU of its own, longer unrolls (training.unroll_length), another "
    "store.compression, or store.backend: memory",
    "store away": "see Redis and its log: it has to run, to be reachable, and to have room (maxmemory; who else fills "
    "it?)",
    "training": "a faster or further device (learner.training_devices), a larger training.batch_size or a smaller "
    "network; workers beyond this are wasted",
    "checkpoint": "a larger checkpoint.interval_seconds, or a faster disk",
}


class Facts(NamedTuple):
    """What is known where it is judged.

    Attributes:
        stops: Why the run stops; empty: it goes on.
        learner: Why no learner trains, as it ends "workers wait for a learner: ..."; empty: one does.
        store: What state keeps the learner from its store; empty: none.
        workers: Why no environments come, as it ends "the learner waits for workers: ..."; empty: some do.
        held_back: Why the learner takes no more from the workers; empty: it does.
        sampling: Why no batch can be sampled; empty: one can, or there is no replay.
        shares: Of the last interval.
    """

    stops: str = ""
    learner: str = ""
    store: str = ""
    workers: str = ""
    held_back: str = ""
    sampling: str = ""
    shares: Shares = MappingProxyType({})


class Diagnosis(NamedTuple):
    """What everything waits for.

    Attributes:
        component: ``environments``, ``broker``, ``messages``, ``inference``, ``store``, ``training``, ``learner``,
            ``workers`` or ``stop``.
        why: Sentences.
        advice: What to scale.
        certain: A state rather than shares: it needs no second interval.
    """

    component: str
    why: tuple[str, ...]
    advice: str
    certain: bool = False


def diagnose(facts: Facts) -> Diagnosis | None:
    """The component that everything waits for; None while nothing is known."""
    waits = _waits(facts)
    states = (
        ("stop", "the run stops: ", facts.stops, ADVICE["stop"]),
        ("learner", "workers wait for a learner: ", facts.learner, ADVICE["learner"]),
        ("store", "learner and workers wait for the store: ", facts.store, ADVICE["store away"]),
        ("workers", "the learner waits for workers: ", facts.workers, ADVICE["workers"]),
    )
    for component, who, reason, advice in states:
        if reason:
            return Diagnosis(component, (who + reason, *waits), advice, certain=True)
    return _by_shares(facts.shares, waits) if "training" in facts.shares else None


def _by_shares(shares: Shares, waits: tuple[str, ...]) -> Diagnosis:
    training = shares["training"]
    lost = training.get(BATCHES, 0.0) + training.get(STORE, 0.0)
    if lost < GOOD_WAIT:
        return _of_training(training, waits)
    used = {
        "store": max(_share(shares, "writer", BUSY), _share(shares, "feed", BUSY), training.get(STORE, 0.0)),
        "inference": _share(shares, "inference", BUSY),
        "environments": _share(shares, "environments", BUSY),
        "broker": _share(shares, "broker", BUSY),
    }
    component = max(used, key=lambda name: used[name])
    if "environments" not in shares and used[component] < IDLE:
        return Diagnosis("workers", ("no environment has stepped", *waits), ADVICE["workers"])
    why = [_BUSY_WORDS[component].format(busy=used[component])]
    if used[component] < IDLE < training.get(BUSY, 0.0):
        component, why = "training", [f"training is busy {training[BUSY]:.0%} of its time, and nothing else is"]
    elif used[component] < IDLE:
        component, why = "messages", ["no stage is busy: requests and actions are on their way"]
    why += [
        words.format(waits=share)
        for name, doing, words in _WAITING_WORDS
        if (name != component or name == "training") and (share := _share(shares, name, doing)) >= SHOWN_WAIT
    ]
    return Diagnosis(component, (*why, *waits), ADVICE[component])


def _of_training(training: Mapping[str, float], waits: tuple[str, ...]) -> Diagnosis:
    busy, checkpoint = training.get(BUSY, 0.0), training.get(CHECKPOINT, 0.0)
    if checkpoint > busy:
        why = f"checkpoints take {checkpoint:.0%} of training's time"
        return Diagnosis("training", (why, *waits), ADVICE["checkpoint"])
    return Diagnosis("training", (f"training waits for nothing: it is busy {busy:.0%}", *waits), ADVICE["training"])


_BUSY_WORDS = {
    "store": "the store's writer or reader is busy {busy:.0%} of its time",
    "inference": "inference is busy {busy:.0%} of its time",
    "environments": "environments step {busy:.0%} of their time",
    "broker": "the broker is busy {busy:.0%} of its time",
}
_WAITING_WORDS = (
    ("environments", ACTIONS, "environments wait {waits:.0%} of their time for actions"),
    ("inference", REQUESTS, "inference waits {waits:.0%} of its time for requests"),
    ("inference", ROOM, "inference is held back {waits:.0%} of its time"),
    ("training", BATCHES, "training waits {waits:.0%} of its time for batches"),
    ("training", STORE, "training waits {waits:.0%} of its time for the store's answers"),
)


def _waits(facts: Facts) -> tuple[str, ...]:
    """Who else says that it waits."""
    held = f"workers are held back: {facts.held_back}" if facts.held_back and not facts.store else ""
    sampling = f"training {facts.sampling}" if facts.sampling else ""
    return tuple(words for words in (held, sampling) if words)


def _share(shares: Shares, name: str, doing: str) -> float:
    return shares.get(name, {}).get(doing, 0.0)


class Watch:
    """Since when. Another component is named once it was found ``PATIENCE`` times in a row; a state at once."""

    def __init__(self) -> None:
        self._named: Diagnosis | None = None
        self._since = 0.0
        self._other = ""
        self._others = 0
        self._other_since = 0.0

    def observe(self, found: Diagnosis | None, now: float) -> None:
        """Takes an interval's diagnosis; None: nothing is known of it, what was named stays.

        Args:
            found: Of ``diagnose``.
            now: Monotonic seconds.
        """
        if found is None:
            return
        if self._named is None or found.component == self._named.component:
            self._since = now if self._named is None else self._since
            self._named, self._other, self._others = found, "", 0
            return
        if found.component != self._other:
            self._other, self._others, self._other_since = found.component, 0, now
        self._others += 1
        if found.certain or self._named.certain or self._others >= PATIENCE:
            self._named, self._since, self._other, self._others = found, self._other_since, "", 0

    def shown(self, now: float) -> dict[str, Any] | None:
        """For status and summary: see ``to_wire``."""
        return None if self._named is None else to_wire(self._named, now - self._since)


def to_wire(found: Diagnosis, since_seconds: float | None) -> dict[str, Any]:
    """``{"component", "why", "advice", "since_seconds"}``; None: over the whole run."""
    return {
        "component": found.component,
        "why": "; ".join(found.why),
        "advice": found.advice,
        "since_seconds": since_seconds,
    }
