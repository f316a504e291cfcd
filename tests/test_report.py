"""The report on qualifications: the figures by hand, and the files."""

import json

import numpy as np
import pytest

from ammrank_dask.report import entropy, exposure_table, gini, summarise
from storage.reports import render_page, write_report

CATEGORIES = ["autos", "games / <b>", "garten & haus", "news"]


def test_gini__by_hand():
    assert gini(np.array([5, 5, 5, 5])) == 0.0
    assert gini(np.array([0, 0, 0, 8])) == 0.75
    # Half the mean absolute difference over the mean: |1−3| in two of four ordered pairs, mean 2.
    assert gini(np.array([3, 1])) == 0.25
    assert gini(np.zeros(3, int)) == 0.0


def test_entropy__by_hand():
    assert entropy(np.array([2, 2, 2, 2])) == pytest.approx(1.0)
    assert entropy(np.array([2, 2, 0, 0])) == pytest.approx(0.5)
    assert entropy(np.array([9, 0])) == 0.0
    assert entropy(np.array([9])) == 1.0
    assert entropy(np.zeros(3, int)) == 0.0


def make_summary():
    # Four users, k = 1: three hold category 0, one holds category 1.
    exposure = np.array([[3], [1], [0], [0]])
    clicks = np.array([10, 80, 10, 0])
    per_user = np.array([1, 4, 0, 1, 0])  # one user holds nothing, one holds three, which is more than 2k
    summary = summarise(exposure, clicks, CATEGORIES, per_user, date="2024-05-01", cold_users=2, k=1)
    return summary, exposure_table(exposure, CATEGORIES, clicks)


def test_summarise__by_hand():
    summary, _ = make_summary()
    assert {key: summary[key] for key in ("date", "n_users", "cold_users", "k")} == {
        "date": "2024-05-01", "n_users": 6, "cold_users": 2, "k": 1,
    }  # fmt: skip
    policy = summary["policies"]["user_top_k"]
    assert policy["starved_users"] == 1
    assert policy["overexposed_users"] == 1
    # 2 and 3 have no user; 1 has share .25, above a quarter of its click share .8.
    assert policy["starved_categories"] == 2
    assert policy["coverage"] == 0.5
    assert policy["gini"] == pytest.approx((3 * 3 + 1 * 1) / (4 * 4))
    assert summary["categories"][0] == {
        "category": "autos", "exposure": 3, "exposure_share": 0.75, "click_share": 0.1,
        "ratio": pytest.approx(7.5),
    }  # fmt: skip
    assert [row["ratio"] for row in summary["categories"][1:]] == [pytest.approx(0.3125), 0.0, None]


def test_summarise__thresholds_and_no_clicks():
    exposure, per_user = np.array([[3], [1], [0], [0]]), np.array([0, 4, 0, 0, 0])
    options = {"date": None, "cold_users": 0, "k": 1}
    strict = summarise(
        exposure, np.array([10, 80, 10, 0]), CATEGORIES, per_user, starved_ratio=0.5, overexposed_factor=0.5,
        **options,
    )["policies"]["user_top_k"]  # fmt: skip
    assert (strict["starved_categories"], strict["overexposed_users"]) == (3, 4)
    silent = summarise(exposure, np.zeros(4, int), CATEGORIES, per_user, **options)
    assert [row["ratio"] for row in silent["categories"]] == [None] * 4


def test_write_report__same_bytes_and_escaped_names(tmp_path):
    summary, table = make_summary()
    write_report(tmp_path / "a", summary, table)
    write_report(tmp_path / "b", summary, table)
    write_report(tmp_path / "b", summary, table)
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == [
        "exposure.csv",
        "report.html",
        "summary.json",
    ]
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    assert json.loads((tmp_path / "a" / "summary.json").read_text()) == summary
    lines = (tmp_path / "a" / "exposure.csv").read_text().splitlines()
    assert lines[0] == "category,exposure,exposure_share,click_share,ratio,rank_1"
    assert lines[4] == "news,0,0.0,0.0,,0"
    page = (tmp_path / "a" / "report.html").read_text()
    assert "<b>" not in page
    assert "games / &lt;b&gt;" in page
    assert "garten &amp; haus" in page
    assert page.count("<rect") == 8
    assert "http" not in page


def test_render_page__without_users_or_date():
    nothing = summarise(
        np.zeros((4, 1), int), np.zeros(4, int), CATEGORIES, np.zeros(5, int), date=None, cold_users=0, k=1
    )
    page = render_page(nothing)
    assert "<title>Exposure</title>" in page
    assert "NaN" not in page
