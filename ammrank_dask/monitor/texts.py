"""Write numbers, names and tables for the page; every name is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

MAX_LABEL = 22
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_MATHS = re.compile(r"\$\$|\\\(|\\\[|\\\)|\\\]")


def label_of(name: object, length: int = MAX_LABEL) -> str:
    """Return a name that is safe to draw: short, without control characters, and not read as a formula.

    Bokeh takes text between `$$` for TeX and fetches a script from the network to draw it.
    """
    text = _CONTROLS.sub(" ", str(name))
    text = _MATHS.sub(lambda found: found.group()[0] + " " + found.group()[1:], text)
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
