"""``seedmq status --watch``: one screen of the flow, as much of it as the terminal has room for.

Rates are over the last seconds, never since the start: the learner's are of its last interval, the others are taken
from counters between two moments at which they were seen to change.
"""

from __future__ import annotations

import math
import textwrap
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.launch.progress import duration
from pipeline.launch.status_text import bottleneck_lines, clean, items, mapping, unheard
from pipeline.stages import BUSY, NAMES

WINDOW_SECONDS = 5.0
BAR, SHORT_BAR = 12, 6
NAME, LONG_NAME = 20, 34
LARGE = (110, 34)
"""From so many columns, lines on there is room for all words."""
CALM = ("serving", "held_back")
_FULL, _PART = "█", " ▏▎▍▌▋▊▉"

Status = Mapping[str, Any]


class Rate:
    """How fast a counter grows, between the first and the last moment in a window at which it was seen to change."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def observe(self, value: float, now: float) -> None:
        """Takes a reading; one that has fallen begins anew. ``now`` is monotonic seconds."""
        seen = self._seen
        if seen and value < seen[-1][1]:
            seen.clear()
        if not seen or value != seen[-1][1]:
            seen.append((now, value))
        while len(seen) > 2 and seen[1][0] <= now - WINDOW_SECONDS:
            seen.popleft()

    def value(self, now: float) -> float | None:
        """Per second; None before it has changed, 0 once it no longer does."""
        if len(self._seen) < 2:
            return 0.0 if self._seen and now - self._seen[0][0] > WINDOW_SECONDS else None
        (first, start), (last, end) = self._seen[0], self._seen[-1]
        return 0.0 if now - last > WINDOW_SECONDS else (end - start) / (last - first)


class Watched:
    """Remembers what rates need. Belongs to the thread that shows."""

    def __init__(self) -> None:
        self._rates: dict[object, Rate] = {}

    def observe(self, status: Status, now: float) -> None:
        """Takes a status; of what it no longer shows nothing is kept."""
        readings = dict(_counters(status))
        self._rates = {name: self._rates.get(name, Rate()) for name in readings}
        for name, value in readings.items():
            self._rates[name].observe(value, now)

    def rate(self, name: object, now: float) -> float | None:
        found = self._rates.get(name)
        return None if found is None else found.value(now)


def _counters(status: Status) -> list[tuple[object, float]]:
    learner = mapping(status.get("learner"))
    found: list[tuple[object, Any]] = [
        ("requests", mapping(status.get("messages")).get("workers")),
        ("updates", learner.get("updates")),
        ("rows", mapping(learner.get("inference")).get("rows")),
    ]
    for one in items(status.get("workers")):
        found.append((("worker", one.get("worker"), one.get("run")), mapping(one.get("report")).get("taken")))
    return [(name, float(value)) for name, value in found if _is_number(value)]


def screen(status: Status, watched: Watched, now: float, size: tuple[int, int]) -> RenderableType:
    """The view, at most ``size`` (columns, lines); what does not fit is counted, not cut off."""
    width, height = size
    head = [_title(status, width), *_bottleneck(status, width, height), *_figures(status, watched, now, width)]
    flow = _flow(status, watched, now, width)
    below = _faults(status, width)
    room = height - 1 - sum(_lines(one, width) for one in (*head, *below)) - flow.row_count - 1
    workers = _workers(status, watched, now, width, room)
    return Group(*head, flow, *workers, *below)


def _lines(text: Text, width: int) -> int:
    return sum(max(1, math.ceil(len(line) / width)) for line in text.plain.split("\n"))


def _title(status: Status, width: int) -> Text:
    learner = mapping(status.get("learner"))
    state = clean(learner.get("state")) or "no learner"
    total = status.get("workers_total", 0)
    right = f"{state}, {total} worker{'' if total == 1 else 's'}"
    if _is_number(learner.get("seconds")):
        right = f"{duration(learner['seconds'])}, {right}"
    if status.get("draining"):
        right = f"draining: {clean(status['draining'])}"
    name = clean(status.get("run_directory") or f"broker {clean(status.get('broker'))}")
    room = max(10, width - len(right) - 2)
    return Text.assemble((_ended(name, room).ljust(room), "bold"), "  ", (right, "bold cyan"), no_wrap=True)


def _bottleneck(status: Status, width: int, height: int) -> list[Text]:
    first, *others = bottleneck_lines(status.get("bottleneck")) or ["bottleneck: not known yet"]
    advice = [line for line in others if line.startswith("to scale: ")]
    reasons = [line for line in others if line not in advice]
    roomy = height >= LARGE[1]
    if not roomy:
        first, reasons = f"{first}: {reasons[0]}" if reasons else first, []
    lines = [first, *(f"  {line}" for line in (*reasons, *advice))] if roomy else [first]
    head = _fitted(lines[0], width, "bold yellow")
    return [head, *(Text("\n".join(_wrapped(line, width))) for line in lines[1:])]


def _figures(status: Status, watched: Watched, now: float, width: int) -> list[Text]:
    """The learner's figures, as many to a line as fit."""
    learner = mapping(status.get("learner"))
    if "updates" not in learner:
        return []
    rates, evaluation, ledger = (mapping(learner.get(name)) for name in ("rates", "evaluation", "ledger"))
    wanted = [
        ("trained", f"{number(rates.get('agent_steps_per_second'))} steps/s"),
        ("taken", f"{number(rates.get('environment_steps_per_second'))} steps/s"),
        ("updates", f"{number(watched.rate('updates', now))}/s"),
        ("steps", number(learner.get("agent_steps"))),
        ("return", decimal(learner.get("episode_return_mean"))),
        ("episodes", number(learner.get("episodes"))),
        ("lag", f"{decimal(learner.get('policy_lag_mean'))} max {number(learner.get('policy_lag_max'))}"),
        ("loss", f"{learner['loss']:.3g}" if _is_number(learner.get("loss")) else "-"),
        ("ledger error", number(ledger.get("error"))),
    ]
    if evaluation.get("last_return_mean") is not None:
        wanted.insert(5, ("evaluation", decimal(evaluation["last_return_mean"])))
    if learner.get("failing"):
        wanted.append(("not written", ", ".join(clean(name) for name in mapping(learner["failing"]))))
    lines, line = [], Text(no_wrap=True)
    for name, value in wanted:
        cell = Text.assemble((f"{name} ", "dim"), value, "   ")
        if len(line) + len(cell) - 3 > width and len(line):
            lines.append(line)
            line = Text(no_wrap=True)
        line.append_text(cell)
    return [*lines, line]


def _flow(status: Status, watched: Watched, now: float, width: int) -> Table:
    """The stages in the order of the flow: how busy, what for it waits, how much waits for it."""
    shares, learner = mapping(status.get("stages")), mapping(status.get("learner"))
    named = mapping(status.get("bottleneck")).get("component")
    wide = width >= LARGE[0]
    bar = BAR if wide else SHORT_BAR
    rates = {
        "environments": (watched.rate("requests", now), "requests/s" if wide else "req/s"),
        "broker": (watched.rate("requests", now), "requests/s" if wide else "req/s"),
        "inference": (watched.rate("rows", now), "rows/s"),
        "training": (watched.rate("updates", now), "updates/s" if wide else "upd/s"),
    }
    depths = _depths(status, learner)
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold", width=width)
    table.add_column("stage", no_wrap=True, width=12)
    table.add_column("busy", no_wrap=True, width=bar + 5)
    table.add_column("waits for", no_wrap=True, overflow="ellipsis", ratio=6)
    table.add_column("rate", no_wrap=True, width=18 if wide else 13)
    table.add_column("before it", no_wrap=True, overflow="ellipsis", ratio=5)
    for name in NAMES:
        share = {str(doing): x for doing, x in mapping(shares.get(name)).items() if _is_number(x)}
        if not share and name == "broker":
            continue  # the learner is its own
        waits = sorted(((x, doing) for doing, x in share.items() if doing != BUSY and x >= 0.005), reverse=True)
        rate, unit = rates.get(name, (None, ""))
        table.add_row(
            Text(name, style="bold yellow" if _is_of(name, named) else ""),
            _bar(share.get(BUSY), bar) if share else Text("-"),
            Text(", ".join(f"{clean(doing)} {x:.0%}" for x, doing in waits)),
            Text("" if rate is None else f"{number(rate)} {unit}"),
            Text(depths.get(name, "")),
        )
    return table


def _is_of(stage: str, component: Any) -> bool:
    return component == stage or (component == "store" and stage in ("writer", "feed"))


def _depths(status: Status, learner: Status) -> dict[str, str]:
    """What waits before a stage."""
    queues, ledger, replay = (mapping(learner.get(name)) for name in ("queues", "ledger", "replay"))
    learners = items(status.get("learners"))
    pending = [one.get("pending_requests") for one in learners]
    oldest = [one.get("oldest_wait_seconds") for one in learners]
    found = {}
    if pending and all(map(_is_number, pending)):
        wait = max((float(x or 0.0) for x in oldest), default=0.0)
        found["inference"] = f"{number(sum(float(x or 0) for x in pending))} requests" + (
            f", {wait * 1000:.0f} ms" if wait else ""
        )
    if _is_number(queues.get("writer")):
        found["writer"] = f"{number(queues['writer'])} unrolls"
        found["training"] = f"{number(queues.get('prefetched_batches'))} batches"
    if replay:
        found["feed"] = f"{number(replay.get('unrolls'))} unrolls in replay"
    elif ledger:
        found["feed"] = f"{number(mapping(ledger.get('waiting')).get('store'))} steps in store"
    return found


def _workers(status: Status, watched: Watched, now: float, width: int, room: int) -> list[RenderableType]:
    """A line for each worker, those with trouble first; the last line counts the others."""
    workers = items(status.get("workers"))
    total = status.get("workers_total", len(workers))
    if room < 2 or not workers:
        return [Text(f"workers: {total}")] if room >= 1 else []
    workers = sorted(workers, key=lambda one: (not _troubled(one), one.get("worker", 0)))
    shown = workers if len(workers) == total and total <= room - 1 else workers[: room - 2]
    wide = width >= LARGE[0]
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold", width=width)
    table.add_column("worker", no_wrap=True, width=LONG_NAME if wide else NAME)
    if wide:
        table.add_column("host", no_wrap=True, ratio=2, overflow="ellipsis")
    for name, columns in (("envs", 6), ("steps/s", 8), ("busy", 5), ("faults", 6)):
        table.add_column(name, no_wrap=True, width=columns, justify="right")
    table.add_column("state", no_wrap=True, ratio=5, overflow="ellipsis")
    for one in shown:
        _worker_row(table, one, watched.rate(("worker", one.get("worker"), one.get("run")), now), wide)
    lines: list[RenderableType] = [table]
    if len(shown) < total:
        troubled = sum(map(_troubled, workers[len(shown) :]))
        lines.append(Text(f"and {total - len(shown)} more" + (f", {troubled} of them in trouble" if troubled else "")))
    return lines


def _worker_row(table: Table, one: Status, rate: float | None, wide: bool) -> None:
    report = mapping(one.get("report"))
    faults = sum(number for number in mapping(report.get("faults")).values() if _is_number(number))
    heard, silent = one.get("heard_seconds_ago"), unheard(one)
    state = f"last heard of {duration(float(heard or 0.0))} ago" if silent else clean(one.get("state"))
    reason = clean(one.get("reason"))
    words = state if silent or not reason else f"{state}: {reason}"
    busy = report.get("busy_percent")
    name = clean(one.get("worker_id")) or f"#{clean(one.get('worker'))}"
    cells = [_ended(name, LONG_NAME if wide else NAME)]
    cells += [clean(one.get("host"))] if wide else []
    cells += [
        number(one.get("environments")) + (" ev" if one.get("mode") == "eval" else ""),
        "0" if silent else number(rate),
        "-" if silent or not _is_number(busy) else f"{busy}%",
        number(faults) if faults else "",
        words,
    ]
    style = "red" if silent else "yellow" if _troubled(one) else ""
    table.add_row(*(Text(cell) for cell in cells), style=style)


def _troubled(one: Status) -> bool:
    return unheard(one) or one.get("state") not in CALM or bool(mapping(mapping(one.get("report")).get("faults")))


def _faults(status: Status, width: int) -> list[Text]:
    """Faults and drops so far, and the last fault's words; nothing where there are none."""
    learner = mapping(status.get("learner"))
    faults = {**mapping(learner.get("faults"))}
    dropped = mapping(mapping(learner.get("ledger")).get("dropped"))
    lines = []
    if faults:
        lines.append("faults: " + ", ".join(f"{clean(kind)} {number(n)}" for kind, n in faults.items()))
    if dropped:
        lines.append("dropped: " + ", ".join(f"{clean(reason)} {number(n)}" for reason, n in dropped.items()))
    last = next((one for one in items(status.get("workers")) if mapping(one.get("report")).get("message")), None)
    if last is not None:
        lines.append(f"{clean(last.get('worker_id'))}: {clean(mapping(last['report'])['message'])}")
    elif learner.get("newest_fault"):  # of a worker that is gone
        lines.append(clean(learner["newest_fault"]))
    return [_fitted(line, width, "red") for line in lines]


def _ended(name: str, columns: int) -> str:
    """The end of a name says which it is."""
    return name if len(name) <= columns else "…" + name[1 - columns :]


def _fitted(line: str, width: int, style: str) -> Text:
    text = Text(line, style=style, no_wrap=True)
    text.truncate(width, overflow="ellipsis")
    return text


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent="    ", break_long_words=True)


def _bar(share: float | None, columns: int) -> Text:
    """A bar and the share."""
    share = min(1.0, max(0.0, share or 0.0))
    eighths = round(share * columns * 8)
    drawn = _FULL * (eighths // 8) + (_PART[eighths % 8] if eighths % 8 else "")
    colour = "red" if share >= 0.9 else "yellow" if share >= 0.6 else "green"
    return Text.assemble((drawn.ljust(columns), colour), f"{share:5.0%}")


def number(value: Any) -> str:
    """Grouped, without decimals where they do not matter; ``-`` for what is not known."""
    if not _is_number(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.1f}"


def decimal(value: Any) -> str:
    return f"{value:,.2f}" if _is_number(value) else "-"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def plain_line(status: Status) -> str:
    """The same in one line, where nothing is redrawn."""
    learner, named = mapping(status.get("learner")), mapping(status.get("bottleneck"))
    rates = mapping(learner.get("rates"))
    silent = sum(map(unheard, items(status.get("workers"))))
    parts: Sequence[str] = [
        clean(learner.get("state")) or "no learner",
        f"{status.get('workers_total', 0)} workers" + (f", {silent} of them silent" if silent else ""),
        f"trained {number(rates.get('agent_steps_per_second'))} steps/s",
        f"return {decimal(learner.get('episode_return_mean'))}",
        f"lag {decimal(learner.get('policy_lag_mean'))}",
        f"bottleneck {clean(named.get('component')) or '-'}",
    ]
    return ", ".join(parts)
