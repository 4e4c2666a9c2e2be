"""Both request sources against workers that speak nothing but the protocol: the same is seen on either side."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zmq

from broker.service import serve
from pipeline.config.tree import BrokerSection, Config, EnvironmentSection, LearnerSection
from pipeline.protocol import Cause, Kind, Report, encode
from pipeline.requests import Joined, Left, Reported
from pipeline.sources import BrokerSource, EmbeddedSource
from tests.integration.peers import PATIENCE, EchoLearner, FakeWorker, finish, in_thread, until
from tests.runs import Stopwatch

pytestmark = pytest.mark.integration

PLACEMENTS = ["embedded", "process"]
SLOTS = 256
REQUESTS = int(os.environ.get("REQUESTS", "10000"))
"""Of the test that sends many: a multiple of 8."""
MakeSource = Callable[[], EmbeddedSource | BrokerSource]


def make_config(folder: Path, placement: str, **broker: Any) -> Config:
    endpoints = {"bind": f"ipc://{folder}/w", "learner_bind": f"ipc://{folder}/l"}
    section = BrokerSection(**{"heartbeat_seconds": 0.2, "lease_seconds": 5.0, **endpoints, **broker})
    return Config(
        environment=EnvironmentSection(id="none"),
        broker=section.model_copy(update={"placement": placement}),
        learner=LearnerSection(inference_batch=32),
    )


class Stage(NamedTuple):
    config: Config
    context: Any
    make_source: MakeSource
    end: Callable[[EmbeddedSource | BrokerSource], None]
    """Ends what binds the worker-facing socket: the source, or the broker."""


@pytest.fixture(params=PLACEMENTS)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A broker where the placement has one, a context for the peers, and a way to make sources."""
    folder = tmp_path_factory.mktemp("s")
    config = make_config(folder, request.param)
    context = zmq.Context()
    broker = in_thread("broker", lambda stop: _serve(config, stop)) if request.param == "process" else None
    made: list[EmbeddedSource | BrokerSource] = []

    def end(source: EmbeddedSource | BrokerSource) -> None:
        if broker is None:
            source.close()
        else:
            finish(*broker)

    def make_source() -> EmbeddedSource | BrokerSource:
        kind = EmbeddedSource if request.param == "embedded" else BrokerSource
        made.append(kind(config, None, "learner", SLOTS))
        return made[-1]

    try:
        yield Stage(config, context, make_source, end)
    finally:
        for source in made:
            source.close()
        if broker is not None:
            finish(*broker)
        context.destroy(linger=0)


def _serve(config: Config, stop: Any) -> None:
    assert serve(config, stop) == 0


def play(learner: EchoLearner, workers: list[FakeWorker], seconds: float = PATIENCE) -> None:
    """Until every worker has made its steps."""

    def step() -> None:
        for worker in workers:
            worker.advance()
        learner.advance()

    until(lambda: all(worker.done for worker in workers), step, seconds)


def test_every_step_is_answered_once_and_the_same_in_both_placements(stage: Stage) -> None:
    learner = EchoLearner(stage.make_source())
    workers = [FakeWorker(stage.context, stage.config, f"w{i}", i + 1, [3, 5], steps=60) for i in range(4)]
    play(learner, workers)
    for worker in workers:
        assert worker.wrong == [] and worker.answers == {0: list(range(60)), 1: list(range(60))}
    assert sorted(worker.index for worker in workers) == [0, 1, 2, 3]
    assert len({worker.seed for worker in workers}) == 4
    assert learner.errors == [] and learner.answered == 4 * 2 * 60 and learner.source.workers() == 4
    joined = [x for x in learner.events if isinstance(x, Joined)]
    assert sorted(x.hello.worker_id for x in joined) == ["w0", "w1", "w2", "w3"]

    report = Report(taken=7, message="done")
    assert workers[0].send(Kind.BYE, workers[0].run, report.to_wire())
    play_until_left(learner, workers[1:], count=1)
    assert learner.events[-1] == Left(workers[0].index, 1, "bye", report)
    until(lambda: any(x.kind == Kind.GOODBYE for x in workers[0].said), workers[0].advance)
    close(workers)


def test_a_worker_that_reads_late_still_hears_that_its_bye_is_booked(stage: Stage) -> None:
    """What a worker has not read is lost with a connection that the other side ends: that waits for the worker."""
    learner = EchoLearner(stage.make_source())
    workers = [FakeWorker(stage.context, stage.config, f"w{i}", i + 1, [2], steps=1) for i in range(2)]
    play(learner, workers)
    for worker in workers:
        assert worker.send(Kind.BYE, worker.run, Report().to_wire())
    play_until_left(learner, [], count=2)

    closing = in_thread("closing", lambda stop: stage.end(learner.source))
    closing[0].join(0.3)
    for worker in workers:
        until(lambda worker=worker: any(x.kind == Kind.GOODBYE for x in worker.said), worker.advance, seconds=3.0)
    close(workers)
    finish(*closing)


def play_until_left(learner: EchoLearner, workers: list[FakeWorker], count: int) -> None:
    def step() -> None:
        for worker in workers:
            worker.advance()
        learner.advance()

    until(lambda: sum(isinstance(x, Left) for x in learner.events) >= count, step)


def close(workers: list[FakeWorker]) -> None:
    for worker in workers:
        worker.close()


def test_five_environments_at_batch_32_get_their_first_action_within_a_second(stage: Stage) -> None:
    learner = EchoLearner(stage.make_source(), batch=32)
    (worker,) = workers = [FakeWorker(stage.context, stage.config, "w", 1, [5], steps=1)]

    def step() -> None:
        worker.advance()
        learner.advance()

    until(lambda: worker.welcomed, step)
    watch = Stopwatch()
    play(learner, workers)
    assert watch.seconds < 1.0, watch
    close(workers)


def test_sixty_of_64_groups_vanish_and_four_keep_stepping(stage: Stage) -> None:
    learner = EchoLearner(stage.make_source())
    workers = [FakeWorker(stage.context, stage.config, f"w{i}", i + 1, [1], steps=5) for i in range(64)]
    play(learner, workers)
    vanished, left = workers[:60], workers[60:]
    for worker in vanished:
        worker.steps += 1
        worker.advance()
        worker.close()
    for worker in left:
        worker.steps = 60
    play(learner, left)
    play_until_left(learner, left, count=60)
    assert {x.reason for x in learner.events if isinstance(x, Left)} == {"lease"}
    assert all(worker.wrong == [] for worker in left) and learner.source.workers() == 4
    close(left)


@pytest.mark.timeout(max(300, REQUESTS // 50))
def test_no_request_stays_unanswered(stage: Stage) -> None:
    learner = EchoLearner(stage.make_source())
    workers = [FakeWorker(stage.context, stage.config, f"w{i}", i + 1, [1, 1], steps=REQUESTS // 8) for i in range(4)]
    play(learner, workers, seconds=max(PATIENCE, REQUESTS / 60))
    assert sum(len(a) for worker in workers for a in worker.answers.values()) == REQUESTS
    assert learner.errors == [] and all(worker.wrong == [] for worker in workers)
    close(workers)


def test_a_learner_that_restarts_serves_the_same_workers(stage: Stage) -> None:
    learner = EchoLearner(stage.make_source())
    workers = [FakeWorker(stage.context, stage.config, f"w{i}", i + 1, [2, 2], steps=20) for i in range(3)]
    play(learner, workers)
    indices = [worker.index for worker in workers]
    learner.source.close()
    for worker in workers:
        worker.steps = 50
        worker.advance()
    learner = EchoLearner(stage.make_source())
    watch = Stopwatch()
    play(learner, workers)
    assert watch.seconds < 15.0, watch
    assert [worker.index for worker in workers] == indices and all(worker.wrong == [] for worker in workers)
    assert sorted(x.run for x in learner.events if isinstance(x, Joined)) == [1, 2, 3]
    close(workers)


def test_credit_is_kept_and_zero_credit_gives_events_only(stage: Stage) -> None:
    source = stage.make_source()
    learner = EchoLearner(source, batch=4)
    workers = [FakeWorker(stage.context, stage.config, f"w{i}", i + 1, [3], steps=3) for i in range(4)]

    def welcome() -> None:
        for worker in workers:
            worker.steps = 0
            worker.advance()
        learner.advance()

    until(lambda: all(worker.welcomed for worker in workers), welcome)
    for worker in workers:
        worker.steps = 3
        worker.advance()
    for _ in range(5):
        requests, _ = source.poll(0, 0.02)
        assert requests == []
    play(learner, workers)
    assert learner.errors == []
    close(workers)


def test_a_learner_grants_credit_seldom_but_before_a_large_request_waits(stage: Stage) -> None:
    """Each grant is a message; a request of more rows than half of the credit must not wait for one."""
    learner, began = EchoLearner(stage.make_source()), time.monotonic()
    small = FakeWorker(stage.context, stage.config, "small", 1, [1], steps=200)
    play(learner, [small])
    small.send(Kind.STATUS)

    def step() -> None:
        small.advance()
        learner.advance()

    until(lambda: any(x.kind == Kind.STATUS_REPLY for x in small.said), step)
    (said,) = (x.fields[0]["messages"]["learners"] for x in small.said if x.kind == Kind.STATUS_REPLY)
    ready = (time.monotonic() - began) / stage.config.broker.heartbeat_seconds
    assert said == 0 or 200 <= said < 200 + 2 * 200 / 16 + 2 * ready + 10, "answers and READY, and hardly any CREDIT"
    large = FakeWorker(stage.context, stage.config, "large", 2, [27], steps=20)
    small.steps = 400
    play(learner, [small, large])
    assert learner.errors == [] and large.wrong == [] and small.wrong == []
    close([small, large])


def test_held_back_reports_and_dismissal(stage: Stage) -> None:
    source = stage.make_source()
    learner = EchoLearner(source)
    workers = [FakeWorker(stage.context, stage.config, f"w{i}", i + 1, [1], steps=2) for i in range(2)]
    play(learner, workers)

    def step() -> None:
        for worker in workers:
            worker.advance()
        learner.advance()

    source.hold_back("the store is full")
    held = [workers[0].run, "held_back", "the store is full"]
    until(lambda: any(x.fields == held for x in workers[0].said if x.kind == Kind.ALIVE), step)
    source.hold_back(None)
    workers[0].said.clear()
    until(lambda: any(x.fields[1] == "serving" for x in workers[0].said if x.kind == Kind.ALIVE), step)
    until(lambda: any(isinstance(x, Reported) and x.run == 2 for x in learner.events), step)
    source.dismiss("solved")
    late = FakeWorker(stage.context, stage.config, "late", 9, [1], steps=1)
    workers.append(late)
    until(lambda: all(worker.drained for worker in workers), step)
    close(workers)


def test_status_is_answered_to_anyone(stage: Stage) -> None:
    source = stage.make_source()
    learner = EchoLearner(source)
    workers = [FakeWorker(stage.context, stage.config, "w0", 5, [1], steps=2)]
    play(learner, workers)
    source.publish({"updates": 3})
    asker = FakeWorker(stage.context, stage.config, "asker", 77, [1], steps=0)
    asker.welcomed = True

    def found() -> dict[str, Any] | None:
        for message in asker.said:
            if message.kind == Kind.STATUS_REPLY and message.fields[0]["learner"] == {"updates": 3}:
                return dict(message.fields[0])
        return None

    def step() -> None:
        asker.send(Kind.STATUS)
        asker.advance()
        learner.advance(0.02)

    until(lambda: found() is not None, step)
    status = found()
    assert status is not None and status["workers_total"] == 1 and status["workers"][0]["worker_id"] == "w0"
    assert status["workers"][0]["host"] == "here"
    close([*workers, asker])


def test_garbage_is_refused_and_service_goes_on(stage: Stage) -> None:
    learner = EchoLearner(stage.make_source())
    workers = [FakeWorker(stage.context, stage.config, "w0", 5, [2], steps=5)]
    play(learner, workers)
    good = encode(Kind.STEP, 5, 0, 9, 2, 2)
    for frames in ([b""], [b"\x00" * 50], [b"\xdc\xff\xff"], [good[:-2]], [good], [good] + [b""] * 300, [b"\xc1"] * 9):
        until(lambda: workers[0].socket.poll(0, zmq.POLLOUT) != 0, learner.advance)
        workers[0].socket.send_multipart(frames, zmq.NOBLOCK)
    workers[0].steps = 30
    play(learner, workers)
    assert workers[0].wrong == []
    close(workers)


def test_an_ipc_endpoint_is_left_as_it_was_found(stage: Stage) -> None:
    source = stage.make_source()
    paths = [Path(x.partition("://")[2]) for x in (stage.config.broker.bind, stage.config.broker.learner_bind)]
    workers = [FakeWorker(stage.context, stage.config, "w0", 5, [1], steps=1)]
    play(EchoLearner(source), workers)
    bound = [path.exists() for path in paths]
    close(workers)
    stage.end(source)
    assert bound == [True, stage.config.broker.placement == "process"]
    assert not any(path.exists() for path in paths)


def test_frames_are_passed_on_as_they_came(stage: Stage) -> None:
    """Large frames arrive byte for byte; the source hands out buffers that numpy can read without a copy."""
    source = stage.make_source()
    seen: list[bytes] = []

    class Keeper(EchoLearner):
        def _answer(self, x: Any) -> Any:
            seen.append(bytes(x.buffers[1]))
            return super()._answer(x)

    learner = Keeper(source)
    workers = [FakeWorker(stage.context, stage.config, "w0", 2**62, [32], steps=1)]
    play(learner, workers)
    assert len(seen[0]) == 32 * 16 and seen[0][:8] == (2**62).to_bytes(8, "little")
    close(workers)


def test_a_rejected_worker_is_told_and_leaves_where_it_was_admitted(stage: Stage) -> None:
    source = stage.make_source()
    learner = EchoLearner(source)
    workers = [FakeWorker(stage.context, stage.config, "w0", 5, [1], steps=2)]
    play(learner, workers)
    source.reject(workers[0].index, 5, "sequence jumped", Cause.SESSION)
    play_until_left(learner, workers, count=1)
    until(lambda: workers[0].refused, workers[0].advance)
    assert learner.events[-1] == Left(workers[0].index, 5, "refused", Report()) and source.workers() == 0
    close(workers)
