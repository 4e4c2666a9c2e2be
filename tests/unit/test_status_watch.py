"""The live view: it fits, it says who is silent, and its rates are of now."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pipeline.launch.status_text import bottleneck_lines
from pipeline.launch.status_watch import Rate, Watched, plain_line, screen


def worker(i, silent=False, faults=None, taken=0):
    return {
        "worker": i,
        "worker_id": f"a-rather-long-host-name-{i}",
        "run": 7,
        "host": "host",
        "mode": "train",
        "environments": 64,
        "heard_seconds_ago": 12.0 if silent else 0.1,
        "silent": silent,
        "state": "serving",
        "reason": "",
        "outstanding": 1,
        "report": {
            "taken": taken,
            "faults": faults or {},
            "message": "reset failed: no such level" if faults else "",
            "busy_percent": 40,
        },
    }


def status(workers=3, taken=0, **more):
    return {
        "run_directory": "runs/cartpole_vtrace-20260131-120000",
        "broker": 5,
        "bottleneck": {
            "component": "inference",
            "why": "inference is busy 72% of its time; environments wait 81% of their time for actions",
            "advice": "a faster or further device (learner.inference_devices), a smaller network, or a larger one",
            "since_seconds": 75.0,
        },
        "stages": {
            "environments": {"busy": 0.2, "actions": 0.8},
            "inference": {"busy": 0.72, "requests": 0.2, "room": 0.08},
            "writer": {"busy": 0.1, "unrolls": 0.9},
            "feed": {"busy": 0.1, "unrolls": 0.9},
            "training": {"busy": 0.2, "batches": 0.7, "store": 0.1},
        },
        "workers_total": workers,
        "workers": [worker(i, taken=taken) for i in range(min(workers, 512))],
        "learners": [{"pending_requests": 4, "oldest_wait_seconds": 0.002}],
        "messages": {"workers": taken},
        "learner": {
            "state": "training",
            "seconds": 99.0,
            "updates": taken // 10,
            "agent_steps": taken,
            "episodes": 2154,
            "episode_return_mean": 472.86,
            "policy_lag_mean": 0.8,
            "policy_lag_max": 4,
            "loss": 0.01,
            "rates": {"agent_steps_per_second": 18305.2, "environment_steps_per_second": 19224.1},
            "evaluation": {"last_return_mean": 500.0},
            "queues": {"writer": 32, "prefetched_batches": 1},
            "inference": {"rows": taken},
            "faults": {},
            "ledger": {"waiting": {"store": 640}, "dropped": {}, "error": 0},
        },
        **more,
    }


def drawn(shown, size, watched=None, now=0.0):
    """The screen's lines, as a terminal of that size has them."""
    console = Console(file=io.StringIO(), width=size[0], height=size[1], force_terminal=False, color_system=None)
    console.print(screen(shown, watched or Watched(), now, size))
    return console.file.getvalue().rstrip("\n").split("\n")


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 40), (200, 60)])
@pytest.mark.parametrize("workers", [0, 3, 30, 2000])
def test_it_fits_and_counts_what_does_not(size, workers):
    shown = status(workers)
    if workers:
        shown["workers"][-1] = worker(511, faults={"env_errors": 3})
        shown["learner"]["faults"] = {"env_errors": 3}
    lines = drawn(shown, size)
    assert len(lines) <= size[1] and max(map(len, lines)) <= size[0]
    text = "\n".join(lines)
    for words in ("bottleneck: inference", "19,224 steps/s", "472.86", "actions 80%", "640 steps in", "32 unrolls"):
        assert words in text, words
    if workers:
        assert "reset failed" in text, "the one in trouble comes first"
        named = sum("host-name-" in line for line in lines)
        assert workers <= named or f"and {workers - named + 1} more" in text


def test_the_last_fault_of_a_worker_that_is_gone_is_shown():
    shown = status(0)
    shown["learner"] |= {"faults": {"env_errors": 3}, "newest_fault": "w: KeyError: 'level' (corridor.py:21, in reset)"}
    text = "\n".join(drawn(shown, (120, 40)))
    assert "faults: env_errors 3" in text and "w: KeyError: 'level' (corridor.py:21, in reset)" in text


def test_a_larger_terminal_shows_why_and_what_to_do():
    text = " ".join(" ".join(drawn(status(), (120, 40))).split())
    assert "environments wait 81% of their time for actions" in text and "to scale: a faster or further device" in text


def test_a_silent_worker_is_said_to_be_silent_and_has_no_busy_share():
    shown = status()
    shown["workers"][2] = worker(2, silent=True)
    (line,) = (line for line in drawn(shown, (80, 24)) if "name-2" in line)
    assert "last heard of 12 s ago" in line and "40%" not in line
    assert "1 of them silent" in plain_line(shown)


def test_rates_are_of_the_last_seconds_and_not_of_the_whole_run():
    watched = Watched()
    for second in range(60):
        watched.observe(status(taken=100 * second), float(second))
    for second in range(60, 70):
        watched.observe(status(taken=6000 + 1000 * (second - 60)), float(second))
    assert watched.rate("rows", 69.0) == pytest.approx(1000.0)
    assert watched.rate(("worker", 0, 7), 69.0) == pytest.approx(1000.0)
    assert "100" in next(line for line in drawn(status(), (120, 40), watched, 69.0) if line.startswith("training"))


def test_a_counter_that_stands_still_has_rate_0_and_one_that_began_anew_has_none():
    rate = Rate()
    assert rate.value(0.0) is None
    for second in range(5):
        rate.observe(10.0 * second, float(second))
    assert rate.value(4.0) == pytest.approx(10.0)
    rate.observe(40.0, 20.0)
    assert rate.value(20.0) == 0.0
    rate.observe(3.0, 21.0)
    assert rate.value(21.0) is None


def test_a_status_that_is_none_is_shown_too():
    assert drawn({"workers": 3, "learner": [], "stages": None, "bottleneck": "x"}, (80, 24))


def test_nothing_is_advised_while_it_may_pass_by_itself():
    found = {"component": "workers", "why": "none is connected", "advice": "start workers", "since_seconds": 1.0}
    assert "to scale: start workers" not in bottleneck_lines(found)
    for since in (60.0, None):
        assert "to scale: start workers" in bottleneck_lines({**found, "since_seconds": since})
