"""The kernels of chances by hand and against scikit-learn; also run as plain Python."""

import math

import numpy as np
import pytest
from sklearn.metrics import log_loss

from ammrank_dask.kernels.chances import (
    Cells,
    Curves,
    chance_lists,
    chance_pairs,
    chance_rows,
    logistic_curvature,
    logistic_sums,
    solve_positive,
)

INF = np.float32(np.inf)
NOBODY = np.zeros((0, 2), bool)
NO_GROUP = np.zeros(2, np.int64)


def make_curves(**changes):
    """Two categories and two classes of activity: the second bends at z = 0 and lies lower."""
    curves = Curves(
        center=2.0,
        scale=4.0,
        width=1.0,
        intercept=np.array([0.5, -1.0]),
        slope=np.array([2.0, 0.25]),
        knot=np.array([0.0]),
        bend=np.array([[0.0], [3.0]]),
        level=np.array([0.0, -1.0]),
    )
    return curves._replace(**changes)


def chance_of(curves, score, category, activity):
    out = np.empty(1)
    chance_pairs(curves, np.array([score], np.float32), np.array([category]), np.array([activity], np.float64), out)
    return out[0]


def logistic(value):
    return 1 / (1 + math.exp(-value))


@pytest.mark.parametrize(
    ("score", "category", "activity", "logit"),
    [
        (6.0, 0, 0, 2.5),  # z = 1: 0.5 + 2·1
        (6.0, 0, 1, 3.0),  # 0.5 + 2·1 − 1, and half of the bend of 3
        (-2.0, 1, 0, -1.25),  # z = −1
        (-2.0, 1, 1, -3.75),  # −1 − 0.25 − 1 − 3/2
        (-np.inf, 0, 0, 0.5),  # no planes: z = 0
        (6.0, 0, 0.25, 2.625),  # three parts of 2.5, one of 3
    ],
)
def test_chance_pairs__by_hand(score, category, activity, logit):
    found = chance_of(make_curves(), np.float32(score), category, activity)
    assert found == pytest.approx(logistic(logit), rel=1e-12)


def test_chance_pairs__scores_beyond_all_bounds():
    assert chance_of(make_curves(), np.float32(3e38), 0, 0) == 1.0
    assert 0.0 < chance_of(make_curves(), np.float32(-3e38), 0, 0) < 1e-300


def test_chance_pairs__are_the_chances_one_by_one():
    scores = np.array([6.0, -2.0], np.float32)
    out = np.zeros(2)
    chance_pairs(make_curves(), scores, np.array([0, 1]), np.ones(2), out)
    assert out == pytest.approx([logistic(3.0), logistic(-3.75)], rel=1e-12)


@pytest.mark.parametrize("counts", [[], [0, 0], [0, 2, 0, 0, 1, 0], [64, 0, 1, 63, 65]])
def test_chance_lists__are_those_of_the_rows_one_by_one(counts):
    indptr, n = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), sum(counts)
    scores, codes = np.linspace(-5, 9, n, dtype=np.float32), (np.arange(n) % 2).astype(np.int32)
    scores[::7] = -INF
    activity = np.arange(len(counts)) % 5 / 4
    out = np.zeros(n, np.float32)
    chance_lists(make_curves(), scores, codes, indptr, activity, out)
    owner = [user for user, count in enumerate(counts) for _ in range(count)]
    expected = [chance_of(make_curves(), scores[i], codes[i], activity[owner[i]]) for i in range(n)]
    assert out.tolist() == np.array(expected, np.float32).tolist()


@pytest.mark.parametrize(
    ("bare", "allowed", "group", "expected"),
    [
        # What is not allowed is −1; the second category has no planes.
        ([False, False], NOBODY, NO_GROUP, [[2.5, None], [None, None]]),
        ([False, True], NOBODY, NO_GROUP, [[2.5, -1.0], [None, -1.0]]),
        ([False, True], np.array([[True, True], [True, False]]), np.array([1, 0]), [[2.5, None], [None, -1.0]]),
    ],
    ids=["nobody holds it", "everybody may", "one group may"],
)
def test_chance_rows__what_a_user_may_not_hold(bare, allowed, group, expected):
    scores = np.array([[6.0, -INF], [-INF, -INF]], np.float32)  # by category, then user
    out = np.zeros((2, 2), np.float32)
    chance_rows(make_curves(), scores, np.zeros(2), np.array(bare), allowed, group, out)
    by_hand = [[-1.0 if logit is None else logistic(logit) for logit in row] for row in expected]
    np.testing.assert_allclose(out, by_hand, rtol=1e-6)


def test_chance_rows__more_users_than_a_block():
    scores = np.linspace(-5, 9, 2 * 150, dtype=np.float32).reshape(2, 150)
    activity = np.arange(150) % 5 / 4
    out = np.zeros((150, 2), np.float32)
    chance_rows(make_curves(), scores, activity, np.zeros(2, bool), NOBODY, np.zeros(150, np.int64), out)
    for user in (0, 63, 64, 127, 149):
        for category in range(2):
            expected = chance_of(make_curves(), scores[category, user], category, activity[user])
            assert out[user, category] == np.float32(expected)


def sum_losses(curves, scores, clicked, activity):
    """Return the loss and its derivatives by intercept, slope, bend and level."""
    outs = [np.zeros_like(array) for array in (curves.intercept, curves.slope, curves.bend, curves.level)]
    return logistic_sums(curves, make_cells(curves, scores, clicked, activity), *outs), outs


def make_cells(curves, scores, clicked, activity):
    n, n_categories = scores.shape
    z = np.where(np.isfinite(scores), (scores.astype(np.float64) - curves.center) / curves.scale, 0.0)
    codes = np.tile(np.arange(n_categories), n)
    return Cells(z.ravel(), np.ones(z.size), clicked.ravel().astype(float), codes, np.repeat(activity, n_categories))


def draw_cells(rng, n=40):
    scores = rng.normal(2, 4, (n, 2)).astype(np.float32)
    scores[0, 1] = -INF
    return scores, rng.random((n, 2)) < 0.3, rng.choice([0.0, 0.3, 1.0], n)


def test_logistic_sums__loss_is_that_of_scikit_learn():
    scores, clicked, activity = draw_cells(np.random.default_rng(0))
    curves = make_curves()
    chances = [
        chance_of(curves, scores[user, category], category, activity[user])
        for user in range(len(scores))
        for category in range(2)
    ]
    loss, _ = sum_losses(curves, scores, clicked, activity)
    assert loss == pytest.approx(log_loss(clicked.ravel(), chances, normalize=False), rel=1e-9)


@pytest.mark.parametrize("number", range(4), ids=["intercept", "slope", "bend", "level"])
def test_logistic_sums__derivatives_are_differences_of_the_loss(number):
    scores, clicked, activity = draw_cells(np.random.default_rng(1))
    curves = make_curves(bend=np.array([[0.5], [3.0]]))
    name = ("intercept", "slope", "bend", "level")[number]
    _, derivatives = sum_losses(curves, scores, clicked, activity)
    for place in np.ndindex(derivatives[number].shape):
        step = np.zeros_like(derivatives[number])
        step[place] = 1e-5
        up, down = (
            sum_losses(curves._replace(**{name: getattr(curves, name) + sign * step}), scores, clicked, activity)[0]
            for sign in (1, -1)
        )
        assert derivatives[number][place] == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-6)


def test_logistic_curvature__is_differences_of_the_derivatives():
    scores, clicked, activity = draw_cells(np.random.default_rng(2))
    curves = make_curves(bend=np.array([[0.5], [3.0]]))
    names = ("intercept", "slope", "bend", "level")
    places = [(name, place) for name in names for place in np.ndindex(getattr(curves, name).shape)]
    curvature = np.zeros((len(places), len(places)))
    logistic_curvature(curves, make_cells(curves, scores, clicked, activity), curvature)
    for row, (name, place) in enumerate(places):
        step = np.zeros_like(getattr(curves, name))
        step[place] = 1e-5
        up, down = (
            np.concatenate([
                out.ravel()
                for out in sum_losses(
                    curves._replace(**{name: getattr(curves, name) + sign * step}), scores, clicked, activity
                )[1]
            ])
            for sign in (1, -1)
        )  # fmt: skip
        np.testing.assert_allclose(curvature[row], (up - down) / 2e-5, rtol=1e-5, atol=1e-6)


def test_solve_positive__is_the_solution_of_lapack():
    rng = np.random.default_rng(3)
    root, right = rng.normal(size=(7, 9)), rng.normal(size=7)
    matrix, found = root @ root.T, right.copy()
    solve_positive(matrix.copy(), found)
    np.testing.assert_allclose(found, np.linalg.solve(matrix, right), rtol=1e-9)


def test_solve_positive__leaves_out_zeros():
    # As in the curves of categories: two parameters of each know each other, and the last rows all.
    n, right = 9, np.arange(9.0) - 4
    matrix = 10 * np.eye(n)
    matrix[4, 0] = matrix[5, 1] = matrix[6, 2] = matrix[7, 3] = 3.0
    matrix[8, :8] = np.linspace(-1, 1, 8)
    matrix += np.tril(matrix, -1).T
    found = right.copy()
    solve_positive(matrix.copy(), found)
    np.testing.assert_allclose(found, np.linalg.solve(matrix, right), rtol=1e-12)
