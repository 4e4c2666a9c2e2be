"""What a run, its status and its evaluation show and say."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from pipeline.config.tree import RunSection
from pipeline.errors import EnvironmentFailure
from pipeline.launch.children import error_line, last_logged
from pipeline.launch.evaluate import Ended, Schedule, Shown, ended_in, summarize
from pipeline.launch.progress import Progress, duration, ending, ledger_error, line, seconds_left
from pipeline.launch.status_text import bottleneck_lines, plain, render
from pipeline.rows import FIRST, NO_REPLY, ROW, TERMINATED, TRUNCATED
from workers.rows import StepRows

pytestmark = pytest.mark.unit

SUMMARY = {
    "agent_steps": 43210,
    "agent_steps_per_second": 4400.0,
    "seconds": 9.82,
    "episodes": 512,
    "episode_return_mean": 195.5,
    "updates": 67,
    "policy_lag_mean": 1.25,
    "ledger": {"error": 0},
    "stop_reason": "solved",
}


def test_last_line_says_why_and_how_far():
    assert ending(SUMMARY, 20.0) == (
        "solved after 9.8 s: mean return 195.50 over the last episodes, 43,210 steps, 4,400 steps/s, 67 updates, "
        "512 episodes, policy lag 1.25, ledger error 0"
    )
    assert ending(None, 2.0) == "ended after 2.0 s, before the first environment step"
    assert ending({**SUMMARY, "stop_reason": "signal"}, 20.0).startswith("stopped after 9.8 s")
    assert ending({**SUMMARY, "stop_reason": None}, 20.0).startswith("interrupted after")


def test_faults_stand_in_the_line_and_at_the_end():
    assert "faults" not in line(SUMMARY | {"faults": {}, "newest_fault": ""}, RunSection())
    faulty = SUMMARY | {
        "faults": {"env_errors": 1200, "env_hangs": 34},
        "newest_fault": "worker-0: lost\n" + 2000 * "x",
    }
    assert line(faulty, RunSection()).endswith(f", faults 1,234 (the last: worker-0: lost {(120 - 18) * 'x'}...)")
    assert "ledger error 0, faults of environments 1,234 (the last: worker-0: lost" in ending(faulty, 1.0)


def test_figures_that_are_not_there_yet():
    early = {"agent_steps": 0, "seconds": 0.0, "episode_return_mean": None, "loss": None}
    assert "return -" in line(early, RunSection())
    assert "no episode finished" in ending(early, 1.0)
    early |= {"episodes": 9, "episode_environments": 8, "episode_environments_waited_for": 5}
    assert "return - (3 of 8 environments have ended an episode), episodes 9" in line(early, RunSection())
    assert "no mean return yet (3 of 8 environments have ended an episode)" in ending(early, 1.0)
    early |= {"episode_environments_waited_for": 0}
    assert "return -, episodes 9" in line(early, RunSection())
    assert "no mean return before an update" in ending(early, 1.0)
    assert ledger_error(early) == "-"


def test_time_left_is_to_the_nearer_limit():
    assert seconds_left(SUMMARY, RunSection()) is None
    assert seconds_left(SUMMARY, RunSection(max_steps=87210)) == pytest.approx(10.0)
    assert seconds_left(SUMMARY, RunSection(max_steps=87210, max_seconds=12.82)) == pytest.approx(3.0)
    assert seconds_left({**SUMMARY, "agent_steps": 10**9}, RunSection(max_steps=5)) == 0.0


@pytest.mark.parametrize(("seconds", "text"), [(41.6, "42 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_plain_output_is_a_line_every_few_seconds(capsys):
    progress = Progress(RunSection(), Console(file=io.StringIO()))
    for tenth in range(110):
        progress.update(
            None if tenth < 40 else SUMMARY, {"learner": "running", "worker-0": "restarting"}, tenth / 10, "building"
        )
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "starting, 0 s: learner running; worker-0 restarting; learner: building"
    assert len(lines) == 3
    assert all(text.startswith("10 s, steps 43,210") for text in lines[1:])
    named = {**SUMMARY, "bottleneck": {"component": "environments"}}
    assert line(named, RunSection()).endswith(", bottleneck environments")


def test_terminal_shows_one_block():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    progress = Progress(RunSection(max_steps=87210), console)
    progress.update(SUMMARY, {"worker-0": "restarting"}, 10.0)
    progress.say("a [line] that stays")
    progress.close()
    output = console.file.getvalue()
    assert "worker-0 restarting" in output
    assert "a [line] that stays" in output


def test_a_terminal_that_cannot_redraw_gets_lines(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    progress = Progress(RunSection(), Console(file=io.StringIO(), force_terminal=True))
    progress.update(SUMMARY, {}, 10.0)
    progress.say("stays\x1b[2J")
    progress.close()
    said = capsys.readouterr()
    assert said.out.startswith("10 s, steps 43,210") and said.err == "stays?[2J\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["x", "error: bad key"], "bad key"),
        (["2026-01-31T12:00:00.123Z ERROR worker/- no such environment", "x"], "no such environment"),
        (["2026-01-31T12:00:00.123Z ERROR worker/- first", "error: second"], "second"),
        (['{"level": "INFO", "message": "x"}', '{"level": "ERROR", "message": "in JSON"}', '{"level": '], "in JSON"),
        (["Traceback", "x"], None),
        ([], None),
    ],
)
def test_error_line(lines, expected):
    assert error_line(lines) == expected


def test_last_logged():
    lines = ["x", "2026-01-31T12:00:00.123Z INFO learner/- building the policy", "WARNING: of some library"]
    assert last_logged(lines) == "building the policy"
    assert last_logged(['{"level": "INFO", "message": "in JSON"}', "x"]) == "in JSON"
    assert last_logged([]) == ""


def ended(*pairs):
    return Ended(np.array([e for e, _ in pairs]), np.array([r for _, r in pairs], float))


def test_an_episode_without_an_end_is_said_where_it_is_waited_for():
    schedule, none, both = Schedule(3, 2), np.zeros(2, bool), np.ones(2, bool)
    assert schedule.advance(both) == 0
    for step in range(1, 51):
        assert schedule.advance(none) == step
        schedule.check(50)
    schedule.advance(none)
    with pytest.raises(EnvironmentFailure, match=r"no episode has ended after 50 steps \(--max-steps\)"):
        schedule.check(50)
    schedule.book(ended((1, 1.0)))
    assert schedule.advance(np.array([False, True])) == 52
    with pytest.raises(EnvironmentFailure, match=r"1 of 2 .* not ended after 50 steps .*; 1 of 3 episodes had ended"):
        schedule.check(50)
    schedule.book(ended((0, 1.0)))
    schedule.advance(np.array([True, False]))
    for _ in range(50):
        schedule.advance(none)
    schedule.check(50)  # environment 1 has played its share: how long it goes on is no matter


def test_an_evaluation_says_how_far_it_is(capsys):
    now = [0.0]
    with Shown(200, lambda: now[0]) as shown:
        for second in range(25):
            now[0] = float(second)
            shown.update(second, 1000 * second)
    assert capsys.readouterr().err.splitlines() == [
        "10 s: 10 of 200 episodes have ended, the longest of the others has taken 10,000 steps",
        "20 s: 20 of 200 episodes have ended, the longest of the others has taken 20,000 steps",
    ]


def test_episodes_are_assigned_beforehand():
    schedule = Schedule(5, 2)
    # Environment 1 is quick: only its own two episodes count.
    for value in (1.0, 3.0, 99.0, 98.0):
        schedule.book(ended((1, value)))
    assert not schedule.done
    schedule.book(ended((0, 0.0), (1, 97.0)))
    schedule.book(ended((0, 2.0)))
    schedule.book(ended())
    assert not schedule.done
    schedule.book(ended((0, 4.0)))
    assert schedule.done
    assert schedule.returns == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert summarize("greedy", schedule.returns)["episode_return_mean"] == 2.0


def test_final_rows_end_episodes_whether_they_need_a_reply_or_not():
    records = np.zeros(4, ROW)
    records["environment"] = [1, 0, 1, 2]
    records["flags"] = [NO_REPLY | TERMINATED, 0, FIRST, TRUNCATED]
    records["episode_return"] = [7.0, 0, 0, 9.0]
    found = ended_in(StepRows(records, []))
    assert found.environments.tolist() == [1, 2]
    assert found.returns.tolist() == [7.0, 9.0]


BOTTLENECK = {
    "component": "environments",
    "why": "environments step 97% of their time; inference waits 83% of its time for requests",
    "advice": "more workers",
    "since_seconds": 42.3,
}
STATUS = {
    "broker": "b",
    "bottleneck": BOTTLENECK,
    "stages": {"inference": {"busy": 0.17, "requests": 0.8, "room": 0.03}, "environments": {"busy": 0.97}, "x": {}},
    "workers_total": 1,
    "workers": [
        {"worker": 0, "worker_id": "[red]\x1b[2J", "state": "serving", "report": {"faults": {"env_errors": 2}}}
    ],
    "learners": [{"learner": "l", "held_back": "store full", "pending_rows": 64, "oldest_wait_seconds": 0.25}],
    "learner": {
        "state": "training",
        "ledger": {"taken": 5, "dropped": {}},
    },
}


def shown(status):
    console = Console(file=io.StringIO(), width=200)
    console.print(render(status))
    return console.file.getvalue()


def test_status_begins_with_what_everything_waits_for():
    lines = [line.rstrip() for line in shown(STATUS).splitlines()]
    assert lines[1:6] == [
        "bottleneck: environments, for 42 s",
        "  environments step 97% of their time",
        "  inference waits 83% of its time for requests",
        "  to scale: more workers",
        "learner: training",
    ]
    table = [line.split() for line in lines[6:9]]
    assert table == [
        ["stage", "busy", "waiting", "for"],
        ["environments", "97%"],
        ["inference", "17%", "requests", "80%,", "room", "3%"],
    ]
    assert "64" in shown(STATUS) and "0.2 s" in shown(STATUS), "rows that wait for inference, and how long"
    assert shown({}).splitlines()[1].rstrip() == "bottleneck: not known yet"


def test_the_bottleneck_of_a_whole_run():
    assert bottleneck_lines({**BOTTLENECK, "since_seconds": None})[0] == "bottleneck: environments, over the whole run"
    assert bottleneck_lines(None) == [] == bottleneck_lines({"why": "x"})
    assert bottleneck_lines({"component": "stop\x1b", "why": 3, "since_seconds": 1})[0] == "bottleneck: stop?, for 1 s"


@pytest.mark.parametrize(
    "status", [STATUS, {}, {"workers": 3, "learners": [1], "learner": [], "stages": {"feed": 3}, "bottleneck": 4}]
)
def test_status_is_shown_whatever_it_holds(status):
    output = shown(status)
    assert "\x1b" not in output
    if status is STATUS:
        assert "[red]?[2J" in output
        assert "env_errors 2" in output


def test_ended_run_is_shown_with_its_summary():
    console = Console(file=io.StringIO(), width=200)
    console.print(render({"run_directory": "runs/a", "ended": "solved", "summary": SUMMARY}))
    assert "runs/a has ended: solved" in console.file.getvalue()
    assert "43,210" in console.file.getvalue()


def test_what_no_json_can_hold_is_shown_all_the_same():
    since = {"component": "store", "why": "w", "advice": "a", "since_seconds": float("inf")}
    status = plain({"bottleneck": since, "nested": [{"x": float("nan")}, b"bytes\xff"], b"key": 1, 3: 2**70})
    assert json.loads(json.dumps(status, allow_nan=False))["nested"] == [{"x": None}, "bytes\ufffd"]
    assert status["key"] == 1 and status["3"] == 2**70
    assert "bottleneck: store" in shown(status)
