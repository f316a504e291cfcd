"""A backtest: its measures and its page by hand, and its nights."""

import datetime as dt
import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from lakes import date_of, write_lake, write_site
from sklearn.linear_model import LogisticRegression

from ammrank_dask import AMMRankPlus
from ammrank_dask.evaluation.backtest import (
    NightToMeasure,
    OutcomeSums,
    fit_logistic,
    list_best,
    list_given,
    measure_outcome_part,
    measure_users,
    score_logistic,
    summarise_backtest,
)
from ammrank_dask.evaluation.charts import Style, lines_chart
from ammrank_dask.evaluation.page import describe_gain, tabulate_backtest, write_backtest
from ammrank_dask.features.write import write_features
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.parts import checksum_file
from ammrank_dask.storage.store.qualifications import QualificationPart, QualificationRows
from ammrank_dask.storage.store.scratch_arrays import load_array, load_facts
from ammrank_dask.user_hash import split_of
from ammrank_dask.workflows.operations.backtest import backtest_tables, list_nights
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.options import show_table


def test_measure_users__by_hand():
    scores = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    rankings = np.array([[0, 2], [0, -1]])
    # User 0 prefers 0≻1, 0≻2, 2≻1, of which the last is wrong; user 1 prefers 0≻1, 0≻2, both wrong.
    # User 0 got 1 and 0 and clicked 0 and 2; user 1 got 2 and nothing more, and clicked 0.
    lists = np.array([[1, 0], [2, -1]])
    sums = measure_users(scores, lists, lists, rankings)
    second = 1 / np.log2(3)
    ndcg = second / (1 + second)
    np.testing.assert_allclose(sums, [2, 2, 1 / 3 + 1, 1, 1, 0.5, ndcg, 0])
    third = measure_users(scores[:1], np.array([[2, -1]]), lists[:1], rankings[:1])
    both = OutcomeSums({"policy": sums}) + OutcomeSums({"policy": third})
    assert both.n_users == 3
    # The third user got 2 only: one hit of two clicked, at the first rank.
    assert both.means()["policy"] == {
        "disagreement": pytest.approx((1 / 3 + 1 + 1 / 3) / 3),
        "hits": pytest.approx(2 / 3),
        "ndcg": pytest.approx((ndcg + 1 / (1 + second)) / 3),
        "hit_rate": pytest.approx(2 / 3),
        "recall": pytest.approx(1 / 3),
    }


def test_outcome_sums__gain_is_paired():
    scores = np.tile([3.0, 2.0, 1.0], (4, 1))
    rankings = np.array([[0, 1], [0, -1], [2, -1], [1, 2]])
    published = np.array([[0, 1], [0, 1], [0, 1], [1, 2]])  # 2, 1, 0, 2 hits
    own = np.array([[0, 2], [1, 0], [0, 2], [0, -1]])  # 1, 1, 1, 0 hits
    differences = np.array([1, 0, -1, 2])
    parts = [
        OutcomeSums(
            {
                name: measure_users(scores[rows], lists[rows], published[rows], rankings[rows])
                for name, lists in (("policy", published), ("own-history", own))
            }
        )
        for rows in (slice(0, 1), slice(1, 4))
    ]
    means = (parts[0] + parts[1]).means()
    assert means["own-history"]["gain"] == pytest.approx(differences.mean())
    assert means["own-history"]["standard_error"] == pytest.approx(differences.std(ddof=1) / 2)
    assert "gain" not in means["policy"]


def test_measure_users__nobody():
    lists = np.empty((0, 1), np.int32)
    nobody = measure_users(np.empty((0, 2)), lists, lists, np.empty((0, 1), np.int32))
    sums = OutcomeSums({"policy": nobody, "popularity": nobody})
    assert sums.n_users == 0
    measures = ("disagreement", "hits", "ndcg", "hit_rate", "recall")
    assert sums.means()["policy"] == dict.fromkeys(measures)
    assert sums.means()["popularity"] == dict.fromkeys((*measures, "gain", "standard_error"))


def test_list_best__equal_scores_by_code_and_no_more_than_there_are():
    codes = list_best(np.array([[1.0, 5.0, 1.0, 5.0], [0.0, 0.0, 0.0, 0.0]], np.float32), 3)
    np.testing.assert_array_equal(codes, [[1, 3, 0], [0, 1, 2]])
    np.testing.assert_array_equal(list_best(np.zeros((1, 2)), 5), [[0, 1]])


def test_list_given__first_ranks_of_users_who_are_there():
    rows = QualificationRows(
        ids_from_values([2, 5, 9]), np.array([0, 3, 5, 6]), np.array([1, 0, 2, 2, 3, 0]), np.zeros(6)
    )
    # User 3 got nothing, user 9 is not asked for, of user 2 only the first two ranks count; category 3 is gone.
    given = list_given(rows, ids_from_values([2, 3, 5]), 3, k=2)
    np.testing.assert_array_equal(given, [[1, 0], [-1, -1], [2, -1]])


def test_measure_outcome_part__own_history_is_own_page_views_then_popularity(tmp_path):
    # Intensities of page views; the categories by clicks are b, c, a. Clicks of the other group do not count.
    views = np.array([[0.0, 0.0, 2.0], [0.0, 0.0, 0.0], [3.0, 0.0, 1.0], [1.0, 0.0, 1.0]], np.float32)
    others = np.array([[9.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
    expected = [[2, 1], [1, 2], [0, 2], [2, 0]]
    names = [f"{group}:intensity:{name}" for group in ("pv", "adc") for name in "abc"]
    rankings = np.array([[2, 1], [0, -1], [2, -1], [1, 0]])
    features = write_features(
        tmp_path / "f", np.hstack([views, others]), np.arange(4), names, rankings, categories=list("abc"),
    )  # fmt: skip
    model = AMMRankPlus(n_clusterings=0, n_categories=3, epochs=1)
    model.fit(features.partition(0).X, rankings=np.array([[1], [1], [1], [2]]))
    model.categories_, model.columns_ = list("abc"), names
    model.save(tmp_path / "model")
    assert model.popularity_.tolist() == [0, 3, 1]
    given = pa.table(
        {"user_id": np.arange(4), "category": pa.array(["a"] * 4).dictionary_encode(), "score": np.ones(4)}
    )
    pq.write_table(given, tmp_path / "part.parquet")
    part = QualificationPart(tmp_path, "part.parquet", checksum_file(tmp_path / "part.parquet"))
    night = NightToMeasure(tmp_path / "model", 4, [], np.array([0, 3, 1]), None, None, 2)
    sums = measure_outcome_part(night, part, features.path, 0)
    assert list(sums.values) == ["policy", "own-history", "popularity"]
    clicked = [{2, 1}, {0}, {2}, {1, 0}]
    hits = [len(set(codes) & found) for codes, found in zip(expected, clicked, strict=True)]
    assert sums.means()["own-history"]["hits"] == sum(hits) / 4
    first, second = 1.0, 1 / np.log2(3)
    ndcg = [1.0, 0.0, second, second / (first + second)]
    assert sums.means()["own-history"]["ndcg"] == pytest.approx(np.mean(ndcg))
    # Everybody was given a: hits 0, 1, 0, 1.
    differences = np.array([0, 1, 0, 1]) - hits
    assert sums.means()["own-history"]["gain"] == pytest.approx(differences.mean())
    assert sums.means()["own-history"]["standard_error"] == pytest.approx(differences.std(ddof=1) / 2)


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
    def means(error, **gain):
        return {"disagreement": error, "hits": 10 * error, "ndcg": 2 * error, "hit_rate": None, "recall": 0.5, **gain}

    methods = {"policy": means(policy), "own-history": means(0.1, gain=10 * policy - 1, standard_error=0.02)}
    methods |= {} if lr is None else {"lr": means(lr, gain=10 * (policy - lr), standard_error=0.25)}
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
    own = backtest["means"]["own-history"]
    assert own["ndcg"] == pytest.approx(0.2)
    assert own["gain"] == pytest.approx((100 * 1 + 300 * 3) / 400)
    assert own["standard_error"] == pytest.approx(np.hypot(100 * 0.02, 300 * 0.02) / 400)
    assert backtest["means"]["lr"]["standard_error"] == pytest.approx(0.25)
    assert "gain" not in backtest["means"]["policy"]
    with pytest.raises(TooFewUsers, match="no night of the backtest had a model and users who clicked after it"):
        summarise_backtest([backtest["nights"][2]], k=10, every=1, policy="user_top_k")


def test_write_backtest__table_page_and_json(backtest, tmp_path, capsys):
    write_backtest(tmp_path, backtest)
    assert json.loads((tmp_path / "backtest.json").read_text()) == backtest
    table = tabulate_backtest(backtest)
    assert table["policy_disagreement"].tolist()[:2] == [0.2, 0.4]
    assert table["lr_hits"].isna().tolist() == [True, False, True]
    assert table["own-history_ndcg"].tolist()[:2] == [0.2, 0.2]
    assert table["own-history_gain"].tolist()[:2] == [1.0, 3.0]
    assert table["own-history_standard_error"].tolist()[:2] == [0.02, 0.02]
    assert "policy_gain" not in table
    assert table["starved_categories"].tolist()[:2] == [7, 7]
    page = (tmp_path / "backtest.html").read_text()
    assert '<p class="verdict ' in page
    assert "none: &lt;b&gt;too few&lt;/b&gt;" in page
    assert "<script" not in page
    assert 'data-chart="disagreement" data-points="5"' in page
    assert 'data-chart="ndcg" data-points="5"' in page
    assert "<td>own history</td><td>0.1000</td><td>1.000</td><td>+2.500 ± 0.016</td><td>0.200</td>" in page
    assert "<td>published</td><td>0.3500</td><td>3.500</td><td>–</td><td>0.700</td>" in page
    assert "<td>+3.000 ± 0.020</td>" in page
    (head, over_all), (head_of_nights, by_night) = backtest_tables(backtest)
    assert head == ["3 nights", "ε_dis", "hits", "NDCG", "published has more"]
    assert over_all[:2] == [
        ["published", "0.3500", "3.500", "0.700", "–"],
        ["own history", "0.1000", "1.000", "0.200", "+2.500 ± 0.016"],
    ]
    assert head_of_nights == ["hits by night", "users", "published", "own history", "logistic regression"]
    assert by_night[1:] == [
        ["2026-01-02", "300", "4.000", "1.000", "3.000"],
        ["2026-01-03", "0", "–", "–", "–"],
    ]
    for table in backtest_tables(backtest):
        show_table(*table)
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("gain", "error", "better", "words"),
    [
        (0.5, 0.1, True, "more than with the best other method, own history (+0.50, 95 % interval +0.30 to +0.70)."),
        (-0.5, 0.1, False, "fewer than with the best other method, own history (-0.50, 95 % interval -0.70 to -0.30)."),
        (0.1, 0.1, False, "too close to tell from the best other method, own history (+0.10, 95 % interval"),
    ],
)
def test_describe_gain__is_against_the_method_with_most_hits(gain, error, better, words):
    means = {
        "policy": {"hits": 2.5},
        "own-history": {"hits": 2.0, "gain": gain, "standard_error": error},
        "popularity": {"hits": 1.0, "gain": 1.5, "standard_error": 0.1},
    }
    is_better, sentence = describe_gain({"means": means, "nights": [{}, {}], "k": 10})
    assert is_better is better
    assert sentence.startswith("Over 2 nights users clicked 2.50 of the 10 categories of a published list, ")
    assert words in sentence


def test_describe_gain__of_one_night_without_another_method():
    sentence = "Over 1 night users clicked 2.50 of the 10 categories of a published list."
    assert describe_gain({"means": {"policy": {"hits": 2.5}}, "nights": [{}], "k": 10}) == (True, sentence)


def test_lines_chart__leaves_out_what_is_not_known():
    styles = {"popularity": Style("s0", "6 3")}
    chart = str(lines_chart("x", "X", ["a", "b", "c"], {"popularity": [1.0, None, 3.0]}, styles))
    assert chart.count("<circle") == 2
    assert "<title>popularity, c: 3</title>" in chart
    assert 'stroke-dasharray="6 3"' in chart
    assert lines_chart("x", "X", ["a"], {"popularity": [None]}, styles) == ""


def test_lines_chart__counts_have_whole_levels_from_0():
    chart = str(lines_chart("x", "X", ["a", "b"], {"starved users": [5, 7]}, {"starved users": Style("s0", None)}))
    assert re.findall(r'class="tick">(\d+)<', chart) == ["0", "2", "4", "6", "8"]
    assert 'cy="10"' not in chart
    assert 'cy="35"' in chart  # 7 of 8 levels of 200 units, from 10 on


def test_lines_chart__leaves_labels_out_where_there_are_many():
    dates = [f"2026-03-{day:02d}" for day in range(1, 31)]
    chart = str(lines_chart("x", "X", dates, {"a": [1.0, 2.0] * 15}, {"a": Style("s0", None)}))
    assert re.findall(r">(2026-03-\d\d)<", chart) == dates[::5]


def test_list_nights__says_when_no_night_can_be_measured(tmp_path):
    lake = write_lake(tmp_path / "lake", n_days=6)
    enough = write_site(tmp_path / "enough", lake, features={"min_days": 2})  # two days of labels
    assert list_nights(enough, load_config(enough.config_path), date_of(3), date_of(3), 1) == [date_of(3)]
    short = write_site(tmp_path / "short", lake, features={"min_days": 3})
    for night in (date_of(3), date_of(4)):  # before the first with enough history, after the last that is known
        with pytest.raises(
            BadInput,
            match=f"no night of this lake can be backtested: that needs 7 days of log .* it has 6,"
            f" from {date_of(0)} to {date_of(5)}",
        ):
            list_nights(short, load_config(short.config_path), night, night, 1)


def test_list_nights__refuses_what_cannot_be_measured(tmp_path):
    lake = write_lake(tmp_path / "lake", n_days=8)
    site = write_site(tmp_path / "site", lake, features={"min_days": 1})  # two days of labels
    config = load_config(site.config_path)
    assert list_nights(site, config, date_of(2), date_of(5), 2) == [date_of(2), date_of(4)]
    with pytest.raises(
        BadInput,
        match=f"too little history: the lake begins with {date_of(0)}.*give dates from {date_of(2)} to {date_of(5)}",
    ):
        list_nights(site, config, date_of(1), date_of(5), 1)
    with pytest.raises(
        BadInput, match=f"after {date_of(6)} are not known yet.*is {date_of(7)}; give dates from .* to {date_of(5)}"
    ):
        list_nights(site, config, date_of(2), date_of(6), 1)
    assert list_nights(site, config, date_of(5), date_of(5) + dt.timedelta(1), 7) == [date_of(5)]
    shutil.rmtree(lake / "events" / f"date={date_of(6)}")  # in the label window of the last night only
    with pytest.raises(BadInput, match=f"no events for {date_of(6)}, which a night would stop at; add them, or set"):
        list_nights(site, config, date_of(2), date_of(5), 1)
    assert list_nights(site, config, date_of(2), date_of(3), 1) == [date_of(2), date_of(3)]
