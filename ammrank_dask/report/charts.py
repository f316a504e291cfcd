"""Draw the charts of a report as SVG: no script, colours from the page's style sheet, every name escaped.

Every chart carries `data-chart` (its name) and `data-points` (how many values it draws).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

WIDTH = 400
"""Units of a chart's width; about as many pixels on a phone, so that text keeps its size."""
CURVE_POINTS = 400


def draw(name: str, height: float, n_points: int, title: str, *content: Markup) -> Markup:
    """Return a whole chart."""
    return tag(
        "svg", *content, viewBox=f"0 0 {WIDTH} {number(height)}", role="img", aria_label=title,
        data_chart=name, data_points=n_points,
    )  # fmt: skip


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """Return an element; content and attributes are escaped, `_` in a name stands for `-`, `class_` is class."""
    named = {key.removesuffix("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    said = Markup("").join(Markup(' {}="{}"').format(Markup(key), _text(value)) for key, value in named.items())
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), said, Markup("").join(escape(part) for part in content))


def number(value: float) -> str:
    """Return a coordinate as short text."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


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
    content = [_frame(left, top, width, height)]
    for step in range(5):
        x, y, text = left + width * step / 4, bottom - height * step / 4, f"{25 * step} %"
        content.append(
            tag("text", text, x=x, y=bottom + 16, text_anchor="end" if step == 4 else "middle", class_="tick")
        )
        content.append(tag("text", text, x=left - 6, y=y + 4, text_anchor="end", class_="tick"))
    words = "categories, least shown first; share of all slots"
    content.append(tag("text", words, x=left + width / 2, y=bottom + 34, text_anchor="middle"))
    content.append(tag("line", x1=left, y1=bottom, x2=left + width, y2=top, class_="even"))
    for line, (name, shares) in enumerate(curves.items()):
        n = max(1, len(shares) - 1)
        drawn = [*range(0, n, 1 + n // CURVE_POINTS), n]
        points = " ".join(
            f"{number(left + width * place / n)},{number(bottom - height * shares[place])}" for place in drawn
        )
        content.append(tag("polyline", points=points, class_=f"curve {name}"))
        content += _key(line, labels[name], f"curve {name}")
    content += _key(len(curves), "all categories alike", "even")
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
    content = [_frame(left, top, width, height)]
    for step in range(5):
        y = bottom - height * step / 4
        content.append(
            tag(
                "text",
                f"{100 * highest / total * step / 4:.3g} %",
                x=left - 6,
                y=y + 4,
                text_anchor="end",
                class_="tick",
            )
        )
    every = next(step * 10**power for power in range(20) for step in (1, 2, 5) if n_bins <= 12 * step * 10**power)
    for held in range(0, n_bins, every):
        x = left + slot * (held + 0.5)
        content.append(tag("text", held, x=x, y=bottom + 16, text_anchor="middle", class_="tick"))
    n_points = 0
    for place, (name, found) in enumerate(counts.items()):
        for held, users in enumerate(found[:n_bins]):
            n_points += 1
            if users:
                tall = max(1.0, height * users / highest)
                x = left + slot * (held + 0.08) + bar * place
                what = tag("title", f"{labels[name]}: {users:,} users hold {held}")
                content.append(tag("rect", what, x=x, y=bottom - tall, width=bar, height=tall, class_=f"area {name}"))
        content += _key(place, labels[name], f"curve {name}")
    x = left + slot * (int(limit) + 1)
    content.append(tag("line", x1=x, y1=top, x2=x, y2=bottom, class_="limit"))
    content += _key(len(counts), f"over-exposed: more than {limit:g}", "limit")
    content.append(tag("text", "categories a user holds", x=left + width / 2, y=bottom + 34, text_anchor="middle"))
    return draw("categories-per-user", bottom + 40, n_points, "Users by the number of categories they hold", *content)


def clicks_chart(clicks: Sequence[tuple[str, int]], total: int, unit: str = "clicks") -> Markup:
    """Return clicks per category, most clicked first, and the share of all `total` up to each; `unit` is counted."""
    left, top, width, height = 44, 12, 316, 190
    bottom = top + height
    ordered = sorted(clicks, key=lambda item: -item[1])
    highest = round_up(max((found for _, found in ordered), default=0))
    slot = width / max(1, len(ordered))
    content = [_frame(left, top, width, height)]
    for step in range(5):
        y = bottom - height * step / 4
        label = f"{highest * step / 4:,.0f}" if highest < 10_000 else f"{highest * step / 4000:,.0f}k"
        content.append(tag("text", label, x=left - 6, y=y + 4, text_anchor="end", class_="tick"))
        content.append(tag("text", f"{25 * step} %", x=left + width + 5, y=y + 4, class_="tick"))
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
    content.append(tag("text", words, x=WIDTH / 2, y=bottom + 20, text_anchor="middle", class_="tick"))
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
        tag("text", f"{-reach:.2g}", x=left, y=64, class_="tick"),
        tag("text", "0", x=place(0), y=64, text_anchor="middle", class_="tick"),
        tag("text", f"{reach:+.2g}", x=left + width, y=64, text_anchor="end", class_="tick"),
    ]
    return draw("score-shift", 68, len(at) + 1, "Change of scores since the night before", *content)


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


def _frame(left: float, top: float, width: float, height: float) -> Markup:
    lines = [
        tag("line", x1=left, y1=top + height * step / 4, x2=left + width, y2=top + height * step / 4, class_="grid")
        for step in range(5)
    ]
    return Markup("").join(lines)


def _key(place: int, label: str, kind: str) -> list[Markup]:
    """Return one line of the key above a chart."""
    y = 14 + 17 * place
    return [tag("line", x1=44, y1=y - 4, x2=68, y2=y - 4, class_=kind), tag("text", label, x=76, y=y)]


def _text(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)
