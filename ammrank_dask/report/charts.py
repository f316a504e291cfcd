"""Draw the charts of a report as SVG: no script, colours from the page's style sheet."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ammrank_dask.report.svg import (
    WIDTH,
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

CURVE_POINTS = 400
_PERCENTS = [f"{25 * step} %" for step in range(5)]
_LEGEND_TOP = 14
_LABEL_HEIGHT, _LETTER_WIDTH, _SAME_POINT = 12, 6.5, 3
_POLICY_LABELS = {"user_top_k": "top-K per user", "category_top_n": "per-category cutoff"}


def rank_bar(ranks: Sequence[int], clicks: float, scale: float) -> Markup:
    """Return one bar of a category: its users by rank, the first rank darkest, and a mark at its share of clicks.

    Parameters
    ----------
    ranks
        Users at each rank.
    clicks
        The users it would have, did everybody get what is clicked.
    scale
        The number of users that is as wide as the chart.
    """
    pieces = []
    left = 0.0
    for rank, users in enumerate(ranks):
        width = 100 * users / scale
        if users:
            shade = 1 - 0.75 * rank / max(1, len(ranks) - 1)
            what = tag("title", f"rank {rank + 1}: {users:,} users")
            pieces.append(
                tag("rect", what, x=left, y=2, width=width, height=10, class_="shown", fill_opacity=number(shade))
            )
        left += width
    mark = tag("rect", x=max(0.0, min(99.2, 100 * clicks / scale - 0.4)), y=0, width=0.8, height=14, class_="clicked")
    return tag("svg", *pieces, mark, viewBox="0 0 100 14", preserveAspectRatio="none", class_="bar", aria_hidden="true")


def lorenz_chart(curves: Mapping[str, Sequence[float]], labels: Mapping[str, str]) -> Markup:
    """Return Lorenz curves: the share of all slots that the least shown categories hold together."""
    left, top, width, height = 44, 62, 344, 190
    bottom = top + height
    content = value_axis(left, top, width, height, _PERCENTS)
    for step, label in enumerate(_PERCENTS):
        content.append(text(label, left + width * step / 4, bottom + 16, "end" if step == 4 else "middle"))
    words = "categories, least shown first; share of all slots"
    content.append(text(words, left + width / 2, bottom + 34, is_tick=False))
    content.append(tag("line", x1=left, y1=bottom, x2=left + width, y2=top, class_="even"))
    for name, shares in curves.items():
        n = max(1, len(shares) - 1)
        drawn = [*range(0, n, 1 + n // CURVE_POINTS), n]
        points = " ".join(
            f"{number(left + width * place / n)},{number(bottom - height * shares[place])}" for place in drawn
        )
        content.append(tag("polyline", points=points, class_=f"curve {name}"))
    entries = [(labels[name], f"curve {name}", None) for name in curves]
    content += legend([*entries, ("all categories alike", "even", None)], left, _LEGEND_TOP)
    n_points = sum(len(shares) for shares in curves.values())
    return draw("lorenz", bottom + 40, n_points, "Lorenz curves of exposure by policy", *content)


def histogram_chart(counts: Mapping[str, Sequence[int]], labels: Mapping[str, str], limit: float) -> Markup:
    """Return how many users hold how many categories, by policy, with a line where over-exposure begins."""
    left, top, width, height = 44, 62, 344, 190
    bottom = top + height
    n_bins = 1 + max((i for found in counts.values() for i, users in enumerate(found) if users), default=0)
    n_bins = max(n_bins, int(limit) + 2)
    total = max(1, max(sum(found) for found in counts.values()))
    highest = max(1, max(max(found) for found in counts.values()))
    slot = width / n_bins
    bar = slot * 0.84 / len(counts)
    shares = [f"{100 * highest / total * step / 4:.3g} %" for step in range(5)]
    content = value_axis(left, top, width, height, shares)
    every = next(step * 10**power for power in range(20) for step in (1, 2, 5) if n_bins <= 12 * step * 10**power)
    for held in range(0, n_bins, every):
        content.append(text(held, left + slot * (held + 0.5), bottom + 16))
    n_points = 0
    for place, (name, found) in enumerate(counts.items()):
        for held, users in enumerate(found[:n_bins]):
            n_points += 1
            if users:
                tall = max(1.0, height * users / highest)
                x = left + slot * (held + 0.08) + bar * place
                what = tag("title", f"{labels[name]}: {users:,} users hold {held}")
                content.append(tag("rect", what, x=x, y=bottom - tall, width=bar, height=tall, class_=f"area {name}"))
    x = left + slot * (int(limit) + 1)
    content.append(tag("line", x1=x, y1=top, x2=x, y2=bottom, class_="limit"))
    entries = [(labels[name], f"curve {name}", None) for name in counts]
    content += legend([*entries, (f"over-exposed: more than {limit:g}", "limit", None)], left, _LEGEND_TOP)
    content.append(text("categories a user holds", left + width / 2, bottom + 34, is_tick=False))
    return draw("categories-per-user", bottom + 40, n_points, "Users by the number of categories they hold", *content)


def clicks_chart(clicks: Sequence[tuple[str, int]], total: int, unit: str = "clicks") -> Markup:
    """Return clicks per category, most clicked first, and the share of all `total` up to each; `unit` is counted."""
    left, top, width, height = 44, 12, 316, 190
    bottom = top + height
    ordered = sorted(clicks, key=lambda item: -item[1])
    highest = round_up(max((found for _, found in ordered), default=0))
    slot = width / max(1, len(ordered))
    quarters = [highest * step / 4 for step in range(5)]
    labels = [f"{value:,.0f}" if highest < 10_000 else f"{value / 1000:,.0f}k" for value in quarters]
    content = value_axis(left, top, width, height, labels)
    for step, label in enumerate(_PERCENTS):
        content.append(text(label, left + width + 5, bottom - height * step / 4 + 4, None))
    points, up_to = [], 0
    for place, (name, found) in enumerate(ordered):
        up_to += found
        tall = height * found / highest
        what = tag("title", f"{name}: {found:,} {unit}")
        content.append(
            tag("rect", what, x=left + slot * (place + 0.1), y=bottom - tall, width=slot * 0.8, height=tall,
                class_="clicked")
        )  # fmt: skip
        points.append(f"{number(left + slot * (place + 1))},{number(bottom - height * up_to / max(1, total))}")
    content.append(tag("polyline", points=" ".join([f"{left},{bottom}", *points]), class_="curve sum"))
    words = f"categories by {unit} (bars, left); share of all so far (line, right)"
    content.append(text(words, WIDTH / 2, bottom + 20))
    return draw("clicks", bottom + 28, len(ordered), f"By category: {unit}", *content)


def shift_chart(quantiles: Mapping[str, float], mean: float) -> Markup:
    """Return the change of scores as a box: 5 to 95 % as a line, 25 to 75 % as a box, median and mean as marks."""
    at = [quantiles[key] for key in ("0.05", "0.25", "0.5", "0.75", "0.95")]
    reach = max(1e-9, *(abs(value) for value in (*at, mean)))
    left, width, middle = 20, 360, 26

    def place(value: float) -> float:
        return left + width * (value + reach) / (2 * reach)

    x5, x25, x50, x75, x95 = (place(value) for value in at)
    content = [
        tag("line", x1=place(0), y1=4, x2=place(0), y2=48, class_="limit"),
        tag("line", x1=x5, y1=middle, x2=x95, y2=middle, class_="curve user_top_k"),
        tag("rect", x=x25, y=middle - 9, width=max(1.0, x75 - x25), height=18, class_="area user_top_k"),
        tag("line", x1=x50, y1=middle - 12, x2=x50, y2=middle + 12, class_="median"),
        tag("circle", cx=place(mean), cy=middle, r=4, class_="clicked"),
        text(f"{-reach:.2g}", left, 64, None),
        text("0", place(0), 64),
        text(f"{reach:+.2g}", left + width, 64, "end"),
    ]
    return draw("score-shift", 68, len(at) + 1, "Change of scores since the night before", *content)


def fairness_chart(measured: Mapping[str, Any], measure: str = "expected_clicks") -> Markup:
    """Return expected clicks, in per cent of `user_top_k`, against starved categories; against Gini where none starve.

    Parameters
    ----------
    measured
        What `price_fairness` returned.
    measure
        `expected_value` for that instead of expected clicks.
    """
    left, top, width, height = 56, 62, 332, 190
    bottom = top + height
    base = max(measured["policies"]["user_top_k"][measure], 1e-300)
    floors = [entry for entry in measured["floors"] if "gap" in entry]
    entries = [*measured["policies"].values(), *floors]
    kept = [100 * entry[measure] / base for entry in entries]
    low, high = nice_range(min(kept), max(kept))
    starving = max(entry["starved_categories"] for entry in entries)
    across, end = ("starved_categories", starving) if starving else ("gini", 1.0)

    def place(entry: Mapping[str, Any]) -> tuple[float, float]:
        share = (100 * entry[measure] / base - low) / (high - low)
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
        content.append(tag("circle", tag("title", _POLICY_LABELS[name]), cx=x, cy=y, r=5, class_=f"area {name}"))
    listed = [("balanced, by floor", "curve balanced", None)]
    listed += [(label, f"curve {name}", None) for name, label in _POLICY_LABELS.items()]
    content += legend(listed, left, _LEGEND_TOP)
    words = measure.replace("_", " ")
    what = "starved categories" if starving else "Gini, as none starves"
    content.append(text(f"{what} (across), {words} (up)", left + width / 2, bottom + 34, is_tick=False))
    return draw("fairness", bottom + 40, len(entries), f"What fairness costs in {words}", *content)
