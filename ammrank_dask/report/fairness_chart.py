"""Draw what fairness costs."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from ammrank_dask.report.svg import draw, legend, nice_range, number, steps_between, tag, text, value_axis

_LEGEND_TOP = 14
_LABEL_HEIGHT, _LETTER_WIDTH, _SAME_POINT = 12, 6.5, 3
_NAMES = {"user_top_k": "top-K per user", "category_top_n": "per-category cutoff"}


def fairness_chart(measured: Mapping[str, Any]) -> Markup:
    """Return expected clicks, in per cent of `user_top_k`, against starved categories; against Gini where none starve.

    Parameters
    ----------
    measured
        What `price_fairness` returned.
    """
    left, top, width, height = 56, 62, 332, 190
    bottom = top + height
    base = max(measured["policies"]["user_top_k"]["expected_clicks"], 1e-300)
    floors = [entry for entry in measured["floors"] if "gap" in entry]
    entries = [*measured["policies"].values(), *floors]
    kept = [100 * entry["expected_clicks"] / base for entry in entries]
    low, high = nice_range(min(kept), max(kept))
    starving = max(entry["starved_categories"] for entry in entries)
    across, end = ("starved_categories", starving) if starving else ("gini", 1.0)

    def place(entry: Mapping[str, Any]) -> tuple[float, float]:
        share = (100 * entry["expected_clicks"] / base - low) / (high - low)
        return left + 12 + (width - 24) * entry[across] / end, bottom - height * share

    content = value_axis(left, top, width, height, [f"{label} %" for label in steps_between(low, high, digits=2)])
    for step in range(3):
        content.append(text(f"{end * step / 2:g}", left + 12 + (width - 24) * step / 2, bottom + 16))
    points = " ".join(f"{number(x)},{number(y)}" for x, y in map(place, floors))
    content.append(tag("polyline", points=points, class_="curve balanced"))
    labels: list[tuple[float, float, float]] = []
    for entry in floors:
        x, y = place(entry)
        said = f"floor {entry['floor']:g}: {entry['starved_categories']} starved, Gini {entry['gini']:.3f}"
        content.append(tag("circle", tag("title", said), cx=x, cy=y, r=4, class_="area balanced"))
        label = f"{entry['floor']:g}"
        half = _LETTER_WIDTH * len(label) / 2
        if labels and abs(x - labels[-1][0]) < _SAME_POINT:  # floors that change nothing share a label
            continue
        for line in (y - 8, y + 17):
            if all(abs(line - other) > _LABEL_HEIGHT or abs(x - at) > half + reach for at, other, reach in labels):
                content.append(text(label, x, line))
                labels.append((x, line, half))
                break
    for name, entry in measured["policies"].items():
        x, y = place(entry)
        content.append(tag("circle", tag("title", _NAMES[name]), cx=x, cy=y, r=5, class_=f"area {name}"))
    listed = [("balanced, by floor", "curve balanced", None)]
    listed += [(words, f"curve {name}", None) for name, words in _NAMES.items()]
    content += legend(listed, left, _LEGEND_TOP)
    what = "starved categories" if starving else "Gini, as none starves"
    content.append(text(f"{what} (across), expected clicks (up)", left + width / 2, bottom + 34, is_tick=False))
    return draw("fairness", bottom + 40, len(entries), "What fairness costs in expected clicks", *content)
