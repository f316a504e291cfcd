"""Figures over nights: what a chart does with a value far above all others."""

import datetime as dt
import re

import pytest

from ammrank_dask.report.charts import trend_chart

DATES = [dt.date(2026, 3, 1) + dt.timedelta(number) for number in range(20)]
TOP = 8.0


def draw(values, **options):
    """Return a chart of one line, and the heights of its points."""
    chart = trend_chart("seconds", "Seconds", DATES[: len(values)], {"all": values}, unit=" s", **options)
    points = re.search(r'<polyline points="([^"]+)"', chart)[1].split()
    return chart, [float(point.split(",")[1]) for point in points]


def test_trend_chart__a_value_far_above_all_others_is_cut_off_and_named():
    chart, heights = draw([107.0, *[2.0, 8.0, 2.0] * 3], least=1)
    assert "▲ 107 s on 2026-03-01</text>" in chart
    assert chart.count('class="cut"') == 1
    assert heights[0] == TOP
    assert heights[2] < heights[1] - 50  # the training nights are seen again: 8 of an axis to 8
    assert "100 s</text>" not in chart


def test_trend_chart__several_values_are_cut_off():
    chart, heights = draw([107.0, *[2.0] * 18, 90.0], least=1)
    assert "▲ 107 s on 2026-03-01 and 1 more</text>" in chart
    assert heights[0] == heights[-1] == TOP


@pytest.mark.parametrize(
    ("values", "least"),
    [([107.0, 2.0, 2.0], 1), ([9.0, *[2.0] * 9], 1), ([*[0.0] * 9, 7.0], 3), ([107.0, *[2.0] * 9], None)],
    ids=["few nights", "near", "zero but for one night", "an axis that need not begin at 0"],
)
def test_trend_chart__keeps_all_values(values, least):
    chart, heights = draw(values, least=least)
    assert "▲" not in chart
    assert min(heights) >= TOP
    assert len(set(heights)) == len(set(values))
