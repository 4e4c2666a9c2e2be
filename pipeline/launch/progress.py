"""What a run shows while it goes on, and what it says at its end.

In a terminal one block that is redrawn; else one plain line every few seconds. All figures come from ``summary.json``,
which the learner rewrites; before it exists the states of the processes are shown.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline import logs
from pipeline.config.tree import RunSection

log = logging.getLogger(__name__)

PLAIN_SECONDS = 5.0
_WORDS, _LONGEST_WORDS = 120, 1000
"""Of a fault: while the run goes on, and at its end."""
Summary = Mapping[str, Any]


class Progress:
    """Shows a run. Belongs to the main thread and starts none of its own.

    Args:
        limits: what ends the run, for the time that is left.
        console: where to; default the standard output.
    """

    def __init__(self, limits: RunSection, console: Console | None = None) -> None:
        self._limits = limits
        self._console = console or Console()
        self._live: Live | None = None
        self._shown_at = -math.inf

    def update(self, summary: Summary | None, states: Mapping[str, str], seconds: float, doing: str = "") -> None:
        """Shows where the run is.

        Args:
            summary: the learner's last one; None before the first.
            states: of the components.
            seconds: since the run's start.
            doing: what the learner said last; shown before there is a summary.
        """
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(_block(summary, _starting(states, seconds, doing), states, self._limits), refresh=True)
        elif seconds >= self._shown_at + PLAIN_SECONDS:
            self._shown_at = seconds
            click.echo(_starting(states, seconds, doing) if summary is None else line(summary, self._limits))

    def say(self, text: str) -> None:
        """A line that stays, on the error stream where nothing is redrawn; with JSON logs a warning."""
        text = logs.printable(text)
        if self._live is not None:
            self._console.print(Text(text))
        elif logs.current().style == "json":
            log.warning("%s", text)
        else:
            click.echo(text, err=True)

    def close(self) -> None:
        """Leaves the last block where it stands."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def line(summary: Summary, limits: RunSection) -> str:
    """The run in one line."""
    return ", ".join(value if name == "time" else f"{name} {value}" for name, value in _figures(summary, limits))


def ending(summary: Summary | None, seconds: float) -> str:
    """The last line: why it ended, and how far it came."""
    if summary is None:
        return f"ended after {seconds:.1f} s, before the first environment step"
    reason = {"signal": "stopped", "error": "failed"}.get(str(summary.get("stop_reason")), summary.get("stop_reason"))
    mean = _number(summary, "episode_return_mean")
    parts = [
        _no_mean(summary) if mean is None else f"mean return {mean:.2f} over the last episodes",
        f"{_count(summary, 'agent_steps')} steps",
        f"{_rate(summary, 'agent_steps_per_second')} steps/s",
        f"{_count(summary, 'updates')} updates",
        f"{_count(summary, 'episodes')} episodes",
        f"policy lag {_decimal(summary, 'policy_lag_mean')}",
        f"ledger error {ledger_error(summary)}",
        *(f"faults of environments {words}" for words in [fault_words(summary, _LONGEST_WORDS)] if words),
    ]
    return f"{reason or 'interrupted'} after {_number(summary, 'seconds') or 0.0:.1f} s: {', '.join(parts)}"


def ledger_error(summary: Summary) -> str:
    """Transitions that the books do not account for; ``-`` where there are no books."""
    ledger = summary.get("ledger")
    error = ledger.get("error") if isinstance(ledger, Mapping) else None
    return "-" if error is None else str(error)


def _no_mean(summary: Summary) -> str:
    """Why the run has no mean return."""
    if not _number(summary, "episodes"):
        return "no episode finished"
    if turns := _turns(summary):
        return f"no mean return yet{turns}"
    if _number(summary, "updates"):
        return "no mean return before each environment has ended an episode since the start or resume"
    return "no mean return before an update"


def _turns(summary: Summary) -> str:
    """How many environments have ended an episode, while a mean return has to wait for others."""
    missing = int(_number(summary, "episode_environments_waited_for") or 0)
    if not missing or not _number(summary, "episodes"):
        return ""
    environments = int(_number(summary, "episode_environments") or 0)
    return f" ({environments - missing:,} of {environments:,} environments have ended an episode)"


def fault_words(summary: Summary, characters: int) -> str:
    """How many faults environments had, and the newest one's first words; empty where there were none."""
    faults = summary.get("faults")
    number = sum(n for n in faults.values() if isinstance(n, int)) if isinstance(faults, Mapping) else 0
    words = " ".join(logs.printable(str(summary.get("newest_fault") or "")).split())
    last = f" (the last: {words if len(words) <= characters else words[: characters - 3] + '...'})" if words else ""
    return f"{number:,}{last}" if number else ""


def seconds_left(summary: Summary, limits: RunSection) -> float | None:
    """Seconds to the nearer of ``run.max_steps`` and ``run.max_seconds`` at the present rate; None without a limit."""
    left = []
    rate, steps = _number(summary, "agent_steps_per_second"), _number(summary, "agent_steps") or 0.0
    if limits.max_steps is not None and rate:
        left.append((limits.max_steps - steps) / rate)
    if limits.max_seconds is not None:
        left.append(limits.max_seconds - (_number(summary, "elapsed_seconds") or _number(summary, "seconds") or 0.0))
    return max(0.0, min(left)) if left else None


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _figures(summary: Summary, limits: RunSection) -> list[tuple[str, str]]:
    figures = [
        ("time", f"{_number(summary, 'seconds') or 0.0:.0f} s"),
        ("steps", _count(summary, "agent_steps")),
        ("steps/s", _rate(summary, "agent_steps_per_second")),
        ("return", _decimal(summary, "episode_return_mean") + _turns(summary)),
        ("episodes", _count(summary, "episodes")),
        ("updates", _count(summary, "updates")),
        ("lag", _decimal(summary, "policy_lag_mean")),
    ]
    left, bottleneck = seconds_left(summary, limits), summary.get("bottleneck")
    if left is not None:
        figures.append(("left", duration(left)))
    if isinstance(bottleneck, Mapping):
        figures.append(("bottleneck", str(bottleneck.get("component"))))
    if words := fault_words(summary, _WORDS):
        figures.append(("faults", words))
    return figures


def _block(summary: Summary | None, starting: str, states: Mapping[str, str], limits: RunSection) -> Table:
    table = Table.grid(padding=(0, 2))
    if summary is None:
        table.add_row(Text(starting))
        return table
    for name, value in _figures(summary, limits):
        table.add_row(Text(name, style="bold"), Text(value))
    trouble = [f"{name} {state}" for name, state in states.items() if state == "restarting"]
    if trouble:
        table.add_row(Text("processes", style="bold"), Text(", ".join(trouble), style="yellow"))
    return table


def _starting(states: Mapping[str, str], seconds: float, doing: str) -> str:
    running = [name for name, state in states.items() if state == "running"]
    other = [f"{name} {state}" for name, state in states.items() if state != "running"]
    parts = [f"{', '.join(running)} running"] if running else []
    parts += other + ([f"learner: {logs.printable(doing)}"] if doing else [])
    return f"starting, {seconds:.0f} s: {'; '.join(parts)}"


def _number(summary: Summary, name: str) -> float | None:
    value = summary.get(name)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _count(summary: Summary, name: str) -> str:
    value = _number(summary, name)
    return "-" if value is None else f"{value:,.0f}"


def _rate(summary: Summary, name: str) -> str:
    value = _number(summary, name)
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _decimal(summary: Summary, name: str) -> str:
    value = _number(summary, name)
    return "-" if value is None else f"{value:.2f}"
