"""A process is killed while it saves checkpoints."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from learner.checkpoint import META, load_latest

pytestmark = pytest.mark.integration

SAVER = """
import json, sys
from pathlib import Path
import numpy as np
from learner.checkpoint import load_latest, save
directory = Path(sys.argv[1])
found = load_latest(directory)
version = found.meta["version"] if found else 0
while True:
    version += 1
    save(directory, {"w": np.full(2000, version)}, {"version": version, "twin": [version] * 50}, keep=2)
    print(version, flush=True)
"""


def test_kills_at_random_moments_while_saving(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever was reported as saved is there after the kill, whole; nothing is ever found damaged."""
    rng = random.Random(3)
    for _ in range(20):
        saver = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert saver.stdout is not None
        reported = 0
        for _ in range(rng.randint(1, 4)):
            reported = int(saver.stdout.readline())
        with pytest.raises(subprocess.TimeoutExpired):  # a random moment within the saves that follow
            saver.wait(rng.random() * 0.01)
        saver.kill()
        reported = int((saver.stdout.read().split() or [reported])[-1])
        saver.wait(60)
        saver.stdout.close()
        checkpoint = load_latest(tmp_path)
        assert checkpoint is not None and checkpoint.meta["version"] in (reported, reported + 1)
        assert np.array_equal(checkpoint.arrays["w"], np.full(2000, checkpoint.meta["version"]))
        assert checkpoint.meta["twin"] == [checkpoint.meta["version"]] * 50
        assert json.loads((checkpoint.path / META).read_text()) == checkpoint.meta
    assert "damaged" not in caplog.text
