"""A backtest: its measures and its page by hand, and its nights."""

import datetime as dt
import json
import re
import shutil

import numpy as np
import pytest
import scipy.sparse as sp
from lakes import date_of, write_lake, write_site
from sklearn.linear_model import LogisticRegression

from ammrank_dask.evaluation.backtest import (
    OutcomeSums,
    fit_logistic,
    mark_best,
    mark_given,
    measure_users,
    score_logistic,
    summarise_backtest,
)
from ammrank_dask.evaluation.backtest_page import tabulate_backtest, time_chart, write_backtest
from ammrank_dask.features.write import write_features
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.qualifications import QualificationRows
from ammrank_dask.storage.store.scratch_arrays import load_array, load_facts
from ammrank_dask.user_hash import split_of
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.stages.backtest import describe_backtest, list_nights


def test_measure_users__by_hand():
    scores = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    rankings = np.array([[0, 2], [0, -1]])
    # User 0 prefers 0≻1, 0≻2, 2≻1, of which the last is wrong; user 1 prefers 0≻1, 0≻2, both wrong.
    # User 0 got 0 and 1 and clicked 0 and 2; user 1 got 2 and clicked 0.
    has = np.array([[True, True, False], [False, False, True]])
    sums = measure_users(scores, has, rankings)
    np.testing.assert_allclose(sums, [2, 2, 1 / 3 + 1, 1, 1, 0.5])
    both = OutcomeSums({"policy": sums}) + OutcomeSums({"policy": measure_users(scores[:1], ~has[:1], rankings[:1])})
    assert both.n_users == 3
    # The third user got 2 only: one hit of two clicked.
    assert both.means()["policy"] == {
        "disagreement": pytest.approx((1 / 3 + 1 + 1 / 3) / 3),
        "hits": pytest.approx(2 / 3),
        "hit_rate": pytest.approx(2 / 3),
        "recall": pytest.approx(1 / 3),
    }


def test_measure_users__nobody():
    sums = OutcomeSums({"policy": measure_users(np.empty((0, 2)), np.empty((0, 2), bool), np.empty((0, 1), np.int32))})
    assert sums.n_users == 0
    assert sums.means()["policy"] == dict.fromkeys(("disagreement", "hits", "hit_rate", "recall"))


def test_mark_best__equal_scores_by_code_and_no_more_than_there_are():
    marked = mark_best(np.array([[1.0, 5.0, 1.0, 5.0], [0.0, 0.0, 0.0, 0.0]], np.float32), 3)
    np.testing.assert_array_equal(marked, [[True, True, False, True], [True, True, True, False]])
    assert mark_best(np.zeros((1, 2)), 5).all()


def test_mark_given__first_ranks_of_users_who_are_there():
    rows = QualificationRows(ids_from_values([2, 5, 9]), np.array([0, 2, 3, 4]), np.array([1, 0, 2, 3]), np.zeros(4))
    # User 3 got nothing, user 9 is not asked for, and of user 2 only the first rank counts; category 3 is gone.
    marked = mark_given(rows, ids_from_values([2, 3, 5]), 3, k=1)
    np.testing.assert_array_equal(marked, [[False, True, False], [False, False, False], [False, False, True]])


def test_score_logistic__by_hand():
    weights = np.array([[1.0, 2.0], [0.0, -1.0], [0.5, 0.0]], np.float32)
    scores = score_logistic(weights, sp.csr_matrix(np.array([[1.0, 0.0], [0.0, 2.0]], np.float32)))
    np.testing.assert_allclose(scores, [[1.5, 2.0], [0.5, -2.0]])


def test_fit_logistic__is_that_of_scikit_learn_with_the_best_c(client, tmp_path):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(500, 4)).astype(np.float32)
    rankings = np.argsort(-(X[:, :3] + rng.normal(size=(500, 3))), axis=1)[:, :1].astype(np.int32)
    features = write_features(
        tmp_path / "f", X, np.arange(500), list("abcd"), rankings, categories=["x", "y", "z"], n_partitions=2,
        normalize=False,
    )  # fmt: skip
    folder, clicks = fit_logistic(client, features, tmp_path / "lr", variant=None)
    train = split_of(ids_from_values(np.arange(500))) == 0
    np.testing.assert_array_equal(clicks, np.bincount(rankings[train, 0], minlength=3))
    facts = {path.name: load_facts(path) for path in sorted((tmp_path / "lr").glob("lr-*"))}
    assert load_facts(folder)["error"] == min(found["error"] for found in facts.values())
    C = load_facts(folder)["params"]["C"]
    expected = LogisticRegression(C=C, tol=1e-8).fit(X[train], rankings[train, 0] == 1)
    weights = load_array(folder, "weights")
    np.testing.assert_allclose(weights[:-1, 1], expected.coef_[0], atol=2e-2)
    assert fit_logistic(client, features, tmp_path / "lr", variant=None)[0] == folder


def night(date, users, policy, lr=None, **facts):
    def means(error):
        return {"disagreement": error, "hits": 10 * error, "hit_rate": None, "recall": 0.5}

    methods = {"policy": means(policy)} | ({} if lr is None else {"lr": means(lr)})
    exposure = {
        "coverage": 1.0, "gini": 0.25, "starved_users": 3, "overexposed_users": 0, "starved_categories": 7,
    }  # fmt: skip
    base = {"date": date, "until": "2026-02-01", "users": users, "methods": methods, "reason": None}
    return {**base, "exposure": exposure, "model": {"date": date}, "gate": None, **facts}


@pytest.fixture
def backtest():
    silent = night("2026-01-03", 0, 0.0, methods=None, exposure=None, model=None, reason="none: <b>too few</b>")
    nights = [night("2026-01-01", 100, 0.2), night("2026-01-02", 300, 0.4, 0.3), silent]
    return summarise_backtest(nights, k=10, every=1, policy="user_top_k")


def test_summarise_backtest__means_count_users(backtest):
    assert backtest["means"]["policy"]["disagreement"] == pytest.approx((100 * 0.2 + 300 * 0.4) / 400)
    assert backtest["means"]["lr"]["disagreement"] == pytest.approx(0.3)
    assert backtest["means"]["policy"]["hit_rate"] is None
    with pytest.raises(TooFewUsers, match="no night of the backtest had a model and users who clicked after it"):
        summarise_backtest([backtest["nights"][2]], k=10, every=1, policy="user_top_k")


def test_write_backtest__table_page_and_json(backtest, tmp_path):
    write_backtest(tmp_path, backtest)
    assert json.loads((tmp_path / "backtest.json").read_text()) == backtest
    table = tabulate_backtest(backtest)
    assert table["policy_disagreement"].tolist()[:2] == [0.2, 0.4]
    assert table["lr_hits"].isna().tolist() == [True, False, True]
    assert table["starved_categories"].tolist()[:2] == [7, 7]
    page = (tmp_path / "backtest.html").read_text()
    assert "none: &lt;b&gt;too few&lt;/b&gt;" in page
    assert "<script" not in page
    assert 'data-chart="disagreement" data-points="3"' in page
    assert describe_backtest(backtest)[2].split() == [
        "2026-01-02",
        "300",
        "0.4000",
        "/",
        "4.000",
        "0.3000",
        "/",
        "3.000",
    ]


def test_time_chart__leaves_out_what_is_not_known():
    chart = str(time_chart("x", ["a", "b", "c"], {"popularity": [1.0, None, 3.0]}))
    assert chart.count("<circle") == 2
    assert "stroke-dasharray" in chart
    assert time_chart("x", ["a"], {"popularity": [None]}) == ""


def test_time_chart__counts_have_whole_levels_from_0():
    chart = str(time_chart("x", ["a", "b"], {"starved users": [5, 7]}))
    assert re.findall(r'class="tick">(\d+)<', chart) == ["0", "2", "4", "6", "8"]
    assert 'cy="10"' not in chart
    assert 'cy="32.5"' in chart  # 7 of 8 levels of 180 units, from 10 on


def test_list_nights__refuses_what_cannot_be_measured(tmp_path):
    lake = write_lake(tmp_path / "lake", n_days=8)
    site = write_site(tmp_path / "site", lake, features={"min_days": 1})  # two days of labels
    config = load_config(site.config_path)
    assert list_nights(site, config, date_of(2), date_of(5), 2) == [date_of(2), date_of(4)]
    with pytest.raises(
        BadInput, match=f"too little history: the lake begins with {date_of(0)}.*--from {date_of(2)} or"
    ):
        list_nights(site, config, date_of(1), date_of(5), 1)
    with pytest.raises(
        BadInput, match=f"after {date_of(6)} is not known yet.*is {date_of(7)}; give --to {date_of(5)} or"
    ):
        list_nights(site, config, date_of(2), date_of(6), 1)
    assert list_nights(site, config, date_of(5), date_of(5) + dt.timedelta(1), 7) == [date_of(5)]
    shutil.rmtree(lake / "events" / f"date={date_of(6)}")  # in the label window of the last night only
    with pytest.raises(BadInput, match=f"no events for {date_of(6)}, which a night would stop at; add them, or set"):
        list_nights(site, config, date_of(2), date_of(5), 1)
    assert list_nights(site, config, date_of(2), date_of(3), 1) == [date_of(2), date_of(3)]
