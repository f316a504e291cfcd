"""Draw charts as SVG: those of a report, and lines, sparklines and a strip of checks over nights."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ammrank_dask.report.svg import (
    LEGEND_ROW,
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


DASHES = (None, None, None, None, None, None, "5 3", "5 3", "5 3", "5 3", "5 3", "5 3")
N_COLORS = 6
SPARK_POINTS = 90
"""Points of a sparkline; more would not be seen."""
FAR_ABOVE, NIGHTS_TO_JUDGE = 5.0, 7
"""Beyond so many times what nine nights of ten stay below, a value is cut off: the first night of a site takes so long
that all others would lie on the axis."""

Values = Sequence[float | None]


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


def trend_chart(
    name: str,
    title: str,
    dates: Sequence[dt.date],
    series: Mapping[str, Values],
    *,
    unit: str = "",
    least: float | None = None,
    marked: Sequence[dt.date] = (),
) -> Markup:
    """Return lines over nights, a gap where a night has no value, and the newest value of each in the legend.

    A value far above all others ends at the top of the chart, with a mark, and is named below.

    Parameters
    ----------
    series
        By label one value per night.
    unit
        Written after every number.
    least
        The axis goes from 0 to this at least; None for one around the values.
    marked
        Nights with a vertical line.
    """
    left, top, width, height = 56, 8, 334, 130
    bottom = top + height
    values = [value for found in series.values() for value in found if value is not None]
    cut = None if least is None else _cut_of(series.values())
    low, high = _range_of([value for value in values if cut is None or value <= cut], least)
    first, days = dates[0], max(1, (dates[-1] - dates[0]).days)

    def x_of(date: dt.date) -> float:
        return left + width * ((date - first).days / days if len(dates) > 1 else 0.5)

    labels = [_axis_text(low + (high - low) * step / 4, high) + unit for step in range(5)]
    content = value_axis(left, top, width, height, labels)
    content += [tag("line", x1=x_of(day), x2=x_of(day), y1=top, y2=bottom, class_="limit") for day in marked]
    for place, found in enumerate(series.values()):
        points = [
            None if value is None else (x_of(date), bottom - height * (min(value, high) - low) / (high - low))
            for date, value in zip(dates, found, strict=True)
        ]
        content += _lines(points, f"s{place % N_COLORS}", DASHES[place])
    cut_off = [(value, day) for found in series.values() for value, day in zip(found, dates, strict=True)
               if cut is not None and value is not None and value > cut]  # fmt: skip
    for day in sorted({day for _, day in cut_off}):
        x = x_of(day)
        content.append(tag("path", d=f"M{number(x - 4)},{top + 2}h8l-4,-7z", class_="cut"))
    if cut_off:
        highest, day = max(cut_off)
        others = len({day for _, day in cut_off}) - 1
        said = f"▲ {_short(highest, unit)} on {day}" + (f" and {others} more" if others else "")
        content.append(text(said, left + width / 2, bottom + 15))
    content.append(text(dates[0], left, bottom + 15, "start"))
    if len(dates) > 1:
        content.append(text(dates[-1], left + width, bottom + 15, "end"))
    entries = [
        (f"{label} {_newest(found, unit)}", f"curve s{place % N_COLORS}", DASHES[place])
        for place, (label, found) in enumerate(series.items())
    ]
    columns = 1 if max(len(label) for label, _, _ in entries) > 31 else 2
    content += legend(entries, 8, bottom + 34, columns=columns)
    rows = -(-len(entries) // columns)
    return draw(name, bottom + 24 + LEGEND_ROW * rows, len(values), title, *content)


def sparkline(exposure: Values, clicks: Values) -> Markup:
    """Return two small lines on one scale: the exposure share and the click share of a category, night by night."""
    step = max(1, -(-len(exposure) // SPARK_POINTS))
    kept = sorted({*range(len(exposure) - 1, -1, -step)})
    highest = max([value for found in (exposure, clicks) for value in found if value is not None] or [1.0]) or 1.0
    content: list[Markup] = []
    for style, found in (("s3", clicks), ("s0", exposure)):
        points = []
        for place, at in enumerate(kept):
            value = found[at]
            x = 2 + 196 * (place / (len(kept) - 1) if len(kept) > 1 else 0.5)
            points.append(None if value is None else (x, 26 - 24 * value / highest))
        content += _lines(points, f"{style} thin", None, digits=1)
    return tag("svg", *content, viewBox="0 0 200 28", class_="spark", aria_hidden="true")


def check_strip(label: str, statuses: Sequence[tuple[str, str | None, str]]) -> Markup:
    """Return one check over nights: a cell each, empty where a night does not have it; (night, status, words)."""
    ok = "".join(f"M{place},1h.9v12h-.9z" for place, (_, status, _) in enumerate(statuses) if status == "ok")
    content = [tag("path", d=ok, class_="ok-cell")] if ok else []
    content += [
        tag("rect", tag("title", f"{date}: {words}"), x=place, y=0, width=0.9, height=14, class_="warn-cell")
        for place, (date, status, words) in enumerate(statuses)
        if status not in (None, "ok")
    ]
    return tag(
        "svg", *content, viewBox=f"0 0 {max(1, len(statuses))} 14", preserveAspectRatio="none", class_="bar",
        role="img", aria_label=label,
    )  # fmt: skip


def _lines(
    points: Sequence[tuple[float, float] | None], style: str, dashes: str | None, digits: int = 1
) -> list[Markup]:
    """Return a line for each stretch of points without a gap; a point between two gaps is a dot."""
    content, stretch = [], []
    for point in [*points, None]:
        if point is not None:
            stretch.append(point)
        elif len(stretch) == 1:
            ((x, y),) = stretch
            content.append(tag("circle", cx=x, cy=y, r=2.2, class_=f"point {style}"))
        elif stretch:
            path = " ".join(f"{number(round(x, digits))},{number(round(y, digits))}" for x, y in stretch)
            content.append(tag("polyline", points=path, class_=f"curve {style}", stroke_dasharray=dashes))
        if point is None:
            stretch = []
    return content


def _range_of(values: Sequence[float], least: float | None) -> tuple[float, float]:
    """Return the ends of an axis; one that does not begin at 0 is not so narrow that noise looks like a change."""
    low, high = min(values), max(values)
    if least is not None:
        return nice_range(min(0.0, low), max(least, high))
    room = max(0.0, 0.1 * abs(high) - (high - low)) / 2 + 1e-9
    return nice_range(low - room, high + room)


def _cut_of(series: Iterable[Values]) -> float | None:
    """Return above which value points are cut off, None where there are few nights or all values are near."""
    limits, highest = [], 0.0
    for found in series:
        values = sorted(value for value in found if value is not None)
        if values:
            usual = values[9 * (len(values) - 1) // 10] if len(values) >= NIGHTS_TO_JUDGE else values[-1]
            limits.append(FAR_ABOVE * usual)
            highest = max(highest, values[-1])
    return max(limits) if limits and 0 < max(limits) < highest else None


def _axis_text(value: float, highest: float) -> str:
    if highest >= 10_000:
        return f"{value / 1000:,.4g}k"
    return f"{round(value, 9):,.4g}"


def _newest(values: Values, unit: str) -> str:
    """Return the newest value, 4 digits that count, as text."""
    newest = next((value for value in reversed(values) if value is not None), None)
    return "–" if newest is None else _short(newest, unit)


def _short(value: float, unit: str) -> str:
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}") + unit
