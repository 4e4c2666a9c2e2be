"""Checkpoints on disk: whole or not there, verified when read, without pickle.

::

    <directory>/000000001234/        one checkpoint, named by its update version; 000000001234-1 a later one of the same
        arrays.npz                   the arrays, as numpy stores them
        meta.json                    everything else
        SHA256SUMS                   checked by load_latest, and by `sha256sum -c`
    <directory>/.partial-*           one that was being written or deleted; removed by the next save

A checkpoint is written into a sibling and renamed when all of it is on disk, so whatever ends the process leaves the
checkpoints before it as they were. Files are readable by their owner only.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.errors import CheckpointError, UnwrittenError

log = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]

ARRAYS, META, SUMS = "arrays.npz", "meta.json", "SHA256SUMS"
KINDS = "biuf"  # numpy dtype kinds that are stored: no objects, no types that numpy's format does not know
_NAME = re.compile(r"(\d{12,})(?:-(\d+))?")
_PARTIAL = ".partial-"


class Checkpoint(NamedTuple):
    """A checkpoint that was read whole: where it stands, name -> array, and the rest."""

    path: Path
    arrays: Arrays
    meta: dict[str, Any]


def save(directory: Path, arrays: Arrays, meta: dict[str, Any], keep: int) -> Path:
    """Writes a checkpoint, then removes the oldest beyond ``keep``.

    Args:
        directory: Where checkpoints stand; made if missing.
        arrays: Name -> array of booleans, integers or floats.
        meta: JSON; ``meta["version"]`` is the update version, an integer from 0.
        keep: How many stay, at least 1.

    Returns:
        The checkpoint's path.

    Raises:
        CheckpointError: no version, an array or a value that cannot be stored.
        UnwrittenError: the file system refuses; what was written of it is removed.
    """
    version = meta.get("version")
    if type(version) is not int or version < 0 or keep < 1:
        raise CheckpointError(f"a checkpoint needs meta['version'] from 0 and keep from 1, not {version!r} and {keep}")
    for name, array in arrays.items():
        if array.dtype.kind not in KINDS:
            raise CheckpointError(f"array {name!r} of dtype {array.dtype} cannot be stored")
    text = _encoded(meta)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_partials(directory)
        path = _write(directory, version, arrays, text)
        for _, old in _saved(directory)[:-keep]:
            _remove(old)
    except OSError as error:
        with suppress(OSError):  # the next one does it
            _remove_partials(directory)
        raise UnwrittenError(f"saving version {version} in {directory} failed: {error}") from error
    return path


def load_latest(directory: Path) -> Checkpoint | None:
    """The newest usable checkpoint; a damaged newer one is passed over with a warning.

    Returns:
        None where there is none at all.

    Raises:
        CheckpointError: there are some, and none is usable; names each and what is wrong with it.
    """
    wrong = []
    for _, path in reversed(_saved(directory)):
        try:
            checkpoint = load(path)
        except CheckpointError as error:
            log.warning("%s; the one before it is used", error)
            wrong.append(str(error))
        else:
            return checkpoint
    if wrong:
        raise CheckpointError("no usable checkpoint: " + "; ".join(wrong))
    return None


def load(path: Path) -> Checkpoint:
    """Reads one checkpoint and verifies it.

    Raises:
        CheckpointError: incomplete or damaged.
    """
    try:
        sums = _read_sums(path / SUMS)
        for name in (ARRAYS, META):
            if _sha256(path / name) != sums.get(name):
                raise CheckpointError(f"checkpoint {path} is damaged: {name} has another SHA-256 than {SUMS} says")
        meta = json.loads((path / META).read_text("utf-8"))
        with np.load(path / ARRAYS, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {type(error).__name__}: {error}") from error
    return Checkpoint(path, arrays, meta)


def _encoded(meta: dict[str, Any]) -> str:
    try:
        return json.dumps(meta, allow_nan=False, indent=1, sort_keys=True) + "\n"
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"a checkpoint's meta must be JSON: {error}") from error


def _write(directory: Path, version: int, arrays: Arrays, meta: str) -> Path:
    """Everything into a sibling, onto the disk, then the rename that makes it a checkpoint."""
    partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=directory))  # mode 0700
    _write_arrays(partial / ARRAYS, arrays)
    _write_text(partial / META, meta)
    sums = "".join(f"{_sha256(partial / name)}  {name}\n" for name in (ARRAYS, META))
    _write_text(partial / SUMS, sums)
    _sync(partial)
    path = _free_path(directory, version)
    partial.rename(path)
    _sync(directory)
    return path


def _write_arrays(path: Path, arrays: Arrays) -> None:
    """An ``.npz`` as ``numpy.savez`` writes it, which takes no names like ``file``."""
    with open(path, "xb", opener=_private) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _write_text(path: Path, text: str) -> None:
    with open(path, "x", encoding="utf-8", opener=_private) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_sums(path: Path) -> dict[str, str]:
    return {name: digest for digest, name in (line.split("  ", 1) for line in path.read_text("utf-8").splitlines())}


def _saved(directory: Path) -> list[tuple[tuple[int, int], Path]]:
    """Checkpoints with their (version, serial), oldest first."""
    if not directory.is_dir():
        return []
    matches = ((_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted(((int(m[1]), int(m[2] or 0)), path) for m, path in matches if m is not None)


def _free_path(directory: Path, version: int) -> Path:
    """A name that sorts after every checkpoint of the same version."""
    serials = [serial for (other, serial), _ in _saved(directory) if other == version]
    return directory / (f"{version:012d}" + (f"-{max(serials) + 1}" if serials else ""))


def _remove(path: Path) -> None:
    """Renamed first: one that is half deleted must not look like a damaged one."""
    partial = path.with_name(f"{_PARTIAL}{path.name}")
    path.rename(partial)
    shutil.rmtree(partial)


def _remove_partials(directory: Path) -> None:
    for path in directory.glob(f"{_PARTIAL}*"):
        shutil.rmtree(path)
