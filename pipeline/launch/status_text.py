"""The status mapping as text for a terminal. What comes over the network is printed as text, never as control codes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.launch.progress import duration
from pipeline.stages import BUSY, in_order

MAX_ROWS = 40
WIDE = 110  # columns from which on all of a worker is shown
SETTLED_SECONDS = 5.0
"""What has been waited for no longer than this may pass by itself, as at a start: nothing is advised."""
SHOWN_ABOVE = ("state", "bottleneck", "stages")

Status = Mapping[str, Any]


def render(status: Status, columns: int = WIDE) -> RenderableType:
    """A run's or broker's status, or the end of a run; ``columns`` wide."""
    if "ended" in status:
        head = Text(f"{status['run_directory']} has ended: {status['ended']}", style="bold")
        summary = mapping(status.get("summary"))
        return Group(head, _bottleneck(status, {}), _stages(mapping(summary.get("stages"))), _figures(summary))
    learner = mapping(status.get("learner"))
    stages = _stages(mapping(status.get("stages")))
    parts: list[RenderableType] = [_head(status), _bottleneck(status, learner), stages]
    parts += [_learners(status), _workers(status, columns >= WIDE)]
    if learner:
        parts.append(_figures(learner))
    return Group(*parts)


def bottleneck_lines(found: Any) -> list[str]:
    """What everything waits for, since when, why, and what to scale; none where nothing is known."""
    found = mapping(found)
    if not found.get("component"):
        return []
    since = found.get("since_seconds")
    span = f"for {duration(since)}" if isinstance(since, (int, float)) else "over the whole run"
    lines = [f"bottleneck: {clean(found['component'])}, {span}", *clean(found.get("why")).split("; ")]
    settled = since is None or (isinstance(since, (int, float)) and since >= SETTLED_SECONDS)
    return [*lines, f"to scale: {clean(found['advice'])}"] if found.get("advice") and settled else lines


def clean(value: Any) -> str:
    """Text without control codes."""
    return "".join(c if c.isprintable() else "?" for c in str("" if value is None else value))


def unheard(worker: Status) -> bool:
    """Whether a worker is silent: stopped, hung, or cut off."""
    return worker.get("silent") is True and isinstance(worker.get("heard_seconds_ago"), (int, float))


def plain(value: Any) -> Any:
    """What a learner has published, or a file says, as JSON can hold it: a number that is none becomes None."""
    if isinstance(value, dict):
        return {str(plain(name)): plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _head(status: Status) -> Text:
    text = Text()
    if "run_directory" in status:
        text.append(f"{clean(status['run_directory'])}  ")
    text.append(f"broker {clean(status.get('broker'))}, {status.get('workers_total', 0)} workers", style="bold")
    if status.get("draining"):
        text.append(f", draining: {clean(status['draining'])}", style="yellow")
    return text


def _bottleneck(status: Status, learner: Status) -> Text:
    """One sentence a line."""
    state = clean(learner.get("state"))
    first, *others = bottleneck_lines(status.get("bottleneck")) or ["bottleneck: not known yet"]
    text = Text()
    text.append(first, style="bold yellow")
    text.append("".join(f"\n  {line}" for line in others))
    text.append(f"\nlearner: {state}" if state else "")
    return text


def _stages(shares: Status) -> Table:
    """Shares of each stage's time, in the order of the flow."""
    table = _table("stage", "busy", "waiting for")
    for name in in_order(shares):
        share = {str(doing): x for doing, x in mapping(shares[name]).items() if isinstance(x, (int, float))}
        waits = sorted(((x, doing) for doing, x in share.items() if doing != BUSY), reverse=True)
        _row(table, name, f"{share.get(BUSY, 0.0):.0%}", ", ".join(f"{clean(doing)} {x:.0%}" for x, doing in waits))
    return table


def _learners(status: Status) -> Table:
    table = _table("learner", "slots", "credit", "pending requests", "pending rows", "oldest", "heard")
    for one in items(status.get("learners")):
        _row(
            table,
            clean(one.get("learner")),
            f"{clean(one.get('slots_used'))}/{clean(one.get('slots'))}",
            clean(one.get("credit_rows")),
            clean(one.get("pending_requests")),
            clean(one.get("pending_rows")),
            _seconds(one.get("oldest_wait_seconds")),
            _seconds(one.get("heard_seconds_ago")),
        )
    return table


def _workers(status: Status, wide: bool) -> Table:
    """All of each worker, or what tells it from the others and how it does."""
    left_out = () if wide else (2, 3, 6, 7)
    names = ("worker", "id", "host", "mode", "envs", "state", "waiting", "heard", "taken", "faults", "last fault")
    table = _table(*(name for i, name in enumerate(names) if i not in left_out))
    workers = items(status.get("workers"))
    for one in workers[:MAX_ROWS]:
        report = mapping(one.get("report"))
        state = " ".join(clean(one.get(name)) for name in ("state", "reason")).strip()
        if unheard(one):
            state = f"last heard of {duration(one['heard_seconds_ago'])} ago"
        cells = (
            clean(one.get("worker")),
            clean(one.get("worker_id")),
            clean(one.get("host")),
            clean(one.get("mode")),
            clean(one.get("environments")),
            state,
            clean(one.get("outstanding")),
            _seconds(one.get("heard_seconds_ago")),
            clean(report.get("taken")),
            ", ".join(f"{clean(kind)} {number}" for kind, number in mapping(report.get("faults")).items()),
            clean(report.get("message")),
        )
        _row(table, *(cell for i, cell in enumerate(cells) if i not in left_out))
    if len(workers) > MAX_ROWS:
        _row(table, "...", f"{len(workers) - MAX_ROWS} more")
    return table


def _figures(figures: Status) -> Table:
    """The learner's figures, mappings within them flattened to one line each."""
    table = Table.grid(padding=(0, 2))
    for name, value in figures.items():
        if name in SHOWN_ABOVE or value is None or value == {}:
            continue
        table.add_row(Text(clean(name), style="bold"), Text(_value(value)))
    return table


def _value(value: Any) -> str:
    if value is None or value == {}:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(name)} {_value(one)}" for name, one in value.items())
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if type(value) is int else clean(value)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for column in columns:
        table.add_column(column)
    return table


def _row(table: Table, *cells: str) -> None:
    """As text: what looks like markup stays as it is."""
    table.add_row(*(Text(cell) for cell in cells))


def _seconds(value: Any) -> str:
    return f"{value:.1f} s" if isinstance(value, (int, float)) else "-"


def mapping(value: Any) -> Status:
    """What came over the network need not be one."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Status]:
    """The mappings in a list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
