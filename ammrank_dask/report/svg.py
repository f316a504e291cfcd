"""Draw SVG: elements with all text escaped, axes, legends, and numbers as charts show them.

Every chart carries `data-chart` (its name) and `data-points` (how many values it draws).
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup, escape

WIDTH = 400
"""Units of a chart's width; about as many pixels on a phone, so that text keeps its size."""
LEGEND_ROW = 17
"""Units of a legend's row."""


def draw(name: str, height: float, n_points: int, title: str, *content: Markup) -> Markup:
    """Return a whole chart."""
    return tag(
        "svg", *content, viewBox=f"0 0 {WIDTH} {number(height)}", role="img", aria_label=title,
        data_chart=name, data_points=n_points,
    )  # fmt: skip


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """Return an element; content and attributes are escaped, `_` in a name stands for `-`, `class_` is class."""
    said = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{escape(_attribute_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(escape(part) for part in content)
    return Markup(f"<{name}{said}>{inside}</{name}>")  # all that comes from outside is escaped above


def number(value: float) -> str:
    """Return a coordinate as short text."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text(words: object, x: float, y: float, anchor: str | None = "middle", *, is_tick: bool = True) -> Markup:
    """Return a text, of an axis if `is_tick`."""
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_="tick" if is_tick else None)


def value_axis(left: float, top: float, width: float, height: float, labels: Sequence[str]) -> list[Markup]:
    """Return level lines across a chart at equal distances, the lowest first, and their labels left of them."""
    content = []
    for step, label in enumerate(labels):
        y = top + height - height * step / (len(labels) - 1)
        content.append(tag("line", x1=left, y1=y, x2=left + width, y2=y, class_="grid"))
        content.append(text(label, left - 6, y + 4, "end"))
    return content


def steps_between(low: float, high: float, *, steps: int = 4, digits: int = 3) -> list[str]:
    """Return the labels of an axis from `low` to `high`, without trailing zeros.

    Examples
    --------
    >>> steps_between(0.1, 0.3)
    ['0.1', '0.15', '0.2', '0.25', '0.3']
    """
    labels = [f"{low + (high - low) * step / steps:.{digits}f}" for step in range(steps + 1)]
    return [label.rstrip("0").rstrip(".") if digits else label for label in labels]


def legend(
    entries: Iterable[tuple[str, str, str | None]], left: float, top: float, *, columns: int = 1
) -> list[Markup]:
    """Return a sample of each line and what it means; an entry is (label, style class, dashes)."""
    slot = (WIDTH - left) / columns
    content = []
    for number_of_entry, (label, style, dashes) in enumerate(entries):
        x, y = left + slot * (number_of_entry % columns), top + LEGEND_ROW * (number_of_entry // columns)
        length = 24 if columns == 1 else 18
        content.append(tag("line", x1=x, y1=y - 4, x2=x + length, y2=y - 4, class_=style, stroke_dasharray=dashes))
        content.append(text(label, x + length + (8 if columns == 1 else 4), y, None, is_tick=columns > 1))
    return content


def breakable(name: str) -> Markup:
    """Return a name that may go on in the next line after a slash."""
    return Markup("/<wbr>").join(escape(part) for part in name.split("/"))


def percent(share: float) -> str:
    """Return a share in per cent, so that 0 % is nothing and 100 % is all."""
    value = 100 * share
    if value in (0, 100):
        return f"{value:.0f}\u00a0%"
    if value < 0.01:
        return "<0.01\u00a0%"
    if value > 99.99:
        return ">99.99\u00a0%"
    return f"{value:.{1 if 0.1 <= value <= 99.9 else 2}f}\u00a0%"


def round_up(value: int) -> int:
    """Return a round number not below `value` whose quarters are whole: the end of an axis.

    Examples
    --------
    >>> [round_up(value) for value in (0, 4, 5, 81, 1445)]
    [4, 4, 8, 100, 2000]
    """
    steps = (step * 10**power for power in range(20) for step in (4, 8, 10, 20))
    return next(step for step in steps if step >= value and step % 4 == 0)


def nice_range(low: float, high: float) -> tuple[float, float]:
    """Return bounds around both values whose quarters are short numbers."""
    span = max(high - low, 1e-6) * 1.02
    unit = 10 ** math.floor(math.log10(span / 4))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10, 20) if 4 * unit * factor >= span)
    start = math.floor(low / step + 1e-9) * step
    if start + 4 * step < high:
        return nice_range(low, high + (high - low) * 0.25 + 1e-9)
    return start, start + 4 * step


def _attribute_text(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)
