"""Small tables and bars by which notebooks show models, features and qualifications; no script, no dependency."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

MOST_BARS = 12
_WIDTH, _ROW = 220, 16


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
