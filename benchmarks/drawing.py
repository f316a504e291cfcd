"""Draw what benchmarks measured on logarithmic axes, as SVG that stands alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from ammrank_dask.report.svg import tag

LEFT, TOP, WIDTH, HEIGHT = 70, 44, 560, 260
COLOURS = ("#3b6ea8", "#d98c3f", "#5a9c5a", "#a85a8c", "#7a7a7a", "#b8a038", "#6b4fa0")


def draw_points(points: Sequence[tuple[str, float, float, bool]], *, title: str, x: str, y: str, note: str) -> Markup:
    """Return named points (name, x, y, whether to stress it), x on a logarithmic axis, y on a plain one from 0."""
    across = _log_axis([point[1] for point in points])
    highest = 1.1 * max(point[2] for point in points)
    content = [_text(title, 4, 16), *_log_ticks(across), _frame()]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        content.append(_text(f"{share * highest:.3f}", LEFT - 6, _down(share) + 4, anchor="end"))
    for name, at, value, stressed in points:
        place = (_across(across, at), _down(value / highest))
        colour = COLOURS[0] if stressed else COLOURS[1]
        content.append(tag("circle", cx=place[0], cy=place[1], r=5, fill=colour))
        is_right = place[0] > LEFT + 0.7 * WIDTH
        content.append(
            _text(name, place[0] + (-9 if is_right else 9), place[1] + 4, anchor="end" if is_right else "start")
        )
    return _close(content, x, y, note)


def draw_curves(
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]], *, title: str, x: str, y: str, note: str
) -> Markup:
    """Return named curves of (x, y) points, both axes logarithmic."""
    across = _log_axis([point[0] for _, points in curves for point in points])
    up = _log_axis([point[1] for _, points in curves for point in points])
    content = [_text(title, 4, 16), *_log_ticks(across), _frame()]
    for power in range(up[0], up[1] + 1):
        content.append(_text(f"{10.0**power:g}", LEFT - 6, _down((power - up[0]) / (up[1] - up[0])) + 4, anchor="end"))
    for number, (name, points) in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        places = [
            (_across(across, at), _down((math.log10(value) - up[0]) / (up[1] - up[0]))) for at, value in sorted(points)
        ]
        line = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
        content.append(tag("polyline", points=line, fill="none", stroke=colour, stroke_width=2))
        content += [tag("circle", cx=left, cy=top, r=3, fill=colour) for left, top in places]
        content.append(_text(name, LEFT + WIDTH + 8, TOP + 14 + 18 * number, colour=colour))
    return _close(content, x, y, note)


def _log_axis(values: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten between which all values are."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _across(axis: tuple[int, int], value: float) -> float:
    return LEFT + WIDTH * (math.log10(value) - axis[0]) / (axis[1] - axis[0])


def _down(share: float) -> float:
    return TOP + HEIGHT * (1 - share)


def _log_ticks(axis: tuple[int, int]) -> list[Markup]:
    return [
        _text(f"{10.0**power:,g}", _across(axis, 10.0**power), TOP + HEIGHT + 16, anchor="middle")
        for power in range(axis[0], axis[1] + 1)
    ]


def _frame() -> Markup:
    return tag("rect", x=LEFT, y=TOP, width=WIDTH, height=HEIGHT, fill="none", stroke="#999")


def _text(content: str, x: float, y: float, *, anchor: str = "start", colour: str = "#222") -> Markup:
    return tag("text", content, x=x, y=y, text_anchor=anchor, fill=colour)


def _close(content: list[Markup], x: str, y: str, note: str) -> Markup:
    bottom = TOP + HEIGHT
    content += [_text(x, LEFT + WIDTH / 2, bottom + 34, anchor="middle"), _text(y, 4, TOP - 12)]
    content.append(_text(note, 4, bottom + 54))
    return tag(
        "svg", *content, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 820 {bottom + 62}", width=820, font_size=12,
        font_family="sans-serif",
    )  # fmt: skip
