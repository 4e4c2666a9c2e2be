"""What is named as the component that everything waits for, and since when."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.bottleneck import ADVICE, Facts, Watch, diagnose, to_wire
from pipeline.stages import (
    ACTIONS,
    BATCHES,
    BUSY,
    CHECKPOINT,
    MESSAGES,
    REQUESTS,
    ROOM,
    STORE,
    UNROLLS,
    Meter,
    Stage,
    in_order,
)

pytestmark = pytest.mark.unit


def waiting(busy: float, *waits: tuple[str, float] | str) -> dict[str, float]:
    """Shares of a stage: what is left of the time goes to the wait that stands without a share."""
    known = dict(one for one in waits if isinstance(one, tuple))
    rest = 1.0 - busy - sum(known.values())
    return {BUSY: busy, **known, **{one: rest for one in waits if isinstance(one, str)}}


STARVED = {  # all wait for something before inference
    "environments": waiting(0.1, ACTIONS),
    "inference": waiting(0.17, REQUESTS),
    "writer": waiting(0.02, UNROLLS),
    "feed": waiting(0.05, UNROLLS),
    "training": waiting(0.2, BATCHES),
}
FULL = {  # all wait for training
    "environments": waiting(0.2, ACTIONS),
    "inference": waiting(0.1, ROOM),
    "writer": waiting(0.05, ROOM),
    "feed": waiting(0.1, ROOM),
    "training": waiting(0.97, BATCHES),
}

CASES: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "slow environments",
        STARVED | {"environments": waiting(0.97, ACTIONS)},
        "environments",
        "environments step 97% of their time; inference waits 83% of its time for requests; "
        "training waits 80% of its time for batches",
    ),
    (
        "slow inference",
        STARVED | {"inference": waiting(0.99, REQUESTS)},
        "inference",
        "inference is busy 99% of its time; environments wait 90% of their time for actions; "
        "training waits 80% of its time for batches",
    ),
    (
        "slow writing",
        STARVED | {"writer": waiting(0.95, UNROLLS), "inference": waiting(0.1, ROOM)},
        "store",
        "the store's writer or reader is busy 95% of its time; environments wait 90% of their time for actions; "
        "inference is held back 90% of its time; training waits 80% of its time for batches",
    ),
    (
        "slow reading",
        STARVED | {"feed": waiting(0.95, UNROLLS), "writer": waiting(0.05, ROOM)},
        "store",
        "the store's writer or reader is busy 95% of its time",
    ),
    (
        "slow acknowledgements",
        STARVED | {"training": waiting(0.05, (STORE, 0.9), BATCHES)},
        "store",
        "training waits 90% of its time for the store's answers",
    ),
    (
        "slow broker",
        STARVED | {"broker": waiting(0.98, MESSAGES)},
        "broker",
        "the broker is busy 98% of its time",
    ),
    ("a slow network", STARVED, "messages", "no stage is busy: requests and actions are on their way"),
    ("slow training", FULL, "training", "training waits for nothing: it is busy 97%"),
    (
        "training that waits a little, for nobody who is busy",
        STARVED | {"training": waiting(0.85, BATCHES)},
        "training",
        "training is busy 85% of its time, and nothing else is; environments wait 90% of their time for actions; "
        "inference waits 83% of its time for requests; training waits 15% of its time for batches",
    ),
    (
        "training and environments as fast as each other",
        FULL | {"environments": waiting(0.97, ACTIONS), "training": waiting(0.95, BATCHES)},
        "training",
        "training waits for nothing: it is busy 95%",
    ),
    (
        "checkpoints without end",
        FULL | {"training": waiting(0.3, (CHECKPOINT, 0.65), BATCHES)},
        "training",
        "checkpoints take 65% of training's time",
    ),
    (
        "nobody has ever stepped",
        {"inference": waiting(0.0, REQUESTS), "training": waiting(0.0, BATCHES)},
        "workers",
        "no environment has stepped",
    ),
]


@pytest.mark.parametrize(("found", "component", "why"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_stage_that_the_others_wait_for_is_named(found: dict[str, Any], component: str, why: str) -> None:
    diagnosis = diagnose(Facts(shares=found))
    assert diagnosis is not None and not diagnosis.certain
    assert (diagnosis.component, why in "; ".join(diagnosis.why)) == (component, True), diagnosis
    assert diagnosis.advice


@pytest.mark.parametrize(
    ("facts", "component", "why"),
    [
        (Facts(stops="signal"), "stop", "the run stops: signal"),
        (Facts(learner="none is connected"), "learner", "workers wait for a learner: none is connected"),
        (
            Facts(store="Redis is full", held_back="the store is full"),
            "store",
            "learner and workers wait for the store: Redis is full",
        ),
        (
            Facts(workers="none is connected", sampling="waits for inserts: 2.00 samples per insert of 2.00"),
            "workers",
            "the learner waits for workers: none is connected; "
            "training waits for inserts: 2.00 samples per insert of 2.00",
        ),
    ],
)
def test_a_state_goes_before_shares(facts: Facts, component: str, why: str) -> None:
    found = diagnose(facts._replace(shares=FULL))
    assert found is not None and found.certain
    assert to_wire(found, 2.0) == {
        "component": component,
        "why": why,
        "advice": ADVICE["store away" if facts.store else component],
        "since_seconds": 2.0,
    }


def test_states_go_in_the_order_of_who_needs_whom() -> None:
    facts = Facts(stops="solved", learner="l", store="s", workers="w")
    names = []
    for name in ("stops", "learner", "store", "workers"):
        found = diagnose(facts)
        assert found is not None
        names.append(found.component)
        facts = facts._replace(**{name: ""})
    assert names == ["stop", "learner", "store", "workers"]
    assert diagnose(facts) is None, "nothing is known"


def named(watch: Watch, now: float) -> tuple[str, float]:
    shown = watch.shown(now)
    assert shown is not None
    return shown["component"], shown["since_seconds"]


def test_since_survives_one_interval_of_something_else() -> None:
    watch, slow, full = Watch(), diagnose(Facts(shares=CASES[0][1])), diagnose(Facts(shares=FULL))
    assert watch.shown(0.0) is None
    for now, found in ((1.0, slow), (2.0, full), (3.0, slow), (4.0, None), (5.0, full)):
        watch.observe(found, now)
        assert named(watch, now) == ("environments", now - 1.0)
    watch.observe(full, 6.0)
    assert named(watch, 8.0) == ("training", 3.0), "since it was found first"


def test_a_state_is_named_at_once_and_is_over_at_once() -> None:
    watch, slow, away = Watch(), diagnose(Facts(shares=CASES[0][1])), diagnose(Facts(store="LOADING"))
    watch.observe(slow, 1.0)
    watch.observe(away, 2.0)
    assert named(watch, 3.0) == ("store", 1.0)
    watch.observe(slow, 4.0)
    assert named(watch, 5.0) == ("environments", 1.0)


def test_a_stage_books_what_goes_on_and_what_is_over() -> None:
    now = [10.0]
    stage = Stage("training", lambda: now[0])
    meter = Meter([stage])
    assert meter.interval() == {} == meter.total()
    stage.enter(BATCHES)
    now[0] = 13.0
    stage.enter(BUSY)
    now[0] = 14.0
    assert stage.seconds() == {BATCHES: 3.0, BUSY: 1.0}
    assert meter.interval() == {"training": {BATCHES: 0.75, BUSY: 0.25}}
    now[0] = 16.0
    stage.enter(None)
    now[0] = 99.0
    assert meter.interval() == {"training": {BUSY: 1.0}}
    assert meter.interval() == {}, "its loop has ended"
    assert meter.total() == {"training": {BATCHES: 0.5, BUSY: 0.5}}
    meter.begin()
    assert meter.total() == {}
    stage.add(0.25, BATCHES, 8.0)
    assert meter.total() == {"training": {BUSY: 0.25, BATCHES: 0.75}} == meter.interval()


def test_stages_are_shown_in_the_order_of_the_flow() -> None:
    assert in_order({"training": 1, "environments": 2, "x": 3}) == ["environments", "training"]
