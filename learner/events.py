"""TensorBoard events of a learner, from its summary. The reporter's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.plugins.histogram.metadata import create_summary_metadata

from learner.lag import Counts, Lag, buckets
from pipeline.run_dir import RunDirectory
from pipeline.stages import BUSY

REPLAY_EVENTS = ("unrolls", "samples_per_insert", "samples_per_insert_target", "replay_ratio")


class Events:
    """Writes a summary as events, at its number of frames; begins its file with the first one.

    Args:
        directory: Where ``events/`` is.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory.events
        self._writer: Any = None  # until the disk has taken its first bytes
        self._rows: Counts | int = 0  # of the lag, at the last report

    def write(self, summary: dict[str, Any], lag: Lag) -> None:
        """
        Raises:
            OSError: they cannot be written.
        """
        rows = lag.rows.copy()
        _translated(lambda: self._write(summary, rows - self._rows, lag.max))
        self._rows = rows

    def close(self) -> None:
        """
        Raises:
            OSError: the last ones cannot be written.
        """
        if self._writer is not None:
            _translated(self._writer.close)

    def _write(self, summary: dict[str, Any], lag: Counts, largest_lag: int) -> None:
        if self._writer is None:
            self._writer = self._begun()
        with self._writer.as_default(np.int64(summary["frames"])):  # writes to the disk where it ends
            _write(summary, lag, largest_lag)

    def _begun(self) -> Any:
        """A writer with a file of its own; where the disk does not take that one's head, no file is left.

        Raises:
            tf.errors.OpError: see above.
        """
        there = set(self._directory.glob("*"))
        try:
            return tf.summary.create_file_writer(str(self._directory))
        except tf.errors.OpError:
            for path in set(self._directory.glob("*")) - there:
                path.unlink()
            raise


def _write(summary: dict[str, Any], lag: Counts, largest_lag: int) -> None:
    rates = summary["rates"]
    scalars = {
        "episodes/return_mean": summary["episode_return_mean"],
        "episodes/length_mean": summary["episode_length_mean"],
        "episodes/count": summary["episodes"],
        "evaluation/return_mean": summary["evaluation"]["last_return_mean"],
        "flow/agent_steps_per_second": rates.get("agent_steps_per_second"),
        "flow/environment_steps_per_second": rates.get("environment_steps_per_second"),
        "flow/unrolls_before_the_store": summary["queues"]["writer"],
        "flow/transitions_in_the_store": summary["ledger"]["waiting"]["store"],
        "lag/mean": summary["policy_lag_mean"],
        "lag/max": summary["policy_lag_max"],
        **{f"replay/{name}": summary["replay"][name] for name in REPLAY_EVENTS if "replay" in summary},
        **{f"training/{name}": value for name, value in summary["metrics"].items()},
    }
    for name, shares in summary["stages"].items():
        busy = shares.get(BUSY, 0.0)
        scalars |= {f"stages/{name}_busy": busy, f"stages/{name}_waiting": 1.0 - busy}
    for name, value in scalars.items():
        if value is not None:
            # TensorFlow keeps every number of Python's that it was ever given, 2.4 KB each time; not numpy's.
            tf.summary.scalar(name, np.float32(value))
    if np.any(lag):
        tf.summary.write("lag/steps", buckets(lag, largest_lag), metadata=create_summary_metadata("lag/steps", ""))


def _translated(write: Callable[[], object]) -> None:
    """Calls it; what TensorFlow's file system refuses is an OSError.

    Raises:
        OSError: see above.
    """
    try:
        write()
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
