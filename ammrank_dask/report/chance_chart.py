"""Draw how chances came true: a reliability diagram."""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from ammrank_dask.report.svg import draw, legend, tag, text

_LEGEND_TOP = 14
_ERRORS = 3.0


def reliability_chart(bins: Sequence[Mapping[str, float]]) -> Markup:
    """Return the share that was clicked against the chance, both on a logarithmic scale, with 3 standard errors.

    Parameters
    ----------
    bins
        Of cells (user, category) with about the same chance: `cells`, `chance`, `clicked`, its `error` by user, and
        `cell_error`, that of independent cells; nights of earlier versions have that one only, as `error`.
    """
    left, top, width, height = 56, 44, 332, 210
    bottom = top + height
    drawn = [row for row in bins if row["cells"] and row["chance"] > 0]
    values = [row[name] for row in drawn for name in ("chance", "clicked") if row[name] > 0]
    low = math.floor(math.log10(max(min(values, default=0.1), 1e-6)))
    high = min(0, math.ceil(math.log10(max(values, default=1.0)) - 1e-9))
    high = max(high, low + 1)

    def share(value: float) -> float:
        return min(1.0, max(0.0, (math.log10(max(value, 1e-12)) - low) / (high - low)))

    content = []
    for power in range(low, high + 1):
        label, x, y = (
            f"{100 * 10.0**power:g} %",
            left + width * share(10.0**power),
            bottom - height * share(10.0**power),
        )
        content.append(tag("line", x1=left, y1=y, x2=left + width, y2=y, class_="grid"))
        content.append(text(label, left - 6, y + 4, "end"))
        content.append(text(label, x, bottom + 16, "end" if power == high else "middle"))
    content.append(tag("line", x1=left, y1=bottom, x2=left + width, y2=top, class_="even"))
    for row in drawn:
        x = left + width * share(row["chance"])
        reach = _ERRORS * row["error"]
        y_low, y_high = (bottom - height * share(value) for value in (row["chance"] - reach, row["chance"] + reach))
        what = tag("title", f"predicted {100 * row['chance']:.3g} %, clicked {100 * row['clicked']:.3g} %")
        content.append(tag("line", x1=x, y1=y_low, x2=x, y2=y_high, class_="whisker"))
        content.append(
            tag("circle", what, cx=x, cy=bottom - height * share(row["clicked"]), r=3.5, class_="area user_top_k")
        )
    kind = "by user" if all("cell_error" in row for row in bins) else "of independent cells"
    entries = [("as often as predicted", "even", None), (f"predicted ± 3 standard errors {kind}", "whisker", None)]
    content += legend(entries, left, _LEGEND_TOP)
    words = "click probability (across), share that was clicked (up)"
    content.append(text(words, left + width / 2, bottom + 34, is_tick=False))
    return draw("reliability", bottom + 40, len(drawn), "Share clicked by click probability", *content)
