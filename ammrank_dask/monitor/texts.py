"""Write numbers, names and tables for the page, and cards for notebooks; every name is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

MAX_LABEL = 22
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")

MOST_BARS = 12
_WIDTH, _ROW = 220, 16


def label_of(name: object, length: int = MAX_LABEL) -> str:
    """Return a name that is short and has no control characters."""
    text = _CONTROLS.sub(" ", str(name))
    return text if len(text) <= length else text[: length - 1] + "…"


def seconds_text(seconds: float | None) -> str:
    """Return a duration as a person says it; a dash when it is not known."""
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def number_text(number: float | None) -> str:
    """Return a number with at most four digits and a unit prefix."""
    if number is None:
        return "–"
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{suffix}"
    return f"{number:.3g}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> str:
    """Return an HTML table, all cells escaped; a sentence when there is no row."""
    lines = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows]
    if not lines:
        return f'<p class="none">{escape(empty)}</p>'
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def card_html(title: str, table: Mapping[str, Any], bars: Mapping[str, Mapping[str, float]]) -> str:
    """Return a title, a table of names and values, and for every title in `bars` the largest of its values as bars.

    Examples
    --------
    >>> "Hats" in card_html("AMMRank", {"planes": 3}, {"planes by category": {"Hats": 2, "Shoes": 1}})
    True
    """
    rows = Markup("").join(
        Markup("<tr><td>{}</td><td>{}</td></tr>").format(name, f"{value:,}" if isinstance(value, int) else value)
        for name, value in table.items()
    )
    charts = Markup("").join(_bars(name, values) for name, values in bars.items() if values)
    return str(Markup("<div><b>{}</b><table>{}</table>{}</div>").format(title, rows, charts))


def _bars(title: str, values: Mapping[str, float]) -> Markup:
    largest = sorted(values.items(), key=lambda item: (-item[1], item[0]))[:MOST_BARS]
    top = max(1e-300, *(value for _, value in largest))
    more = f", the largest {MOST_BARS} of {len(values):,}" if len(values) > MOST_BARS else ""
    shown = [_bar(number, name, value, top) for number, (name, value) in enumerate(largest)]
    return Markup(
        '<figure><figcaption>{}</figcaption><svg width="{}" height="{}" font-size="11">{}</svg></figure>'
    ).format(title + more, 2 * _WIDTH + 80, _ROW * len(largest), Markup("").join(shown))


def _bar(number: int, name: str, value: float, top: float) -> Markup:
    text = Markup(
        '<text x="{}" y="{}" text-anchor="end" fill="currentColor">{}</text><rect x="{}" y="{}" width="{:.1f}"'
        ' height="{}" fill="#4c78a8"/><text x="{:.1f}" y="{}" fill="currentColor">{}</text>'
    )
    y, length = number * _ROW, _WIDTH * max(0.0, value) / top
    shown = f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
    return text.format(
        _WIDTH - 6, y + 12, _short(name), _WIDTH, y + 3, length, _ROW - 5, _WIDTH + length + 4, y + 12, shown
    )


def _short(name: str, most: int = 32) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
