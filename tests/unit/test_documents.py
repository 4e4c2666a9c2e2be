"""What the documents say exists: links, commands, make targets, presets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.cli import seedmq
from pipeline.config.load import load

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/*.md", "docs/decisions/*.md") for path in ROOT.glob(pattern) if path.is_file()
)


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text("utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        assert not path or (document.parent / path).exists(), link
        assert path or anchor in headings, link


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_commands_and_targets_exist(document: Path) -> None:
    text = document.read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    known = {name for line in targets for name in line.split()}
    blocks = re.findall(r"```(?:sh)?\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text)
    for block in blocks:
        for line in block.splitlines():
            command = re.match(r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?seedmq (\w+)", line)
            assert command is None or command[1] in seedmq.commands, line
            target = re.match(r"make ([a-z-]+)", line)
            assert target is None or target[1] in known, line


@pytest.mark.parametrize("preset", ["atari_r2d2", "dmlab_vtrace"])
def test_published_settings_are_those_of_the_preset(preset: str) -> None:
    text = (ROOT / "docs" / "algorithms.md").read_text("utf-8")
    section = next(part for part in text.split("\n## ") if part.partition("\n")[0].endswith(f"`{preset}`"))
    rows = re.findall(r"^\| `([a-z0-9_.]+\.[a-z0-9_.]+)` \| ([^|]+) \|", section, re.MULTILINE)
    config = load(preset, [], {}).config.model_dump(by_alias=True)
    for key, shown in rows:
        value: Any = config
        for name in key.split("."):
            value = value[name]
        assert value == yaml.safe_load(shown), key
    assert len(rows) > 25


def test_presets_that_the_readme_names_exist() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    presets = {path.stem for path in (ROOT / "configs").glob("*.yaml")}
    named = set(re.findall(r"\b\w+_(?:vtrace|r2d2|throughput)\b", text))
    assert named and named <= presets


def test_tests_that_the_documents_name_exist() -> None:
    named = [node for path in DOCUMENTS for node in re.findall(r"`(tests/\S+?::\w+)`", path.read_text("utf-8"))]
    assert len(named) > 80
    for node in named:
        path, _, function = node.partition("::")
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), node
