"""What is counted and how it is rendered: names, histograms, counters, and the files of ``monitoring/``."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from broker.metrics import health as of_broker
from learner.feed import Versions
from learner.lag import Lag
from learner.metrics import LAGS, lag_counted
from learner.metrics import health as of_learner
from learner.slots import Verdict
from pipeline.buckets import LATENCIES, NOTED, Buckets
from pipeline.config.metrics import MetricsSection, split
from pipeline.connections import REASONS
from pipeline.metrics import routing
from pipeline.metrics.catalogue import BY_NAME, CUT, DROPPED, MALFORMED, METRICS, OUTCOMES
from pipeline.metrics.document import document, unit_of
from pipeline.metrics.sheet import Sheet
from pipeline.protocol import Kind
from pipeline.requests import Standing
from pipeline.routing.actions import Settings
from pipeline.routing.reading import read
from pipeline.routing.router import Router
from pipeline.stages import BUSY, MESSAGES, Stage
from pipeline.stopping import StopToken
from workers.block import At, Of
from workers.tally import Tally

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
SETTINGS = Settings(
    heartbeat_seconds=1.0,
    lease_seconds=10.0,
    max_workers=8,
    min_rows=1,
    max_wait_seconds=0.0,
    settle_seconds=0.0,
)


def test_document_is_current() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text("utf-8") == document()


def test_names_are_prometheus_own() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"(seedmq|process)_[a-z_]+", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.kind != "histogram" or unit_of(metric), metric.name
        assert metric.meaning.endswith("."), metric.name
        assert not {"worker", "environment", "peer", "id"} & set(metric.labels), metric.name


def test_label_values_are_those_of_the_code() -> None:
    assert set(OUTCOMES) == {verdict.value for verdict in Verdict} | {"malformed"}
    assert set(MALFORMED) <= {"head", *(kind.name.lower() for kind in Kind)}
    assert CUT == REASONS
    assert {"oldest", "stale", "damaged", "store_lost"} <= set(DROPPED)


def test_buckets_count_alike_at_once_and_later() -> None:
    values = [*np.random.default_rng(1).exponential(0.3, NOTED + 100).tolist(), 0.001, 1e9]
    once, later = Buckets(LATENCIES), Buckets(LATENCIES)
    for value in values:
        once.add(value)
    for begin in range(0, len(values), 7):
        later.note(values[begin : begin + 7])
    assert sum(later.read().counts) >= NOTED  # it never holds more than so many
    later.settle()
    assert once.read().counts == later.read().counts
    assert once.read().sum == pytest.approx(later.read().sum)
    assert sum(once.read().counts) == len(values)
    assert once.read().counts[0] == sum(value <= 0.001 for value in values)


def test_shown_lags_hold_all_rows() -> None:
    lag = Lag()
    lags = np.array([0, 5, 12, 13, 500, 2**22], np.int64)
    lag.add(2**22, Versions(np.sort(2**22 - lags), np.arange(1, 7, dtype=np.int64)))
    counted = lag_counted(lag)
    assert sum(counted.counts) == 21 and counted.counts[-1] == 1
    at = {limit: sum(counted.counts[: i + 1]) for i, limit in enumerate(LAGS)}
    assert (at[0], at[4], at[6], at[12], at[16], at[512]) == (6, 6, 11, 15, 18, 20)


def rendered(sheet: Sheet) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """As a scrape has it: (name, labels) -> value."""
    found = {}
    for family in sheet.families():
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_a_router_is_rendered_with_every_reason_it_counts() -> None:
    router = Router(SETTINGS, 7)
    router.counters.update(
        {"left_bye": 2, "connections_cut_rate": 3, "malformed_hello": 4, "learner_lost": 5, "hello_refused": 6}
    )
    router.counters.update({"stale_step": 7, "never_heard_of": 8, "connections_refused": 9})
    sheet = Sheet()
    routing.fill(sheet, read(router))
    found = rendered(sheet)
    assert found["seedmq_workers_left_total", (("reason", "bye"),)] == 2
    assert found["seedmq_workers_left_total", (("reason", "lease"),)] == 0
    assert found["seedmq_connections_cut_total", (("reason", "rate"),)] == 3
    assert found["seedmq_messages_malformed_total", (("kind", "hello"),)] == 4
    assert found["seedmq_learners_lost_total", ()] == 5
    assert found["seedmq_joins_refused_total", (("reason", "hello_refused"),)] == 6
    assert found["seedmq_messages_dropped_total", (("reason", "stale_step"),)] == 7
    assert found["seedmq_messages_dropped_total", (("reason", "never_heard_of"),)] == 8
    assert found["seedmq_connections_refused_total", ()] == 9
    assert ("seedmq_messages_dropped_total", (("reason", "hello_refused"),)) not in found
    assert found["seedmq_learners", (("state", "connected"),)] == 0


def test_a_name_that_is_not_documented_is_an_error() -> None:
    with pytest.raises(KeyError):
        Sheet().set("seedmq_invented_total", 1)


def test_stages_are_seconds() -> None:
    now = [0.0]
    stage = Stage("broker", lambda: now[0])
    stage.enter(BUSY)
    now[0] = 2.0
    stage.enter(MESSAGES)
    now[0] = 5.0
    sheet = Sheet()
    sheet.stages([stage])
    found = rendered(sheet)
    name = "seedmq_stage_seconds_total"
    assert found[name, (("activity", "busy"), ("stage", "broker"))] == 2.0
    assert found[name, (("activity", "messages"), ("stage", "broker"))] == 3.0


class FakeBlock:
    """The numbers of a child's shared memory."""

    def __init__(self, taken: int) -> None:
        self.numbers = [0] * len(At)
        self.taken = taken
        self.phase, self.since_seconds = At.STEP, 0.0

    def count(self, of: Of) -> int:
        return self.taken if of is Of.TAKEN else 0

    def faults(self) -> dict[str, int]:
        return {}


def test_a_worker_s_counters_go_on_over_its_children() -> None:
    tally = Tally()
    assert tally.read().numbers[Of.TAKEN] == 0 and tally.read().restarts == 0
    for number, taken in enumerate((5, 7)):
        tally.begins(FakeBlock(taken))  # type: ignore[arg-type]
        assert tally.read().restarts == number
        before = tally.read().numbers[Of.TAKEN]
        tally.ends({"env_errors": number + 1})
        assert tally.read().numbers[Of.TAKEN] == before and tally.read().phase is None
    assert tally.read().numbers[Of.TAKEN] == 12
    assert tally.read().faults["env_errors"] == 2


# Health.


def test_a_broker_whose_loop_stands_still_is_not_alive() -> None:
    router = Router(SETTINGS, 7)
    loop: Any = SimpleNamespace(turned=time.monotonic(), tick_seconds=0.25, board=SimpleNamespace(reading=read(router)))
    health = of_broker(loop, StopToken())
    assert not health.alive() and health.ready() == "no learner is connected"
    loop.turned -= 60
    assert re.fullmatch(r"the loop has stood still for 6\d s", health.alive())


def test_a_learner_says_what_it_lacks() -> None:
    stop = StopToken()
    inference = SimpleNamespace(turned=None, standing=Standing("no broker has answered yet"), serves=False)
    learner: Any = SimpleNamespace(
        inference=inference, stop=stop, reporter=SimpleNamespace(doing=lambda: "building the policy")
    )
    health = of_learner(learner)
    assert not health.alive() and health.ready() == "no broker has answered yet"
    inference.standing = Standing("")
    assert health.ready() == "building the policy"
    inference.serves, inference.turned = True, time.monotonic() - 100
    assert not health.ready() and "inference has stood still" in health.alive()
    stop.stop("error", ValueError("a bug"))
    assert health.alive() == "ValueError: a bug" and health.ready() == "stopping: error"


# The configuration.


@pytest.mark.parametrize(
    ("address", "found"),
    [("127.0.0.1:9464", ("127.0.0.1", 9464)), ("[::1]:0", ("::1", 0)), ("host.example:80", ("host.example", 80))],
)
def test_addresses(address: str, found: tuple[str, int]) -> None:
    assert split(address) == found
    assert MetricsSection(bind=address).bind == address


@pytest.mark.parametrize("address", ["", "9464", ":9464", "host", "::1:9464", "host:65536", "http://host:80", "a b:1"])
def test_bad_addresses(address: str) -> None:
    with pytest.raises(ValidationError, match=r"bind"):
        MetricsSection(bind=address)


def test_processes_of_a_host_take_ports_one_after_the_other() -> None:
    section = MetricsSection(bind="127.0.0.1:9464")
    assert section.moved(3).bind == "127.0.0.1:9467"
    assert MetricsSection(bind="127.0.0.1:0").moved(3).bind == "127.0.0.1:0"
    assert MetricsSection().moved(3).bind is None
    with pytest.raises(ValueError, match="65535"):
        MetricsSection(bind="127.0.0.1:65530").moved(6)


# The files of monitoring/.


def expressions() -> list[str]:
    """Of the rules and the dashboard."""
    rules = yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text("utf-8"))
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((ROOT / "monitoring" / "grafana" / "dashboards" / "seedmq.json").read_text("utf-8"))
    found += [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return found + [annotation["expr"] for annotation in dashboard["annotations"]["list"]]


def test_rules_and_dashboard_use_what_is_documented() -> None:
    names = {metric.name for metric in METRICS}
    for expression in expressions():
        used = set(re.findall(r"\b(?:seedmq|process)_[a-z_]+\b", expression))
        used = {re.sub(r"_(bucket|count|sum)$", "", name) for name in used}
        assert used <= names, expression
        for name, label, value in re.findall(r'(seedmq_[a-z_]+)\{(\w+)="(\w+)"', expression):
            assert label == "job" or value in BY_NAME[name].labels[label], expression


def test_every_rule_says_what_to_do() -> None:
    rules = yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text("utf-8"))
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"] and len(rule["annotations"]["runbook"]) > 40, rule["alert"]


def test_panels_of_the_dashboard_do_not_overlap_and_are_titled() -> None:
    dashboard = json.loads((ROOT / "monitoring" / "grafana" / "dashboards" / "seedmq.json").read_text("utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert panel["title"] and not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells
