"""Models without planes: popularity, and prior with own term."""

import numpy as np
import pytest

from ammrank_dask import AMMRank, AMMRankPlus
from ammrank_dask.model.saved import load_model
from ammrank_dask.model.simple import own_history_model, own_model, own_recent_model, popularity_model

RANKINGS = np.array([[2, 0], [2, -1], [1, 2], [0, 2], [2, 1], [0, -1]])  # 5 rows rank 2, 3 rank 0, 2 rank 1, none 3


def rows(seed=0):
    X = np.random.default_rng(seed).random((6, 8))
    X[X < 0.4] = 0
    return X


@pytest.mark.parametrize("kind", [AMMRank, AMMRankPlus])
def test_popularity_model__ranks_every_row_by_clicks(kind):
    model = kind(n_categories=4, epochs=1).fit(rows(), RANKINGS)
    simple = popularity_model(model, 6)
    assert simple.predict(rows(1)).tolist() == [[2, 0, 1, 3]] * 6
    # ln((c + ½) / (6 − c + ½)) for the clicks 3, 2, 5, 0
    expected = np.log([3.5 / 3.5, 2.5 / 4.5, 5.5 / 1.5, 0.5 / 6.5])
    np.testing.assert_allclose(simple.decision_function(rows(1)), np.tile(expected, (6, 1)), rtol=1e-6)


def test_own_model__is_the_score_without_planes(tmp_path):
    own_columns = np.arange(8).reshape(2, 4)
    model = AMMRankPlus(n_categories=4, epochs=2, own_columns=own_columns).fit(rows(), RANKINGS)
    simple = own_model(model)
    parts = [
        {part.category: part.prior + part.own_contributions.sum() for part in model.explain(row)} for row in rows(1)
    ]
    expected = np.array([[part[code] for code in range(4)] for part in parts])
    np.testing.assert_allclose(simple.decision_function(rows(1)), expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(expected, expected[0])  # the own term tells rows apart
    simple.save(tmp_path / "model")
    np.testing.assert_array_equal(
        load_model(tmp_path / "model").decision_function(rows(1)), simple.decision_function(rows(1))
    )


def named_model(columns, rows):
    model = AMMRank(n_categories=3, epochs=1).fit(np.array(rows, np.float32), RANKINGS[:, :1] % 3)
    model.categories_, model.columns_ = list("abc"), columns
    return model


def test_own_recent_model__counts_half_for_each_week_since_the_last_event():
    columns = [f"pv:{kind}:{name}" for kind in ("intensity", "recency") for name in "abc"]
    # Counts of 30, 10 and 0 whose last events were 0 to 14 days ago, by a decay of 0.99 per day.
    days = np.array([[0, 0], [7, 0], [14, 0], [14, 7], [100, 90], [0, 60]])
    rows = [[*np.log1p([30.0, 10.0, 0.0]), *0.99 ** np.array(pair), 0.0] for pair in days]
    model = named_model(columns, rows)
    recent, plain = own_recent_model(model, 6, 0.99), own_history_model(model, 6)
    # 30 against 10 is 1.04 in logarithms of one more, and a week is 0.69.
    assert [order[0] for order in recent.predict(np.array(rows))] == [0, 0, 1, 0, 0, 0]
    assert [order[0] for order in plain.predict(np.array(rows))] == [0] * 6
    assert {order[2] for order in recent.predict(np.array(rows))} == {2}


@pytest.mark.parametrize("kind", ["age", "pv:intensity"])
def test_own_recent_model__none_without_recency(kind):
    rows = np.random.default_rng(0).random((6, 3))
    assert own_recent_model(named_model([f"{kind}:{name}" for name in "abc"], rows), 6, 0.99) is None


@pytest.mark.parametrize(
    ("with_popularity", "orders"),
    [
        (False, [[1, 0, 2], [1, 0, 2], [2, 0, 1], [0, 1, 2], [2, 0, 1], [1, 2, 0], [1, 2, 0]]),
        (True, [[0, 1, 2], [1, 0, 2], [2, 0, 1], [0, 1, 2], [0, 2, 1], [1, 2, 0], [1, 2, 0]]),
    ],
)
def test_own_history_model__more_events_first_and_popularity_decides_between_equal_ones(with_popularity, orders):
    # Of six rows, three click a, two b and one c: log odds 0, -0.69 and -1.30; they count a twentieth, or a fifth.
    columns = [f"pv:intensity:{name}" for name in "abc"]
    counts = np.array([[5, 5.5, 0], [5, 6.5, 0], [0, 0, 1], [0, 0, 0], [1, 0, 1.2], [0, 40, 39], [0, 3, 3]])
    rows = np.log1p(counts)
    model = AMMRank(n_categories=3, epochs=1).fit(rows[:6], np.array([[0], [0], [0], [1], [1], [2]]))
    model.categories_, model.columns_ = list("abc"), columns
    assert own_history_model(model, 6, with_popularity=with_popularity).predict(rows).tolist() == orders


def test_own_history_model__popularity_may_be_that_of_another_window():
    model = AMMRank(n_categories=3, epochs=1).fit(np.eye(3), np.array([[0], [0], [1]]))
    model.categories_, model.columns_ = list("abc"), [f"pv:intensity:{name}" for name in "abc"]
    for source in (own_history_model, popularity_model):
        assert source(model, 9, [1, 2, 3]).predict(np.zeros((1, 3))).tolist() == [[2, 1, 0]]
