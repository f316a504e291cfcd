"""Draw figures over nights as SVG: lines, sparklines, and a strip of checks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from ammrank_dask.report.svg import LEGEND_ROW, draw, legend, nice_range, number, tag, text, value_axis

DASHES = (None, None, None, None, None, None, "5 3", "5 3", "5 3", "5 3", "5 3", "5 3")
N_COLORS = 6
SPARK_POINTS = 90
"""Points of a sparkline; more would not be seen."""
FAR_ABOVE, NIGHTS_TO_JUDGE = 5.0, 7
"""Beyond so many times what nine nights of ten stay below, a value is cut off: the first night of a site takes so long
that all others would lie on the axis."""

Values = Sequence[float | None]


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
