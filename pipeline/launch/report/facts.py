"""What a report says in words and tables: state, headline figures, ledger, faults, settings. From a run directory."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config.load import dump
from pipeline.config.tree import Config
from pipeline.launch.progress import duration
from pipeline.launch.status import is_gone
from pipeline.run_dir import RunDirectory

FRESH_SECONDS = 15.0
"""A run whose summary is older than this, and than ten log intervals, does not go on."""
LOG_BYTES = 256 * 2**10
LOG_LINES = 40
LOG_FILES = 64
LINE_CHARACTERS = 400
_LINE = re.compile(r"(\S+Z) (WARNING|ERROR|CRITICAL) (\S+) (.+)")
_ENDS = {
    "solved": "solved",
    "max_steps": "at its limit of steps",
    "max_seconds": "at its limit of time",
    "signal": "stopped by a signal",
    "error": "failed",
}
Summary = Mapping[str, Any]


class State(NamedTuple):
    """How a run stands: ``good``, ``live`` or ``bad``, and in words."""

    kind: str
    words: str


class Row(NamedTuple):
    """A line of the ledger: the sign before it, its name, transitions, and what it is."""

    sign: str
    name: str
    number: int
    words: str = ""


class Books(NamedTuple):
    """One equation of the ledger: ``whole`` is the sum of ``parts``; ``difference`` is what is missing."""

    whole: Row
    parts: list[Row]
    difference: int


class Logged(NamedTuple):
    """A line of a component's log."""

    time: str
    level: str
    component: str
    message: str


def state_of(directory: RunDirectory, summary: Summary | None, interval_seconds: float) -> State:
    """Whether a run goes on, has ended, or was killed."""
    reason = (summary or {}).get("stop_reason")
    if reason is not None:
        return State("bad" if reason == "error" else "good", _ENDS.get(reason, str(reason)))
    endpoints = directory.read_endpoints()
    gone = endpoints is not None and is_gone(endpoints)
    newest = directory.summary if summary is not None else directory.config
    age = time.time() - newest.stat().st_mtime
    if not gone and age <= max(FRESH_SECONDS, 10.0 * interval_seconds):
        return State("live", "running" if summary is not None else "starting")
    if not gone and summary is None and endpoints is not None:
        return State("live", "no environment step yet")
    return State("bad", f"killed: it did not end in order, and was last heard of {duration(max(0.0, age))} ago")


def headline(summary: Summary, solved_return: float | None) -> list[tuple[str, str, str]]:
    """(name, figure, small print) of the figures that come first."""
    evaluation = summary.get("evaluation") or {}
    wanted = "" if solved_return is None else f", solved at {solved_return:g}"
    ledger = summary.get("ledger") or {}
    found = [
        ("Episode return", _decimal(summary.get("episode_return_mean")), f"mean of the last episodes{wanted}"),
        ("Evaluation return", _decimal(evaluation.get("last_return_mean")), f"round {evaluation.get('rounds')}"),
        ("Environment frames", _large(summary.get("frames")), f"{_large(summary.get('agent_steps'))} agent steps"),
        ("Training time", duration(summary.get("seconds") or 0.0), f"{_large(summary.get('updates'))} updates"),
        ("Throughput", f"{_large(summary.get('agent_steps_per_second'))}/s", "agent steps trained, whole run"),
        ("Episodes", _large(summary.get("episodes")), f"mean length {_decimal(summary.get('episode_length_mean'))}"),
        ("Policy lag", _decimal(summary.get("policy_lag_mean")), f"updates, at most {summary.get('policy_lag_max')}"),
        ("Ledger error", _large(ledger.get("error")), "transitions unaccounted for"),
    ]
    return [one for one in found if one[0] != "Evaluation return" or evaluation.get("last_return_mean") is not None]


def books(summary: Summary) -> list[Books]:
    """The ledger's equations, each with what is missing in it."""
    ledger = summary.get("ledger")
    if not ledger:
        return []
    dropped: Mapping[str, int] = ledger["dropped"]
    at_worker = {reason: number for reason, number in dropped.items() if reason.startswith("worker_")}
    later = {reason: number for reason, number in dropped.items() if reason not in at_worker}
    taken = [
        Row("", "accepted", ledger["accepted"], "reached the learner"),
        Row("+", "undelivered", ledger["undelivered"], "taken by workers that ended before they delivered them"),
        *(Row("+", f"dropped: {reason}", number, "at the worker") for reason, number in at_worker.items()),
    ]
    waiting = [Row("+", f"waiting: {place}", number, "in flight") for place, number in ledger["waiting"].items()]
    ends = [
        *waiting,
        *(Row("+", f"dropped: {reason}", number) for reason, number in later.items()),
        Row("+", "rolled back", ledger["rolled_back"], "trained after the checkpoint that the run was resumed from"),
    ]
    found = [_books(Row("", "taken", ledger["taken"], "valid transitions that environments made"), taken)]
    if "resident" not in ledger:
        used = Row("", "trained", ledger["trained"], "used by an update, and acknowledged")
        return [*found, _books(taken[0], [used, *ends])]
    inserted = Row("", "inserted", ledger["inserted"], "put into the replay")
    kept = [
        Row("", "resident", ledger["resident"], "in the replay"),
        Row("+", "evicted", ledger["evicted"], "made room for newer ones"),
    ]
    return [*found, _books(taken[0], [inserted, *ends]), _books(inserted, kept)]


def _books(whole: Row, parts: list[Row]) -> Books:
    return Books(whole, parts, whole.number - sum(part.number for part in parts))


def counts(summary: Summary) -> dict[str, int]:
    """What went wrong, by kind; what never did is not there."""
    found = {f"fault of an environment: {kind}": number for kind, number in (summary.get("faults") or {}).items()}
    found |= {f"not written: {name}": number for name, number in (summary.get("failed_writes") or {}).items()}
    updates = (summary.get("metrics") or {}).get("nonfinite_updates")
    return {name: int(number) for name, number in (found | {"updates not finite": updates or 0}).items() if number}


def logged(logs: Path) -> tuple[dict[str, int], list[Logged]]:
    """Warnings and errors in the ends of the components' logs: number by level, and the last of them in order."""
    found: list[Logged] = []
    there = (path for path in logs.glob("*.log") if path.is_file())
    files = sorted(there, key=lambda path: path.stat().st_mtime)[-LOG_FILES:]
    for path in files:
        found += _bad_lines(path)
    found.sort(key=lambda one: one.time)
    return dict(Counter(one.level for one in found)), found[-LOG_LINES:]


def _bad_lines(path: Path) -> Iterator[Logged]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES))
        text = file.read(LOG_BYTES).decode(errors="replace")
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is not None:
            moment, level, component, message = match.groups()
        elif line.startswith("{") and (record := _json(line)).get("level") in ("WARNING", "ERROR", "CRITICAL"):
            moment, level = str(record.get("time")), str(record["level"])
            component, message = str(record.get("component")), str(record.get("message"))
        else:
            continue
        yield Logged(moment, level, path.stem if component.startswith("-") else component, message[:LINE_CHARACTERS])


def _json(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # half of a line, or none of ours
        return {}
    return record if isinstance(record, dict) else {}


def what_ran(directory: RunDirectory, config: Config, about: Mapping[str, str], summary: Summary) -> dict[str, str]:
    """Environment, algorithm and so on, each in words; what is not known is not there."""
    environment, workers, training = config.environment, config.workers, config.training
    frames = f"{environment.frame_skip} frames a step" if environment.frame_skip > 1 else ""
    stack = f"{environment.frame_stack} frames stacked" if environment.frame_stack > 1 else ""
    rows = f"unrolls of {training.unroll_length}, batches of {training.batch_size}"
    spread = f"{workers.count} workers of {workers.envs} environments" if workers.count != 1 else ""
    found = {
        "configuration": about.get("config", ""),
        "environment": ", ".join(filter(None, (environment.id, frames, stack, *environment.wrappers))),
        "algorithm": f"{training.algorithm}, {rows}",
        "network": config.network.name,
        "workers": spread or f"1 worker of {workers.envs} environments",
        "store": config.store.backend,
        "seed": str(config.run.seed),
        "machine": about.get("machine", ""),
        "devices": str(summary.get("devices") or ""),
        "run directory": directory.path.resolve().name,
    }
    return {name: value for name, value in found.items() if value}


def settings(config: Config) -> str:
    """The resolved configuration as YAML; a store's address without what may be a secret in it."""
    url = config.store.url
    if url is not None and "@" in url:
        scheme, _, rest = url.partition("://")
        config = config.model_copy(
            update={"store": config.store.model_copy(update={"url": f"{scheme}://...@{rest.rpartition('@')[2]}"})}
        )
    return dump(config)


def moment(seconds: float) -> str:
    """Unix seconds as a date."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _large(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.2f} M"
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.1f}"


def _decimal(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, (int, float)) else "-"
