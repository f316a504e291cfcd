"""Draw why one user got their categories: a bar for each, made of prior, direct and indirect signal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from ammrank_dask.report.page import page_environment
from ammrank_dask.report.svg import tag

PARTS = {
    "prior": ("s5", "prior: how often everybody clicks it"),
    "direct": ("s0", "direct signal: the user's own events in the category"),
    "indirect": ("s1", "indirect signal: all other events, age and gender, and what similar users click"),
}


class ScoreParts(NamedTuple):
    """What a score is the sum of."""

    prior: float
    direct: float
    indirect: float


def split_score(entry: Mapping[str, Any]) -> ScoreParts:
    """Return the parts of the score of one category, as `explain_user` returned it.

    A model without a prior has its constant for one, and no direct signal.
    """
    indirect = sum(feature["contribution"] for feature in entry["features"]) + entry["other_features"]
    if "prior" not in entry:
        return ScoreParts(entry["constant"], 0.0, indirect)
    direct = sum(feature["contribution"] for feature in entry["own"])
    return ScoreParts(entry["prior"], direct, indirect + entry["memberships"] + entry["constant"])


def render_explanation(explained: Mapping[str, Any], user: str | None = None) -> str:
    """Return the page of one user; their id is on it only if it is given."""
    parts = [split_score(entry) for entry in explained["categories"] if entry["score"] is not None]
    reach = max([sum(max(0.0, part) for part in score) for score in parts] + [1e-9])
    depth = max([-sum(min(0.0, part) for part in score) for score in parts] + [0.0])
    rows = [
        {
            "entry": entry,
            "bar": None if entry["score"] is None else _score_bar(split_score(entry), depth, reach),
            "parts": None if entry["score"] is None else split_score(entry)._asdict(),
        }
        for entry in explained["categories"]
    ]
    template = page_environment(Path(__file__).parent).get_template("explain.html.j2")
    return template.render(explained=explained, user=user, rows=rows, parts=PARTS)


def _score_bar(score: ScoreParts, depth: float, reach: float) -> Markup:
    """Return a bar around 0: parts that speak for the category to the right, those against it to the left."""
    scale = 100 / (depth + reach)
    zero = depth * scale
    left = right = zero
    content = []
    for name, value in score._asdict().items():
        width = abs(value) * scale
        start = right if value >= 0 else left - width
        style, words = PARTS[name]
        what = tag("title", f"{words.partition(':')[0]} {value:+.3f}")
        content.append(tag("rect", what, x=start, y=1, width=width, height=12, class_=f"point {style}"))
        right, left = (right + width, left) if value >= 0 else (right, left - width)
    content.append(tag("line", x1=zero, x2=zero, y1=0, y2=14, class_="zero"))
    return tag("svg", *content, viewBox="0 0 100 14", preserveAspectRatio="none", class_="bar", aria_hidden="true")
