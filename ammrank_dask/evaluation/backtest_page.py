"""Write a backtest: figures for machines, a table, and a page for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from ammrank_dask.evaluation.backtest import GAIN, LOGISTIC, MEASURES, POLICY, STANDARD_ERROR
from ammrank_dask.report.page import harmless, page_environment
from ammrank_dask.report.svg import (
    LEGEND_ROW,
    draw,
    legend,
    nice_range,
    number,
    round_up,
    steps_between,
    tag,
    text,
    value_axis,
)
from ammrank_dask.storage.objects.atomic import json_text
from ammrank_dask.storage.site.reports import write_files
from ammrank_dask.training.forward import OWN_HISTORY, POPULARITY

RESULT, TABLE, PAGE = "backtest.json", "backtest.csv", "backtest.html"
EXPOSURE = ("coverage", "gini", "starved_users", "overexposed_users", "starved_categories")
"""What is shown of the exposure of a night."""
LABELS = {
    POLICY: "published",
    OWN_HISTORY: "own history",
    POPULARITY: "popularity",
    LOGISTIC: "logistic regression",
}
_TEMPLATE = "backtest.html.j2"
_DASHES = {OWN_HISTORY: "10 3", POPULARITY: "6 3", LOGISTIC: "2 3"}
_LABELS_SHOWN = 6


def write_backtest(folder: str | Path, backtest: Mapping[str, Any]) -> None:
    """Write `backtest.csv`, `backtest.html` and, last, `backtest.json` into `folder`, each whole or not at all."""
    files = {
        TABLE: harmless(tabulate_backtest(backtest)).to_csv(index=False, lineterminator="\n"),
        PAGE: render_backtest(backtest),
        RESULT: json_text(dict(backtest)),
    }
    write_files(folder, files)


def tabulate_backtest(backtest: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row per night: the measures of every method, then the exposure."""
    rows = []
    for night in backtest["nights"]:
        row: dict[str, Any] = {name: night[name] for name in ("date", "until", "users")}
        for method in backtest["means"]:
            found = (night["methods"] or {}).get(method) or {}
            measures = MEASURES if method == POLICY else (*MEASURES, GAIN, STANDARD_ERROR)
            row |= {f"{method}_{measure}": found.get(measure) for measure in measures}
        row |= {name: (night["exposure"] or {}).get(name) for name in EXPOSURE}
        rows.append({**row, "model_of": (night["model"] or {}).get("date")})
    return pd.DataFrame(rows)


def render_backtest(backtest: Mapping[str, Any]) -> str:
    """Return the page: everything inline, every name from the data escaped."""
    environment = page_environment(Path(__file__).parent)
    environment.filters["figure"] = lambda value, digits=4: "–" if value is None else f"{value:.{digits}f}"
    environment.filters["gain"] = gain_text
    nights = backtest["nights"]
    dates = [night["date"] for night in nights]

    def of_methods(measure: str) -> dict[str, list[float | None]]:
        return {
            LABELS[method]: [(night["methods"] or {}).get(method, {}).get(measure) for night in nights]
            for method in backtest["means"]
        }

    def of_exposure(*names: str) -> dict[str, list[float | None]]:
        return {name.replace("_", " "): [(night["exposure"] or {}).get(name) for night in nights] for name in names}

    k = backtest["k"]
    charts = [
        (
            "Ranking error ε_dis",
            "share of pairs in the wrong order",
            time_chart("disagreement", dates, of_methods("disagreement")),
        ),
        ("Hits", f"clicked categories of {k}", time_chart("hits", dates, of_methods("hits"))),
        (f"NDCG@{k}", "1 is the best possible", time_chart("ndcg", dates, of_methods("ndcg"))),
        (
            "Evenness of exposure",
            "coverage: share of categories; Gini: 0 is even",
            time_chart("evenness", dates, of_exposure("coverage", "gini"), (0.0, 1.0)),
        ),
        (
            "Starved categories",
            "categories",
            time_chart("starved-categories", dates, of_exposure("starved_categories")),
        ),
        (
            "Starved and over-exposed users",
            "users",
            time_chart("starved-users", dates, of_exposure("starved_users", "overexposed_users")),
        ),
    ]
    return environment.get_template(_TEMPLATE).render(
        backtest=backtest,
        verdict=describe_gain(backtest),
        charts=charts,
        labels=LABELS,
        exposure_names=EXPOSURE,
        own_history=OWN_HISTORY,
    )


def describe_gain(backtest: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether the published lists have more hits than the best other method, and that in a sentence."""
    means, k = backtest["means"], backtest["k"]
    others = {name: found for name, found in means.items() if found.get(GAIN) is not None}
    nights = f"{len(backtest['nights'])} night{'s' if len(backtest['nights']) != 1 else ''}"
    said = f"Over {nights} users clicked {means[POLICY]['hits']:.2f} of the {k} categories of a published list"
    if not others:
        return True, f"{said}."
    best = max(others, key=lambda name: others[name]["hits"])
    gain, error = others[best][GAIN], others[best][STANDARD_ERROR]
    low, high = gain - 1.96 * error, gain + 1.96 * error
    words = "more than with" if low > 0 else "fewer than with" if high < 0 else "too close to tell from"
    interval = f"{gain:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}"
    return low > 0, f"{said}, {words} the best other method, {LABELS[best]} ({interval})."


def gain_text(means: Mapping[str, Any] | None) -> str:
    """Return by how many hits the policy is ahead of a method, with the standard error; a dash where nothing is."""
    if means is None or means.get(GAIN) is None:
        return "–"
    return f"{means[GAIN]:+.3f} ± {means[STANDARD_ERROR]:.3f}"


def time_chart(
    name: str,
    dates: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    bounds: tuple[float, float] | None = None,
) -> Markup:
    """Return lines over the nights; a night without a value is left out of its line.

    `bounds` are those of the axis; by default they follow from the values, and counts begin with 0.
    """
    left, top, width, height = 46, 10, 336, 180
    bottom = top + height
    values = [value for found in series.values() for value in found if value is not None]
    if not values:
        return Markup("")
    are_counts = all(isinstance(value, int) for value in values)
    if bounds is None:
        bounds = (0, round_up(int(max(values)))) if are_counts else nice_range(min(values), max(values))
    low, high = bounds
    content = value_axis(left, top, width, height, steps_between(low, high, digits=0 if are_counts else 3))
    slot = width / len(dates)
    every = -(-len(dates) // _LABELS_SHOWN)
    for place, date in enumerate(dates):
        if place % every == 0:
            content.append(text(date, left + slot * (place + 0.5), bottom + 15))
    for line, (label, found) in enumerate(series.items()):
        points = [
            (left + slot * (place + 0.5), bottom - height * (value - low) / (high - low), dates[place], value)
            for place, value in enumerate(found)
            if value is not None
        ]
        drawn = " ".join(f"{number(x)},{number(y)}" for x, y, _, _ in points)
        content.append(tag("polyline", points=drawn, class_=f"curve s{line}", stroke_dasharray=_dashes_of(label)))
        for x, y, date, value in points:
            what = tag("title", f"{label}, {date}: {value:.4g}")
            content.append(tag("circle", what, cx=x, cy=y, r=2.6, class_=f"dot s{line}"))
    entries = [(label, f"curve s{line}", _dashes_of(label)) for line, label in enumerate(series)]
    content += legend(entries, left, bottom + 34, columns=3)
    return draw(name, bottom + 36 + LEGEND_ROW, len(values), f"{name.replace('-', ' ')} by night", *content)


def _dashes_of(label: str) -> str | None:
    return next((dashes for method, dashes in _DASHES.items() if LABELS[method] == label), None)
