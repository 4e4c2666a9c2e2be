"""A run's curves, read back from its TensorBoard events, thinned to what a plot can show.

Read by TensorBoard's own accumulator, without TensorFlow. Of a file whose end is damaged, or is being written, what
stands before that is read, and how much is not is said.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline import curves

MAX_READ = 4000
"""Points of a curve that are kept of a longer one, at random."""
MAX_POINTS = 1000
"""Points of a curve that are drawn."""
FILES = "*tfevents*"
PAUSE_SECONDS = 10.0
"""Of reports that lie closer together nobody started anew in between."""
_HEADER, _FOOTER = 12, 4

Numbers = npt.NDArray[np.float64]


class Series(NamedTuple):
    """A curve: float64 ``[N]`` each, N at most ``MAX_POINTS``.

    Attributes:
        frames: Environment frames; never falls.
        seconds: Since the first environment step, without pauses between processes.
        values: Without NaN and infinity.
    """

    frames: Numbers
    seconds: Numbers
    values: Numbers


class Found(NamedTuple):
    """What the events of a run hold.

    Attributes:
        series: By name.
        began: Unix seconds of the first report; None where there is none.
        ended: Of the last one.
        damage: A line for each file that cannot be read to its end.
    """

    series: dict[str, Series]
    began: float | None
    ended: float | None
    damage: list[str]


def read(events: Path) -> Found:
    """Reads ``events/``; empty where there is nothing.

    Raises:
        ModuleNotFoundError: TensorBoard is not installed.
        OSError: a file cannot be read.
    """
    files = sorted(events.glob(FILES))
    for path in files:
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError(f"{path} is no file")
    if not files:
        return Found({}, None, None, [])
    raw = dict(_raw(events))
    walls = [wall for wall, _, _ in raw.values() if len(wall)]
    clock = raw.get(curves.SECONDS)
    found = {tag: _series(points, clock) for tag, points in raw.items() if tag != curves.SECONDS}
    return Found(
        {tag: one for tag, one in found.items() if len(one.values)},
        min((float(wall[0]) for wall in walls), default=None),
        max((float(wall[-1]) for wall in walls), default=None),
        [words for path in files if (words := _damage(path))],
    )


def thinned(values: Numbers, most: int = MAX_POINTS) -> npt.NDArray[np.int64]:
    """Which points show a curve: first and last, and of each stretch in between the lowest and the highest."""
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most // 2, dtype=np.int64)[:-1]
    stretches = np.split(values, edges[1:])
    kept = {0, len(values) - 1}
    for start, stretch in zip(edges.tolist(), stretches, strict=True):
        kept |= {start + int(stretch.argmin()), start + int(stretch.argmax())}
    return np.array(sorted(kept))


def lasting(frames: Numbers) -> npt.NDArray[np.bool_]:
    """Which reports no later one made void: a learner that was resumed goes on from a checkpoint, and counts anew."""
    if not len(frames):
        return np.zeros(0, np.bool_)
    begins = np.concatenate([[True], np.diff(frames) != 0])  # a stretch in which nothing was trained
    stretches = frames[begins]
    later = np.minimum.accumulate(np.concatenate([stretches[1:], [np.inf]])[::-1])[::-1]
    kept: npt.NDArray[np.bool_] = (stretches < later)[np.cumsum(begins) - 1]
    return kept


def _raw(events: Path) -> Iterator[tuple[str, tuple[Numbers, Numbers, Numbers]]]:
    """Name -> wall time, frames, values of each scalar."""
    _without_tensorflow()
    from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    accumulator = EventAccumulator(str(events), {TENSORS: MAX_READ})
    accumulator.Reload()
    for tag in accumulator.Tags()[TENSORS]:
        if accumulator.SummaryMetadata(tag).plugin_data.plugin_name != "scalars":
            continue
        points = accumulator.Tensors(tag)
        rows = [(one.wall_time, one.step, float(make_ndarray(one.tensor_proto))) for one in points]
        wall, frames, values = np.array(rows, np.float64).reshape(-1, 3).T
        yield tag, (wall, frames, values)


def _without_tensorflow() -> None:
    """TensorBoard's switch for its own reader: that this module is there. Else TensorFlow is loaded, for seconds."""
    name = "tensorboard.compat.notf"
    sys.modules.setdefault(name, ModuleType(name))


def _series(points: tuple[Numbers, Numbers, Numbers], clock: Any) -> Series:
    wall, frames, values = points
    kept = np.isfinite(values) & lasting(frames)
    wall, frames, values = wall[kept], frames[kept], values[kept]
    # A run that is older than that curve has only the time of day.
    seconds = wall - wall[:1] if clock is None else np.interp(wall, clock[0], _run_time(clock[0], clock[2]))
    shown = thinned(values)
    return Series(frames[shown], seconds[shown], values[shown])


def _run_time(wall: Numbers, trained: Numbers) -> Numbers:
    """Seconds of the run at each report: by the time of day, without what lay between two processes.

    Args:
        wall: Unix seconds.
        trained: Of training, as the learner counts them: it takes those back that a restart made void.
    """
    passed, gained = np.diff(wall), np.diff(trained)
    steps = np.where(passed <= PAUSE_SECONDS, passed, np.clip(gained, 0.0, np.maximum(passed, 0.0)))
    return np.concatenate([trained[:1], trained[:1] + np.cumsum(steps)])


def _damage(path: Path) -> str:
    """What cannot be read of a file, in words: from the first record that is cut off or is not what was written."""
    size, at = path.stat().st_size, 0
    with path.open("rb") as file:
        while at < size:
            end = _record(file, at, size)
            if end is None:
                return f"{path.name}: the last {size - at:,} of {size:,} bytes cannot be read"
            at = end
    return ""


def _record(file: BinaryIO, at: int, size: int) -> int | None:
    """Where the record ends that begins at ``at``, where the file stands; None where it is damaged."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    header = file.read(_HEADER)
    if len(header) < _HEADER or struct.unpack("<I", header[8:])[0] != masked_crc32c(header[:8]):
        return None
    length = struct.unpack("<Q", header[:8])[0]
    end: int = at + _HEADER + length + _FOOTER
    if end > size:
        return None
    data, footer = file.read(length), file.read(_FOOTER)
    return end if struct.unpack("<I", footer)[0] == masked_crc32c(data) else None
