"""The log of a component: a file that its process writes itself, bounded from outside.

The process, what it started, and C code in it write into one descriptor that only appends, so none of them can meet a
full pipe, and all go on where nobody looks after the file. When the launcher looks and it is above its bound, what it
holds becomes ``<name>.log.1`` in place of what stood there, and it begins anew. Between two looks it grows as it likes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TAIL_BYTES = 64 * 2**10


class LogFile:
    """One component's log since its process was started.

    Args:
        path: ``<component>.log``; appended to, 0600.
        most_bytes: Above so many it begins anew; there are two files of about this size.

    Attributes:
        descriptor: To write to.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._path, self._older, self._most = path, path.with_name(f"{path.name}.1"), most_bytes
        self._start = os.fstat(self.descriptor).st_size
        self._kept = self._left_out = 0

    def close(self) -> None:
        """Nothing more is looked after."""
        os.close(self.descriptor)
        self.descriptor = -1

    def bound(self) -> None:
        """Takes a look."""
        if self.descriptor < 0 or (size := os.fstat(self.descriptor).st_size) <= self._most:
            return
        self._left_out += self._kept + size
        self._kept = self._keep(size)
        end = os.fstat(self.descriptor).st_size
        start = max(size, end - TAIL_BYTES)
        meanwhile = os.pread(self.descriptor, TAIL_BYTES, start)  # last words, perhaps
        os.ftruncate(self.descriptor, 0)
        self._left_out += start - size - self._kept
        self._start = 0
        note = f"{self._left_out:,} bytes of older output were left out so far\n" if self._left_out else ""
        with suppress(OSError):  # the disk is full, as others say
            os.write(self.descriptor, note.encode() + meanwhile)

    def tail(self, lines: int) -> list[str]:
        """The last lines that this process wrote; none where somebody has removed its log."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._start, size - TAIL_BYTES))
                text = file.read(TAIL_BYTES)
            if self._kept and len(text) < TAIL_BYTES:
                text = self._older.read_bytes()[-(TAIL_BYTES - len(text)) :] + text
        except FileNotFoundError:
            return []
        return [line for line in text.decode(errors="replace").splitlines() if line.strip()][-lines:]

    def _keep(self, size: int) -> int:
        """Copies the end of the file into the older one; how many bytes, 0 where the disk takes none."""
        at = max(0, size - self._most)
        try:
            older = os.open(self._older, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                while at < size and (copied := os.sendfile(older, self.descriptor, at, size - at)):
                    at += copied
            finally:
                os.close(older)
        except OSError:
            self._older.unlink(missing_ok=True)
            return 0
        return at - max(0, size - self._most)
