"""The report and TensorBoard of a real run, in a real browser: curves are there, drawn, labelled and readable.

Debian's ``chromium``, driven by Playwright. What is drawn is judged by the pixels of screenshots too.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from tests.runs import PATIENT, settings

pytestmark = pytest.mark.system

PATIENCE_MS = 120_000
RUN_SECONDS = 15
LEAST_POINTS = 8
LEAST_PIXELS = 60
"""Of a line's colour, in its plot."""
CONTRAST = 4.5
"""Of text, after WCAG 2 AA."""
TITLES = ("Episode return", "Loss terms", "Steps per second", "Busy share of each stage", "Store depth", "Policy lag")
LINES = (
    "episodes/return_mean",
    "evaluation/return_mean",
    "flow/agent_steps_per_second",
    "lag/mean",
    "stages/inference_busy",
    "training/loss",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The directory of a run of some seconds."""
    place = tmp_path_factory.mktemp("browser")
    values = settings(
        f"run.max_seconds={RUN_SECONDS}",
        "run.solved_return=null",
        "run.log_interval_seconds=0.5",
        "evaluation.workers=1",
        "evaluation.episodes=4",
        "evaluation.envs=4",
        "workers.envs=16",
        PATIENT,
    )
    command = [sys.executable, "-m", "pipeline.cli", "run", "cartpole_vtrace", *values, "--run-dir", "run"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "run"


@pytest.fixture
def browser() -> Iterator[Browser]:
    """One for each test, so that its helper processes, which come and go, end with it."""
    program = shutil.which("chromium")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed: apt-get install chromium")
        pytest.skip("chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=PATIENCE_MS)
        yield started
        started.close()


class Watched:
    """A page, what it asked for and what it complained about."""

    def __init__(self, browser: Browser, scheme: str) -> None:
        self.context = browser.new_context(viewport={"width": 1320, "height": 1000}, color_scheme=scheme)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)


@pytest.fixture(scope="module")
def written(trained) -> Path:
    """Its report."""
    out = trained.parent / "report.html"
    command = [sys.executable, "-m", "pipeline.cli", "report", str(trained), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    return out


@pytest.fixture(params=["light", "dark"])
def report(request, written, browser) -> Iterator[tuple[Watched, Path]]:
    """A report, opened as a file."""
    watched = Watched(browser, request.param)
    watched.page.goto(written.as_uri())
    watched.page.wait_for_selector("body[data-drawn=frames]")
    yield watched, written
    watched.context.close()


PLOTS = """() => Array.from(document.querySelectorAll(".plot"), (plot) => {
  const box = (element) => { const b = element.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
  return {
    key: plot.id,
    title: plot.parentElement.querySelector("strong").textContent,
    points: Math.max(0, ...plot.data.map((line) => line.x.length)),
    lines: plot.data.filter((line) => line.type === "scatter").map((line) => line.line.color),
    segments: Array.from(plot.querySelectorAll("path.js-line"), (line) => (line.getAttribute("d") || "").length),
    axes: Array.from(plot.querySelectorAll(".xtitle, .ytitle"), (title) => title.textContent),
    box: box(plot.parentElement),
    drawing: box(plot.querySelector(".main-svg")),
    ticks: Array.from(plot.querySelectorAll(".xtick text"), box),
    text: getComputedStyle(plot.querySelector(".ytick text")).fill,
    ground: getComputedStyle(plot.parentElement).backgroundColor,
  };
})"""


def test_every_plot_of_a_report_is_drawn_labelled_and_readable(report):
    watched, out = report
    page = watched.page
    plots = page.evaluate(PLOTS)
    assert set(TITLES) <= {plot["title"] for plot in plots}
    for plot in plots:
        name, (left, top, right, bottom) = plot["title"], plot["box"]
        assert right - left > 300 and bottom - top > 200, f"{name} has no room"
        assert left <= plot["drawing"][0] and plot["drawing"][2] <= right + 1, f"{name} sticks out"
        assert plot["axes"] and all(plot["axes"]), f"{name} has an axis without a title"
        assert contrast(plot["text"], plot["ground"]) >= CONTRAST, f"{name}: labels are not readable"
        if plot["lines"]:
            assert plot["points"] >= LEAST_POINTS and len(plot["axes"]) == 2, name
            assert len(plot["segments"]) >= len(plot["lines"]) and min(plot["segments"]) > 0, name
        ticks = itertools.pairwise(sorted(plot["ticks"]))
        assert all(one[2] <= two[0] for one, two in ticks), f"{name}: labels overlap"
        picture = pixels(page.locator(f"#{plot['key']}").screenshot())
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20, f"{name} is blank"
        assert not plot["lines"] or max(close_to(picture, colour) for colour in plot["lines"]) > LEAST_PIXELS, name
    assert not overlaps([plot["box"] for plot in plots])
    page.click("text=over time")
    page.wait_for_selector("body[data-drawn=time]")
    titles = [plot["axes"][0] for plot in page.evaluate(PLOTS) if plot["lines"]]
    assert titles and all(re.fullmatch(r"run time, (s|min|h)", title) for title in titles)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is wider than the window"
    assert not watched.complaints, watched.complaints
    assert [url for url in watched.asked if not url.startswith(("data:", "blob:"))] == [out.as_uri()]


@pytest.mark.parametrize("report", ["light"], indirect=True)
def test_what_a_report_says_in_words(report):
    page = report[0].page
    text = page.inner_text("body")
    for words in (
        "CartPole-v1",
        "cartpole_vtrace",
        "at its limit of time",
        "closes",
        "accepted",
        "tensorflow",
        "vtrace",
    ):
        assert words in text, words
    sums = page.evaluate(
        """() => Array.from(document.querySelectorAll(".books table"), (table) =>
             Array.from(table.querySelectorAll(".number"), (cell) => Number(cell.textContent.replaceAll(",", ""))))"""
    )
    assert len(sums) == 2 and all(whole == sum(parts) and missing == 0 for whole, *parts, missing in sums)
    assert page.locator("pre").text_content().count("unroll_length") == 1


@pytest.fixture
def board(trained) -> Iterator[str]:
    """TensorBoard's address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(trained / "events")]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0"], stderr=subprocess.PIPE, text=True, env=environment
    )
    lines: Queue[str] = Queue()
    reader = threading.Thread(target=lambda: [lines.put(line) for line in process.stderr], daemon=True)
    reader.start()
    try:
        said = ""
        while not (found := re.search(r"at (http://\S+)", said)):
            try:
                said += lines.get(timeout=PATIENCE_MS / 1000)
            except Empty:
                pytest.fail(f"TensorBoard does not serve: {said}")
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)
        reader.join(10)
        process.stderr.close()


def test_tensorboard_draws_our_curves(board, browser):
    watched = Watched(browser, "light")
    page = watched.page
    try:
        page.goto(f"{board}#scalars&tagFilter={'|'.join(LINES)}")
        for name in LINES:
            card = page.locator("tf-scalar-card").filter(has_text=name).first
            card.scroll_into_view_if_needed()
            card.locator("path.line").first.wait_for(state="attached")
            drawn = card.locator("path.line").first
            page.wait_for_function("(line) => (line.getAttribute('d') || '').length > 40", arg=drawn.element_handle())
            colour = drawn.evaluate("(line) => getComputedStyle(line).stroke")
            picture = pixels(card.screenshot())
            assert close_to(picture, colour) > LEAST_PIXELS, f"{name}: no line is seen"
        page.goto(f"{board}#text")
        page.reload()
        page.get_by_text("unroll_length").first.wait_for()
        assert all(url.startswith((board, "data:", "blob:")) for url in watched.asked), watched.asked
        assert not watched.complaints, watched.complaints
    finally:
        watched.context.close()


def pixels(png: bytes) -> np.ndarray:
    """uint8 ``[height, width, 3]``."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def rgb(colour: str) -> np.ndarray:
    """Of ``#rrggbb`` or ``rgb(r, g, b)``."""
    if colour.startswith("#"):
        return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return np.array([float(number) for number in re.findall(r"[\d.]+", colour)[:3]])


def close_to(picture: np.ndarray, colour: str) -> int:
    """How many pixels have a colour, but for smoothed edges."""
    return int((np.abs(picture.astype(int) - rgb(colour)).max(axis=-1) < 40).sum())


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        share = rgb(colour) / 255
        linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def overlaps(boxes: list[list[float]]) -> bool:
    return any(
        one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]
        for i, one in enumerate(boxes)
        for two in boxes[:i]
    )
