"""Private temporary folders that a later process removes where the one that made them was killed.

The maker holds a lock (``flock``) on the file ``lock`` in its folder for as long as it lives; the kernel lets go of it
whatever ends the process, and no child inherits it. The file appears under that name already locked, so a folder
without it, or with a locked one, is in use (or is none of ours), and is left alone.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

PREFIX = "seedmq-"
LOCK = "lock"


@contextmanager
def private_folder(kind: str = "", place: Path | None = None) -> Iterator[Path]:
    """A folder (0700) of this process; removed at the end.

    Args:
        kind: A word of its name.
        place: Where; default the directory for temporary files.

    Raises:
        OSError: it cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix=PREFIX + kind, dir=place, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        descriptor = os.open(folder / f".{LOCK}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / f".{LOCK}").rename(folder / LOCK)
            yield folder
        finally:
            os.close(descriptor)


def sweep(place: Path) -> list[Path]:
    """Removes the folders in ``place`` that killed processes of this user have left; gives those that it removed.

    Several processes may sweep at once. What cannot be removed is a warning.
    """
    swept = []
    for folder in sorted(place.glob(f"{PREFIX}*")):
        try:
            if _is_ours(folder) and _remove_unless_used(folder):
                log.info("removed %s, which a killed process had left", folder)
                swept.append(folder)
        except FileNotFoundError:
            continue  # its owner, or another process that sweeps, was faster
        except OSError as error:
            log.warning("%s was left by a killed process and cannot be removed: %s", folder, error.strerror or error)
    return swept


def _is_ours(folder: Path) -> bool:
    """A real directory of this user that nobody else can write to."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o700


def _remove_unless_used(folder: Path) -> bool:
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not os.path.samestat(os.fstat(descriptor), (folder / LOCK).lstat()):
            return False  # another folder of this name by now
        for path in folder.iterdir():
            if path.name != LOCK:  # goes last: a sweep that is cut off is done again
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.rmtree(folder)
        return True
    finally:
        os.close(descriptor)
