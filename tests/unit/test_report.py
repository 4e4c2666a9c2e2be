"""``seedmq report``: what it makes of runs in every state."""

from __future__ import annotations

import json
import os
import re
import time

import numpy as np
import pytest

from learner.events import Events
from learner.lag import Lag
from pipeline.cli import run_command
from pipeline.config.load import load
from pipeline.curves import SECONDS
from pipeline.launch.report import facts, series
from pipeline.run_dir import RunDirectory, write_json

MAX_BYTES = 8 * 2**20


def summary(i, **more):
    return {
        "stop_reason": None,
        "frames": 100 * i,
        "agent_steps": 100 * i,
        "seconds": float(i),
        "updates": i,
        "episodes": i,
        "episode_return_mean": float(i),
        "episode_length_mean": 9.0,
        "evaluation": {"last_return_mean": None},
        "rates": {"agent_steps_per_second": 100.0, "environment_steps_per_second": 101.0},
        "queues": {"writer": 1, "prefetched_batches": 1},
        "policy_lag_mean": 0.5,
        "policy_lag_max": 3,
        "metrics": {"loss": 1.0 / (i + 1), "entropy": 0.5},
        "stages": {"training": {"busy": 0.25, "batches": 0.75}},
        "faults": {"env_errors": 2},
        "ledger": {
            "taken": 110,
            "undelivered": 3,
            "accepted": 107,
            "trained": 100,
            "waiting": {"assembler": 1, "store": 2, "prefetch": 0},
            "dropped": {"seam": 4},
            "rolled_back": 0,
            "masked": 5,
            "error": 0,
        },
        **more,
    }


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "run", "a<b", load("cartpole_vtrace").config)


def write(directory, reports):
    made = Events(directory)
    for report in reports:
        made.write(report, Lag())
    made.close()


@pytest.fixture
def page(directory, tmp_path):
    """Makes the report and gives its text, without Plotly's own script."""

    def make():
        out = tmp_path / "report.html"
        assert run_command(["report", str(directory.path), "--out", str(out)]) == 0
        text = out.read_text()
        assert len(text) < MAX_BYTES
        return re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)

    return make


def plots(text):
    found = re.search(r'<script type="application/json" id="plots">(.*?)</script>', text, re.DOTALL)
    return {plot["title"]: plot for plot in json.loads(found[1])} if found else {}


def test_a_run_that_ended(directory, page):
    write(directory, [summary(i) for i in range(20)])
    write_json(directory.summary, summary(20, stop_reason="solved"))
    text = page()
    drawn = plots(text)
    assert {"Episode return", "Loss terms", "Steps per second", "Policy lag", "entropy"} <= set(drawn)
    lines = drawn["Episode return"]["figure"]["data"]
    assert lines[0]["x"] == [100 * i for i in range(20)] and lines[0]["y"] == list(range(20))
    (times,) = drawn["Episode return"]["times"]
    assert len(times) == 20 and times == sorted(times) and drawn["Episode return"]["time_unit"] == "s"
    assert ">solved</span>" in text and "a&lt;b" in text and "a<b" not in text
    assert "fault of an environment: env_errors" in text and "unroll_length" in text
    assert not re.search(r"""(?:src|href)\s*=|url\(|@import""", text), "it asks for something"


def test_the_ledger_closes_or_says_what_is_missing(directory, page):
    write_json(directory.summary, summary(20, stop_reason="error"))
    taken, accepted = facts.books(summary(20))
    assert (taken.whole.number, taken.difference) == (110, 0) and (accepted.whole.number, accepted.difference) == (
        107,
        0,
    )
    assert "closes" in page()
    short = summary(20)
    short["ledger"] |= {"trained": 90, "error": 10}
    assert facts.books(short)[1].difference == 10
    write_json(directory.summary, {**short, "stop_reason": "error"})
    assert "10 missing" in page()


def test_the_ledger_of_a_replay():
    ledger = {
        **summary(1)["ledger"],
        "waiting": {"assembler": 1, "store": 0, "prefetch": 0},
        "inserted": 102,
        "resident": 60,
        "evicted": 42,
    }
    assert [one.difference for one in facts.books({"ledger": ledger})] == [0, 0, 0]


@pytest.mark.parametrize(("age", "words"), [(0, "running"), (600, "killed")])
def test_a_run_that_goes_on_and_one_that_was_killed(directory, page, age, words):
    write(directory, [summary(i) for i in range(5)])
    write_json(directory.summary, summary(5))
    then = time.time() - age
    os.utime(directory.summary, (then, then))
    assert re.search(rf'badge \w+">{words}', page())


def test_a_run_whose_process_is_gone_was_killed_however_fresh(directory, page):
    write_json(directory.summary, summary(5))
    write_json(directory.endpoints, {"broker": "ipc:///tmp/x/broker", "keys": None, "pid": 2**22 + 1})
    assert 'badge bad">killed' in page()


def test_a_run_without_events_and_one_without_anything_say_so(directory, page):
    assert "No figures yet" in page()
    write_json(directory.summary, summary(5))
    text = page()
    assert "No events were written" in text and set(plots(text)) == {"Where each stage's time goes"}


def test_a_resumed_run_is_one_curve(directory, page):
    """It was killed at 10, its checkpoint was of 6."""
    write(directory, [summary(i) for i in range(10)])
    write(directory, [{**summary(i), "episode_return_mean": 1000.0 + i} for i in range(6, 12)])
    line = plots(page())["Episode return"]["figure"]["data"][0]
    assert line["x"] == [100 * i for i in range(12)]
    assert line["y"] == [*range(6), *(1000 + i for i in range(6, 12))]


def test_the_pause_between_two_processes_is_no_time_of_the_run():
    wall = np.array([0.0, 1.0, 2.0, 3600.0, 3601.0, 3602.0])
    trained = np.array([5.0, 6.0, 7.0, 6.0, 7.0, 8.0])
    assert series._run_time(wall, trained).tolist() == [5.0, 6.0, 7.0, 7.0, 8.0, 9.0]


def test_a_long_run_is_thinned_and_its_extremes_stay(directory, page):
    made, reports = [], 6000
    for i in range(reports):
        made.append(summary(i))
    write(directory, made)
    drawn = plots(page())
    for plot in drawn.values():
        assert all(len(line["x"]) <= series.MAX_POINTS for line in plot["figure"]["data"])
    line = drawn["Episode return"]["figure"]["data"][0]
    assert len(line["x"]) > series.MAX_POINTS / 2 and line["x"][0] < 1000
    values = np.zeros(100_000)
    values[[31_415, 92_653]] = 7.0, -7.0
    kept = series.thinned(values)
    assert len(kept) <= series.MAX_POINTS and {0, 31_415, 92_653, 99_999} <= set(kept.tolist())


@pytest.mark.parametrize("spoil", ["cut", "zeros", "noise", "flipped"])
def test_a_damaged_end_costs_only_what_is_damaged(directory, page, spoil):
    write(directory, [summary(i) for i in range(20)])
    (path,) = directory.events.iterdir()
    data = path.read_bytes()
    flipped = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
    spoilt = {"cut": data[:-7], "zeros": data + bytes(64), "noise": data + b"\xff" * 64, "flipped": flipped}
    path.write_bytes(spoilt[spoil])
    write(directory, [summary(i) for i in range(20, 25)])
    text = page()
    assert "bytes cannot be read" in text
    xs = plots(text)["Episode return"]["figure"]["data"][0]["x"]
    assert xs[:19] == [100 * i for i in range(19)] and xs[-5:] == [100 * i for i in range(20, 25)]


def test_values_that_are_none_are_left_out(directory, page):
    write(directory, [{**summary(i), "metrics": {"loss": float("nan") if i == 3 else 1.0}} for i in range(6)])
    assert plots(page())["Loss terms"]["figure"]["data"][0]["x"] == [0, 100, 200, 400, 500]


def test_warnings_and_errors_of_the_logs(directory, page):
    lines = [
        "2026-01-31T12:00:00.123Z INFO worker/1 not shown",
        "2026-01-31T12:00:01.123Z WARNING worker/1 hung <script>alert(1)</script>",
        json.dumps({"time": "2026-01-31T12:00:02.123Z", "level": "ERROR", "component": "worker", "message": "as json"}),
        '{"level": "ERROR", ',
    ]
    (directory.logs / "worker-0.log").write_text("\n".join(lines))
    text = page()
    assert "1 warning, 1 error" in text and "as json" in text and "not shown" not in text
    assert "&lt;script&gt;alert(1)" in text and "<script>alert" not in text


def test_what_may_be_a_secret_is_not_in_it(directory, page):
    config = load("cartpole_vtrace", ["store.url=redis://somebody@redis.example:6379", "security.insecure=true"]).config
    assert "somebody" not in facts.settings(config) and "redis.example" in facts.settings(config)


def test_there_is_no_run(tmp_path, capsys):
    assert run_command(["report", str(tmp_path / "none"), "--out", str(tmp_path / "x.html")]) == 2
    assert "no run directory" in capsys.readouterr().err


def test_a_file_that_is_there_is_replaced_and_said(directory, tmp_path, capsys):
    out = tmp_path / "x.html"
    out.write_text("old")
    assert run_command(["report", str(directory.path), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"replaced {out} (") and out.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("name", ["missing/x.html", "."])
def test_a_place_that_cannot_be_written(directory, tmp_path, capsys, name):
    assert run_command(["report", str(directory.path), "--out", str(tmp_path / name)]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_device_and_a_file_of_the_run_stay(directory, capsys):
    for out in ("/dev/null", str(directory.config)):
        assert run_command(["report", str(directory.path), "--out", out]) == 2
        assert f"cannot write {out}: it is" in capsys.readouterr().err
    assert load(directory.config).config and not os.path.isfile("/dev/null")


@pytest.mark.parametrize(
    "more",
    [
        {"ledger": {"taken": 1}},
        {"seconds": "<b>"},
        {"stages": 3},
        {"faults": 3},
        {"stages": {"training": {"busy": float("nan")}}},
    ],
)
def test_a_summary_of_somebody_else_is_said_in_one_line(directory, tmp_path, capsys, more):
    directory.summary.write_text(json.dumps(summary(3, **more)))
    assert run_command(["report", str(directory.path), "--out", str(tmp_path / "x.html")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: cannot read the run in") and said.count("\n") == 1


@pytest.mark.parametrize("endpoints", [{}, {"pid": 1}, {"pid": 10**30, "broker": "ipc:///x"}])
def test_endpoints_of_somebody_else(directory, page, endpoints):
    write_json(directory.summary, summary(3))
    write_json(directory.endpoints, endpoints)
    assert "<!doctype html>" in page()


def test_what_is_no_file_is_not_waited_for(directory, tmp_path, capsys):
    os.mkfifo(directory.logs / "x.log")
    os.mkfifo(directory.events / "x.tfevents")
    assert run_command(["report", str(directory.path), "--out", str(tmp_path / "x.html")]) == 2
    assert "x.tfevents is no file" in capsys.readouterr().err


def test_every_curve_that_is_written_has_words(directory):
    write(directory, [summary(i) for i in range(3)])
    found = series.read(directory.events)
    assert SECONDS not in found.series and "episodes/return_mean" in found.series


@pytest.mark.parametrize(
    ("frames", "kept"),
    [
        ([], []),
        ([1, 2, 3], [1, 1, 1]),
        ([1, 2, 2, 2, 3], [1, 1, 1, 1, 1]),  # nothing was trained for a while
        ([1, 2, 3, 2, 3], [1, 0, 0, 1, 1]),
        ([1, 5, 6, 2, 7, 3, 4], [1, 0, 0, 1, 0, 1, 1]),
        ([3, 3, 1], [0, 0, 1]),
    ],
)
def test_what_a_restart_made_void(frames, kept):
    assert series.lasting(np.array(frames, float)).tolist() == [bool(one) for one in kept]
