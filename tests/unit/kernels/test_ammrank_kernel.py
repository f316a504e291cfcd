"""The kernels of training, scoring and top-K, by hand and against their slow twins."""

import numpy as np
import pytest
import reference_ranking
import scipy.sparse as sp
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from ammrank_dask.kernels.ammrank import Block, Planes, Rule, score_rows, train_rows
from ammrank_dask.kernels.topk import top_k_rows
from ammrank_dask.model.rows import rankings_from_ranks


def run_training(
    X, rankings, *, regularization, n_categories, capacity, bias=0.0, max_planes=5, rank_weights=None, tied=None,
    top_only=False, clone_draws=None, clone_probability=0.0, clone_decay=1.0, stop_step=10**9,
):  # fmt: skip
    rows = sp.csr_matrix(np.asarray(X, np.float32))
    rankings = np.asarray(rankings, np.int32)
    if rank_weights is None:
        rank_weights = np.ones(rankings.shape[1], np.float32)
    tied = np.zeros((len(rankings), 0), bool) if tied is None else np.ascontiguousarray(tied)
    draws = np.zeros((0, 0), np.float32) if clone_draws is None else clone_draws
    planes = Planes(
        np.zeros((rows.shape[1] + 1, capacity), np.float32),
        np.zeros(capacity, np.int32),
        np.zeros(n_categories, np.int64),
    )
    position, step, loss = train_rows(
        Block(rows.data, rows.indices, rows.indptr, rankings, tied), np.arange(rows.shape[0]), draws, rank_weights,
        Rule(regularization, bias, max_planes, top_only, clone_probability, clone_decay), 1, stop_step, planes,
    )  # fmt: skip
    n_total = planes.n_planes.sum()
    return position, step, planes.sums[:, :n_total], planes.category[:n_total], planes.n_planes, loss


def draw_rankings(rng, n, m, n_categories):
    rankings = np.argsort(rng.random((n, n_categories)), axis=1)[:, :m].astype(np.int32)
    length = rng.integers(0, m + 1, n)
    rankings[np.arange(m)[None, :] >= length[:, None]] = -1
    return rankings


def test_train_rows__first_step_gives_birth_to_the_preferred_category():
    _, step, sums, category, n_planes, loss = run_training(
        [[3.0]], [[1]], regularization=0.5, bias=2.0, n_categories=3, capacity=8
    )
    # Category 1 beats two others by 0 < λt, so its push is 2; negative pushes on zero planes are lost.
    assert (step, loss) == (2, 2.0)
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
    _, _, sums, category, *_ = run_training(
        [[1.0]], [[2, 0]], regularization=1.0, rank_weights=weights, n_categories=4, capacity=8
    )
    # 2 beats three others by 1 each; 0 loses 1 to 2 and wins ½ against each of 1 and 3: nothing is left.
    np.testing.assert_array_equal(category, [2])
    np.testing.assert_array_equal(sums[0], [3.0])


def test_train_rows__category_at_its_limit_has_no_zero_plane():
    X, rankings = [[1.0], [-1.0]], [[0], [0]]
    below = run_training(X, rankings, regularization=1.0, n_categories=2, capacity=8)
    np.testing.assert_array_equal(below[2][0], [1.0, -1.0])
    at_limit = run_training(X, rankings, regularization=1.0, n_categories=2, capacity=8, max_planes=1)
    # The push of the second row goes to the one plane, though its score there is below 0.
    np.testing.assert_array_equal(at_limit[2][0], [0.0])
    assert at_limit[4][0] == 1


def test_train_rows__without_births_pushes_on_zero_planes_are_lost():
    _, step, sums, _, n_planes, _ = run_training(
        [[1.0]], [[0]], regularization=1.0, n_categories=2, capacity=8, max_planes=0
    )
    assert step == 2
    assert sums.shape[1] == n_planes.sum() == 0


def test_train_rows__tied_pairs_are_not_pairs():
    tied = np.array([[False, True, False]])
    weights = np.array([1.0, 0.5, 0.25], np.float32)
    _, _, sums, category, *_ = run_training(
        [[1.0]], [[2, 0, 1]], regularization=1.0, rank_weights=weights, tied=tied, n_categories=4, capacity=8
    )
    # 2 and 0 share rank 1 and win 1 each against 1 and 3; 1 has rank 3, wins ¼ against 3 and loses twice.
    np.testing.assert_array_equal(category, [0, 2])
    np.testing.assert_array_equal(sums[0], [2.0, 2.0])


def test_train_rows__top_only_pushes_the_strongest_wrong_category():
    X, rankings = [[1.0], [1.0], [1.0]], [[1, 0, -1], [2, -1, -1], [0, 1, 2]]
    _, _, sums, category, *_ = run_training(X, rankings, regularization=1.0, top_only=True, n_categories=3, capacity=8)
    # Step 1: 1 is born with 1, and 0 (first of equals) stays zero. Step 2: 2 is born with 1, the push on 1 takes it
    # to 0. Step 3: 0 is born against 2, the strongest.
    np.testing.assert_array_equal(category, [1, 2, 0])
    np.testing.assert_array_equal(sums[0], [0.0, 0.0, 1.0])


def test_train_rows__clone_leaves_the_pushed_plane_beside_its_copy():
    draws = np.array([[0.9], [0.1]], np.float32) * np.ones((2, 2), np.float32)
    options = {"regularization": 2.0, "n_categories": 2, "capacity": 8, "clone_draws": draws}
    _, _, sums, category, *_ = run_training(
        [[1.0], [1.0]], [[0], [0]], clone_probability=0.4, clone_decay=0.5, **options
    )
    np.testing.assert_array_equal(category, [0, 0])
    np.testing.assert_array_equal(sums[0], [2.0, 1.0])
    # The chance is halved for each plane the category has: 0.1 is not below 0.2 · 0.5.
    assert run_training([[1.0], [1.0]], [[0], [0]], clone_probability=0.2, clone_decay=0.5, **options)[4][0] == 1
    assert run_training([[1.0], [1.0]], [[0], [0]], clone_probability=0.4, max_planes=1, **options)[4][0] == 1


def test_train_rows__stops_at_a_step():
    position, step, *_ = run_training(
        np.ones((4, 1)), [[0], [-1], [0], [0]], regularization=1.0, n_categories=2, capacity=8, stop_step=2
    )
    # The row without a ranking is passed; the third would be step 2.
    assert (position, step) == (2, 2)


def test_train_rows__row_without_ranking_is_no_step():
    position, step, *_ = run_training(
        [[1.0], [1.0]], [[-1, -1], [-1, -1]], regularization=1.0, n_categories=2, capacity=8
    )
    assert (position, step) == (2, 1)


def test_train_rows__stops_before_a_row_whose_births_may_not_fit():
    X = np.eye(4)
    position, step, _, _, n_planes, _ = run_training(
        X, [[0], [1], [2], [3]], regularization=1.0, n_categories=4, capacity=2
    )
    assert (position, step) == (2, 3)
    np.testing.assert_array_equal(n_planes, [1, 1, 0, 0])


@st.composite
def blocks(draw):
    """Rows, ranks with ties, and options, all multiples of powers of two: float32 is exact, and ties at the margin
    and between planes happen."""
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    n_categories = draw(st.integers(1, 5))
    cells = st.integers(-8, 8).map(lambda value: value / 8)
    X = np.array(draw(st.lists(st.lists(cells, min_size=d, max_size=d), min_size=n, max_size=n)))
    rank = st.lists(st.integers(0, 3), min_size=n_categories, max_size=n_categories)
    ranks = np.array(draw(st.lists(rank, min_size=n, max_size=n)))
    halves = st.sampled_from([0.0, 0.25, 0.5, 1.0])
    options = {
        "rank_weights": np.array(draw(st.lists(halves, min_size=n_categories, max_size=n_categories)), np.float32),
        "regularization": draw(st.sampled_from([0.125, 0.5, 2.0])),
        "bias": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "max_planes": draw(st.integers(0, 4)),
        "top_only": draw(st.booleans()),
    }
    if draw(st.booleans()):
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        options |= {"clone_draws": rng.random((n, n_categories), np.float32), "clone_probability": 0.5}
        options |= {"clone_decay": 0.75}
    return X, ranks, options


@examples(200)
@given(blocks())
def test_train_rows__equals_closed_form_twin_exactly(block):
    X, ranks, options = block
    n, n_categories = ranks.shape
    rankings, tied = rankings_from_ranks(ranks)
    for row in range(n):
        groups = reference_ranking.tie_groups(rankings[row], tied[row])
        assert groups == reference_ranking.groups_of_ranks(ranks[row])
    planes, next_step, expected_loss = reference_ranking.train_in_sums(
        X, rankings, range(n), n_categories=n_categories, tied=tied, **options
    )
    position, step, sums, category, _, loss = run_training(
        X, rankings, tied=tied, n_categories=n_categories, capacity=200, **options
    )
    assert (position, step) == (n, next_step)
    assert loss == pytest.approx(expected_loss, rel=1e-6, abs=1e-6)
    np.testing.assert_array_equal(category, [c for c, _ in planes])
    np.testing.assert_array_equal(sums, np.array([total for _, total in planes]).reshape(len(planes), len(sums)).T)


@pytest.mark.parametrize("top_only", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_train_rows__push_is_minus_the_gradient_of_the_loss(seed, top_only):
    rng = np.random.default_rng([5, seed])
    n_categories, n_features, step, regularization = 5, 4, 7, 0.5
    plane_category = np.repeat(np.arange(n_categories), 2).astype(np.int32)
    # Every category is at its limit, so that g is the maximum over real planes, as in the paper's loss.
    weights = rng.standard_normal((n_features + 1, 10)).astype(np.float32)
    X = rng.standard_normal((1, n_features)).astype(np.float32)
    rank_weight = np.array([1.0, 0.5, 0.25, 0.125, 0.0625], np.float32)
    rankings, tied = rankings_from_ranks(rng.integers(0, 4, (1, n_categories)) + np.eye(1, n_categories, dtype=int))
    sums = weights * np.float32(regularization * step)
    before = sums.copy()
    rows = sp.csr_matrix(X)
    state = Planes(np.hstack([sums, np.zeros((n_features + 1, 6), np.float32)]),
                   np.pad(plane_category, (0, 6)), np.full(n_categories, 2))  # fmt: skip
    train_rows(
        Block(rows.data, rows.indices, rows.indptr, rankings, np.ascontiguousarray(tied)), np.arange(1),
        np.zeros((0, 0), np.float32), rank_weight, Rule(regularization, 1.0, 1, top_only, 0.0, 1.0), step, 10**9, state,
    )  # fmt: skip
    pushed = state.sums[:, :10] - before
    x = np.append(X[0].astype(float), 1.0)
    groups = reference_ranking.tie_groups(rankings[0], tied[0])
    loss = reference_ranking.top_loss if top_only else reference_ranking.rank_loss
    wide, gradient = weights.astype(float), np.zeros(weights.shape)
    for cell in np.ndindex(*weights.shape):
        shift = np.zeros(weights.shape)
        shift[cell] = 1e-5
        ends = [loss(wide + sign * shift, plane_category, x, groups, rank_weight, n_categories) for sign in (1, -1)]
        gradient[cell] = (ends[0] - ends[1]) / 2e-5
    np.testing.assert_allclose(pushed, -gradient, atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_train_rows__equals_the_method_as_printed(seed):
    rng = np.random.default_rng([2, seed])
    n, n_categories, regularization = 40, 5, 0.05
    X = rng.standard_normal((n, 6)).astype(np.float32)
    rankings = draw_rankings(rng, n, 3, n_categories)
    weights = (1 / np.arange(1, 4)).astype(np.float32)
    options = {"regularization": regularization, "bias": 1.0, "max_planes": 4, "n_categories": n_categories}
    planes = reference_ranking.train_as_printed(X.astype(float), rankings, range(n), weights, **options)
    _, step, sums, category, *_ = run_training(X, rankings, rank_weights=weights, capacity=64, **options)
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
