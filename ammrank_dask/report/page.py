"""Draw a night's report: figures for machines, a table, and a page for people."""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from ammrank_dask.report import charts
from ammrank_dask.report.charts import fairness_chart
from ammrank_dask.report.svg import breakable, draw, legend, percent, tag, text
from ammrank_dask.scoring.exploration import describe_draws
from ammrank_dask.storage.objects.atomic import json_text
from ammrank_dask.storage.site.reports import EXPOSURE, PAGE, SUMMARY
from ammrank_dask.storage.vocabulary import AGE_BUCKETS, FORMULA_STARTS
from ammrank_dask.training.forward import CHAMPION, MODEL, PUBLISHED, SIMPLE, describe_forward

_TEMPLATE = "report.html.j2"
_SOURCES = {
    MODEL: "a model without the window",
    CHAMPION: "the active model, without the window",
    PUBLISHED: "the night before the window, as published",
    **SIMPLE,
}
_LEGEND_TOP, _ERRORS = 14, 3.0
_SHOWN_IN_CHART, _SHOWN_IN_TABLE, _SHOWN_IN_COLUMNS, _SHOWN_IN_LIST = 60, 500, 200, 10


def report_files(
    summary: Mapping[str, Any], exposure: pd.DataFrame, about: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return the text of `exposure.csv`, `report.html` and `summary.json`.

    Parameters
    ----------
    summary
        The content of `summary.json`; the page is drawn from it.
    exposure
        One row per category. A name that a spreadsheet would take for a formula gets a `'` before it.
    about
        For the page only: `links` to files by name, `facts` of the run, and if known the `verdict` (`status` and
        `sentence`) over the night and other `pages` by name.
    """
    return {
        EXPOSURE: harmless(exposure).to_csv(index=False, lineterminator="\n"),
        PAGE: render_page(summary, about),
        SUMMARY: json_text(dict(summary)),
    }


def harmless(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table in which no text begins like a formula of a spreadsheet."""
    safe = table.copy()
    for name in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[name]):
            safe[name] = [f"'{value}" if str(value).startswith(FORMULA_STARTS) else value for value in safe[name]]
    return safe


@functools.cache
def page_environment(folder: Path) -> jinja2.Environment:
    """Return what the templates of a folder are drawn with: all names escaped, filters for shares and counts.

    It is made once, so that a process parses each template once.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["percent"] = percent
    environment.filters["count"] = lambda value: f"{value:,}"
    environment.filters["breakable"] = breakable
    environment.filters["capitalize_first"] = lambda words: words[:1].upper() + words[1:]
    return environment


def render_page(summary: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> str:
    """Return the page: everything inline, every name from the data escaped."""
    shown = {
        "summary": summary,
        "about": about or {"links": {}, "facts": {}},
        "charts": charts,
        "reliability_chart": reliability_chart,
        "describe_draws": describe_draws,
        "describe_forward": describe_forward,
        "sources": _SOURCES,
        "simple": SIMPLE,
        "fairness_chart": fairness_chart,
        "short_names": SHORT_NAMES,
        "contents": _contents(summary),
    }
    return page_environment(Path(__file__).parent).get_template(_TEMPLATE).render(**shown, **_view(summary))


def _view(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page shows beside the summary itself: rows in order, names of policies, what is worst."""
    policies = summary["policies"]
    rows = sorted(summary["categories"], key=lambda row: (-row["click_share"], -row["exposure"]))
    slots = policies[summary["policy"]]["slots"]
    clicked = sorted((row for row in rows if row["ratio"] is not None), key=lambda row: row["ratio"])
    in_force = summary["policy"]
    starved = sorted((row for row in rows if row["policies"][in_force]["starved"]), key=lambda row: row["ratio"] or 0.0)
    least = [*starved, *(row for row in clicked if not row["policies"][in_force]["starved"])]
    shown = rows[:_SHOWN_IN_CHART]
    spans = {name: _span(measured["categories_per_user"]) for name, measured in policies.items()}
    widest = max([1.0, *(row["exposure"] for row in shown), *(row["click_share"] * slots for row in shown)])
    return {
        "rows": rows,
        "shown_in_chart": shown,
        "shown_in_table": rows[:_SHOWN_IN_TABLE],
        "scale": 1.02 * widest,
        "slots": slots,
        # The active policy first.
        "policies": sorted(policies, key=lambda name: name != summary["policy"]),
        "labels": {name: _label(name, measured, summary["k"]) for name, measured in policies.items()},
        "short": {name: _short(name, name == summary["policy"]) for name in policies},
        "warnings": [check for check in summary["checks"] if check["status"] != "ok"],
        "n_starved": policies[summary["policy"]]["starved_categories"],
        "least": least[:_SHOWN_IN_LIST],
        "most": clicked[: -_SHOWN_IN_LIST - 1 : -1],
        "spans": spans,
        "spread": {name: str(low) if low == high else f"{low} to {high}" for name, (low, high) in spans.items()},
        "moved": sorted((row for row in rows if row["psi"]), key=lambda row: -row["psi"])[:_SHOWN_IN_LIST],
        "clicks": [(row["category"], row["clicks"]) for row in rows[:_SHOWN_IN_COLUMNS]],
        "head_clicks": sum(row["click_share"] for row in rows[: summary["k"]]),
        "ages": [
            age for age in AGE_BUCKETS if any(group["age"] == age and group["top"] for group in summary["groups"])
        ],
        "common": _common(summary),
        "has_realised": any(night["measures"] for night in summary["realised"]),
        "clicked": _clicked(summary),
    }


def _contents(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return anchor and title of the sections that the page of a summary has."""
    intake = summary.get("input") or {}
    has_model = any(summary.get(name) for name in ("forward", "gate", "model"))
    sections = [
        ("checks", "checks", True),
        ("exposure", "exposure by category", True),
        ("policies", "policies", True),
        ("probabilities", "click probabilities", bool(summary["chances"])),
        ("fairness", "price of fairness", bool(summary.get("fairness"))),
        ("drift", "since the night before", True),
        ("realised", "actual clicks", True),
        ("clicks", "clicks per category", True),
        ("input", "input", bool(intake.get("days"))),
        ("groups", "age and gender", any(group["top"] for group in summary["groups"])),
        ("model", "model", has_model),
        ("numbers", "all numbers", True),
    ]
    return [(anchor, title) for anchor, title, is_there in sections if is_there]


def _clicked(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return by policy the oldest past night in which it was active: most of its clicks are known."""
    measured = [night for night in summary["realised"] if night.get("policy")]
    return {night["policy"]: night for night in sorted(measured, key=lambda night: night["nights"])}


SHORT_NAMES = {"user_top_k": "top-K per user", "category_top_n": "per-category cutoff", "balanced": "balanced"}


def _short(name: str, is_in_force: bool) -> str:
    """Return a policy in a few words, and whether it is active."""
    return SHORT_NAMES.get(name, name) + (", active" if is_in_force else "")


def _label(name: str, measured: Mapping[str, Any], k: int) -> str:
    """Return a policy in words."""
    if name == "user_top_k":
        return f"top-K per user: each user's best {k}"
    if name == "balanced":
        return f"balanced: each user's {k}, every category between its floor and its cap"
    if name == "category_top_n":
        n, n_sampled = measured["n"], measured.get("sampled_users")
        label = (
            f"per-category cutoff: each category's best {n:,} users"
            if n is not None
            else "per-category cutoff: each category's best users"
        )
        return label if n_sampled is None else f"{label}, estimated from a sample of {n_sampled:,} users"
    return name


def _span(categories_per_user: Sequence[int]) -> tuple[int, int]:
    """Return how many categories users hold, without the 5 % with the fewest and the 5 % with the most."""
    up_to = list(itertools.accumulate(categories_per_user))
    low, high = (next(held for held, users in enumerate(up_to) if users >= share * up_to[-1]) for share in (0.05, 0.95))
    return low, high


def _common(summary: Mapping[str, Any]) -> set[str]:
    """Return the categories in the lists of half of the groups or more: what is not in here tells groups apart."""
    lists = [[entry["category"] for entry in group["top"]] for group in summary["groups"] if group["top"]]
    seen = Counter(itertools.chain.from_iterable(lists))
    return {name for name, count in seen.items() if 2 * count >= len(lists)}


def reliability_chart(bins: Sequence[Mapping[str, float]]) -> Markup:
    """Return the share that was clicked against the chance, both on a logarithmic scale, with 3 standard errors.

    Parameters
    ----------
    bins
        Of cells (user, category) with about the same chance: `cells`, `chance`, `clicked`, its `error` by user, and
        `cell_error`, that of independent cells; nights of earlier versions have that one only, as `error`.
    """
    left, top, width, height = 56, 44, 332, 210
    bottom = top + height
    drawn = [row for row in bins if row["cells"] and row["chance"] > 0]
    values = [row[name] for row in drawn for name in ("chance", "clicked") if row[name] > 0]
    low = math.floor(math.log10(max(min(values, default=0.1), 1e-6)))
    high = min(0, math.ceil(math.log10(max(values, default=1.0)) - 1e-9))
    high = max(high, low + 1)

    def share(value: float) -> float:
        return min(1.0, max(0.0, (math.log10(max(value, 1e-12)) - low) / (high - low)))

    content = []
    for power in range(low, high + 1):
        label, x, y = (
            f"{100 * 10.0**power:g} %",
            left + width * share(10.0**power),
            bottom - height * share(10.0**power),
        )
        content.append(tag("line", x1=left, y1=y, x2=left + width, y2=y, class_="grid"))
        content.append(text(label, left - 6, y + 4, "end"))
        content.append(text(label, x, bottom + 16, "end" if power == high else "middle"))
    content.append(tag("line", x1=left, y1=bottom, x2=left + width, y2=top, class_="even"))
    for row in drawn:
        x = left + width * share(row["chance"])
        reach = _ERRORS * row["error"]
        y_low, y_high = (bottom - height * share(value) for value in (row["chance"] - reach, row["chance"] + reach))
        what = tag("title", f"predicted {100 * row['chance']:.3g} %, clicked {100 * row['clicked']:.3g} %")
        content.append(tag("line", x1=x, y1=y_low, x2=x, y2=y_high, class_="whisker"))
        content.append(
            tag("circle", what, cx=x, cy=bottom - height * share(row["clicked"]), r=3.5, class_="area user_top_k")
        )
    kind = "by user" if all("cell_error" in row for row in bins) else "of independent cells"
    entries = [("as often as predicted", "even", None), (f"predicted ± 3 standard errors {kind}", "whisker", None)]
    content += legend(entries, left, _LEGEND_TOP)
    words = "click probability (across), share that was clicked (up)"
    content.append(text(words, left + width / 2, bottom + 34, is_tick=False))
    return draw("reliability", bottom + 40, len(drawn), "Share clicked by click probability", *content)
