"""Private folders: whose owner is gone is removed, and no other."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from pipeline.folders import LOCK, private_folder, sweep

pytestmark = pytest.mark.unit


def abandoned(place: Path, name: str = "seedmq-abandoned") -> Path:
    """What a killed process leaves: everything, and no lock."""
    folder = place / name
    (folder / "store").mkdir(parents=True)
    folder.chmod(0o700)
    (folder / LOCK).touch()
    (folder / "store" / "store.conf").write_text("port 0")
    (folder / "link").symlink_to(place)
    return folder


def test_a_folder_is_private_and_goes_with_its_owner(tmp_path: Path) -> None:
    with private_folder("store-", tmp_path) as folder:
        assert folder.name.startswith("seedmq-store-") and folder.stat().st_mode & 0o777 == 0o700
        assert sorted(path.name for path in folder.iterdir()) == [LOCK]
        (folder / "socket").touch()
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    with private_folder(place=tmp_path) as folder:
        left = abandoned(tmp_path)
        assert sweep(tmp_path) == [left]
        assert sweep(tmp_path) == [] and list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: (folder / LOCK).rename(folder / f".{LOCK}"), "it is being made"),
        (lambda folder: folder.chmod(0o755), "it is none of ours"),
        (lambda folder: folder.rename(folder.with_name("other-folder")), "it is none of ours"),
    ],
)
def test_what_may_be_somebody_elses_stays(tmp_path: Path, change: object, why: str) -> None:
    assert callable(change)
    change(abandoned(tmp_path))
    assert sweep(tmp_path) == [] and len(list(tmp_path.iterdir())) == 1, why


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = abandoned(tmp_path, "elsewhere")
    (tmp_path / "seedmq-link").symlink_to(target)
    assert sweep(tmp_path) == [] and (target / LOCK).exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_stays(tmp_path: Path) -> None:
    folder = abandoned(tmp_path)
    os.chown(folder, 12345, 12345)
    assert sweep(tmp_path) == [] and folder.exists()


def test_a_folder_that_took_the_name_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = abandoned(tmp_path)
    lock = fcntl.flock

    def replaced(descriptor: int, operation: int) -> None:
        (folder / LOCK).rename(folder / "old")
        (folder / LOCK).touch()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", replaced)
    assert sweep(tmp_path) == [] and folder.exists()


def test_many_may_sweep_at_once(tmp_path: Path) -> None:
    left = {abandoned(tmp_path, f"seedmq-{i}") for i in range(20)}
    swept: list[Path] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait(60.0)
        swept.extend(sweep(tmp_path))

    threads = [threading.Thread(target=work) for _ in range(8)]
    with private_folder(place=tmp_path) as mine:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        assert sorted(swept) == sorted(left), "each once"
        assert list(tmp_path.iterdir()) == [mine]


def test_what_cannot_be_removed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = abandoned(tmp_path)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pipeline.folders.shutil.rmtree", refuse)
    assert sweep(tmp_path) == []
    assert str(folder) in caplog.text and "Permission denied" in caplog.text
    assert (folder / LOCK).exists(), "another sweep tries again"
