"""The scale model in its limits: one slow stage, nothing lost, more of a thing never slower."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.simulator import Costs, Setup, simulate

pytestmark = pytest.mark.unit

SETUP = Setup(
    workers=2,
    environments=8,
    groups=2,
    row_bytes=48,
    broker=True,
    batch=16,
    unroll=5,
    training_batch=4,
    capacity=16,
    cpus=100,
)
QUICK = Costs(*[1e-9] * len(Costs._fields))


@pytest.mark.parametrize(
    ("cost", "stage", "per_second"),
    [
        ("worker_request", "workers", 2 * 4 / 1e-3),  # two workers, four rows a request
        ("environment_row", "workers", 2 / 1e-3),
        ("transport_request", "transport", 4 / 1e-3),
        ("broker_request", "broker", 4 / 1e-3),
        ("broker_byte", "broker", 1 / 48e-3),
        ("inference_row", "inference", 1 / 1e-3),
        ("policy_row", "inference", 1 / 1e-3),
        ("writer_unroll", "writer", 5 / 1e-3),
        ("store_unroll", "store", 5 / 1e-3),
        ("feed_unroll", "feed", 5 / 1e-3),
        ("update_row", "training", 1 / 1e-3),
        ("update_batch", "training", 4 * 5 / 1e-3),
    ],
)
def test_one_slow_stage_is_the_rate(cost: str, stage: str, per_second: float) -> None:
    found = simulate(SETUP, QUICK._replace(**{cost: 1e-3}))
    assert found.steps_per_second == pytest.approx(per_second, rel=0.03)
    assert found.bottleneck == stage and found.busy[stage] == pytest.approx(1.0, abs=0.01)


def test_a_slow_batch_takes_what_waits() -> None:
    found = simulate(SETUP, QUICK._replace(inference_batch=1e-3))
    # While one batch is computed, the others wait: all four groups in two batches at the most.
    assert 8 / 1e-3 * 0.97 <= found.steps_per_second <= 16 / 1e-3 * 1.03


@pytest.mark.parametrize("cost", ["update_row", "worker_request", "broker_request", "inference_batch"])
def test_nothing_is_lost(cost: str) -> None:
    found = simulate(SETUP, QUICK._replace(**{cost: 1e-3}))
    sent, answered, under_way = found.rows
    finished, trained, waiting = found.unrolls
    assert sent == answered + under_way and under_way <= SETUP.workers * SETUP.environments
    assert finished == trained + waiting
    # Groups are apart by whole requests, so steps that are in no finished unroll are few.
    assert 0 <= answered - finished * SETUP.unroll <= SETUP.workers * SETUP.environments * SETUP.unroll


def test_what_training_does_not_keep_up_with_holds_inference_back() -> None:
    found = simulate(SETUP, QUICK._replace(update_row=1e-3))
    finished, trained, waiting = found.unrolls
    assert finished - trained == waiting <= SETUP.capacity + SETUP.training_batch + SETUP.workers * SETUP.environments
    assert found.steps_per_second == pytest.approx(found.trained_per_second, rel=0.1)


def test_more_workers_are_never_slower() -> None:
    costs = QUICK._replace(environment_row=1e-4, inference_batch=2e-4, inference_row=1e-5, update_row=1e-6)
    rates = [simulate(SETUP._replace(workers=n), costs).steps_per_second for n in (1, 2, 4, 8)]
    assert all(more >= 0.98 * fewer for fewer, more in itertools.pairwise(rates))
    assert rates[1] > 1.7 * rates[0], "while workers bound, twice as many do twice as much"


def test_more_cpus_are_never_slower_and_one_does_one_seconds_work() -> None:
    costs = QUICK._replace(environment_row=1e-4, inference_row=1e-4, update_row=1e-4)
    rates = [simulate(SETUP._replace(cpus=n), costs).steps_per_second for n in (1, 2, 4)]
    assert rates[0] == pytest.approx(1 / 3e-4, rel=0.05)
    assert rates[0] < rates[1] <= rates[2] * 1.02
    found = simulate(SETUP._replace(cpus=1), costs)
    assert sum(found.cpu_per_step.values()) == pytest.approx(3e-4, rel=0.05)


def test_workers_elsewhere_leave_the_learners_cpus_alone() -> None:
    costs = QUICK._replace(environment_row=1e-4, inference_row=1e-4)
    apart = simulate(SETUP._replace(cpus=1, workers_elsewhere=True), costs)
    assert apart.steps_per_second == pytest.approx(1 / 1e-4, rel=0.03) and apart.bottleneck == "inference"


def test_the_learners_python_threads_have_one_cpu_together() -> None:
    found = simulate(SETUP, QUICK._replace(inference_row=1e-4, writer_unroll=5e-4, feed_unroll=5e-4))
    assert found.trained_per_second == pytest.approx(1 / 3e-4, rel=0.05)


def test_paced_environments_keep_their_pace() -> None:
    found = simulate(SETUP._replace(pause=0.1), QUICK)
    assert found.steps_per_second == pytest.approx(2 * 8 / 0.1, rel=0.01)


def test_heartbeats_take_their_share() -> None:
    costs = QUICK._replace(broker_request=1e-3)
    without, with_ = (simulate(SETUP, costs._replace(heartbeat=x)).steps_per_second for x in (0.0, 0.1))
    assert with_ == pytest.approx(0.8 * without, rel=0.01)  # two workers, a tenth of the time each
