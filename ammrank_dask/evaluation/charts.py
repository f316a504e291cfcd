"""Draw the charts of a comparison as SVG, in the style of the report's charts; a colour for each method."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

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

N_COLORS = 12
"""Colours of the page's style sheet, `m0` to `m11`: one for each method that comes with the package."""
_METHODS = (
    "amm", "central-mal", "ag-mal", "ib-mal", "lr", "pw-lr", "amm-rank", "amm-rank-plus", "popularity", "own-history",
    "own-logit", "item-knn",
)  # fmt: skip
_DASHES = ("", "6 3", "2 3", "9 3 2 3", "", "6 3", "", "", "1 4", "4 2", "12 3", "12 3 2 3")

_LEGEND_COLUMNS = 3
_LETTERS_BELOW = 60
"""As many fit below a chart."""
LETTER_WIDTH = 6.2
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


class Style(NamedTuple):
    """How the line of a method looks: a class of the style sheet, and dashes, None for a line without gaps."""

    color: str
    dashes: str | None


def style_methods(methods: Iterable[str]) -> dict[str, Style]:
    """Return a style for each method, no two the same; a method of the package has the same one on every page.

    Examples
    --------
    >>> style_methods(["lr", "popularity", "mine"])["mine"]
    Style(color='m0', dashes='10 2 2 2 2 2')
    """
    names = list(dict.fromkeys(methods))
    styles = {name: Style(f"m{place}", _DASHES[place] or None) for place, name in enumerate(_METHODS) if name in names}
    for number_of_other, name in enumerate(name for name in names if name not in _METHODS):
        turn, color = divmod(number_of_other, N_COLORS)
        # A long dash and two dots or more: one more whenever the colours begin again.
        styles[name] = Style(f"m{color}", "10 2" + " 2 2" * (turn + 2))
    return styles


def lines_chart(
    name: str,
    title: str,
    labels: Sequence[object],
    series: Mapping[str, Sequence[float | None]],
    styles: Mapping[str, Style],
    *,
    below: str | None = None,
    bounds: tuple[float, float] | None = None,
) -> Markup:
    """Return a line for each series over labelled places; a value that is not known leaves its line out there.

    Parameters
    ----------
    labels
        Below the places, from left to right; some are left out where there are many.
    below
        What the labels are.
    bounds
        Ends of the axis; None for a range around the values, which begins at 0 if all of them are counts.
    """
    left, top, width, height = 46, 10, 340, 200
    bottom = top + height
    values = [value for found in series.values() for value in found if value is not None]
    if not values:
        return Markup("")
    are_counts = all(isinstance(value, int) for value in values)
    around = (0, round_up(int(max(values)))) if are_counts else nice_range(min(values), max(values))
    low, high = bounds or around
    content = value_axis(left, top, width, height, steps_between(low, high, digits=0 if are_counts else 3))
    places = [left + width * (place + 0.5) / len(labels) for place in range(len(labels))]
    every = -(-len(labels) * max(len(str(label)) for label in labels) // _LETTERS_BELOW)
    content += [text(label, x, bottom + 15) for label, x in list(zip(labels, places, strict=True))[::every]]
    for line, found in series.items():
        drawn = [
            (x, bottom - height * (value - low) / (high - low), f"{line}, {label}: {value:.4g}")
            for x, label, value in zip(places, labels, found, strict=True)
            if value is not None
        ]
        points = " ".join(f"{number(x)},{number(y)}" for x, y, _ in drawn)
        style = styles[line]
        content.append(tag("polyline", points=points, class_=f"curve {style.color}", stroke_dasharray=style.dashes))
        for x, y, what in drawn:
            content.append(tag("circle", tag("title", what), cx=x, cy=y, r=2.6, class_=f"dot {style.color}"))
    at = bottom + 34
    if below is not None:
        content.append(text(below, left + width / 2, bottom + 30, is_tick=False))
        at += 12
    entries = [(line, f"curve {styles[line].color}", styles[line].dashes) for line in series]
    content += legend(entries, left, at, columns=_LEGEND_COLUMNS)
    rows = -(-len(series) // _LEGEND_COLUMNS)
    return draw(name, at + 2 + LEGEND_ROW * rows, len(values), title, *content)


def errors_chart(
    errors: Mapping[str, float],
    intervals: Mapping[str, Sequence[float]],
    floor: float | None,
    styles: Mapping[str, Style],
) -> Markup:
    """Return the disagreement error of each method as a bar with its interval, and the floor as a line."""
    left, top, step = max(84, 12 + 7 * max(map(len, errors))), 6, 26
    width = 354 - left
    highest = max([*errors.values(), *(high for _, high in intervals.values()), 1e-9]) * 1.08
    content = []
    for place, (method, error) in enumerate(errors.items()):
        y = top + step * place
        low, high = intervals[method]
        content += [
            tag("text", method, x=left - 6, y=y + 14, text_anchor="end"),
            tag("rect", tag("title", f"{method}: {error:.4f}"), x=left, y=y + 3, width=width * error / highest,
                height=15, class_=f"fill {styles[method].color}"),
            tag("line", x1=left + width * low / highest, x2=left + width * high / highest, y1=y + 10.5, y2=y + 10.5,
                class_="interval"),
            tag("text", f"{error:.4f}", x=left + width * max(error, high) / highest + 5, y=y + 14, class_="tick"),
        ]  # fmt: skip
    bottom = top + step * len(errors)
    if floor is not None:
        x = left + width * floor / highest
        content.append(tag("line", x1=x, x2=x, y1=top, y2=bottom, class_="limit"))
        content.append(text(f"oracle {floor:.4f}", x, bottom + 13))
    return draw("errors", bottom + 18, len(errors), "Disagreement error of each method", *content)


def cost_chart(points: Mapping[str, tuple[float, float]], styles: Mapping[str, Style]) -> Markup:
    """Return error against seconds to fit, the seconds on a scale of powers of ten."""
    left, top, width, height = 46, 10, 330, 220
    bottom = top + height
    cost = {method: max(1e-3, seconds) for method, (seconds, _) in points.items()}
    first = math.floor(math.log10(min(cost.values())))
    last = max(first + 1, math.ceil(math.log10(max(cost.values()))))
    errors = [error for _, error in points.values()]
    low, high = nice_range(min(errors), max(errors))
    content = value_axis(left, top, width, height, steps_between(low, high))
    for power in range(first, last + 1):
        x = left + width * (power - first) / (last - first)
        content.append(tag("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"))
        label = f"{10**power:g} s"
        content.append(text(label, x, bottom + 15))
    places = {
        method: (
            left + width * (math.log10(cost[method]) - first) / (last - first),
            bottom - height * (error - low) / (high - low),
        )
        for method, (_, error) in points.items()
    }
    for method, (x, y) in places.items():
        what = tag("title", f"{method}: {points[method][1]:.4f} after {cost[method]:.3g} s")
        content.append(tag("circle", what, cx=x, cy=y, r=5, class_=f"dot {styles[method].color}"))
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places.values()]
    for method, (x, y) in places.items():
        box = _free_box(x, y, LETTER_WIDTH * len(method), taken)
        taken.append(box)
        content.append(tag("text", method, x=(box[0] + box[2]) / 2, y=box[3] - 3, text_anchor="middle"))
    content.append(text("seconds to fit a fold", left + width / 2, bottom + 31, is_tick=False))
    return draw("error-against-cost", bottom + 38, len(points), "Error against the time to fit", *content)


def _free_box(x: float, y: float, width: float, taken: Sequence[Box]) -> Box:
    """Return where a label of a point is: right of it, left, above or below, the first place that is free."""
    corners = [(x + 9, y - 7), (x - 9 - width, y - 7)]
    corners += [(x - width / 2, y + step * 14 - 7) for step in (-1, 1, -2, 2, -3, 3, -4, 4)]
    boxes = [(at, top, at + width, top + 14) for at, top in corners]
    inside = [box for box in boxes if box[0] >= 0 and box[2] <= WIDTH and box[1] >= 0]

    def is_free(box: Box) -> bool:
        return all(
            box[2] <= other[0] or other[2] <= box[0] or box[3] <= other[1] or other[3] <= box[1] for other in taken
        )

    return next(filter(is_free, inside), boxes[0])
