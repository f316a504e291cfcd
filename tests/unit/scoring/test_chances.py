"""Chances against known truth and against scikit-learn, and their measures against sums over cells."""

import json

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss

from ammrank_dask.kernels.scoring import Filter
from ammrank_dask.scoring.chances import (
    _PRIOR,
    Chances,
    CurveFit,
    activity_edges,
    fit_chances,
    gather_cells,
    log_activity,
)
from ammrank_dask.scoring.learn_chances import N_FOLDS, fold_of, measure_chances
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.ids import ids_from_values

RARE = 7


def simulate(n, seed, n_categories=8):
    """Scores, what was clicked, activity and the true chances; the last category is rare, most users click little."""
    rng = np.random.default_rng(seed)
    activity = rng.geometric(0.15, n) - 1
    scores = rng.normal(5, 4, (n, n_categories)) + np.linspace(-2, 2, n_categories)
    intercept = np.linspace(-2, -4, n_categories)
    intercept[RARE] = -7
    slope = np.linspace(0.15, 0.35, n_categories)
    logit = intercept + slope * scores + 0.5 * np.log1p(activity)[:, None] + 0.8 * np.tanh((scores - 6) / 3)
    truth = 1 / (1 + np.exp(-logit))
    return scores.astype(np.float32), rng.random(truth.shape) < truth, activity, truth


def folds_of(n):
    return fold_of(ids_from_values(np.arange(n)))


@pytest.fixture(scope="module")
def fitted():
    return fit_chances(*simulate(12_000, 0)[:3])


def chance_table(chances, scores, activity):
    n, n_categories = scores.shape
    rows, codes = np.indices(scores.shape).reshape(2, -1)
    return chances.apply(scores.ravel(), codes, np.asarray(activity)[rows]).reshape(n, n_categories)


def test_fit_chances__come_true_for_other_users(fitted):
    scores, clicked, activity, truth = simulate(12_000, 1)
    table = chance_table(fitted, scores, activity)
    sums = measure_chances(table, clicked, folds_of(12_000), fitted.classes_of(activity), len(fitted.edges) + 1)
    assert sums.n_unreliable() == sums.n_unreliable(by_cells=True) == 0
    assert sums.brier < sums.base_brier
    assert sums.log_loss < sums.base_log_loss
    by_activity = sums.by_activity()
    assert (
        np.abs(by_activity[:, 1] - by_activity[:, 2]) <= np.maximum(0.1 * by_activity[:, 2], 3 * by_activity[:, 4])
    ).all()
    assert np.abs(table - truth).mean() < 0.01
    assert table[:, RARE].mean() == pytest.approx(truth[:, RARE].mean(), rel=0.3)


def test_fit_chances__one_category_without_bends_is_logistic_regression():
    scores, clicked, _, _ = simulate(3_000, 2)
    free = dict.fromkeys(("intercept", "slope", "bend", "common"), 1e-9) | {"level": 1e9}
    chances = fit_chances(scores[:, :1], clicked[:, :1], np.zeros(3_000), n_classes=1, n_knots=0, prior=free)
    peer = LogisticRegression(C=np.inf, tol=1e-10).fit(scores[:, :1].astype(float), clicked[:, 0])
    expected = peer.predict_proba(scores[:, :1].astype(float))[:, 1]
    np.testing.assert_allclose(chance_table(chances, scores[:, :1], np.zeros(3_000))[:, 0], expected, atol=1e-4)


def test_fit_chances__a_category_without_clicks_follows_the_others():
    scores, clicked, activity, _ = simulate(2_000, 3)
    clicked[:, 2] = False
    chances = fit_chances(scores, clicked, activity)
    table = chance_table(chances, scores, activity)
    assert 0 < table[:, 2].max() < table[:, 1].max()
    assert chances.curves.slope[2] > 0.3 * np.median(chances.curves.slope)


def test_fit_chances__scores_that_mislead_still_rise():
    scores, clicked, activity, _ = simulate(1_000, 4)
    chances = fit_chances(-scores, clicked, activity)
    assert (chances.curves.slope > 0).all()


@pytest.mark.parametrize(("sign", "n", "seed"), [(1, 3_000, 5), (1, 200, 6), (-1, 1_000, 7)])
def test_curve_fit__is_not_above_the_loss_that_scipy_reaches(sign, n, seed):
    scores, clicked, activity, _ = simulate(n, seed)
    learnt = fit_chances(sign * scores, clicked, activity)
    positions = np.interp(log_activity(activity), learnt.centers, np.arange(len(learnt.centers)))
    cells = gather_cells(sign * scores, clicked, positions, learnt.curves.center, learnt.curves.scale)
    fit = CurveFit(cells, (8, len(learnt.curves.level)), learnt.curves, _PRIOR)
    start, lowest = fit.start()
    bounds = [(low if np.isfinite(low) else None, None) for low in lowest]
    peer = minimize(
        fit.loss,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 5_000, "maxfun": 10_000, "ftol": 0, "gtol": 1e-9},
    )
    found = fit.find()
    assert fit.loss(found)[0] <= peer.fun * (1 + 1e-9)
    np.testing.assert_allclose(fit.curves(found).bend, learnt.curves.bend)
    # At the lowest point the loss rises from every bound, and is flat in all other directions.
    gradient, at_bound = fit.loss(found)[1], found <= lowest
    assert at_bound.any()
    assert (gradient[at_bound] >= 0).all()
    np.testing.assert_allclose(gradient[~at_bound], 0, atol=1e-6)


@given(
    low=st.floats(-60, 60, width=32), rise=st.floats(1e-3, 20), category=st.integers(0, 7), activity=st.integers(0, 50)
)
@examples(60)
def test_chances__rise_strictly_with_the_score(fitted, low, rise, category, activity):
    scores = np.array([low, low + rise], np.float64)
    found = fitted.apply(scores, np.full(2, category), np.full(2, activity))
    assert 0 < found[0] < found[1] < 1


def test_chances__are_stored_as_json(fitted):
    again = Chances.from_json(json.loads(json.dumps(fitted.to_json())))
    assert again.digest() == fitted.digest()
    scores = np.array([1.5, -2.0], np.float32)
    assert (again.apply(scores, np.array([1, 7]), np.array([0, 9])) == fitted.apply(
        scores, np.array([1, 7]), np.array([0, 9]))).all()  # fmt: skip


def test_of_users__marks_what_may_not_be_held(fitted):
    scores = np.full((8, 3), 2.0, np.float32)
    scores[0, 1] = scores[5] = -np.inf  # user 1 may not hold 0; 5 has no planes
    bare = np.arange(8) == 5
    allowed = np.ones((2, 8), bool)
    allowed[1, 5] = False
    limits = Filter(allowed, np.array([0, 0, 1], np.uint8), -np.inf, True)
    activity = np.array([0, 4, 30])
    table = fitted.of_users(scores, activity, bare, limits)
    assert (table < 0).tolist() == [[False] * 8, [True] + [False] * 7, [False] * 5 + [True] + [False] * 2]
    expected = fitted.apply(scores[:, 2], np.arange(8), np.full(8, 30))
    np.testing.assert_allclose(np.delete(table[2], 5), np.delete(expected, 5).astype(np.float32))
    kept_out = fitted.of_users(scores, activity, bare, limits._replace(keep_bare=False))
    assert (kept_out[:, 5] == -1).all()


def test_activity_edges__equal_activity_is_one_class():
    assert activity_edges(np.array([0, 0, 0, 0, 7]), 3).tolist() == []
    assert activity_edges(np.array([0, 1, 1, 2]), 4).tolist() == [1, 2]


@pytest.mark.parametrize("n_blocks", [1, 3])
def test_measure_chances__equals_scikit_learn_and_adds_up(n_blocks):
    _, clicked, activity, truth = simulate(900, 5)
    classes = np.minimum(activity, 3)
    columns = (truth, clicked, folds_of(900), classes)
    blocks = [measure_chances(*(column[i::n_blocks] for column in columns), 4) for i in range(n_blocks)]
    sums = sum(blocks[1:], start=blocks[0])
    assert sums.n_cells == truth.size
    assert sums.brier == pytest.approx(brier_score_loss(clicked.ravel(), truth.ravel()))
    assert sums.log_loss == pytest.approx(log_loss(clicked.ravel(), truth.ravel()))
    rate = np.broadcast_to(clicked.mean(axis=0), truth.shape)
    assert sums.base_brier == pytest.approx(((rate - clicked) ** 2).mean())
    table = sums.reliability(20)
    assert table[:, 0].sum() == truth.size
    assert table[:, 0].min() > 0.7 * truth.size / 20
    assert (np.diff(table[:, 1]) > 0).all()
    assert sums.by_activity()[2, 2] == pytest.approx(clicked[classes == 2].mean())
    assert sums.n_unreliable() == 0


def test_measure_chances__counts_bins_that_are_off():
    rng = np.random.default_rng(0)
    chances = rng.uniform(0.1, 0.9, (5000, 2))
    clicked = rng.random((5000, 2)) < chances * 0.7
    alike = folds_of(5000), np.zeros(5000, int), 1
    assert measure_chances(chances, clicked, *alike).n_unreliable() > 15
    hidden = np.where(chances > 0.5, -1, chances)
    assert measure_chances(hidden, clicked, *alike).n_cells == (chances <= 0.5).sum()


def test_reliability__error_by_user_by_hand():
    # Folds have 2, 2 and 3 cells and 1, −1 and ½ clicks more than chances say; all 7 have ½, 1/14 a cell. So they are
    # 12/14, −16/14 and 4/14 away.
    chances = np.array([[0.5, 0.5], [0.5, 0.5], [0.5, -1], [0.5, 0.5]])
    clicked = np.array([[1, 1], [0, 0], [1, 0], [1, 0]])
    sums = measure_chances(chances, clicked, np.array([4, 9, 31, 31]), np.zeros(4, int), 1)
    by_user = np.sqrt(3 / 2 * (12**2 + 16**2 + 4**2) / 14**2) / 7
    expected = [7, 0.5, 4 / 7, by_user, np.sqrt(0.25 / 7)]
    np.testing.assert_allclose(sums.reliability(1), [expected])
    np.testing.assert_allclose(sums.by_activity()[:, :5], [expected])


def test_reliability__errors_are_those_of_a_loop():
    rng = np.random.default_rng(8)
    values = np.linspace(0.02, 0.9, 4)  # each a bin of its own
    chances = rng.permuted(np.tile(values, (60, 3)), axis=1)
    clicked = rng.random(chances.shape) < chances * rng.gamma(2, 0.5, (60, 1))
    folds = fold_of(ids_from_values([f"user {number}" for number in range(60)]))
    table = measure_chances(chances, clicked, folds, np.zeros(60, int), 1).reliability(4)
    for value, (cells, chance, share, by_user, of_cells) in zip(values, table.tolist(), strict=True):
        is_in = np.isclose(chances, value)
        away, mean = 0.0, (clicked - chances)[is_in].mean()
        for fold in set(folds.tolist()):
            own = is_in & (folds == fold)[:, None]
            away += ((clicked - chances)[own].sum() - own.sum() * mean) ** 2
        n_folds = len(set(folds.tolist()))
        assert (cells, chance, share) == pytest.approx((180, value, clicked[is_in].mean()))
        assert of_cells == pytest.approx((value * (1 - value) / 180) ** 0.5)
        assert by_user == pytest.approx(max(of_cells, (n_folds / (n_folds - 1) * away) ** 0.5 / 180))


def test_reliability__error_by_user_covers_what_users_differ():
    """Chances are right, but a user clicks more or less than they say in all categories."""
    rng = np.random.default_rng(9)
    folds, classes = folds_of(300), np.zeros(300, int)
    off = []
    for _ in range(100):
        chances = rng.uniform(0.02, 0.15, (300, 80))
        clicked = rng.random(chances.shape) < chances * rng.exponential(1.0, (300, 1))
        table = measure_chances(chances, clicked, folds, classes, 1).reliability(4)
        off.append(np.abs(table[:, [1]] - table[:, [2]]) / table[:, 3:])
    off = np.concatenate(off)
    by_user, of_cells = (off < 1.96).mean(axis=0)
    assert 0.92 < by_user < 0.97
    assert of_cells < 0.8
    assert (off[:, 0] < 3).mean() > 0.985


def test_reliability__error_by_user_is_not_below_that_of_cells():
    chances = np.full((400, 5), 1e-3)
    sums = measure_chances(chances, np.zeros((400, 5)), folds_of(400), np.zeros(400, int), 1)
    (row,) = sums.reliability(1)
    assert row[3] == row[4] == pytest.approx((1e-3 * 0.999 / 2000) ** 0.5)


def test_fold_of__deals_users_alike_whatever_their_order():
    ids = np.arange(3200)
    folds = fold_of(ids_from_values(ids))
    assert (fold_of(ids_from_values(ids[::-1].copy()))[::-1] == folds).all()
    counts = np.bincount(folds, minlength=N_FOLDS)
    assert len(counts) == N_FOLDS
    assert 60 < counts.min() <= counts.max() < 140


def test_gather_cells__are_those_of_a_loop():
    rng = np.random.default_rng(6)
    scores = rng.normal(0, 0.2, (300, 3)).astype(np.float32)
    scores[:5, 1] = -np.inf
    scores[7, 2] = 1e7  # alone in its bin, far from all others
    clicked, positions = rng.random((300, 3)) < 0.3, rng.random(300) * 2
    by_hand = {}
    for user, category in np.ndindex(scores.shape):
        z = (float(scores[user, category]) - 0.1) / 2.0 if np.isfinite(scores[user, category]) else 0.0
        key = (category, int(positions[user] * 4), int(np.floor(z / 0.05)))
        now = np.array([1, z, clicked[user, category], positions[user]])
        by_hand[key] = by_hand.get(key, 0) + now
    cells = gather_cells(scores, clicked, positions, 0.1, 2.0)
    expected = [(key[0], *by_hand[key]) for key in sorted(by_hand)]
    totals = (cells.n_cells, cells.z * cells.n_cells, cells.clicked, cells.activity * cells.n_cells)
    np.testing.assert_allclose(np.stack([cells.category, *totals], axis=1), expected, rtol=1e-9, atol=1e-12)


def test_positions_of__are_between_classes_and_whole_without_centers(fitted):
    middle = np.expm1((fitted.centers[1] + fitted.centers[2]) / 2)
    at = np.array([0.0, np.expm1(fitted.centers[1]), middle, 1e9])
    assert fitted.positions_of(at).tolist() == pytest.approx([0, 1, 1.5, len(fitted.centers) - 1])
    before = Chances(fitted.curves, fitted.edges)
    assert before.positions_of(at).tolist() == fitted.classes_of(at).tolist()


def test_fit_chances__refuses_what_does_not_fit():
    with pytest.raises(
        BadInput, match=r"scores and clicks must have the same shape .* got \(3, 2\), \(3, 1\) and 3 users"
    ):
        fit_chances(np.zeros((3, 2)), np.zeros((3, 1)), np.zeros(3))
    with pytest.raises(BadInput, match=r"chances need users who clicked something, found none among 3 users"):
        fit_chances(np.zeros((3, 2)), np.zeros((3, 2)), np.zeros(3))
