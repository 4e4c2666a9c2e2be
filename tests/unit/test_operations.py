"""The handbooks of operators against the code: what seedmq is said to say it says, and what is named there exists."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import bottleneck, errors
from pipeline.cli import seedmq
from pipeline.config import schema
from tests.kubernetes import BASE, FOLDER, OVERLAYS, read
from tests.kubernetes_checks import AUTHORIZED, SECRETS

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
OPERATIONS, KUBERNETES = ROOT / "docs/operations.md", ROOT / "docs/kubernetes.md"
ALERTS = ROOT / "monitoring/alerts.yml"
BOOKS = [OPERATIONS, KUBERNETES]
PACKAGES = ("pipeline", "broker", "workers", "learner")
LEAST = 8
"""Characters of a phrase that is looked for; shorter ones stand anywhere."""
METRIC = re.compile(r"\b(?:seedmq|process)_[a-z_]+(?:_total|_seconds|_bytes|_rows|_info)\b")


def text(path: Path) -> str:
    return path.read_text("utf-8")


def section(path: Path, heading: str) -> str:
    """Of a heading of the second level, up to the next."""
    return text(path).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(part: str) -> list[list[str]]:
    """Cells of a document's tables, without their heads; an escaped bar is none."""
    found = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in cells] for cells in found if not set("".join(cells)) <= set("- ")]


@cache
def said() -> str:
    """All text that the sources hold, a literal a line; what is filled in is a space."""
    found: list[str] = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(text(path))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(x.value) if isinstance(x, ast.Constant) else " " for x in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[.\d]*[a-z]", " ", node.value))
    return "\n".join(" ".join(one.split()) for one in found)


def phrases() -> list[str]:
    """What the tables of failures quote in their column of what seedmq says."""
    cells = [cells[1] for cells in rows(section(OPERATIONS, "Failures")) if len(cells) == 4]
    return [phrase for cell in cells for phrase in re.findall(r"`([^`]+)`", cell)]


def test_what_seedmq_is_said_to_say_it_says() -> None:
    assert len(phrases()) > 40
    missing = [
        (phrase, part.strip())
        for phrase in phrases()
        for part in phrase.split("...")
        if len(part.strip()) >= LEAST and " ".join(part.split()) not in said()
    ]
    assert missing == []


def test_every_bottleneck_has_a_row() -> None:
    first = section(OPERATIONS, "Scale").partition("\n\nWorkers up and down")[0]
    named = {cells[0].strip("`") for cells in rows(first) if cells[0].startswith("`")}
    assert named == set(bottleneck.ADVICE) - {"store away", "checkpoint"}, "both stand in the row of their component"


def test_every_exit_code_has_a_row() -> None:
    cells = " ".join(cells[0] for cells in rows(section(OPERATIONS, "Exit codes")))
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {str(code) for code in codes} <= set(re.findall(r"\d+", cells))


@pytest.mark.parametrize("book", BOOKS, ids=lambda path: path.name)
def test_settings_exist(book: Path) -> None:
    sections = {path[0] for path in schema.leaves()}
    named = {
        name
        for quoted in re.findall(r"`([^`\n]+)`", text(book))
        for name in re.findall(r"(?<![\w./])([a-z0-9]+(?:\.[a-z_0-9]+)+)(?=$|[=: ,])", quoted)
        if name.partition(".")[0] in sections and not name.endswith((".md", ".yaml", ".json", ".key", ".crt", ".sh"))
    }
    assert len(named) > 2
    assert [name for name in sorted(named) if schema.leaf_at(tuple(name.split("."))) is None] == []


@pytest.mark.parametrize("book", BOOKS, ids=lambda path: path.name)
def test_metrics_exist(book: Path) -> None:
    known = set(re.findall(r"^\| `(\w+)` \|", text(ROOT / "docs/metrics.md"), re.MULTILINE))
    named = set(METRIC.findall(text(book)))
    assert named and named <= known


@pytest.mark.parametrize("book", BOOKS, ids=lambda path: path.name)
def test_commands_of_seedmq_parse(book: Path) -> None:
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text(book), re.DOTALL) for line in block.splitlines()]
    parsed = 0
    for line in lines:
        for found in re.findall(r"(?:^|-- |&& )(seedmq [^|&#>)]+)", line):
            _, command, *arguments = shlex.split(found)
            group = seedmq.commands[command]
            if command == "config":
                group, arguments = group.commands[arguments[0]], arguments[1:]  # type: ignore[attr-defined]
            group.make_context(command, arguments, resilient_parsing=False)
            parsed += 1
    assert parsed >= 2


def test_the_manifests_that_the_handbook_names_are_there() -> None:
    manifests = read(BASE, FOLDER / "components/redis", FOLDER / "components/podmonitor")
    names = {one["metadata"]["name"] for one in manifests} | set(SECRETS) | AUTHORIZED | {"seedmq-configs"}
    for book in BOOKS:
        found = set(re.findall(r"\b(?:deploy|statefulset|hpa|configmap)/([\w-]+)", text(book)))
        assert found <= names, book
    listed = {cells[0].strip("`") for cells in rows(section(KUBERNETES, "Apply")) if cells[0].startswith("`")}
    assert listed == {path.name for path in OVERLAYS}
    for component in re.findall(r"`?components/([\w-]+)", text(KUBERNETES)):
        assert (FOLDER / "components" / component / "kustomization.yaml").exists()
    settings = set(re.findall(r"\bSEEDMQ_[A-Z0-9_]+__[A-Z0-9_]+\b", text(KUBERNETES))) - {"SEEDMQ_SECTION__KEY"}
    for name in settings:
        assert schema.leaf_at(tuple(name.removeprefix("SEEDMQ_").lower().split("__"))) is not None, name


def test_the_adapter_s_rule_is_the_metric_that_the_autoscaler_asks_for() -> None:
    (block,) = re.findall(r"```yaml\n(rules:.*?)```", text(KUBERNETES), re.DOTALL)
    (rule,) = yaml.safe_load(block)["rules"]
    (patch,) = yaml.safe_load_all(text(FOLDER / "components/scale-by-busy-share/worker-autoscaler.yaml"))
    assert rule["name"]["as"] == patch["spec"]["metrics"][0]["pods"]["metric"]["name"]
    series = rule["seriesQuery"].partition("{")[0]
    line = next(x for x in text(ROOT / "docs/metrics.md").splitlines() if x.startswith(f"| `{series}`"))
    assert "environments" in line and "busy" in line and "worker" in line
    assert rule["metricsQuery"].count(series) == 1 and 'activity="busy"' in rule["metricsQuery"]


def test_every_alert_has_a_row() -> None:
    rules = [rule for group in alerts()["groups"] for rule in group["rules"]]
    listed = {
        cells[0].strip("`"): cells[1] for cells in rows(section(OPERATIONS, "Metrics and alerts")) if len(cells) == 3
    }
    assert {rule["alert"]: rule["labels"]["severity"] for rule in rules}.items() == listed.items() - {
        ("alert", "severity")
    }


def test_the_alerts_are_a_rule_of_the_prometheus_operator() -> None:
    (block,) = re.findall(r"```sh\n(\(printf.*?)\| kubectl", text(KUBERNETES), re.DOTALL)
    made = subprocess.run(["sh", "-c", block], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    rule = yaml.safe_load(made)
    assert (rule["kind"], rule["spec"]) == ("PrometheusRule", alerts())
    jobs = set(re.findall(r'job="(\w+)"', text(ALERTS)))
    assert jobs <= {"broker", "learner", "worker"}, "what the PodMonitor and the relabelling make of the pods' labels"


def alerts() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text(ALERTS))
    return found
