"""Checkpoints survive damage, and are read only when they are whole. Kills: ``tests/integration``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from learner.checkpoint import ARRAYS, META, SUMS, load_latest, save
from pipeline.errors import CheckpointError

pytestmark = pytest.mark.unit


def arrays_of(version: int) -> dict[str, np.ndarray]:
    return {
        "weights/dense/kernel": np.full((16, 16), version, np.float32),
        "file": np.arange(version % 7, dtype=np.int64),
        "flag": np.array(True),
    }


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    meta = {"version": 12, "ledger": {"taken": 2**40}, "rate": 0.1, "name": "ü"}
    path = save(tmp_path / "checkpoints", arrays_of(12), meta, keep=3)
    assert path.name == "000000000012"
    checkpoint = load_latest(tmp_path / "checkpoints")
    assert checkpoint is not None and checkpoint.path == path and checkpoint.meta == meta
    assert checkpoint.arrays.keys() == arrays_of(12).keys()
    for name, array in arrays_of(12).items():
        assert checkpoint.arrays[name].dtype == array.dtype and np.array_equal(checkpoint.arrays[name], array)


def test_none_where_there_is_none(tmp_path: Path) -> None:
    assert load_latest(tmp_path) is None and load_latest(tmp_path / "missing") is None


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for version in (8, 9, 10, 11):
        save(tmp_path, arrays_of(version), {"version": version}, keep=2)
    assert names(tmp_path) == ["000000000010", "000000000011"]


def test_a_second_one_of_a_version_is_newer(tmp_path: Path) -> None:
    for attempt in range(12):
        save(tmp_path, arrays_of(1), {"version": 5, "attempt": attempt}, keep=2)
    assert names(tmp_path) == ["000000000005-10", "000000000005-11"]
    checkpoint = load_latest(tmp_path)
    assert checkpoint is not None and checkpoint.meta["attempt"] == 11


def test_only_the_owner_reads(tmp_path: Path) -> None:
    path = save(tmp_path / "new", arrays_of(1), {"version": 1}, keep=1)
    assert {p.stat().st_mode & 0o077 for p in (path, path.parent, *path.iterdir())} == {0}


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    path = save(tmp_path, arrays_of(1), {"version": 1}, keep=1)
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=path, check=True)


@pytest.mark.parametrize("name", [ARRAYS, META, SUMS])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove"])
def test_a_damaged_newest_is_passed_over(
    tmp_path: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = save(tmp_path, arrays_of(1), {"version": 1}, keep=3)
    new = save(tmp_path, arrays_of(2), {"version": 2}, keep=3)
    raw = (new / name).read_bytes()
    (new / name).unlink()
    if damage != "remove":
        middle = len(raw) // 2
        flipped = raw[:middle] + bytes([raw[middle] ^ 0xFF]) + raw[middle + 1 :]
        (new / name).write_bytes({"flip": flipped, "truncate": raw[:middle], "empty": b""}[damage])
    checkpoint = load_latest(tmp_path)
    assert checkpoint is not None and checkpoint.path == old
    assert str(new) in caplog.text


def test_none_usable_is_an_error(tmp_path: Path) -> None:
    for version in (1, 2):
        (save(tmp_path, arrays_of(version), {"version": version}, keep=3) / META).write_text("{}")
    with pytest.raises(CheckpointError, match=r"000000000002.*000000000001"):
        load_latest(tmp_path)


def test_no_pickle(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="dtype object"):
        save(tmp_path, {"bad": np.array([{}], dtype=object)}, {"version": 1}, keep=1)
    path = save(tmp_path, arrays_of(1), {"version": 1}, keep=1)
    np.savez(path / ARRAYS, bad=np.array([{"a": 1}], dtype=object))
    digest = subprocess.run(["sha256sum", ARRAYS, META], cwd=path, check=True, capture_output=True).stdout
    (path / SUMS).write_bytes(digest)
    with pytest.raises(CheckpointError, match="damaged"):
        load_latest(tmp_path)


@pytest.mark.parametrize("meta", [{}, {"version": "1"}, {"version": -1}, {"version": 1, "x": float("nan")}])
def test_meta_that_cannot_be_stored_is_refused(tmp_path: Path, meta: dict[str, object]) -> None:
    with pytest.raises(CheckpointError):
        save(tmp_path, {}, meta, keep=1)
    assert load_latest(tmp_path) is None


def test_leftovers_go_at_the_next_save(tmp_path: Path) -> None:
    (tmp_path / ".partial-abc").mkdir(parents=True)
    (tmp_path / ".partial-abc" / ARRAYS).write_bytes(b"half")
    assert load_latest(tmp_path) is None
    save(tmp_path, arrays_of(1), {"version": 1}, keep=1)
    assert names(tmp_path) == ["000000000001"]
