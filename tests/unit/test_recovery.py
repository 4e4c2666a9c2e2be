"""A restarted learner closes its predecessor's books, whatever the moment of death."""

import contextlib
from pathlib import Path

import pytest

from learner.checkpoint import Checkpoint
from learner.recovery import Cut, StoreView, Versions, checkpoint_meta, recover
from learner.recovery import trained_after as trained_after_checkpoint
from pipeline.ledger import Ledger
from pipeline.store.interface import StoreCounts

pytestmark = pytest.mark.unit

PLACE = (7, 5)  # run, offset


class Predecessor:
    """One environment's transitions through a learner's books, with the store's own books beside them."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.index = self.put_total = self.acknowledged = 0

    def accept(self, n: int) -> None:
        self.index += n
        self.ledger.arrived(n, n, 0)

    def put(self, n: int) -> None:
        self.put_total += n
        self.ledger.moved("assembler", "store", n)

    def train(self, n: int) -> None:
        self.acknowledged += n
        self.ledger.moved("store", "prefetch", n)
        self.ledger.trained(n)

    def view(self, epoch: str = "a") -> StoreView:
        counts = StoreCounts(self.put_total, self.acknowledged, 0, self.put_total - self.acknowledged, 0)
        return StoreView(epoch, counts, {PLACE: self.put_total} if self.put_total else {})

    def checkpoint(self) -> Checkpoint:
        cut = Cut(self.ledger.snapshot(), {PLACE: (self.put_total, self.index)}, {})
        return Checkpoint(Path("x"), {}, checkpoint_meta(cut, self.view()))


@pytest.mark.parametrize("accepted_after", [0, 3, 20])
@pytest.mark.parametrize("put_after", [0, 5, 20])
@pytest.mark.parametrize("trained_after", [0, 10])
def test_it_closes(accepted_after: int, put_after: int, trained_after: int) -> None:
    before = Predecessor()
    before.accept(50)
    before.put(40)
    before.train(20)
    checkpoint = before.checkpoint()
    before.accept(accepted_after)
    before.put(min(put_after, before.index - 40))
    before.train(trained_after)
    ledger = Ledger()
    known = recover(checkpoint, before.view(), ledger, "oldest").known
    # The worker comes back with its running index, one transition further.
    gap = before.index + 1 - known[PLACE]
    ledger.missed(gap, "learner_restart")
    got = ledger.snapshot()
    assert got["error"] == 0
    assert got["taken"] == before.index + 1
    assert (got["trained"], got["rolled_back"]) == (20, trained_after)
    assert got["waiting"] == {"assembler": 0, "store": before.put_total - before.acknowledged, "prefetch": 0}
    assert got["dropped"] == {"learner_restart": before.index + 1 - before.put_total}


def test_another_store_loses_what_waited() -> None:
    before = Predecessor()
    before.accept(50)
    before.put(40)
    before.train(20)
    checkpoint = before.checkpoint()
    ledger = Ledger()
    empty = StoreView("b", StoreCounts(0, 0, 0, 0, 0), {})
    assert recover(checkpoint, empty, ledger, "oldest").known == {PLACE: 50}
    got = ledger.snapshot()
    assert got["error"] == 0 and got["dropped"] == {"store_lost": 20, "learner_restart": 10}


@pytest.mark.parametrize("trained_after", [0, 20])
def test_what_was_taken_from_a_store_that_was_lost_is_lost_with_the_learner(
    trained_after: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 40 put, 20 are prefetched and 20 still stored when the store loses its data; 10 come after."""
    before = Predecessor()
    before.accept(50)
    before.put(40)
    before.ledger.moved("store", "prefetch", 20)
    before.ledger.lost("store", "store_lost")
    before.ledger.moved("assembler", "store", 10)
    cut = Cut(before.ledger.snapshot(), {PLACE: (50, 50)}, {})
    now = StoreView("b", StoreCounts(10, 0, 0, 10, 0), {PLACE: 50})
    checkpoint = Checkpoint(Path("x"), {}, checkpoint_meta(cut, now))
    before.ledger.trained(trained_after)  # by an update that is lost with the learner: the store does not know of it
    ledger = Ledger()
    recover(checkpoint, now, ledger, "oldest")
    got = ledger.snapshot()
    assert got["error"] == 0 and got["dropped"] == {"store_lost": 40}
    assert got["waiting"] == {"assembler": 0, "store": 10, "prefetch": 0}
    assert got["trained"] == got["rolled_back"] == 0
    assert "lost some of its data: 20 transitions" in caplog.text, "those before the cut were said by the predecessor"


@pytest.mark.parametrize("trained_after", [5, 20, 35])
@pytest.mark.parametrize("comes_back", [True, False])
def test_what_was_trained_before_a_store_died_with_its_run_is_rolled_back(
    trained_after: int, comes_back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """20 wait in the store at the checkpoint; the summary of the run that was killed says what was trained since."""
    before = Predecessor()
    before.accept(50)
    before.put(40)
    before.train(20)
    checkpoint = before.checkpoint()
    before.accept(60)
    before.put(60)
    before.train(trained_after)
    found = trained_after_checkpoint(checkpoint.meta, {"ledger": before.ledger.snapshot()})
    assert found == trained_after
    ledger = Ledger()
    empty = StoreView("b", StoreCounts(0, 0, 0, 0, 0), {})
    known = recover(checkpoint, empty, ledger, "oldest", found).known
    got = ledger.snapshot()
    assert got["error"] == 0 and got["rolled_back"] == trained_after
    assert got["taken"] == 50 + max(0, trained_after - 30)
    dropped = {"store_lost": max(0, 20 - trained_after), "learner_restart": min(10, max(0, 30 - trained_after))}
    assert got["dropped"] == {reason: number for reason, number in dropped.items() if number}
    assert f"{trained_after} transitions that were trained after the checkpoint are rolled back" in caplog.text
    if comes_back:  # the worker outlived it all, and tells by its index what it had delivered
        ledger.missed(before.index - known[PLACE], "learner_restart")
        assert ledger.snapshot()["taken"] == before.index and ledger.snapshot()["error"] == 0


def test_a_summary_that_is_older_than_the_checkpoint_tells_nothing() -> None:
    meta = {"ledger": {"trained": 20, "rolled_back": 7}}
    for summary in (
        None,
        {},
        {"ledger": None},
        {"ledger": {"trained": 90, "rolled_back": 0}},
        {"ledger": {"trained": "x"}},
    ):
        assert trained_after_checkpoint(meta, summary) == 0
    assert trained_after_checkpoint(meta, {"ledger": {"trained": 10, "rolled_back": 7}}) == 0
    assert trained_after_checkpoint(meta, {"ledger": {"trained": 90, "rolled_back": 7}}) == 70


@pytest.mark.parametrize(
    ("epoch", "counts"),
    [("a", StoreCounts(57, 20, 0, 37, 0)), ("b", StoreCounts(57, 0, 0, 57, 0))],
    ids=["more than the indices tell", "another store with more than was ever put"],
)
def test_books_that_contradict_each_other_are_an_error_and_said(
    epoch: str, counts: StoreCounts, caplog: pytest.LogCaptureFixture
) -> None:
    before = Predecessor()
    before.accept(50)
    before.put(40)
    before.train(20)
    ledger = Ledger()
    recover(before.checkpoint(), StoreView(epoch, counts, {PLACE: 40}), ledger, "oldest")
    error = ledger.snapshot()["error"]
    assert error > 0 and f"differ by {error} transitions" in caplog.text


def test_a_replay_that_went_back_tells_what_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """Put 40 and evicted 5 before the checkpoint, put 10 and evicted 2 after it; then 12 of the residents were lost."""
    before = Ledger(replay=True)
    before.arrived(50, 50, 0)
    before.moved("assembler", "store", 40)
    before.dropped("store", "evicted", 5)
    before.lost("store", "store_lost", 3)
    cut = Cut(before.snapshot(), {PLACE: (40, 50)}, {})
    then = StoreView("a", StoreCounts(40, 0, 5, 32, 0), {PLACE: 40}, 3, "mark")
    checkpoint = Checkpoint(Path("x"), {}, checkpoint_meta(cut, then))
    assert checkpoint.meta["store"]["mark"] == "mark"
    now = StoreView("a", StoreCounts(50, 0, 7, 50 - 7 - 15, 0), {PLACE: 50}, 15)
    ledger = Ledger(replay=True)
    recover(checkpoint, now, ledger, "evicted")
    got = ledger.snapshot()
    assert got["error"] == 0 and got["dropped"] == {"store_lost": 15}
    assert (got["inserted"], got["resident"], got["evicted"]) == (50 - 15, 28, 7)
    assert "lost some of its data: 12 transitions" in caplog.text


def test_versions_are_never_published_twice(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "versions.json")
    for version in range(1, 700):
        versions.reserve(version)
    assert Versions(tmp_path / "versions.json").reserved > 699
    versions.release(699)
    assert Versions(tmp_path / "versions.json").reserved == 700


def test_no_version_is_published_that_could_not_be_reserved(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    versions = Versions(folder / "versions.json")
    versions.reserve(0)
    reserved, version = versions.reserved, 0
    folder.rename(tmp_path / "away")
    for _ in range(reserved + 50):
        with contextlib.suppress(OSError):
            versions.reserve(version + 1)
        version = versions.after(version)
    assert version == reserved - 1
    (tmp_path / "away").rename(folder)
    successor = Versions(folder / "versions.json")
    assert successor.begin(3) == reserved > version and successor.reserved > reserved
    versions.reserved = successor.reserved
    versions.reserve(version + 1)
    assert versions.after(version) == version + 1


def test_versions_are_reserved_without_room_on_the_disk(tmp_path: Path) -> None:
    """The file does not grow, and no other is made beside it."""
    versions = Versions(tmp_path / "versions.json")
    versions.reserve(0)
    before = (tmp_path / "versions.json").stat()
    versions.reserve(2**60)
    after = (tmp_path / "versions.json").stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert Versions(tmp_path / "versions.json").reserved > 2**60
