"""TensorBoard events of a learner."""

from __future__ import annotations

import resource
import signal
from contextlib import contextmanager

import psutil
import pytest
import tensorflow as tf

from learner.events import Events
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
        "queues": {"writer": i},
        "ledger": {"waiting": {"store": i}},
        "policy_lag_mean": i + 0.75,
        "policy_lag_max": i,
        "metrics": dict.fromkeys(("loss", "entropy", "gradient_norm"), i + 0.1),
        "stages": {"training": {"busy": 0.5}},
    }


@pytest.fixture
def events(tmp_path):
    made = Events(RunDirectory(tmp_path))
    yield made, tmp_path / "events"
    made.close()


def test_a_report_is_written_at_its_frames(events):
    made, folder = events
    made.write(summary(7), Lag())
    made.close()
    (path,) = folder.iterdir()
    found = {
        value.tag: (event.step, float(tf.make_ndarray(value.tensor)))
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert found["episodes/return_mean"] == (7, 7.25)
    assert found["stages/training_busy"] == (7, 0.5)
    assert "evaluation/return_mean" not in found


@pytest.mark.parametrize("room", range(0, 1000, 50))
def test_a_disk_that_takes_no_more_is_an_oserror(events, room):
    """TensorFlow writes in the midst of a report and at its end."""
    made, folder = events
    made.write(summary(0), Lag())
    (path,) = folder.iterdir()
    with largest_file(path.stat().st_size + room), pytest.raises(OSError, match="too large"):
        for i in range(1, REPORTS):
            made.write(summary(i), Lag())
    made.write(summary(REPORTS), Lag())


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
def test_a_disk_that_is_full_from_the_beginning_is_an_oserror_until_there_is_room(tmp_path, room):
    """As a learner that is resumed may find it; no empty file is left by each try."""
    made, folder = Events(RunDirectory(tmp_path)), tmp_path / "events"
    with largest_file(room):
        for i in range(3):
            with pytest.raises(OSError, match="too large"):
                made.write(summary(i), Lag())
    assert not list(folder.glob("*"))
    made.write(summary(3), Lag())
    made.close()
    (path,) = folder.iterdir()
    assert {event.step for event in tf.compat.v1.train.summary_iterator(str(path)) if event.summary.value} == {3}


def test_no_report_is_no_file(tmp_path):
    Events(RunDirectory(tmp_path)).close()
    assert not (tmp_path / "events").exists()


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
