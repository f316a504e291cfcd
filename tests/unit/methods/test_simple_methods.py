"""The simple methods of the comparison, own-history, own-logit and item-knn: by hand, and against plain twins."""

import numpy as np
import pytest
import reference_methods as plain
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

from ammrank_dask.evaluation.compare import compare_methods, prepare_features, run_fold
from ammrank_dask.features.write import write_features
from ammrank_dask.methods.own import ItemKnn, OwnHistory, OwnLogit, Popularity

SIMPLE = ("own-history", "own-logit", "item-knn")
OWN = ((0, 1, 2, -1, 3), (4, 5, 6, 7, 8))
"""Two kinds of own columns of five categories; the fourth has none of the first kind."""


def draw_own_users(n, *, seed=0):
    """Rows of nine own columns and two others; a click follows the own values and a category's popularity."""
    rng = np.random.default_rng([3, seed])
    X = np.log1p(rng.poisson(0.6, (n, 11))).astype(np.float32)
    own = np.stack([np.where(np.array(columns) >= 0, X[:, columns], 0) for columns in OWN])
    chance = 1 / (1 + np.exp(-(1.5 * own[0] + 0.7 * (own[1] > 0) - np.array([3.0, 2.0, 1.5, 1.0, 3.5]))))
    clicked = rng.random((n, 5)) < chance
    clicked[~clicked.any(axis=1), 3] = True
    order = np.argsort(~clicked, axis=1, kind="stable")
    rankings = np.where(np.take_along_axis(clicked, order, axis=1), order, -1)
    return X, rankings, clicked


def test_own_history__page_views_first_then_popularity_by_hand():
    # Clicked by 3, 2, 1 and 0 rows. Columns: searches of a, page views of a, b, c, recency of page views of a.
    own_columns = [[0, -1, -1, -1], [1, 2, 3, -1], [4, -1, -1, -1]]
    kinds = ["sq:intensity", "pv:intensity", "pv:recency"]
    rankings = np.array([[0, 1, 2], [0, 1, -1], [0, -1, -1]])
    model = OwnHistory(own_columns=own_columns, own_kinds=kinds, n_categories=4).fit(np.ones((3, 5)), rankings)
    rows = np.array(
        [
            [9.0, 0.0, 0.2, 0.5, 9.0],  # views of c above those of b; searches and recency of a do not count
            [0.0, 0.3, 0.3, 0.3, 0.0],  # equal views: by popularity
            [0.0, 0.0, 0.0, 0.0, 0.0],  # nothing: popularity
            [0.0, 0.0, 0.0, 1e-30, 0.0],  # however little, it is above none
        ]
    )
    assert model.predict(rows).tolist() == [[2, 1, 0, 3], [0, 1, 2, 3], [0, 1, 2, 3], [2, 0, 1, 3]]
    # Without page views the intensities of the other groups are added up, and recency still does not count.
    kinds = ["sq:intensity", "slc:intensity", "slc:recency"]
    model = OwnHistory(own_columns=own_columns, own_kinds=kinds, n_categories=4).fit(np.ones((3, 5)), rankings)
    assert model.predict(np.array([[0.3, 0.3, 0.5, 0.55, 9.0]])).tolist() == [[0, 2, 1, 3]]


def test_own_history__equal_history_and_popularity_are_equal_scores():
    rows = np.array([[0, 0, 0], [1, 1, 0], [0, 0.5, 0.5]])
    model = OwnHistory(own_columns=[[0, 1, 2]], n_categories=3).fit(np.ones((2, 3)), np.array([[0], [1]]))
    assert model.decision_function(rows).tolist() == [[1, 1, 0], [1, 1, 0], [0, 2, 1]]


def test_own_history__equals_sorting_each_row():
    X, rankings, clicked = draw_own_users(300)
    model = OwnHistory(own_columns=OWN, own_kinds=["pv:intensity", "sq:intensity"]).fit(X, rankings)
    expected = [
        plain.own_history_order([row[column] if column >= 0 else 0 for column in OWN[0]], clicked.sum(axis=0))
        for row in X
    ]
    assert model.predict(X).tolist() == expected


def test_own_logit__log_odds_of_clicks_by_hand():
    # Of 400 pairs with own history three in four are clicked, of 400 without one in four; both categories are equal.
    X = np.zeros((400, 2), np.float32)
    X[:200, 0] = X[200:, 1] = 1
    rankings = np.full((400, 2), -1)
    for start, own, other in ((0, 0, 1), (200, 1, 0)):
        rankings[start : start + 150, 0] = own
        rankings[start + 150 : start + 200, 0] = other
    model = OwnLogit(own_columns=[[0, 1]]).fit(X, rankings)
    scores = model.decision_function(np.array([[1, 0], [0, 0]]))
    # ln 3 and -ln 3, which the penalty of C = 1 draws together a little.
    np.testing.assert_allclose(scores, np.log(3) * np.array([[1, -1], [-1, -1]]), atol=0.03)


def test_own_logit__equals_a_regression_over_all_pairs():
    X, rankings, clicked = draw_own_users(250)
    rows = draw_own_users(40, seed=1)[0]
    found = OwnLogit(own_columns=OWN).fit(X, rankings).decision_function(rows)
    np.testing.assert_allclose(found, plain.own_logit_scores(X, OWN, clicked, rows), atol=2e-3)


def test_own_logit__drawn_pairs_stand_for_all():
    X, rankings, _ = draw_own_users(20_000)
    rows = draw_own_users(200, seed=1)[0]
    blocks = [
        (sp.csr_matrix(X[start : start + 4000]), rankings[start : start + 4000]) for start in range(0, 20_000, 4000)
    ]
    whole = OwnLogit(own_columns=OWN, n_categories=5).fit_blocks(blocks).decision_function(rows)
    # 20,000 of 100,000 pairs: about a third of the clicked ones and a seventh of the others.
    drawn = {
        seed: OwnLogit(own_columns=OWN, n_categories=5, max_pairs=20_000, seed=seed).fit_blocks(blocks)
        for seed in (0, 1)
    }
    for model in drawn.values():
        assert np.abs(model.decision_function(rows) - whole).mean() < 0.1
    again = OwnLogit(own_columns=OWN, n_categories=5, max_pairs=20_000).fit_blocks(blocks)
    np.testing.assert_array_equal(again.weights_, drawn[0].weights_)
    assert (drawn[1].weights_ != drawn[0].weights_).any()


def test_own_logit__learns_from_no_more_than_about_max_pairs(monkeypatch):
    sizes, fit = [], LogisticRegression.fit

    def count_and_fit(self, X, y, sample_weight):
        sizes.append((len(y), int(y.sum()), float(sample_weight.sum())))
        return fit(self, X, y, sample_weight)

    monkeypatch.setattr(LogisticRegression, "fit", count_and_fit)
    X, rankings, clicked = draw_own_users(5000)
    OwnLogit(own_columns=OWN, max_pairs=4000).fit(X, rankings)
    OwnLogit(own_columns=OWN).fit(X, rankings)
    (n_drawn, n_clicked, weight), every = sizes
    assert every == (25_000, clicked.sum(), 25_000)
    assert n_drawn == pytest.approx(4000, rel=0.06)
    assert n_clicked == pytest.approx(2000, rel=0.06)
    assert weight == pytest.approx(25_000, rel=0.06)


@pytest.mark.parametrize("method", [OwnHistory, OwnLogit])
def test_own_methods__are_popularity_without_own_columns(method):
    X, rankings, _ = draw_own_users(60)
    complete = np.argsort(np.random.default_rng(0).random((60, 5)), axis=1)
    for rows in (rankings, complete):
        expected = Popularity().fit(X, rows).decision_function(X)
        np.testing.assert_array_equal(method().fit(X, rows).decision_function(X), expected)


def test_own_logit__is_popularity_where_every_pair_is_a_click():
    X, complete = draw_own_users(60)[0], np.argsort(np.random.default_rng(0).random((60, 5)), axis=1)
    expected = Popularity().fit(X, complete).decision_function(X)
    np.testing.assert_array_equal(OwnLogit(own_columns=OWN).fit(X, complete).decision_function(X), expected)


@pytest.mark.parametrize("method", [OwnHistory, OwnLogit])
def test_own_methods__refuse_columns_that_are_not_there(method):
    with pytest.raises(ValueError, match="own_columns must hold columns from 0 to 1, or -1, got 2"):
        method(own_columns=[[0, 2]]).fit(np.ones((2, 2)), np.array([[0], [1]]))


def test_item_knn__similarities_by_hand():
    X = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    rankings = np.array([[0, -1], [0, 1], [1, -1], [0, -1]])
    model = ItemKnn(n_categories=3).fit(X, rankings)
    # Rows of norm 1: (.6, .8), (1, 0), nothing, (0, 1). Clicks 3, 2 and 0, of clicked categories 2.5 on average.
    above = np.array([[1.6 - 1.6 * 3 / 4, 1 - 1.6 * 2 / 4], [1.8 - 1.8 * 3 / 4, 0 - 1.8 * 2 / 4]])
    lengths = np.sqrt([[1.36], [1.64]])
    expected = above / (lengths * np.array([3**0.75, 2**0.75]) / 2.5**0.25 + 0.3)
    np.testing.assert_allclose(model.similarities_, np.column_stack([expected, [0, 0]]), rtol=1e-6)
    scores = model.decision_function(np.array([[30.0, 40.0], [0.0, 0.0]]))
    np.testing.assert_allclose(scores, [[*(0.6 * expected[0] + 0.8 * expected[1]), 0], [0, 0, 0]], rtol=1e-6)


def test_item_knn__equals_loops_and_does_not_look_at_the_length_of_rows():
    X, rankings, clicked = draw_own_users(120)
    rows = draw_own_users(30, seed=1)[0]
    found = ItemKnn().fit(X, rankings).decision_function(rows)
    np.testing.assert_allclose(found, plain.item_knn_scores(X, clicked, rows), atol=1e-5)
    longer = np.random.default_rng(0).uniform(0.5, 3, (120, 1)) * X
    np.testing.assert_allclose(ItemKnn().fit(longer, rankings).decision_function(7 * rows), found, atol=1e-5)


def test_item_knn__learns_from_places_where_every_category_is_ranked():
    X = np.array([[1.0, 0.0], [0.0, 1.0]])
    model = ItemKnn().fit(X, np.array([[2, 0, 1], [1, 0, 2]]))
    assert model.predict(X).tolist() == [[2, 0, 1], [1, 0, 2]]


@pytest.fixture(scope="module")
def site_features(tmp_path_factory):
    """A store whose rows are to be divided by their norm, with page views, searches and an age."""
    X, rankings, _ = draw_own_users(900)
    X[:, 9:] = np.eye(2)[np.arange(900) % 2]
    names = [f"pv:intensity:{category}" for category in "abce"] + [f"sq:intensity:{category}" for category in "abcde"]
    return write_features(
        tmp_path_factory.mktemp("store") / "store", X, np.arange(900), [*names, "age:13-17", "age:18-20"], rankings,
        categories=list("abcde"), n_partitions=2, normalize=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "kinds", "columns"),
    [("pv", ("pv:intensity", "sq:intensity"), OWN[0]), ("no-pv", ("sq:intensity",), tuple(range(5)))],
)
def test_own_history__ranks_the_users_of_a_store_by_their_page_views(
    variant, kinds, columns, site_features, client, tmp_path
):
    rows = prepare_features(client, site_features, variant, tmp_path, n_folds=2)
    assert rows.own_kinds == kinds
    found = run_fold("own-history", {}, rows, 0, 0, False)
    stored = rows.for_method("own-history")
    training, test = stored.training(0), stored.test(0)
    popularity = np.zeros(5, int)
    for block in range(len(training)):
        rankings = training[block][1]
        popularity += np.bincount(rankings[rankings >= 0], minlength=5)
    errors = []
    for block in range(len(test)):
        X, rankings, _ = test[block]
        for row, ranking in zip(X.toarray(), rankings, strict=True):
            own = [row[column] if column >= 0 else 0 for column in columns]
            order = plain.own_history_order(own, popularity)
            ranks = np.zeros(5, int)
            ranks[ranking[ranking >= 0]] = 1 + np.arange((ranking >= 0).sum())
            errors.append(plain.disagreement_of([-order.index(category) for category in range(5)], ranks))
    assert len(set(popularity)) == 5
    assert found.measures.disagreement == pytest.approx(np.mean([error for error in errors if error is not None]))


def test_compare_methods__the_simple_ones_give_the_same_again(site_features, client, tmp_path):
    rows = prepare_features(client, site_features, "pv", tmp_path, n_folds=2)
    first, again = (compare_methods(client, rows, ["popularity", *SIMPLE]) for _ in range(2))
    errors = {name: found.measures.disagreement for name, found in first.items()}
    assert list(errors) == ["popularity", *SIMPLE]
    assert errors == {name: found.measures.disagreement for name, found in again.items()}
    assert errors["own-logit"] < min(errors["popularity"], errors["own-history"])
