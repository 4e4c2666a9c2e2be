"""A real Prometheus over the endpoints of a test, with this repository's rules; and Debian's programs for it.

A test that needs a missing program is skipped with its name, but under CI it fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.runs import free_ports

MONITORING = Path(__file__).parents[1] / "monitoring"
DASHBOARD = MONITORING / "grafana" / "dashboards" / "seedmq.json"
WINDOW, LONG_WINDOW = "10s", "180s"
"""What the rules' windows are shortened to; the long one is of subqueries, which see a process end and start."""


def program(name: str) -> str:
    """The path of a program of Debian's package `prometheus`."""
    path = shutil.which(name)
    if path is None:
        missing = f"{name} is not installed (Debian: prometheus)"
        if os.environ.get("CI"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    return path


def promtool() -> str:
    return program("promtool")


def rules() -> list[dict[str, Any]]:
    """Of ``monitoring/alerts.yml``."""
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def shortened(expression: str) -> str:
    """The same with windows of seconds."""
    found = re.sub(r"\[\d+m:\d+s\]", f"[{LONG_WINDOW}:1s]", expression)
    return re.sub(r"\[\d+m\]", f"[{WINDOW}]", found)


def panels() -> list[tuple[str, str]]:
    """Title and expression of everything that the dashboard shows, windows filled in."""
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    shown = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", ())]
    shown += [(annotation["name"], annotation["expr"]) for annotation in dashboard["annotations"]["list"]]
    return [(title, expression.replace("$__rate_interval", WINDOW)) for title, expression in shown]


class Prometheus:
    """The server, scraping and judging every second.

    Args:
        folder: Of its own.
        targets: Job -> addresses.
    """

    def __init__(self, folder: Path, targets: Mapping[str, Sequence[str]]) -> None:
        folder.mkdir()
        config = yaml.safe_load((MONITORING / "prometheus.yml").read_text("utf-8"))
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        for job in config["scrape_configs"]:
            del job["dns_sd_configs"]
            job["static_configs"] = [{"targets": list(targets.get(job["job_name"], ()))}]
        quick = [{**rule, "expr": shortened(rule["expr"]), "for": "0s"} for rule in rules()]
        (folder / "alerts.yml").write_text(yaml.safe_dump({"groups": [{"name": "quick", "rules": quick}]}))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}/api/v1"
        command = [program("prometheus"), f"--config.file={folder / 'prometheus.yml'}", "--log.level=warn"]
        command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
        self._log = (folder / "log").open("w")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer; None while it does not answer."""
        try:
            query = urllib.parse.urlencode(parameters)
            with urllib.request.urlopen(f"{self._url}/{path}?{query}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it starts
                return None
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except OSError:
            assert self._process.poll() is None, "Prometheus has ended"
            return None

    def query(self, expression: str) -> list[Any]:
        """Series of an instant query."""
        data = self.get("query", query=expression)
        return [] if data is None else list(data["result"])

    def up(self) -> dict[str, int]:
        """Job -> targets that are up."""
        return {one["metric"]["job"]: int(one["value"][1]) for one in self.query("sum by (job) (up)")}

    def firing(self) -> set[str]:
        """Alerts that fire now."""
        data = self.get("alerts")
        return {one["labels"]["alertname"] for one in data["alerts"] if one["state"] == "firing"} if data else set()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
