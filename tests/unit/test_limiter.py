"""The samples-per-insert limiter: its bounds, its words, and that both sides never wait at once."""

from __future__ import annotations

import random

import pytest

from learner.limiter import Limiter

pytestmark = pytest.mark.unit


def limiter(k: float = 2.0, min_size: int = 10, tolerance: float = 8.0, hold_inserts: bool = True) -> Limiter:
    return Limiter(samples_per_insert=k, min_size=min_size, tolerance=tolerance, hold_inserts=hold_inserts)


def test_sampling_begins_at_the_smallest_size() -> None:
    subject = limiter()
    subject.inserted(9)
    assert not subject.may_sample(1) and subject.may_insert()
    assert subject.why_no_sample(1) == "waits for inserts: 9 of the 10 unrolls before sampling begins"
    subject.inserted(1)
    assert subject.may_sample(8) and subject.why_no_sample(8) is None
    assert not subject.may_sample(9), "those unrolls give no credit beyond the tolerance"


def test_without_inserts_sampling_stops_at_the_bound() -> None:
    subject = limiter()
    subject.inserted(60)
    while subject.may_sample(4):
        subject.sampled(4)
    assert subject.samples == 2 * 50 + 8
    assert subject.ratio == pytest.approx(2.16)
    assert subject.why_no_sample(4) == "waits for inserts: 2.16 samples per insert of 2.00"
    assert subject.may_insert() and subject.why_no_insert() is None


def test_without_samples_inserting_stops_at_the_bound() -> None:
    subject = limiter()
    while subject.may_insert():
        subject.inserted(1)
    assert subject.inserts == 10 + 5 and subject.credit == 10.0
    assert subject.why_no_insert() == "waits for samples: 0.00 samples per insert of 2.00"
    subject.sampled(4)
    assert subject.may_insert()
    unheld = limiter(hold_inserts=False)
    unheld.inserted(1000)
    assert unheld.may_insert() and unheld.credit == 2 * 990


def test_both_sides_in_turn_hold_the_ratio() -> None:
    subject = limiter(k=0.75, min_size=5, tolerance=16)
    for _ in range(20_000):
        if subject.may_sample(16):
            subject.sampled(16)
        elif subject.may_insert():
            subject.inserted(3)
    assert subject.ratio == pytest.approx(0.75, rel=0.01)


@pytest.mark.parametrize("seed", range(50))
def test_both_sides_never_wait_at_once(seed: int) -> None:
    """Random settings, sizes, changes and restarts: somebody may always go on, and the credit stays in its bounds."""
    rng = random.Random(seed)
    batch = rng.choice((1, 2, 7, 64))
    subject = limiter(
        k=10 ** rng.uniform(-2, 2),
        min_size=rng.choice((0, 1, 100)),
        tolerance=batch * rng.choice((0.5, 0.51, 1.0, 3.0)),
        hold_inserts=rng.random() < 0.8,
    )
    most = 0.0
    for _ in range(3000):
        insert, sample = subject.may_insert(), subject.may_sample(batch)
        assert insert or sample, "a dead-lock"
        assert insert == (subject.why_no_insert() is None) and sample == (subject.why_no_sample(batch) is None)
        if insert and (not sample or rng.random() < 0.5):
            count = rng.randint(1, 5)
            most = max(most, count * subject.samples_per_insert)
            subject.inserted(count)
        elif sample:
            count = rng.randint(1, batch)
            assert subject.may_sample(count), "fewer than may be taken may be taken"
            subject.sampled(count)
        assert -subject.tolerance <= subject.credit
        assert not subject.hold_inserts or subject.credit <= subject.tolerance + most
        if rng.random() < 0.005:
            subject.set_samples_per_insert(10 ** rng.uniform(-2, 2))
        if rng.random() < 0.005:
            subject.restore(rng.randint(0, 10_000), rng.randint(0, 10_000))


def test_a_change_is_for_what_comes() -> None:
    subject = limiter(k=1.0, tolerance=8)
    for _ in range(10_000):
        if subject.may_insert():
            subject.inserted(1)
        if subject.may_sample(4):
            subject.sampled(4)
    credit = subject.credit
    subject.set_samples_per_insert(4.0)
    assert subject.credit == credit, "nobody owes anything for the past"
    for _ in range(10_000):
        if subject.may_sample(4):
            subject.sampled(4)
        elif subject.may_insert():
            subject.inserted(1)
    assert subject.ratio == pytest.approx(4.0, rel=0.02)


def test_a_higher_ratio_needs_inserts_to_train_on() -> None:
    subject = limiter(tolerance=4)
    subject.inserted(60)
    while subject.may_sample(4):
        subject.sampled(4)
    subject.set_samples_per_insert(8.0)
    assert subject.ratio is None
    assert subject.why_no_sample(4) == "waits for inserts: 0 samples on no insert, of 8.00 samples per insert"
    subject.inserted(3)
    while subject.may_sample(4):
        subject.sampled(4)
    assert subject.ratio == pytest.approx(8.0)


def test_a_successor_goes_on_from_the_counters() -> None:
    subject = limiter()
    subject.restore(inserts=110, samples=198)
    assert (subject.inserts, subject.samples, subject.credit) == (110, 198, 2.0)
    subject.restore(inserts=110, samples=10)
    assert subject.credit == 8.0 and subject.may_insert(), "a debt from before is forgiven beyond the tolerance"
    subject.restore(inserts=110, samples=10_000)
    assert subject.credit == -8.0
    subject.inserted(4)
    assert subject.may_sample(8)
    subject.restore(0, 0)
    assert not subject.may_sample(1) and subject.credit == 0.0, "a store that lost its data fills again first"


@pytest.mark.parametrize("settings", [{"k": 0.0}, {"k": -1.0}, {"tolerance": 0.0}, {"min_size": -1}])
def test_impossible_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        limiter(**settings)
    with pytest.raises(ValueError, match=r"needs a tolerance of 8\.5, not 8"):
        limiter().may_sample(17)
    with pytest.raises(ValueError, match="must be above 0"):
        limiter().set_samples_per_insert(0.0)
