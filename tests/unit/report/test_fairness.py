"""What fairness costs, against the linear program and by hand."""

import re

import numpy as np
import pytest
from reference_balanced import best_assignment

from ammrank_dask.report.charts import fairness_chart
from ammrank_dask.report.fairness import price_fairness
from ammrank_dask.scoring.exposure_bounds import exposure_bounds
from ammrank_dask.scoring.score_partition import SampledUsers

NAMES = ["<a>", "b", "c", "d", "e"]
CLICKS = np.array([500, 300, 100, 60, 40])


@pytest.fixture(scope="module")
def users():
    rng = np.random.default_rng(4)
    scores = (rng.standard_normal((400, 5)) + np.array([3.0, 2.0, 0.0, -1.0, -3.0])).astype(np.float32)
    chances = (1 / (1 + np.exp(-(scores - 4)))).astype(np.float32)
    codes = np.argsort(-scores, axis=1, kind="stable")[:, :2].astype(np.int32)
    return SampledUsers(codes, scores, chances)


def test_price_fairness__is_the_best_at_every_floor(client, tmp_path, users):
    steps = []
    measured = price_fairness(
        client, users, NAMES, CLICKS, np.arange(5), tmp_path / "work", starved_ratio=0.25,
        progress=lambda *step: steps.append(step),
    )  # fmt: skip
    assert steps == [("fairness", done, 6) for done in range(7)]
    assert measured["users"] == 400
    by_user = measured["policies"]["user_top_k"]
    held = np.bincount(users.codes.ravel(), minlength=5)
    assert by_user["expected_clicks"] == pytest.approx(
        np.take_along_axis(users.chances, users.codes, 1).sum(), rel=1e-6
    )
    assert by_user["starved_categories"] == sum(held / 800 < 0.25 * CLICKS / 1000)
    assert by_user["starved_categories"] > 0
    # Each category takes its 160 best users: 400 users × 2 slots ÷ 5 categories.
    best = np.sort(users.chances, axis=0)[-160:].sum()
    assert measured["policies"]["category_top_n"]["expected_clicks"] == pytest.approx(best, rel=1e-6)
    assert measured["policies"]["category_top_n"]["gini"] == 0
    assert [entry["floor"] for entry in measured["floors"]] == [0.0, 0.1, 0.25, 0.5, 0.75, 1.0]
    for entry in measured["floors"]:
        bounds = exposure_bounds(NAMES, CLICKS, np.full(5, 400), 800, floor=entry["floor"])
        optimum = best_assignment(users.chances, bounds.floor, bounds.cap, 2)
        assert entry["expected_clicks"] == pytest.approx(optimum, rel=1e-6)
    clicks = [entry["expected_clicks"] for entry in measured["floors"]]
    assert (np.diff(clicks) <= 1e-6).all()  # more fairness never brings more clicks
    assert all(entry["starved_categories"] == 0 for entry in measured["floors"][2:])


def test_price_fairness__a_floor_that_cannot_be_is_said(client, tmp_path, users):
    chances = users.chances.copy()
    chances[:, 0] = -1
    chances[:300, 1] = -1  # few may hold what is clicked most
    barred = SampledUsers(np.full((400, 2), 2, np.int32), users.scores, chances)
    measured = price_fairness(
        client, barred, NAMES, CLICKS, np.arange(5), tmp_path / "work", starved_ratio=0.25, floors=(0.0, 9.0)
    )
    assert "gap" in measured["floors"][0]
    assert "the floors sum to" in measured["floors"][1]["impossible"]


def test_fairness_chart__draws_every_rule_and_floor():
    entry = {"expected_clicks": 100.0, "starved_categories": 3, "gini": 0.5}
    floors = [
        {"floor": 0.0, **entry, "gap": 0.0},
        {"floor": 0.5, "expected_clicks": 98.0, "starved_categories": 0, "gini": 0.4, "gap": 0.0},
        {"floor": 1.0, "impossible": "<b>the floors sum to"},
    ]
    old = {"expected_clicks": 60.0, "starved_categories": 1, "gini": 0.0}
    chart = fairness_chart({"users": 9, "policies": {"user_top_k": entry, "category_top_n": old}, "floors": floors})
    assert 'data-chart="fairness" data-points="4"' in chart
    assert chart.count("<circle") == 4
    assert "floor 0.5: 0 starved, Gini 0.400" in chart
    assert "starved categories (across), expected clicks (up)" in chart
    content = [{**found, "starved_categories": 0} for found in (entry, old)]
    none = {
        "users": 9,
        "policies": dict(zip(("user_top_k", "category_top_n"), content, strict=True)),
        "floors": floors[1:],
    }
    assert "Gini, as none starves (across)" in fairness_chart(none)


def test_fairness_chart__labels_of_near_floors_do_not_touch():
    entry = {"expected_clicks": 100.0, "starved_categories": 0, "gini": 0.467}
    floors = [
        {"floor": floor, "expected_clicks": clicks, "starved_categories": 0, "gini": gini, "gap": 0.0}
        for floor, clicks, gini in (
            (0.0, 100.21, 0.454),
            (0.25, 100.21, 0.454),
            (0.75, 100.13, 0.411),
            (1, 99.33, 0.33),
        )
    ]
    policies = {"user_top_k": entry, "category_top_n": {**entry, "expected_clicks": 96.66, "gini": 0.0}}
    chart = fairness_chart({"users": 9, "policies": policies, "floors": floors})
    labels = {
        label: (float(x), float(y))
        for x, y, label in re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>(0|0.25|0.75|1)</text>', chart)
        if float(y) < 262  # above the axis
    }
    assert set(labels) == {"0", "0.75", "1"}  # 0.25 is the same point as 0
    (x, y), (beside, other) = labels["0"], labels["0.75"]
    assert abs(x - beside) > 6.5 * len("00.75") / 2 or abs(y - other) > 12
