"""What a broker itself knows of what everything waits for: learner and workers that are missing."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.protocol import Kind, Report, decode, encode
from pipeline.stages import MESSAGES, Stage
from tests.unit.routing_net import Net, hello, ready

pytestmark = pytest.mark.unit


def bottleneck(net: Net, seconds: float = 0.0) -> dict[str, Any] | None:
    """After so many seconds more, in ticks."""
    end = net.now + seconds
    while net.now < end:
        net.advance(min(0.25, end - net.now))
        net.board.observe(net.now)
    found: dict[str, Any] | None = decode([net.board.head(net.now)]).fields[0]["bottleneck"]
    return found


def lead(net: Net, seconds: float = 0.0, **published: Any) -> None:
    """The learner lives for so long, and says this of itself."""
    for _ in range(int(seconds) + 1):
        net.learner(b"L", Kind.READY, ready())
        net.learner(b"L", Kind.PUBLISH, published)
        bottleneck(net, 1.0)


def test_no_learner_since_when() -> None:
    net = Net()
    net.worker(b"w1", [encode(Kind.HELLO, hello(1).to_wire())])
    first, later = bottleneck(net, 1.0), bottleneck(net, 5.0)
    assert first is not None and later is not None
    assert (later["component"], later["why"]) == ("learner", "workers wait for a learner: none is connected")
    assert later["since_seconds"] == pytest.approx(first["since_seconds"] + 5.0)


def test_no_workers_and_the_last_ones_fault() -> None:
    net = Net()
    lead(net, bottleneck=None)
    found = bottleneck(net)
    assert found is not None and found["why"] == "the learner waits for workers: none is connected"
    net.serve(1)
    lead(net, bottleneck={"component": "training", "why": "it is busy"})
    assert bottleneck(net) == {"component": "training", "why": "it is busy"}, "the learner's own word"
    net.worker(b"w1", [encode(Kind.BYE, 1, Report(taken=3, message="reset failed").to_wire())])
    lead(net, bottleneck={"component": "training", "why": "it is busy"})
    found = bottleneck(net)
    assert found is not None and found["component"] == "workers"
    assert found["why"].endswith("none is connected, the last fault: reset failed")


def test_workers_that_are_not_heard_of_and_a_silent_learner() -> None:
    net = Net()
    lead(net)
    net.serve(1)
    lead(net, 5.0, bottleneck={"component": "training"})
    found = bottleneck(net)
    assert found is not None and found["why"].startswith("the learner waits for workers: none of 1 was heard of for ")
    learner = net.router.learners.named("l")
    assert learner is not None
    while not learner.silent:
        net.heartbeat(1)
        bottleneck(net, 1.0)
    found = bottleneck(net, 1.0)
    assert found is not None and found["component"] == "learner"
    assert found["why"].startswith("workers wait for a learner: l is silent for ")
    while net.router.learners.named("l") is not None:
        net.heartbeat(1)
        bottleneck(net, 1.0)
    found = bottleneck(net, 1.0)
    assert found is not None
    assert found["why"].startswith("workers wait for a learner: none is connected, l was last heard of ")


def test_a_worker_that_could_not_begin_leaves_its_last_words() -> None:
    net = Net()
    lead(net, bottleneck={"component": "training"})
    report = Report(faults={"env_errors": 3}, message="RuntimeError: no simulator")
    assert net.worker(b"w", [encode(Kind.BYE, 7, report.to_wire())]) == [(Kind.UNKNOWN, [7])]
    found = bottleneck(net, 1.0)
    assert found is not None
    assert (
        found["why"] == "the learner waits for workers: none is connected, the last fault: RuntimeError: no simulator"
    )
    assert net.router.leases.last_fault() == "RuntimeError: no simulator"


def test_a_learner_that_does_not_train_yet_says_so_itself() -> None:
    net = Net()
    building = {"component": "learner", "why": "workers wait for a learner: it is building the policy"}
    lead(net, bottleneck=building)
    assert bottleneck(net) == building


def test_a_drain() -> None:
    net = Net()
    lead(net)
    net.learner(b"L", Kind.DISMISS, "solved")
    found = bottleneck(net, 1.0)
    assert found is not None and (found["component"], found["why"]) == ("stop", "the run stops: solved")


def test_the_brokers_own_share() -> None:
    net = Net()
    stage = Stage("broker")
    net.board = type(net.board)(net.router, stage)
    assert net.board.busy_percent == 0
    stage.add(0.25, MESSAGES, 4.0)
    bottleneck(net, 1.0)
    assert net.board.busy_percent == 25
    assert decode([net.board.head(net.now)]).fields[0]["stages"] == {"broker": {"busy": 0.25, "messages": 0.75}}
