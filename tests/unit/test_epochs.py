"""What the store lost is booked once, whoever notices first."""

import pytest

from learner.epochs import Epochs
from pipeline.ledger import Ledger

pytestmark = pytest.mark.unit


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(replay=True)
    ledger.arrived(100, 100, 0)
    ledger.moved("assembler", "store", 100)
    return ledger


def lost(ledger: Ledger) -> int:
    found = ledger.snapshot()
    assert found["error"] == 0 and found["inserted"] == found["resident"] + found["evicted"]
    return int(found["dropped"].get("store_lost", 0))


def test_the_first_view_is_where_it_begins(ledger: Ledger) -> None:
    epochs = Epochs(ledger)
    epochs.notice("a", 7)
    epochs.notice("", 0)
    epochs.notice("a", 7)
    assert lost(ledger) == 0


def test_what_an_older_store_lacks_is_booked_once(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    begun: list[int] = []
    epochs = Epochs(ledger, lambda: begun.append(1))
    for total in (7, 17, 17, 20):
        epochs.notice("a", total)
    assert lost(ledger) == 13 and begun == []
    assert "10 transitions are gone" in caplog.text


def test_another_store_has_none_of_it(ledger: Ledger) -> None:
    begun: list[int] = []
    epochs = Epochs(ledger, lambda: begun.append(1))
    for epoch, total in (("a", 7), ("b", 3), ("b", 3)):
        epochs.notice(epoch, total)
    assert begun == [1] and lost(ledger) == 100
