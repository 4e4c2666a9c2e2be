"""A router on the way forgets an idle flow: both ends believe that it stands, and nothing arrives any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pipeline.protocol import Kind
from pipeline.sources import BrokerSource
from tests.integration.forgetful_router import ForgetfulRouter
from tests.integration.peers import EchoLearner, FakeWorker, finish, until
from tests.integration.test_broker import make_config, start_broker
from tests.runs import Stopwatch

pytestmark = pytest.mark.integration


@pytest.fixture
def router(free_port: int) -> Iterator[ForgetfulRouter]:
    made = ForgetfulRouter(free_port)
    yield made
    made.close()


def test_worker_and_learner_resume_within_30_seconds(router: ForgetfulRouter, free_port: int, tmp_path: Path) -> None:
    """Heartbeats need 10 seconds to notice; what is connected anew passes."""
    near = make_config(tmp_path, bind=f"tcp://127.0.0.1:{free_port}", lease_seconds=10.0)
    far = make_config(tmp_path, connect=f"tcp://127.0.0.1:{router.port}", bind=near.broker.bind, lease_seconds=10.0)
    context = zmq.Context()
    broker = start_broker(near)
    learner = EchoLearner(BrokerSource(near, context, "learner", 64))
    worker = FakeWorker(context, far, "w", 1, [2], steps=10**9)

    def go_on() -> None:
        worker.advance()
        learner.advance()

    until(lambda: worker.sequence[0] > 20, go_on)
    router.forget()
    reached, watch = worker.sequence[0] + 20, Stopwatch()
    until(lambda: worker.sequence[0] >= reached, go_on)
    print(f"resumed after {watch}")
    assert watch.elapsed > 1.0 and watch.seconds < 30.0, "it was cut, and healed"
    assert worker.wrong == [] and not worker.refused and learner.errors == []
    assert sum(message.kind == Kind.WELCOME for message in worker.said) >= 1
    worker.close()
    learner.source.close()
    finish(*broker)
    context.destroy(linger=0)
