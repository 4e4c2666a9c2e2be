"""Writes ``docs/metrics.md`` from the catalogue: ``python -m pipeline.metrics.document > docs/metrics.md``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipeline.metrics.catalogue import (
    COMMON,
    OF_BROKER,
    OF_ENVIRONMENTS,
    OF_LEARNER,
    OF_WORKER,
    PROCESS_METRICS,
    Metric,
)

_HEAD = """# Metrics

<!-- Generated from pipeline/metrics/catalogue.py: python -m pipeline.metrics.document > docs/metrics.md -->

Each process of a pipeline serves plain HTTP where `metrics.bind` is set:

```sh
SEEDMQ_METRICS__BIND=127.0.0.1:9464 seedmq run cartpole_vtrace
```

| path | answers |
| --- | --- |
| `/metrics` | everything below, in Prometheus' text format or OpenMetrics, as the client asks |
| `/healthz` | 200 where the process works, else 503 |
| `/readyz` | 200 where it serves, else 503 |

A 503 has a line that says why. Works: the broker's loop or the learner's inference turns, no thread has died, the
worker's supervisor looks after its environments. Serves: the broker has a learner; the learner's policy is built and
its broker answers; the worker is admitted; nothing stops.

Under `seedmq run` the learner takes the port of `metrics.bind`, a broker process the next one, worker i the one i + 2
after it; each process logs its own. Where each is in a container of its own, as under compose, all take 9464. While
TensorFlow compiles, a learner may answer seconds late: give probes 10 s.

There is neither password nor encryption: bind it to the loopback or to a private network
([security.md](security.md#metrics)). No label names an environment, a worker or a peer; how many series there are does
not grow with the pipeline, but for one process being one target.

`monitoring/` holds a configuration for Prometheus, alert rules and a Grafana dashboard that use these names:
[operations.md](operations.md#metrics-and-alerts) says what to do for each alert.

Counters begin at 0 with a process, but for those of the learner's ledger, its updates and episodes: they go on from
the checkpoint, so after a crash they may be lower than before, which `rate()` takes for a start at 0. What a broker
knows is at most a second old.
"""


def document() -> str:
    """The whole text."""
    sections = (
        ("Every process", (*COMMON, *PROCESS_METRICS)),
        ("Broker", OF_BROKER),
        ("Learner", OF_LEARNER),
        ("Worker", (*OF_WORKER, *OF_ENVIRONMENTS)),
    )
    return "\n".join([_HEAD, *(_section(title, metrics) for title, metrics in sections)])


def _section(title: str, metrics: Sequence[Metric]) -> str:
    head = "| name | type | labels | unit | role | meaning |\n| --- | --- | --- | --- | --- | --- |"
    return f"## {title}\n\n{head}\n" + "".join(f"{_row(metric)}\n" for metric in metrics)


def _row(metric: Metric) -> str:
    labels = "; ".join(
        f"`{name}`" + (f": {', '.join(values)}" if values else "") for name, values in metric.labels.items()
    )
    when = f" ({metric.when[0].upper()}{metric.when[1:]}.)" if metric.when else ""
    cells = (f"`{metric.name}`", metric.kind, labels, unit_of(metric), ", ".join(metric.roles), metric.meaning + when)
    return f"| {' | '.join(cells)} |"


def unit_of(metric: Metric) -> str:
    """The last word of its name that is a unit, or what is counted."""
    if metric.unit:
        return metric.unit
    words = metric.name.removesuffix("_total").split("_")
    return next((word for word in reversed(words) if word in UNITS), "")


UNITS = (
    "seconds", "bytes", "rows", "unrolls", "updates", "requests", "transitions", "steps", "frames", "episodes",
    "messages", "connections", "workers", "learners", "environments", "faults", "restarts", "reconnects", "joins",
    "batches", "writes", "fds",
)  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(document())
