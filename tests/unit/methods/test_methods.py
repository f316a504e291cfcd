"""The compared methods: each against scikit-learn, brute force or a worked example."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import reference_methods as plain
import scipy.sparse as sp
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_info, threadpool_limits

from ammrank_dask.methods import registry
from ammrank_dask.methods.logistic import Logistic, PairwiseLogistic
from ammrank_dask.methods.mallows import (
    CentralMallows,
    GroupMallows,
    NeighborMallows,
    count_preferences,
    find_center,
)
from ammrank_dask.methods.own import ItemKnn, OwnHistory, OwnLogit, Popularity, count_points
from ammrank_dask.model.metrics import disagreement_error
from ammrank_dask.model.rows import rankings_from_ranks

METHODS = [
    Popularity, OwnHistory, OwnLogit, ItemKnn, CentralMallows, GroupMallows, NeighborMallows, Logistic,
    PairwiseLogistic,
]  # fmt: skip


def draw_users(n, n_categories, *, d=30, seed=0, values=8):
    """Sparse rows of norm 1 and rankings of 1 to 4 categories that follow from them, with noise."""
    rng = np.random.default_rng([7, seed])
    X = rng.random((n, d)).astype(np.float32)
    X[np.argsort(rng.random((n, d)), axis=1) >= values] = 0
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    taste = X @ rng.normal(size=(d, n_categories)) * 3 + rng.gumbel(size=(n, n_categories))
    rankings = np.argsort(-taste, axis=1)[:, :4].astype(np.int32)
    rankings[np.arange(4) >= rng.integers(1, 5, n)[:, None]] = -1
    return sp.csr_matrix(X), rankings


def ranks_of(rankings, n_categories):
    ranks = np.zeros((len(rankings), n_categories), np.int64)
    for row, ranking in enumerate(rankings):
        for place, category in enumerate(ranking[ranking >= 0]):
            ranks[row, category] = place + 1
    return ranks


rank_rows = st.integers(2, 7).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 4), min_size=n, max_size=n), min_size=1, max_size=8)
)


@given(rank_rows)
@examples(150)
def test_count_preferences__equals_loops_over_pairs(rows):
    ranks = np.array(rows)
    rankings, tied = rankings_from_ranks(ranks)
    tied = tied if tied.size else np.zeros(rankings.shape, bool)
    np.testing.assert_array_equal(count_preferences(rankings, tied, ranks.shape[1]), plain.pair_counts(ranks))


def test_count_preferences__of_parts_add_up():
    _, rankings = draw_users(100, 6)
    tied = np.zeros(rankings.shape, bool)
    parts = count_preferences(rankings[:30], tied[:30], 6) + count_preferences(rankings[30:], tied[30:], 6)
    np.testing.assert_array_equal(parts, count_preferences(rankings, tied, 6))


@given(rank_rows)
@examples(60)
def test_central_mal__equals_brute_force_up_to_seven_categories(rows):
    ranks = np.array(rows)
    if not ranks.any():
        return
    counts = plain.pair_counts(ranks)
    order = CentralMallows().fit(np.zeros((len(ranks), 1)), ranks=ranks).order_
    assert sorted(order) == list(range(ranks.shape[1]))
    assert plain.contradictions(counts, order) == plain.best_contradictions(counts)


@given(st.integers(0, 2**32 - 1), st.integers(9, 25))
@examples(60)
def test_find_center__is_never_worse_than_borda_and_no_single_move_helps(seed, n_categories):
    counts = np.random.default_rng(seed).integers(0, 9, (n_categories, n_categories))
    np.fill_diagonal(counts, 0)
    order = list(find_center(counts, np.arange(n_categories)))
    found = plain.contradictions(counts, order)
    assert found <= plain.contradictions(counts, plain.borda(counts))
    for start, end in itertools.permutations(range(n_categories), 2):
        moved = order[:start] + order[start + 1 :]
        moved.insert(end, order[start])
        assert plain.contradictions(counts, moved) >= found


def test_find_center__equal_categories_stand_in_tie_order():
    np.testing.assert_array_equal(find_center(np.zeros((3, 3), np.int64), np.array([2, 0, 1])), [2, 0, 1])
    np.testing.assert_array_equal(find_center(np.zeros((9, 9), np.int64), np.arange(9)[::-1]), np.arange(9)[::-1])


def test_popularity__counts_the_rows_and_then_their_places():
    # 0 and 3 are ranked once each, 3 above 0; 2 twice; 1 and 4 by nobody.
    rankings = np.array([[3, 2, 0], [2, -1, -1]])
    model = Popularity(n_categories=5).fit(np.zeros((2, 1)), rankings)
    np.testing.assert_array_equal(model.decision_function(np.ones((2, 1))), [[1, 0, 3, 2, 0]] * 2)


@given(rank_rows)
@examples(100)
def test_count_points__are_wins_and_half_ties_over_the_ranked(rows):
    ranks = np.array(rows)
    rankings, tied = rankings_from_ranks(ranks)
    tied = tied if tied.size else np.zeros(rankings.shape, bool)
    expected = np.zeros(ranks.shape[1])
    for row in ranks:
        for one, other in itertools.permutations(np.flatnonzero(row), 2):
            expected[one] += 1.0 if row[one] < row[other] else 0.5 if row[one] == row[other] else 0.0
    np.testing.assert_allclose(count_points(rankings, tied, ranks.shape[1]), expected)


def test_ag_mal__predicts_the_group_and_falls_back_for_small_ones():
    # Columns 0, 1 are ages, 2 a gender bit; column 3 is something else.
    X = np.array([[1, 0, 1, 5]] * 4 + [[0, 1, 0, 5]] * 4 + [[0, 0, 1, 5]], float)
    rankings = np.array([[0, 1]] * 4 + [[2, 0]] * 4 + [[1, 2]])
    model = GroupMallows(group_columns=((0, 1), (2,)), min_rows=4).fit(X, rankings)
    assert set(model.group_orders_) == {(0, 0), (1, -1)}
    np.testing.assert_array_equal(model.predict(X[[0, 4]]), [[0, 1, 2], [2, 0, 1]])
    overall = CentralMallows().fit(X, rankings).predict(X[:1])
    np.testing.assert_array_equal(model.predict(np.array([[0.0, 0, 1, 5], [1.0, 0, 0, 5]])), np.tile(overall, (2, 1)))


def test_ag_mal__without_group_columns_equals_central_mal():
    X, rankings = draw_users(50, 5)
    one, other = GroupMallows().fit(X, rankings), CentralMallows().fit(X, rankings)
    np.testing.assert_array_equal(one.decision_function(X), other.decision_function(X))


@pytest.mark.parametrize("dense_bytes", [0, 1 << 30])
def test_ib_mal__equals_brute_force(dense_bytes, monkeypatch):
    monkeypatch.setattr("ammrank_dask.methods.mallows.DENSE_BYTES", dense_bytes)
    X, rankings = draw_users(220, 6, seed=3)
    rankings[5] = -1  # a row without a ranking is nobody's neighbour
    train, test = slice(0, 180), slice(180, 220)
    model = NeighborMallows(n_neighbors=7).fit_blocks([(X[0:70], rankings[0:70]), (X[70:180], rankings[70:180])])
    kept = np.array([row for row in range(180) if row != 5])
    rows, ranks = X[train].toarray().astype(np.float64)[kept], ranks_of(rankings[train], 6)[kept]
    for query, order in zip(plain.nearest(rows, X[test].toarray(), 7), model.predict(X[test]), strict=True):
        counts = plain.pair_counts(ranks[query])
        assert plain.contradictions(counts, order) == plain.best_contradictions(counts)
    # Categories that no neighbour ranks stand by training popularity.
    popularity = (ranks > 0).sum(axis=0)
    for query, order in zip(plain.nearest(rows, X[test].toarray(), 7), model.predict(X[test]), strict=True):
        silent = [c for c in order if not (ranks[query][:, c] > 0).any()]
        assert silent == sorted(silent, key=lambda c: (-popularity[c], c))
        assert silent == list(order[len(order) - len(silent) :])


def test_ib_mal__keeps_at_most_max_rows_whatever_the_blocks():
    X, rankings = draw_users(300, 6)
    model = NeighborMallows(max_rows=100).fit_blocks([(X[:120], rankings[:120]), (X[120:], rankings[120:])])
    assert model.rankings_.shape[0] == 100
    assert NeighborMallows(n_neighbors=500).fit(X, rankings).predict(X[:2]).shape == (2, 6)


def test_lr__within_a_thousandth_of_scikit_learn_on_20_000_users():
    X, rankings = draw_users(25_000, 12, d=60, values=15)
    train, test = slice(0, 20_000), slice(20_000, 25_000)
    blocks = [(X[start : start + 3000], rankings[start : start + 3000]) for start in range(0, 20_000, 3000)]
    blocks[-1] = (X[18_000:20_000], rankings[18_000:20_000])
    ours = Logistic(C=1.0).fit_blocks(blocks)
    clicked = ranks_of(rankings, 12) > 0
    models = [LogisticRegression(C=1.0, max_iter=1000).fit(X[train], clicked[train, c]) for c in range(12)]
    theirs = np.stack([model.decision_function(X[test]) for model in models], axis=1)
    error = disagreement_error(ours.decision_function(X[test]), rankings[test])
    assert abs(error - disagreement_error(theirs, rankings[test])) < 0.001


def test_lr__has_the_minimum_of_scikit_learn():
    X, rankings = draw_users(3000, 6)
    ours = Logistic(C=1.0, tolerance=1e-6).fit(X, rankings)
    clicked = ranks_of(rankings, 6) > 0
    X = X.astype(np.float64)
    models = [LogisticRegression(C=1.0, max_iter=5000, tol=1e-8).fit(X, clicked[:, c]) for c in range(6)]
    theirs = np.stack([model.decision_function(X) for model in models], axis=1)
    np.testing.assert_allclose(ours.decision_function(X), theirs, atol=2e-3)


def test_lr__ends_where_scikit_learn_would_stop():
    X, rankings = draw_users(2000, 5)
    model = Logistic(C=3.0, tolerance=1e-4).fit(X, rankings)
    dense = np.hstack([X.toarray(), np.ones((2000, 1))]).astype(np.float64)
    residual = 1 / (1 + np.exp(-dense @ model.weights_)) - (ranks_of(rankings, 5) > 0)
    penalty = model.weights_ / (3.0 * 2000)
    penalty[-1] = 0
    assert np.abs(dense.T @ residual / 2000 + penalty).max() <= 1.1e-4


def test_lr__learns_the_share_of_wins_from_complete_rankings():
    # With one constant feature the intercept alone predicts: the log-odds of the mean share of categories below.
    ranks = np.array([[1, 2, 3], [1, 3, 2], [1, 2, 2], [2, 1, 3]])
    scores = Logistic(tolerance=1e-7).fit(np.zeros((4, 1)), ranks=ranks).decision_function(np.zeros((1, 1)))[0]
    shares = np.array([(1 + 1 + 1 + 0.5) / 4, (0.5 + 0 + 0.25 + 1) / 4, (0 + 0.5 + 0.25 + 0) / 4])
    np.testing.assert_allclose(scores, np.log(shares / (1 - shares)), atol=1e-3)


def test_lr__one_row_that_is_not_complete_leaves_the_others_as_they_are():
    X = np.random.default_rng(0).normal(size=(300, 3))
    rankings = np.argsort(-X, axis=1)
    partial = rankings.copy()
    partial[0, 2] = -1
    whole, mixed = (Logistic(n_categories=3).fit(X, given) for given in (rankings, partial))
    np.testing.assert_allclose(mixed.weights_, whole.weights_, atol=0.1)
    assert disagreement_error(mixed.decision_function(X), rankings) < 0.02


def test_pw_lr__within_two_thousandths_of_scikit_learn_on_10_categories():
    X, rankings = draw_users(12_000, 10, d=40, values=10, seed=1)
    train, test = slice(0, 9000), slice(9000, 12_000)
    ranks = ranks_of(rankings, 10)
    votes = np.zeros((3000, 10))
    for i, k in itertools.combinations(range(10), 2):
        one, other = np.where(ranks[:, i] == 0, 99, ranks[:, i]), np.where(ranks[:, k] == 0, 99, ranks[:, k])
        rows = np.flatnonzero(one[train] != other[train])
        model = LogisticRegression(C=1.0, max_iter=1000).fit(X[train][rows], (one < other)[train][rows])
        vote = model.predict_proba(X[test])[:, 1]
        votes[:, i] += vote
        votes[:, k] += 1 - vote
    theirs = disagreement_error(votes, rankings[test])
    ours = PairwiseLogistic(C=1.0).fit_blocks(
        [(X[start : start + 1800], rankings[start : start + 1800]) for start in range(0, 9000, 1800)]
    )
    scores = ours.decision_function(X[test])
    assert abs(disagreement_error(scores, rankings[test]) - theirs) < 0.002
    assert np.abs(scores - votes).mean() < 0.1


def test_pw_lr__tied_pairs_teach_nothing():
    ranks = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 2]])
    model = PairwiseLogistic(epochs=20).fit(np.ones((3, 1)), ranks=ranks)
    assert (model.weights_[:, 0, 1] == 0).all()
    scores = model.decision_function(np.ones((1, 1)))[0]
    assert scores[0] == scores[1] > scores[2]


def test_pw_lr__gradient_equals_loops_over_pairs():
    from ammrank_dask.kernels.logistic import add_pair_gradient

    rng = np.random.default_rng(3)
    ranks = rng.integers(0, 4, (12, 5))
    rankings, tied = rankings_from_ranks(ranks)
    X = sp.csr_matrix(rng.random((12, 3)) * (rng.random((12, 3)) < 0.7), dtype=np.float32)
    weights = rng.normal(size=(4, 5, 5)).astype(np.float32)
    weights -= weights.transpose(0, 2, 1)
    found = np.zeros((4, 5, 5), np.float32)
    rows = np.array([3, 0, 7, 11])
    add_pair_gradient(X.data, X.indices, X.indptr, rankings, tied, rows, weights, found)
    expected = np.zeros((4, 5, 5))
    for row in rows:
        x = np.append(X[row].toarray()[0], 1.0)
        for i, k in plain.preferred_pairs(ranks[row]):
            expected[:, i, k] -= x / (1 + np.exp(x @ weights[:, i, k]))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_pw_lr__refuses_more_weights_than_fit(monkeypatch):
    monkeypatch.setattr("ammrank_dask.methods.logistic.MAX_PAIR_BYTES", 1 << 20)
    X, rankings = draw_users(20, 40, d=300)
    with pytest.raises(ValueError, match="300 features and 40 categories take 1 MiB"):
        PairwiseLogistic(n_categories=40).fit(X, rankings)


def test_lr__says_that_it_did_not_converge(caplog):
    X, rankings = draw_users(300, 6)
    with caplog.at_level("WARNING"):
        assert Logistic().fit(X, rankings).n_iterations_ > 3
        assert caplog.messages == []
        assert Logistic(max_iterations=3).fit(X, rankings).n_iterations_ == 3
    assert caplog.messages == ["lr did not converge in 3 steps; raise max_iterations or tolerance"]


def test_lr__the_gradient_is_below_the_tolerance_in_every_component():
    X, rankings = draw_users(400, 5, d=20)
    model = Logistic(C=2.0, tolerance=1e-5).fit(X, rankings)
    clicks = (rankings[:, :, None] == np.arange(5)).any(axis=1)
    rows = np.hstack([X.toarray().astype(float), np.ones((400, 1))])
    weights = model.weights_.astype(float)
    gradient = rows.T @ (1 / (1 + np.exp(-rows @ weights)) - clicks) / 400
    gradient[:-1] += weights[:-1] / (2.0 * 400)
    assert np.abs(gradient).max() < 1.1e-5


@pytest.mark.skipif(not any(pool["user_api"] == "blas" for pool in threadpool_info()), reason="BLAS of another kind")
def test_lr__the_same_bytes_with_any_number_of_blas_threads():
    X, rankings = draw_users(300, 40, d=300)  # 12,040 weights: more than BLAS adds up with one thread
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            found.append(Logistic(n_categories=40, C=100.0, tolerance=1e-6).fit(X, rankings).weights_)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("method", METHODS)
def test_methods__four_calls_and_scikit_learn_conventions(method):
    X, rankings = draw_users(300, 6)
    model = method(n_categories=7)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        model.predict(X)
    with pytest.raises(NotFittedError):
        check_is_fitted(model)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(ValueError, match="Invalid parameter 'color'"):
        model.set_params(color=1)
    assert model.fit(X, rankings) is model
    check_is_fitted(model)
    scores = model.decision_function(X)
    assert scores.shape == (300, 7)
    assert scores.dtype == np.float32
    order = model.predict(X)
    assert (np.sort(order, axis=1) == np.arange(7)).all()
    assert (np.diff(np.take_along_axis(scores, order, axis=1), axis=1) <= 0).all()
    codes, best = model.predict_top_k(X, 3)
    np.testing.assert_array_equal(codes, order[:, :3])
    np.testing.assert_array_equal(best, np.take_along_axis(scores, order[:, :3], axis=1))
    with pytest.raises(ValueError, match=r"k must be between 1 and n_categories \(7\), got 8"):
        model.predict_top_k(X, 8)
    with pytest.raises(ValueError, match="X must have 30 features, got 3"):
        model.predict(np.zeros((1, 3)))
    again = method(n_categories=7).fit(X, rankings).decision_function(X)
    np.testing.assert_array_equal(again, scores)


@pytest.mark.parametrize("method", METHODS)
def test_methods__learn_from_blocks_as_from_one_matrix(method):
    X, rankings = draw_users(400, 6)
    whole = method().fit(X, rankings).decision_function(X)
    parts = method().fit_blocks([(X[:150], rankings[:150]), (X[150:], rankings[150:])]).decision_function(X)
    # The order of steps differs for pw-lr; the others learn the same.
    np.testing.assert_allclose(parts, whole, atol=0.25 if method is PairwiseLogistic else 1e-2)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "fit must be given rankings or ranks, got neither"),
        ({"rankings": np.zeros((2, 1), int), "ranks": np.zeros((2, 3), int)}, "rankings or ranks, got both"),
        ({"rankings": np.full((2, 1), -1)}, "found only -1"),
        ({"rankings": np.array([[0], [9]])}, "rankings must hold codes from 0 to 2, or -1, got 9"),
        ({"ranks": np.ones((2, 4), int)}, r"ranks must have n_categories \(3\) columns, got 4"),
    ],
)
def test_methods__refuse_what_they_cannot_learn_from(method, arguments, message):
    with pytest.raises(ValueError, match=message):
        method(n_categories=3).fit(np.zeros((2, 2)), **arguments)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Logistic(C=0), "C must be above 0, got 0"),
        (PairwiseLogistic(C=-1), "C must be above 0, got -1"),
        (PairwiseLogistic(epochs=0), "epochs must be at least 1, got 0"),
        (PairwiseLogistic(batch_rows=0), "batch_rows must be at least 1, got 0"),
        (OwnLogit(max_pairs=1), "max_pairs must be at least 2, got 1"),
        (NeighborMallows(n_neighbors=0), "n_neighbors and max_rows must be at least 1, got 0 and 100000"),
    ],
)
def test_methods__refuse_parameters_out_of_range(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(np.zeros((2, 2)), np.array([[0], [1]]))


def test_load_method__of_two_threads_one_imports_at_a_time(monkeypatch):
    inside, most = [], []

    def watch(name):
        inside.append(name)
        time.sleep(0.05)
        most.append(len(inside))
        inside.remove(name)
        return import_module(name)

    import_module = registry.importlib.import_module
    monkeypatch.setattr(registry.importlib, "import_module", watch)
    registry.load_method.cache_clear()
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(registry.load_method, ["own-logit", "item-knn", "ib-mal"]))
    assert [each.method for each in found] == ["own-logit", "item-knn", "ib-mal"]
    assert most == [1, 1, 1]
