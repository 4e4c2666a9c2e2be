"""Writes that may fail: counted, said, tried again, and nothing else is caught."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from learner.checkpoint import load_latest, save
from learner.writes import COMPLAINT_SECONDS, Writes
from pipeline.errors import EXIT_UNREACHABLE, UnwrittenError

pytestmark = pytest.mark.unit

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from learner.checkpoint import save
from pipeline.errors import UnwrittenError
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
arrays = {f"network/{i}": np.zeros(5000, np.float32) for i in range(4)}
try:
    save(Path(sys.argv[1]), arrays, {"version": 2}, 2)
except UnwrittenError as error:
    sys.exit(f"refused: {error}")
"""


def refuse() -> None:
    raise FULL


def test_failures_are_counted_and_said_once_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    writes = Writes(tmp_path, lambda: now[0])
    assert writes.attempt("summary", lambda: None) and writes.status() == {}
    with caplog.at_level(logging.INFO, "learner.writes"):
        for seconds in (0.0, 1.0, COMPLAINT_SECONDS):
            now[0] = seconds
            assert not writes.attempt("checkpoint", refuse)
        assert not writes.attempt("summary", refuse)
        failing = {"checkpoint": str(FULL), "summary": str(FULL)}
        assert writes.status() == {"failed_writes": {"checkpoint": 3, "summary": 1}, "failing": failing}
        assert writes.attempt("checkpoint", lambda: None)
    assert writes.status()["failing"] == {"summary": str(FULL)} and writes.status()["failed_writes"]["checkpoint"] == 3
    first, second, other, again = caplog.messages
    assert "checkpoint: not written (1 times" in first and str(tmp_path) in first and "at risk" in first
    assert "checkpoint: not written (3 times" in second
    assert "summary: not written" in other and "at risk" not in other
    assert again == "checkpoint: written again"


def test_other_errors_are_none_of_its_business(tmp_path: Path) -> None:
    def wrong() -> None:
        raise ValueError("a value that cannot be stored")

    with pytest.raises(ValueError, match="cannot be stored"):
        Writes(tmp_path, lambda: 0.0).attempt("checkpoint", wrong)


@pytest.mark.parametrize("limit", [0, 100, 5000, 20200, 60000, 80600])
def test_a_checkpoint_that_does_not_fit_leaves_the_one_before_and_no_rest(tmp_path: Path, limit: int) -> None:
    save(tmp_path, {"network/0": np.ones(3, np.float32)}, {"version": 1}, 2)
    command = [sys.executable, "-c", LIMITED, str(tmp_path), str(limit)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1 and result.stderr.startswith("refused: saving version 2"), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001"]
    found = load_latest(tmp_path)
    assert found is not None and found.meta["version"] == 1
    assert UnwrittenError("").exit_code == EXIT_UNREACHABLE
