"""The training loop itself: the lag of what it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.episodes import Episodes
from learner.feed import Batch, Versions
from learner.lineage import Lineage
from learner.recovery import Versions as Published
from learner.training import Limits, TrainingLoop
from learner.writes import Writes
from pipeline.ledger import Ledger
from pipeline.stages import BUSY
from pipeline.stopping import StopToken

pytestmark = pytest.mark.unit


class Script:
    """Feed and trainer: batches whose rows acted at these versions, one after the other, and nothing behind them."""

    done_is = BUSY

    def __init__(self, stop: StopToken, acted: list[list[int]]) -> None:
        self.stop, self.left = stop, list(acted)

    def get(self, timeout_seconds: float) -> Batch | None:
        if not self.left:
            self.stop.stop("enough")
            return None
        values, rows = np.unique(np.array(self.left.pop(0), np.int64), return_counts=True)
        return Batch(None, [], Versions(values, rows))  # type: ignore[arg-type]

    def done(self, batch: Batch, metrics: Any) -> None: ...

    def wants_checkpoint(self) -> bool:
        return False

    def update(self, prepared: Any, frames: int) -> Any:
        return None


def train(tmp_path: Path, acted: list[list[int]], restored: int = 0, jump: int = 0) -> TrainingLoop:
    """A learner that went on from version ``restored`` under the name ``restored + jump``, when all is trained."""
    stop, lineage, version = StopToken(), Lineage(), restored + jump
    lineage.branch(restored, version)
    script: Any = Script(stop, acted)
    published = Published(tmp_path / "versions.json")
    published.reserve(version)
    loop = TrainingLoop(
        trainer=script,
        feed=script,
        ledger=Ledger(),
        episodes=Episodes(9, 4),
        limits=Limits(None, None, None),
        frame_skip=1,
        version=version,
        lineage=lineage,
        versions=published,
        writes=Writes(tmp_path, lambda: 0.0),
        evaluate=lambda: False,
        checkpoint=lambda: True,
        checkpoint_seconds=1e9,
        stop=stop,
    )
    loop.run(lambda: 0.0)
    return loop


def test_lag_is_counted_at_the_start_of_the_update_that_consumes(tmp_path: Path) -> None:
    loop = train(tmp_path, [[0, 0], [0, 1], [2], [1, 3, 3]])
    assert loop.version == loop.updates == 4
    assert loop.lag.status()["policy_lag_histogram"] == {"0": 6, "1": 1, "2": 1}
    assert (loop.lag.max, loop.lag.sum) == (2, 3)


def test_a_jump_of_the_version_is_no_lag(tmp_path: Path) -> None:
    """Rows of before the crash, of what was rolled back, and of after it."""
    loop = train(tmp_path, [[9, 10, 12], [266, 10, 12], [267, 266]], restored=10, jump=256)
    assert (loop.version, loop.updates) == (269, 3)
    assert loop.lag.status()["policy_lag_histogram"] == {"0": 2, "1": 5, "2": 1}
