"""Small files of counts that are overwritten where they stand, which needs no room on the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pipeline.run_dir import write_text


def overwrite(path: Path, data: Any, nbytes: int) -> None:
    """Writes ``data`` as JSON of ``nbytes``, padded, and waits until it is on the disk.

    Raises:
        OSError: the disk refuses.
        ValueError: it needs more bytes.
    """
    text = json.dumps(data, allow_nan=False).ljust(nbytes - 1) + "\n"
    if len(text) != nbytes:
        raise ValueError(f"{path} has {nbytes} bytes, too few for {text}")
    if not path.exists():
        write_text(path, text)
        return
    with path.open("r+") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
