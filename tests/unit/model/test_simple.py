"""Models without planes: popularity, and prior with own term."""

import numpy as np
import pytest

from ammrank_dask import AMMRank, AMMRankPlus
from ammrank_dask.model.saved import load_model
from ammrank_dask.model.simple import own_model, popularity_model

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
