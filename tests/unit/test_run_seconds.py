"""``run.max_seconds`` over the processes of a run."""

from __future__ import annotations

import pytest

from learner.time_limit import TimeLimit
from pipeline.elapsed import elapsed_seconds, reached
from pipeline.errors import ConfigError

pytestmark = pytest.mark.unit


class Process:
    """A learner's clock, and when its first environment step was."""

    def __init__(self, seconds, *told):
        self.now, self.first_step = 1000.0, None
        self.limit = TimeLimit(seconds, lambda: self.first_step, lambda: self.now)
        self.limit.resume(*told)


def test_it_begins_with_the_first_step():
    process = Process(10.0)
    process.limit.wait()
    process.now = process.first_step = 1009.0
    assert process.limit.elapsed() == 0.0
    process.now += 10.0
    assert process.limit.over()


def test_without_a_step_the_wait_for_it_is_bounded():
    process = Process(10.0)
    process.now += 60.0  # it starts
    assert not process.limit.over()
    process.limit.wait()
    process.now += 9.9
    assert not process.limit.over()
    process.now += 0.1
    assert process.limit.over()


def test_earlier_processes_count_whichever_tells_more():
    checkpoint, summary = {"elapsed_seconds": 4.0, "seconds": 3.0}, {"elapsed_seconds": 6.5, "seconds": 6.0}
    process = Process(10.0, checkpoint, summary)
    process.first_step = process.now
    process.now += 3.4
    assert not process.limit.over()
    process.now += 0.2
    assert process.limit.over()
    assert elapsed_seconds(checkpoint, None) == 4.0
    assert elapsed_seconds({"seconds": 3.0}, {"elapsed_seconds": None}) == 3.0, "of a release that did not tell"
    assert elapsed_seconds(None) == 0.0


def test_a_run_that_had_its_time_says_how_to_go_on(caplog):
    assert Process(10.0, {"elapsed_seconds": 10.2}).limit.over()
    assert caplog.messages == [reached(10.0, 10.2)]
    assert "run.max_seconds = 10: the run has had 10.2 s already" in caplog.text
    assert "--set run.max_seconds=20" in caplog.text and "--set run.max_seconds=null" in caplog.text


def test_no_limit():
    process = Process(None, {"elapsed_seconds": 1e9})
    process.limit.wait()
    process.now += 1e9
    assert not process.limit.over()


def test_an_end_without_training_says_why():
    limit, bottleneck = Process(4.0).limit, {"why": "the learner waits for workers: none is connected"}
    fault = str(limit.untrained("no environment has taken a step", "worker-0: KeyError: 'level'", bottleneck))
    assert fault == (
        "run.max_seconds = 4 is over, no environment has taken a step: the last fault of worker-0: KeyError: 'level'"
    )
    assert str(limit.untrained("no worker has come", "", bottleneck)).endswith(
        f"no worker has come: {bottleneck['why']}"
    )


@pytest.mark.parametrize("told", ["abc", float("nan"), float("inf"), -1.0, [1.0], True])
def test_what_is_no_time_is_refused_by_its_name(told):
    with pytest.raises(ConfigError, match=r"elapsed_seconds = .* is no time: put in the seconds"):
        elapsed_seconds({"elapsed_seconds": told})
