"""The ledger's two equations under every booking."""

import random

import pytest

from pipeline.ledger import Ledger

pytestmark = pytest.mark.unit


def test_one_of_everything_closes() -> None:
    ledger = Ledger()
    ledger.arrived(taken=10, accepted=10, masked=2)
    ledger.moved("assembler", "store", 8)
    ledger.moved("store", "prefetch", 6)
    ledger.trained(4)
    ledger.dropped("prefetch", "stale", 1)
    ledger.dropped("store", "oldest", 1)
    ledger.missed(3, "learner_restart")
    ledger.settled(undelivered=2, dropped={"non_finite": 1}, missing=0, surplus=0, inherited=0)
    ledger.flies(4)
    assert ledger.snapshot() == {
        "taken": 16,
        "in_flight": 4,
        "undelivered": 2,
        "surplus": 0,
        "accepted": 13,
        "trained": 4,
        "waiting": {"assembler": 2, "store": 1, "prefetch": 1},
        "dropped": {"stale": 1, "oldest": 1, "learner_restart": 3, "worker_non_finite": 1},
        "rolled_back": 0,
        "masked": 2,
        "error": 0,
    }
    ledger.lost("store", "store_lost")
    assert ledger.snapshot()["error"] == 0


def test_a_row_that_is_taken_and_not_accepted_shows_as_error() -> None:
    ledger = Ledger()
    ledger.arrived(taken=2, accepted=1, masked=0)
    assert ledger.snapshot()["error"] == 1


@pytest.mark.parametrize(("missing", "surplus", "error"), [(50, 0, 50), (0, 5, 5), (3, 3, 6)])
def test_what_worker_and_learner_do_not_agree_upon_is_an_error(missing: int, surplus: int, error: int) -> None:
    """Neither side's excess makes up for the other's, of another run."""
    ledger = Ledger()
    ledger.arrived(taken=10, accepted=10, masked=0)
    ledger.settled(undelivered=0, dropped={}, missing=missing, surplus=0, inherited=0)
    ledger.settled(undelivered=0, dropped={}, missing=0, surplus=surplus, inherited=0)
    got = ledger.snapshot()
    assert (got["error"], got["taken"]) == (error, 10 + missing - surplus)
    other = Ledger()
    other.restore(got)
    assert other.snapshot() == got


def test_what_is_taken_back_leaves_nothing() -> None:
    ledger = Ledger()
    ledger.arrived(taken=10, accepted=10, masked=0)
    before = ledger.snapshot()
    for sign in (1, -1):
        dropped = {"non_finite": sign * 2}
        ledger.settled(undelivered=sign * 4, dropped=dropped, missing=sign, surplus=0, inherited=sign * 7)
    after = ledger.snapshot()
    assert {name: number for name, number in after["dropped"].items() if number} == {}
    assert after | {"dropped": {}} == before


def test_restored_it_says_the_same() -> None:
    ledger, other = Ledger(), Ledger()
    rng = random.Random(1)
    for _ in range(100):
        n = rng.randrange(10)
        ledger.arrived(n, n, 1)
        ledger.moved("assembler", "store", rng.randrange(n + 1))
    other.restore(ledger.snapshot())
    assert other.snapshot() == ledger.snapshot() and ledger.snapshot()["error"] == 0
