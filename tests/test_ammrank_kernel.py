"""The kernels of training, scoring and top-K, by hand and against their slow twins."""

import numpy as np
import pytest
import reference_ranking
import scipy.sparse as sp

from ammrank_dask.kernels.ammrank import score_rows, train_rows
from ammrank_dask.kernels.topk import top_k_rows


def run_training(X, rankings, *, regularization, bias=0.0, max_planes=5, rank_weights=None, n_categories, capacity):
    rows = sp.csr_matrix(np.asarray(X, np.float32))
    rankings = np.asarray(rankings, np.int32)
    if rank_weights is None:
        rank_weights = np.ones(rankings.shape[1], np.float32)
    sums = np.zeros((rows.shape[1] + 1, capacity), np.float32)
    plane_category = np.zeros(capacity, np.int32)
    n_planes = np.zeros(n_categories, np.int64)
    position, step = train_rows(
        rows.data, rows.indices, rows.indptr, rankings, np.arange(rows.shape[0]), rank_weights,
        regularization, bias, max_planes, 1, sums, plane_category, n_planes,
    )  # fmt: skip
    n_total = n_planes.sum()
    return position, step, sums[:, :n_total], plane_category[:n_total], n_planes


def draw_rankings(rng, n, m, n_categories):
    rankings = np.argsort(rng.random((n, n_categories)), axis=1)[:, :m].astype(np.int32)
    length = rng.integers(0, m + 1, n)
    rankings[np.arange(m)[None, :] >= length[:, None]] = -1
    return rankings


def test_train_rows__first_step_gives_birth_to_the_preferred_category():
    _, step, sums, category, n_planes = run_training(
        [[3.0]], [[1]], regularization=0.5, bias=2.0, n_categories=3, capacity=8
    )
    # Category 1 beats two others by 0 < λt, so its push is 2; negative pushes on zero planes are lost.
    assert step == 2
    np.testing.assert_array_equal(category, [1])
    np.testing.assert_array_equal(n_planes, [0, 1, 0])
    np.testing.assert_array_equal(sums, [[6.0], [4.0]])


@pytest.mark.parametrize(("regularization", "expected"), [(0.5, 2.0), (1.0, 2.0), (1.5, 4.0)])
def test_train_rows__second_step_pushes_only_inside_the_margin(regularization, expected):
    # Before step 2, S·x is 2 and the margin is 2λ: at 2λ = 2 the pair is just outside.
    result = run_training([[1.0], [1.0]], [[1], [1]], regularization=regularization, n_categories=3, capacity=8)
    np.testing.assert_array_equal(result[2], [[expected], [0.0]])


def test_train_rows__rank_weight_of_the_preferred_category_counts():
    weights = np.array([1.0, 0.5], np.float32)
    _, _, sums, category, _ = run_training(
        [[1.0]], [[2, 0]], regularization=1.0, rank_weights=weights, n_categories=4, capacity=8
    )
    # 2 beats three others by 1 each; 0 loses 1 to 2 and wins ½ against each of 1 and 3: nothing is left.
    np.testing.assert_array_equal(category, [2])
    np.testing.assert_array_equal(sums[0], [3.0])


def test_train_rows__category_at_its_limit_has_no_birth():
    X, rankings = [[1.0], [-1.0]], [[0], [0]]
    assert run_training(X, rankings, regularization=1.0, n_categories=2, capacity=8)[4][0] == 2
    assert run_training(X, rankings, regularization=1.0, n_categories=2, capacity=8, max_planes=1)[4][0] == 1


def test_train_rows__row_without_ranking_is_no_step():
    position, step, *_ = run_training(
        [[1.0], [1.0]], [[-1, -1], [-1, -1]], regularization=1.0, n_categories=2, capacity=8
    )
    assert (position, step) == (2, 1)


def test_train_rows__stops_before_a_row_whose_births_may_not_fit():
    X = np.eye(4)
    position, step, *_, n_planes = run_training(X, [[0], [1], [2], [3]], regularization=1.0, n_categories=4, capacity=2)
    assert (position, step) == (2, 3)
    np.testing.assert_array_equal(n_planes, [1, 1, 0, 0])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_planes", [1, 3])
def test_train_rows__equals_closed_form_twin_exactly(seed, max_planes):
    # Multiples of 1/8 and powers of two: float32 is exact, so every tie at the margin must fall the same way.
    rng = np.random.default_rng([1, seed])
    n, n_categories = 40, 6
    X = rng.integers(-8, 9, (n, 7)) * (rng.random((n, 7)) < 0.6) / 8
    rankings = draw_rankings(rng, n, 4, n_categories)
    weights = np.array([1, 0.5, 0.5, 0.25], np.float32)
    options = {"regularization": 0.25, "bias": 0.5, "max_planes": max_planes, "n_categories": n_categories}
    planes, next_step = reference_ranking.train_in_sums(X, rankings, range(n), weights, **options)
    _, step, sums, category, _ = run_training(X, rankings, rank_weights=weights, capacity=64, **options)
    assert step == next_step
    np.testing.assert_array_equal(category, [c for c, _ in planes])
    np.testing.assert_array_equal(sums, np.array([total for _, total in planes]).T)


@pytest.mark.parametrize("seed", range(4))
def test_train_rows__equals_the_method_as_printed(seed):
    rng = np.random.default_rng([2, seed])
    n, n_categories, regularization = 40, 5, 0.05
    X = rng.standard_normal((n, 6)).astype(np.float32)
    rankings = draw_rankings(rng, n, 3, n_categories)
    weights = (1 / np.arange(1, 4)).astype(np.float32)
    options = {"regularization": regularization, "bias": 1.0, "max_planes": 4, "n_categories": n_categories}
    planes = reference_ranking.train_as_printed(X.astype(float), rankings, range(n), weights, **options)
    _, step, sums, category, _ = run_training(X, rankings, rank_weights=weights, capacity=64, **options)
    np.testing.assert_array_equal(category, [c for c, _ in planes])
    expected = np.array([w for _, w in planes]).T
    np.testing.assert_allclose(sums / (regularization * step), expected, rtol=1e-4, atol=1e-4)


def test_score_rows__maximum_per_category_and_no_planes():
    rows = sp.csr_matrix(np.array([[1.0, 0.0], [0.0, 2.0]], np.float32))
    weights = np.array([[1.0, -1.0, 5.0], [0.0, 3.0, -2.0], [0.5, 0.5, 0.0]], np.float32)
    scores = np.empty((2, 3), np.float32)
    score_rows(rows.data, rows.indices, rows.indptr, weights, np.array([0, 2, 2, 3]), 2.0, scores)
    np.testing.assert_array_equal(scores, [[2.0, -np.inf, 5.0], [7.0, -np.inf, -4.0]])


@pytest.mark.parametrize("nnz", [0, 1, 3, 4, 5, 9])
def test_score_rows__equals_twin(nnz):
    rng = np.random.default_rng([3, nnz])
    X = np.zeros((5, 12), np.float32)
    X[:, :nnz] = rng.standard_normal((5, nnz))
    weights = rng.standard_normal((13, 7)).astype(np.float32)
    category = np.array([0, 0, 1, 3, 3, 3, 4])
    rows = sp.csr_matrix(X)
    scores = np.empty((5, 6), np.float32)
    start = np.concatenate([[0], np.cumsum(np.bincount(category, minlength=6))])
    score_rows(rows.data, rows.indices, rows.indptr, weights, start, 1.5, scores)
    expected = reference_ranking.score_rows(X, weights, category, 1.5, 6)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_top_k_rows__equal_scores_stand_in_tie_order():
    scores = np.array([[1.0, 2.0, 1.0, -np.inf, -np.inf]], np.float32)
    codes, best = np.empty((1, 5), np.int32), np.empty((1, 5), np.float32)
    top_k_rows(scores, np.array([4, 2, 3, 0, 1]), codes, best)
    np.testing.assert_array_equal(codes, [[1, 2, 0, 4, 3]])
    np.testing.assert_array_equal(best, [[2.0, 1.0, 1.0, -np.inf, -np.inf]])


@pytest.mark.parametrize("k", [1, 3, 8])
def test_top_k_rows__equals_twin(k):
    rng = np.random.default_rng([4, k])
    scores = rng.integers(0, 4, (30, 8)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.2] = -np.inf
    tie_order = rng.permutation(8)
    codes, best = np.empty((30, k), np.int32), np.empty((30, k), np.float32)
    top_k_rows(scores, tie_order, codes, best)
    expected_codes, expected = reference_ranking.top_k(scores, tie_order, k)
    np.testing.assert_array_equal(codes, expected_codes)
    np.testing.assert_array_equal(best, expected)
