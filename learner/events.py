"""TensorBoard events of a learner, from its summary. The reporter's thread.

Written by TensorBoard's own record writer rather than TensorFlow's summaries, which take ten times as long: one record
a report, on the disk whole or not at all. A learner that is resumed takes back what was written beyond the checkpoint,
and its file begins with a session's start, at which a TensorBoard that has read that forgets it: no curve goes back.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_STRING
from tensorboard.plugins.custom_scalar import layout_pb2 as layout
from tensorboard.plugins.custom_scalar import metadata as custom_scalars
from tensorboard.plugins.histogram import metadata as histograms
from tensorboard.plugins.scalar import metadata as scalars
from tensorboard.plugins.text import metadata as texts
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from learner.lag import Counts, Lag, buckets
from learner.rewind import rewind
from pipeline import curves
from pipeline.run_dir import RunDirectory

log = logging.getLogger(__name__)

RESOLUTION = 5000
"""Of a run that goes on for long, a report each time so small a part of it has gone by: a week is 30 000 of them."""

_LAYOUT = {
    "learning": {
        "episode return": ("episodes/return_mean", "evaluation/return_mean"),
        "losses": (r"training/.*loss",),
    },
    "flow": {
        "steps per second": (r"flow/.*_steps_per_second",),
        "busy share of each stage": (r"stages/.*_busy",),
        "policy lag, updates": ("lag/mean", "lag/max"),
    },
}
"""TensorBoard's tab Custom Scalars: what belongs together in one chart."""


class Events:
    """Writes a summary as events, at its number of frames; begins its file with the first one.

    Args:
        directory: Where ``events/`` is, and ``config.yaml``, which is shown as a text.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._file: _File | None = None  # until the disk has taken its head
        self._described: set[str] = set()
        self._rows: Counts | int = 0  # of the lag, at the last report
        self._next_seconds = 0.0
        self._resumed: int | None = None

    def resume(self, frames: int) -> None:
        """It goes on from a checkpoint with so many frames; before the first report.

        Raises:
            OSError: what was reported beyond that cannot be taken back.
        """
        self._resumed = frames
        taken_back = rewind(self._directory.events, frames)
        if taken_back.reports:
            log.info(
                "%d reports beyond the checkpoint, up to %d frames, are taken back in events/",
                taken_back.reports, taken_back.frames,
            )  # fmt: skip

    def write(self, summary: dict[str, Any], lag: Lag) -> None:
        """Writes a report, unless hardly any of the run has gone by since the last one.

        Raises:
            OSError: it cannot be written; nothing of it is.
        """
        seconds = summary["seconds"]
        if seconds < self._next_seconds:
            return
        rows = lag.rows.copy()
        step = int(summary["frames"])
        if self._file is None:
            self._file = _File.begin(self._directory.events, self._head(step))
        shown = [self._scalar(tag, value) for tag, value in curves.values(summary)]
        if np.any(rows - self._rows):
            shown.append(_histogram(buckets(rows - self._rows, lag.max)))
        self._file.add(_event(step, shown))
        self._described.update(value.tag for value in shown)
        self._rows, self._next_seconds = rows, seconds * (1.0 + 1.0 / RESOLUTION)

    def _head(self, step: int) -> list[Event]:
        head = _head(step, self._directory.config.read_text())
        begins = 0 if self._resumed is None else self._resumed + 1  # the second start in a folder is a restart
        start = Event(wall_time=time.time(), step=begins, session_log=SessionLog(status=SessionLog.START))
        return [head[0], start, *head[1:]]

    def close(self) -> None:
        """Closes the file; nothing is waiting to be written."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _scalar(self, tag: str, value: float) -> Summary.Value:
        """Described where it stands first in the file, as TensorBoard wants it."""
        tensor = TensorProto(dtype=DT_FLOAT, float_val=[value])
        if tag in self._described:
            return Summary.Value(tag=tag, tensor=tensor)
        curve = curves.curve(tag)
        unit = f" Unit: {curve.unit}." if curve.unit else ""
        metadata = scalars.create_summary_metadata(display_name="", description=curve.words + unit)
        return Summary.Value(tag=tag, tensor=tensor, metadata=metadata)


class _File:
    """A file of whole records: what the disk takes half of is taken back."""

    def __init__(self, path: str) -> None:
        """
        Raises:
            OSError: it exists, or cannot be made.
        """
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._bytes = 0
        self._records = RecordWriter(self)

    @classmethod
    def begin(cls, directory: os.PathLike[str], head: list[Event]) -> _File:
        """One with a head; where the disk does not take that, no file is left.

        Raises:
            OSError: see above.
        """
        os.makedirs(directory, mode=0o700, exist_ok=True)
        name = f"events.out.tfevents.{time.time():015.4f}.{socket.gethostname()}.{os.getpid()}"
        file = cls(os.path.join(directory, name))
        try:
            for event in head:
                file.add(event)
        except OSError:
            file.close()
            os.unlink(file._path)
            raise
        return file

    def add(self, event: Event) -> None:
        """
        Raises:
            OSError: the disk does not take it.
        """
        self._records.write(event.SerializeToString())

    def write(self, record: bytes) -> None:
        """For ``RecordWriter``."""
        left = memoryview(record)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            os.ftruncate(self._descriptor, self._bytes)
            raise
        self._bytes += len(record)

    def close(self) -> None:
        os.close(self._descriptor)


def _head(step: int, config: str) -> list[Event]:
    """The format, what is run, and how the curves are laid out."""
    text = _text(curves.CONFIG, "\n".join(f"    {line}" for line in config.splitlines()), texts)
    custom = layout.Layout(category=[_category(name, charts) for name, charts in _LAYOUT.items()])
    value = Summary.Value(
        tag=custom_scalars.CONFIG_SUMMARY_TAG,
        metadata=custom_scalars.create_summary_metadata(),
        tensor=TensorProto(dtype=DT_STRING, string_val=[custom.SerializeToString()]),
    )
    return [Event(wall_time=time.time(), file_version="brain.Event:2"), _event(step, [text, value])]


def _category(name: str, charts: dict[str, tuple[str, ...]]) -> layout.Category:
    shown = [
        layout.Chart(title=title, multiline=layout.MultilineChartContent(tag=tags)) for title, tags in charts.items()
    ]
    return layout.Category(title=name, chart=shown)


def _event(step: int, shown: list[Summary.Value]) -> Event:
    return Event(wall_time=time.time(), step=step, summary=Summary(value=shown))


def _text(tag: str, markdown: str, plugin: Any) -> Summary.Value:
    metadata: SummaryMetadata = plugin.create_summary_metadata(display_name="", description="")
    return Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(np.array([markdown.encode()], object)))


def _histogram(edges: Any) -> Summary.Value:
    metadata = histograms.create_summary_metadata(
        display_name="", description="Trained transitions by their policy lag in updates, in the last interval."
    )
    return Summary.Value(tag=curves.LAG_STEPS, metadata=metadata, tensor=make_tensor_proto(edges))
