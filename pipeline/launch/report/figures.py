"""Plots of a run, as Plotly draws them: which curves stand together, on which axes.

Colours of text, grid and paper are the page's (light or dark) and set there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from pipeline.curves import curve
from pipeline.launch.report.series import Series
from pipeline.stages import BUSY, in_order

HEIGHT = 300
ROOM = 1.06  # above the highest point
COLOURS = ("#2f7ed8", "#e07b39", "#2a9d6f", "#b5559b", "#c9a227", "#6b7a8f", "#d1495b", "#5b5bd6")
"""Told apart by people who see no red or green, on white and on black."""
FRAMES = "environment frames"
_UNITS = ((600.0, 1.0, "s"), (3 * 3600.0, 60.0, "min"), (np.inf, 3600.0, "h"))


class Plot(NamedTuple):
    """One figure of the page.

    Attributes:
        key: Its id.
        title: What it shows.
        words: One sentence on how to read it.
        figure: For Plotly: ``{"data", "layout"}``.
        times: For each line of ``data``, its places on the time axis; None: it has no such axis.
        time_unit: Of them.
    """

    key: str
    title: str
    words: str
    figure: dict[str, Any]
    times: list[list[float]] | None = None
    time_unit: str = ""


class Section(NamedTuple):
    """Plots under one heading."""

    title: str
    plots: list[Plot]


class _Wanted(NamedTuple):
    """A plot of whatever curves there are of it."""

    title: str
    words: str
    tags: str  # a regular expression
    unit: str
    zero: bool = True  # the axis begins there


_LEARNING = (
    _Wanted(
        "Episode return",
        "Raw and undiscounted, mean of the last episodes; evaluation: of its last round.",
        r"episodes/return_mean|evaluation/return_mean",
        "return",
        False,
    ),
    _Wanted("Episode length", "Mean of the last finished episodes.", r"episodes/length_mean", "agent steps"),
    _Wanted("Loss terms", "Of the last update.", r"training/(.+_)?loss", "loss", False),
)
_DEPTH = _Wanted("Store depth", "Transitions that wait in it.", r"flow/transitions_in_the_store", "transitions")
_FLOW = (
    _Wanted(
        "Steps per second",
        "Taken by environments, and used by training.",
        r"flow/.*_steps_per_second",
        "steps/s",
    ),
    _Wanted(
        "Busy share of each stage",
        "The busiest one that training waits for is the bottleneck.",
        r"stages/.*_busy",
        "share of time",
    ),
    _DEPTH,
    _Wanted(
        "Queues around the store",
        "Unrolls that wait to be written, batches that wait to be trained on.",
        r"flow/unrolls_before_the_store|flow/prefetched_batches",
        "unrolls, batches",
    ),
    _Wanted("Policy lag", "Updates between the policy that acted and the one that learns.", r"lag/.*", "updates"),
)
_REPLAY = (
    _Wanted("Unrolls held", "In the replay.", r"replay/unrolls", "unrolls"),
    _Wanted(
        "Replay ratio",
        "Unrolls sampled per unroll inserted, its target, and transitions trained per transition accepted.",
        r"replay/(samples_per_insert.*|replay_ratio)",
        "ratio",
    ),
)
_FAULTS = (
    _Wanted("Faults of environments", "So far, by kind.", r"faults/.*", "faults"),
    _Wanted("Dropped transitions", "So far, by reason.", r"dropped/.*", "transitions"),
)
_METRICS = re.compile(r"training/(?!(.+_)?loss$).+")


def sections(series: Mapping[str, Series], summary: Mapping[str, Any]) -> list[Section]:
    """All plots for which there is something to draw."""
    longest = max((float(one.seconds[-1]) for one in series.values()), default=0.0)
    scale, unit = next((scale, unit) for limit, scale, unit in _UNITS if longest <= limit)

    def lines(wanted: Sequence[_Wanted]) -> list[Plot]:
        return [plot for one in wanted if (plot := _lines(one, series, scale, unit)) is not None]

    metrics = [
        _Wanted(curve(tag).title, "Of the last update.", re.escape(tag), curve(tag).unit or "value", False)
        for tag in sorted(series)
        if _METRICS.fullmatch(tag)
    ]
    bars: list[Callable[[Mapping[str, Any]], Plot | None]] = [_stage_bars, _lag_bars]
    of_flow = [one for one in _FLOW if one is not _DEPTH or "replay/unrolls" not in series]  # nothing waits in a replay
    flow = lines(of_flow) + [plot for draw in bars if (plot := draw(summary)) is not None]
    found = [
        Section("Learning", lines(_LEARNING)),
        Section("Flow", flow),
        Section("Replay", lines(_REPLAY)),
        Section("Faults and drops", lines(_FAULTS)),
        Section("Training metrics", lines(metrics)),
    ]
    return [section for section in found if section.plots]


def _lines(wanted: _Wanted, series: Mapping[str, Series], scale: float, unit: str) -> Plot | None:
    shown = {tag: one for tag, one in series.items() if re.fullmatch(wanted.tags, tag)}
    if not shown:
        return None
    figure = go.Figure(layout=_layout(wanted.unit, FRAMES))
    for colour, (tag, one) in zip(_colours(), sorted(shown.items()), strict=False):
        few = len(one.values) <= 30
        figure.add_scatter(
            x=one.frames.tolist(),
            y=[_short(value) for value in one.values.tolist()],
            name=_name(tag),
            mode="lines+markers" if few else "lines",
            line={"color": colour, "width": 2},
            marker={"size": 5},
            hovertemplate="%{y:,.5~g}",
        )
    lowest, highest = (float(f([f(one.values) for one in shown.values()])) for f in (np.min, np.max))
    if lowest >= 0.0 and (wanted.zero or lowest == highest):
        figure.update_yaxes(range=[0.0, _short(ROOM * highest) or 1.0])
    else:
        figure.update_yaxes(zeroline=lowest < 0.0 < highest)
    if wanted.unit == "share of time":
        figure.update_yaxes(range=[0, 1.02], tickformat=".0%", hoverformat=".0%")
        figure.update_traces(hovertemplate="%{y:.0%}")
    figure.update_layout(showlegend=len(shown) > 1)
    times = [[round(value, 3) for value in (one.seconds / scale).tolist()] for _, one in sorted(shown.items())]
    return Plot(_key(wanted.title), wanted.title, wanted.words, _plain(figure), times, unit)


def _stage_bars(summary: Mapping[str, Any]) -> Plot | None:
    """Each stage's time, busy or waiting for what: a bar that is full."""
    shares = summary.get("stages") or {}
    names = in_order(shares)
    if not names:
        return None
    doings = [BUSY, *sorted({doing for name in names for doing in shares[name] if doing != BUSY})]
    figure = go.Figure(layout=_layout("", "share of time"))
    for colour, doing in zip(_colours(), doings, strict=False):
        figure.add_bar(
            y=names,
            x=[_short(shares[name].get(doing, 0.0)) for name in names],
            name=doing if doing == BUSY else f"waits for {doing}",
            orientation="h",
            marker={"color": colour, "line": {"width": 0}},
            opacity=1.0 if doing == BUSY else 0.45,
            hovertemplate="%{x:.0%}",
        )
    figure.update_layout(barmode="stack", bargap=0.3, hovermode="y unified", showlegend=True)
    figure.update_xaxes(range=[0, 1], tickformat=".0%")
    figure.update_yaxes(autorange="reversed", title=None)
    over = "the whole run" if summary.get("stop_reason") else "the last interval"
    words = f"Busy or waiting, over {over}, in the order of the flow."
    return Plot("stages", "Where each stage's time goes", words, _plain(figure))


def _lag_bars(summary: Mapping[str, Any]) -> Plot | None:
    rows = summary.get("policy_lag_histogram") or {}
    if not rows:
        return None
    figure = go.Figure(layout=_layout("transitions", "policy lag, updates (the bucket's upper end)"))
    figure.add_bar(
        x=[f"{int(lag):,}" for lag in rows],
        y=list(rows.values()),
        marker={"color": COLOURS[0], "line": {"width": 0}},
        hovertemplate="%{y:,}",
        name="transitions",
    )
    figure.update_layout(bargap=0.15, showlegend=False)
    figure.update_xaxes(type="category")
    return Plot("lag-histogram", "Policy lag of all trained transitions", "Since the learner began.", _plain(figure))


def _layout(y: str, x: str) -> dict[str, Any]:
    return {
        "height": HEIGHT,
        "margin": {"l": 64, "r": 34, "t": 8, "b": 48},
        "modebar": {"orientation": "v"},
        "xaxis": {"title": {"text": x, "standoff": 10}, "automargin": True, "hoverformat": ",", "zeroline": False},
        "yaxis": {"title": {"text": y, "standoff": 8}, "automargin": True, "zeroline": False},
        "legend": {
            "orientation": "h",
            "y": 1.02,
            "yanchor": "bottom",
            "x": 0,
            "xanchor": "left",
            "traceorder": "normal",
        },
        "hovermode": "x unified",
        "template": "none",
    }


def _colours() -> Iterator[str]:
    while True:
        yield from COLOURS


def _name(tag: str) -> str:
    return curve(tag).title.removesuffix(" busy") if tag.startswith("stages/") else curve(tag).title


def _short(value: float) -> float:
    """Six digits: more are not seen, and a page of them is large."""
    return float(f"{value:.6g}")


def _plain(figure: go.Figure) -> dict[str, Any]:
    plain: dict[str, Any] = figure.to_plotly_json()
    return {"data": list(plain["data"]), "layout": plain["layout"]}


def _key(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
