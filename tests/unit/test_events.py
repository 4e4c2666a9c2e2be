"""TensorBoard events of a learner."""

from __future__ import annotations

import resource
import signal
from contextlib import contextmanager

import psutil
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginEventAccumulator

from learner.events import RESOLUTION, Events
from learner.lag import Lag
from pipeline.run_dir import RunDirectory

REPORTS = 200
MAX_BYTES_PER_REPORT = 4096


def summary(i):
    return {
        "frames": i,
        "episode_return_mean": i + 0.25,
        "episode_length_mean": i + 0.5,
        "episodes": i,
        "evaluation": {"last_return_mean": None},
        "rates": {"agent_steps_per_second": i + 0.125, "environment_steps_per_second": i + 0.375},
        "seconds": i / 2,
        "updates": i,
        "faults": {},
        "queues": {"writer": i, "prefetched_batches": 1},
        "ledger": {"waiting": {"store": i}, "dropped": {}},
        "policy_lag_mean": i + 0.75,
        "policy_lag_max": i,
        "metrics": dict.fromkeys(("loss", "entropy", "gradient_norm"), i + 0.1),
        "stages": {"training": {"busy": 0.5}},
    }


@pytest.fixture
def directory(tmp_path):
    made = RunDirectory(tmp_path)
    made.config.write_text("run:\n  seed: 7\n")
    return made


@pytest.fixture
def events(directory):
    made = Events(directory)
    yield made, directory.events
    made.close()


def read(folder):
    """As TensorBoard reads it."""
    accumulator = EventAccumulator(str(folder), {"tensors": 0})
    accumulator.Reload()
    return accumulator


def shown(folder):
    """As TensorBoard shows it: the accumulator of its own server."""
    accumulator = PluginEventAccumulator(str(folder), tensor_size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def steps(folder, tag="episodes/return_mean"):
    return [event.step for event in read(folder).Tensors(tag)]


def test_a_report_is_written_at_its_frames(events):
    made, folder = events
    made.write(summary(7), Lag())
    made.close()
    (path,) = folder.iterdir()
    found = {
        value.tag: (event.step, float(tf.make_ndarray(value.tensor)))
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tensor.dtype == tf.float32
    }
    assert found["episodes/return_mean"] == (7, 7.25)
    assert found["stages/training_busy"] == (7, 0.5)
    assert "evaluation/return_mean" not in found


@pytest.mark.parametrize("room", range(0, 1000, 50))
def test_a_disk_that_takes_no_more_is_an_oserror(events, room):
    """What it takes half of is taken back: what is written when there is room again is found behind it."""
    made, folder = events
    made.write(summary(0), Lag())
    (path,) = folder.iterdir()
    with largest_file(path.stat().st_size + room), pytest.raises(OSError, match="too large"):
        for i in range(1, REPORTS):
            made.write(summary(i), Lag())
    made.write(summary(REPORTS), Lag())
    found = steps(folder)
    assert found == [*range(len(found) - 1), REPORTS]


@contextmanager
def largest_file(size):
    """No file of this process grows beyond so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("room", [0, 10])
def test_a_disk_that_is_full_from_the_beginning_is_an_oserror_until_there_is_room(directory, room):
    """As a learner that is resumed may find it; no empty file is left by each try."""
    made, folder = Events(directory), directory.events
    with largest_file(room):
        for i in range(3):
            with pytest.raises(OSError, match="too large"):
                made.write(summary(i), Lag())
    assert not list(folder.glob("*"))
    made.write(summary(3), Lag())
    made.close()
    (path,) = folder.iterdir()
    assert {event.step for event in tf.compat.v1.train.summary_iterator(str(path)) if event.summary.value} == {3}


def test_no_report_is_no_file(directory):
    Events(directory).close()
    assert not directory.events.exists()


def test_each_curve_says_what_it_is(events):
    made, folder = events
    for i in range(2):
        made.write(summary(i), Lag())
    metadata = {tag: read(folder).SummaryMetadata(tag) for tag in read(folder).Tags()["tensors"]}
    kinds = {tag: one.plugin_data.plugin_name for tag, one in metadata.items()}
    described = [tag for tag, kind in kinds.items() if kind == "scalars"]
    assert len(described) > 15 and all(metadata[tag].summary_description for tag in described)
    assert kinds["run/config"] == "text" and "custom_scalars" in kinds.values()


def test_reports_of_a_long_run_are_few(events):
    made, folder = events
    hours = 24 * 3600
    for i in range(0, 7 * hours, 60):
        made.write({**summary(i), "seconds": i}, Lag())
    assert len(steps(folder)) < RESOLUTION * 6
    assert steps(folder)[:80] == [60 * i for i in range(80)]


def test_memory_is_flat_over_many_reports(events):
    """A run of a week makes 100 000 of them, each of other numbers."""
    made, _ = events
    process = psutil.Process()
    for i in range(REPORTS):
        made.write(summary(i), Lag())
    before = process.memory_info().rss
    for i in range(REPORTS, 2 * REPORTS):
        made.write(summary(i), Lag())
    assert process.memory_info().rss - before < REPORTS * MAX_BYTES_PER_REPORT


@pytest.mark.parametrize("checkpoint", [0, 40, 50])
def test_a_run_that_was_killed_and_resumed_does_not_go_back(directory, checkpoint):
    """What was written beyond the checkpoint is gone in TensorBoard, before the successor's first report too."""
    for begins, steps_written in ((None, range(0, 60, 10)), (checkpoint, (checkpoint + 3, checkpoint + 5))):
        made = Events(directory)
        if begins is not None:
            made.resume(begins)
        for step in steps_written:
            made.write(summary(step) | {"seconds": 1.0 + step}, Lag())
        made.close()
    expected = [*(step for step in range(0, 60, 10) if step <= checkpoint), checkpoint + 3, checkpoint + 5]
    for tag in ("episodes/return_mean", "flow/updates", "stages/training_busy"):
        assert steps(directory.events, tag) == expected
        assert [event.step for event in shown(directory.events).Tensors(tag)] == expected


def test_a_tensorboard_that_has_read_what_is_taken_back_forgets_it(directory):
    first = Events(directory)
    for step in range(0, 60, 10):
        first.write(summary(step) | {"seconds": 1.0 + step}, Lag())
    first.close()
    board = shown(directory.events)
    assert len(board.Tensors("flow/updates")) == 6
    second = Events(directory)
    second.resume(30)
    second.write(summary(35) | {"seconds": 100.0}, Lag())
    second.close()
    board.Reload()
    assert [event.step for event in board.Tensors("flow/updates")] == [0, 10, 20, 30, 35]


def test_a_file_that_was_cut_off_in_a_record_ends_whole(directory):
    first = Events(directory)
    for step in (1, 2, 3):
        first.write(summary(step) | {"seconds": float(10 * step)}, Lag())
    first.close()
    (path,) = directory.events.iterdir()
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(path.read_bytes()[:20])
    Events(directory).resume(3)
    assert path.stat().st_size == whole and steps(directory.events) == [1, 2, 3]
