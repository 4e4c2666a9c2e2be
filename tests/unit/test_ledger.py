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
    ledger.undelivered(2)
    ledger.dropped_at_worker("non_finite", 1)
    assert ledger.snapshot() == {
        "taken": 16,
        "undelivered": 2,
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


def test_restored_it_says_the_same() -> None:
    ledger, other = Ledger(), Ledger()
    rng = random.Random(1)
    for _ in range(100):
        n = rng.randrange(10)
        ledger.arrived(n, n, 1)
        ledger.moved("assembler", "store", rng.randrange(n + 1))
    other.restore(ledger.snapshot())
    assert other.snapshot() == ledger.snapshot() and ledger.snapshot()["error"] == 0
