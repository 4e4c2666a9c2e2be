"""What one scrape says: values by the names of ``pipeline.metrics.catalogue``, and the registry that asks for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from pipeline import __version__, logs
from pipeline.buckets import Counted
from pipeline.metrics.catalogue import BY_NAME, Role
from pipeline.stages import Stage


class Sheet:
    """Filled once for each scrape."""

    def __init__(self) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        self._histograms: list[Family] = []

    def set(self, name: str, value: float, *labels: str) -> None:
        """A value of a gauge or a counter, its labels in the catalogue's order.

        Raises:
            KeyError: the catalogue has no such metric.
        """
        metric = BY_NAME[name]
        family = self._families.get(name)
        if family is None:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            self._families[name] = family = kind(name, metric.meaning, labels=list(metric.labels))
        family.add_metric(list(labels), value)

    def by(self, name: str, values: Mapping[str, float]) -> None:
        """Values by the one label of a metric; those of the catalogue that are missing are 0."""
        (known,) = BY_NAME[name].labels.values()
        for label, value in (dict.fromkeys(known, 0) | dict(values)).items():
            self.set(name, value, label)

    def histogram(self, name: str, counted: Counted) -> None:
        """A histogram."""
        limits = [*map(floatToGoString, counted.limits), "+Inf"]
        buckets = list(zip(limits, itertools.accumulate(counted.counts), strict=True))
        self._histograms.append(HistogramMetricFamily(name, BY_NAME[name].meaning, buckets, counted.sum))

    def stages(self, stages: Iterable[Stage]) -> None:
        """What stages did so far."""
        for stage in stages:
            for activity, seconds in stage.seconds().items():
                self.set("seedmq_stage_seconds_total", seconds, stage.name, activity)

    def families(self) -> list[Family]:
        return [*self._families.values(), *self._histograms]


class _Scrape(Collector):
    def __init__(self, fill: Callable[[Sheet], None]) -> None:
        self._fill = fill

    def collect(self) -> Iterable[Family]:
        sheet = Sheet()
        self._fill(sheet)
        return sheet.families()

    def describe(self) -> Iterable[Family]:
        """Nothing, so that nothing is asked before the role works."""
        return []


def registry_of(role: Role, ready: Callable[[], str], fill: Callable[[Sheet], None]) -> CollectorRegistry:
    """Everything that a process of this role says.

    Args:
        role: Its role.
        ready: As in ``Health``.
        fill: Adds what the role counts; called for each scrape, on the endpoint's threads.
    """

    def all_of(sheet: Sheet) -> None:
        run = logs.current().run_id
        sheet.set("seedmq_info", 1, __version__, role, "" if run == "-" else run)
        sheet.set("seedmq_ready", not ready())
        fill(sheet)

    registry = CollectorRegistry()
    registry.register(_Scrape(all_of))
    ProcessCollector(registry=registry)
    return registry
