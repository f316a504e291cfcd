"""The estimator AMM-rank-plus: what it learns, its calls, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import reference_plus
import scipy.sparse as sp
from sklearn.base import clone

from ammrank_dask import serve
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.memberships import ClusteringSettings, count_centers, fit_memberships
from ammrank_dask.model.metrics import disagreement_error
from ammrank_dask.model.own_term import OwnTerm, check_own_columns, own_columns_of_names
from ammrank_dask.model.plus_basis import RankingCounts, count_rankings, make_basis, prior_of
from ammrank_dask.model.plus_sums import rates_of
from ammrank_dask.storage.errors import BadInput

L, D = 6, 14
OWN = np.array([np.arange(L), np.arange(L, 2 * L)])


def draw(rng, n=400):
    """Return sparse rows and rankings that follow the rows' own columns and a persona, with noise."""
    X = rng.random((n, D)) * (rng.random((n, D)) < 0.5)
    taste = 2 * X[:, :L] + X[:, L : 2 * L] + 2 * X[:, 12:13] * np.arange(L) / L + 0.3 * rng.normal(size=(n, L))
    rankings = np.argsort(-taste, axis=1)[:, :4].astype(np.int32)
    rankings[np.arange(4)[None, :] >= rng.integers(2, 5, n)[:, None]] = -1
    return sp.csr_matrix(X, dtype=np.float32), rankings


@pytest.fixture(scope="module")
def fitted():
    X, rankings = draw(np.random.default_rng(0))
    model = AMMRankPlus(n_categories=L, own_columns=OWN, own_groups=[0, 0], clickers_per_plane=50, max_planes=3)
    return model.fit(X, rankings), X, rankings


def test_decision_function__is_prior_own_term_and_best_plane(fitted):
    model, X, _ = fitted
    rows = sp.vstack([X[:40], sp.csr_matrix((1, D), dtype=np.float32)], format="csr")
    np.testing.assert_allclose(
        model.decision_function(rows), reference_plus.score_rows(model, rows), rtol=1e-4, atol=1e-4
    )


def test_fit__ranks_better_than_popularity(fitted):
    model, _, rankings = fitted
    X, truth = draw(np.random.default_rng(1))
    popular = np.tile(np.bincount(rankings[rankings >= 0], minlength=L).astype(float), (len(truth), 1))
    assert disagreement_error(model.decision_function(X), truth) < 0.7 * disagreement_error(popular, truth)


def test_fit__again_gives_the_same_bits(fitted):
    model, X, rankings = fitted
    again = clone(model).fit(X, rankings)
    assert again.digest() == model.digest()


def test_fit__limits_planes_by_clickers(fitted):
    model, _, rankings = fitted
    clickers = np.bincount(rankings[rankings >= 0], minlength=L)
    np.testing.assert_array_equal(model.basis_.limit, np.clip(clickers // 50, 1, 3))
    assert (model.n_planes_ <= model.basis_.limit).all()


def test_predict_top_k__agrees_with_decision_function(fitted):
    model, X, _ = fitted
    codes, scores = model.predict_top_k(X[:50], k=3)
    np.testing.assert_array_equal(codes, model.predict(X[:50])[:, :3])
    np.testing.assert_array_equal(scores, np.take_along_axis(model.decision_function(X[:50]), codes, axis=1))


def test_decision_function__does_not_depend_on_the_scale_of_columns_without_hats():
    X, rankings = draw(np.random.default_rng(2), 100)
    model = AMMRankPlus(n_categories=L).fit(X, rankings)
    np.testing.assert_allclose(model.decision_function(X * 8), model.decision_function(X), rtol=1e-5, atol=1e-5)


def test_save__load_gives_the_same_model(fitted, tmp_path):
    model, X, _ = fitted
    model.save(tmp_path / "model")
    loaded = AMMRankPlus.load(tmp_path / "model")
    assert loaded.digest() == model.digest()
    np.testing.assert_array_equal(loaded.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(loaded.squares_, model.squares_)


def without_lift(model):
    """Return the model as it was learned and saved before there were lifts."""
    own = model.basis_.own
    kinds = {name: getattr(own, name)[: own.n_kinds] for name in ("knots", "n_knots", "weights")}
    old = clone(model)
    old.set_planes(
        replace(model.basis_, own=replace(own, **kinds)), model.weights_, model.plane_category_, kinds["weights"],
        n_steps=model.n_steps_, squares=model.squares_, own_squares=model.own_squares_[: own.n_kinds],
    )  # fmt: skip
    return old


def test_load__a_model_without_lifts_scores_as_before(fitted, tmp_path):
    model, X, _ = fitted
    old = without_lift(model)
    old.save(tmp_path / "model")
    loaded = AMMRankPlus.load(tmp_path / "model")
    assert loaded.digest() == old.digest()
    scores = loaded.decision_function(X[:40])
    np.testing.assert_allclose(scores, reference_plus.score_rows(old, X[:40]), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(serve.load(tmp_path / "model").scores(X[:40]), scores, rtol=1e-4, atol=1e-4)
    assert [part.score for part in loaded.explain(X[0])] == pytest.approx(sorted(scores[0], reverse=True), abs=2e-4)
    # With them the same model scores something else, by what the hats of the prior say and nothing more.
    lifts = np.interp(model.basis_.prior, model.basis_.own.knots[-1], 0.1 * model.basis_.own.weights[-1, 1:7])
    lifted = np.where(X[:40, :L].toarray() != 0, lifts, 0)
    assert np.abs(lifts).min() > 0.002
    np.testing.assert_allclose(model.decision_function(X[:40]), scores + lifted, rtol=1e-4, atol=1e-4)


def test_fit__interest_counts_by_the_prior_of_its_category():
    """Views of the three popular categories mean nothing, those of the others lead to clicks."""
    rng = np.random.default_rng(3)

    def draw_interest(n):
        views = rng.random((n, L)) < 0.4
        popularity = np.linspace(2, -2, L)
        taste = popularity + np.where(popularity < 0, 3.0, 0.0) * views + 0.5 * rng.normal(size=(n, L))
        return sp.csr_matrix(views, dtype=np.float32), np.argsort(-taste, axis=1)[:, :3].astype(np.int32)

    X, rankings = draw_interest(600)
    model = AMMRankPlus(n_categories=L, own_columns=[np.arange(L)], n_clusterings=0, kappa=10.0, epochs=20)
    model.fit(X, rankings)
    lifts = model.basis_.own.lifts(model.basis_.prior)
    assert lifts[3:].min() > lifts[:3].max() + 1
    X, truth = draw_interest(400)
    errors = [disagreement_error(kind.decision_function(X), truth) for kind in (model, without_lift(model))]
    assert errors[0] < 0.9 * errors[1]


def test_with_knots__of_the_prior_by_the_views_of_the_first_kind():
    # Eight rows view category 0 and two category 1, one has a stored 0 there; category 2 has no column of the kind.
    values = np.array([1.0] * 11 + [0.0], np.float32)
    X = sp.csr_matrix((values, (np.arange(12) % 10, [0] * 8 + [1] * 2 + [3, 1])), shape=(10, 4))
    own = OwnTerm.of_columns(np.array([[0, 1, -1], [-1, -1, 3]]), np.array([0, 1]))
    own = own.with_knots(X, np.array([-3.0, 1.0, 7.0], np.float32))
    np.testing.assert_array_equal(own.n_knots, [1, 1, 3])
    # The .8 quantile of eight -3 and two 1 is a fifth of the way between them.
    np.testing.assert_allclose(own.knots[2, :3], [-3.0, -2.2, 1.0], rtol=1e-6)
    np.testing.assert_allclose(own.prior_knot(np.array([-4.0, -0.6, 7.0])), [0.0, 1.5, 2.0], rtol=1e-6)


def test_load__refuses_another_method(fitted, tmp_path):
    from ammrank_dask.model.amm_rank import AMMRank

    fitted[0].save(tmp_path / "model")
    with pytest.raises(BadInput, match="must be of amm-rank, got amm-rank-plus"):
        AMMRank.load(tmp_path / "model")


def test_explain__adds_up_to_the_score(fitted):
    model, X, _ = fitted
    for row in range(10):
        scores = model.decision_function(X[row])[0]
        explained = model.explain(X[row])
        assert [entry.category for entry in explained] == model.predict(X[row])[0].tolist()
        for entry in explained:
            parts = [entry.own_contributions, entry.contributions, entry.membership_contributions]
            total = entry.prior + entry.bias + sum(part.sum() for part in parts)
            assert entry.score == pytest.approx(total)
            assert entry.score == pytest.approx(scores[entry.category], abs=2e-4)
            assert set(entry.own_features) <= set(OWN[:, entry.category])


def test_explain__of_an_empty_row_is_the_prior_and_the_constant(fitted):
    model, *_ = fitted
    for entry in model.explain(sp.csr_matrix((1, D), dtype=np.float32)):
        assert [len(part) for part in (entry.own_features, entry.memberships, entry.features)] == [0, 0, 0]
        assert entry.score == pytest.approx(entry.prior + entry.bias)


def test_fit__own_columns_of_use_lower_the_error():
    X, rankings = draw(np.random.default_rng(3), 150)
    test, truth = draw(np.random.default_rng(4), 400)
    errors = [
        disagreement_error(
            AMMRankPlus(n_categories=L, n_clusterings=0, **own).fit(X, rankings).decision_function(test), truth
        )
        for own in ({}, {"own_columns": OWN, "own_groups": [0, 0]})
    ]
    assert errors[1] < 0.99 * errors[0]


def test_prior__is_the_log_odds_of_a_click():
    counts = count_rankings(np.array([[0, 1], [0, -1], [-1, -1]]), 3)
    assert counts.n_rows == 2
    np.testing.assert_allclose(prior_of(counts), np.log([2.5 / 0.5, 1.5 / 1.5, 0.5 / 2.5]), rtol=1e-6)


def test_prior__of_complete_rankings_is_twice_the_log_odds_of_the_places():
    counts = count_rankings(np.array([[2, 0, 1], [2, 1, 0]]), 3)
    np.testing.assert_allclose(prior_of(counts), 2 * np.log([0.25 / 0.75, 0.25 / 0.75, 0.98 / 0.02]), rtol=1e-5)


def test_count_rankings__tied_places_are_worth_their_mean():
    tied = np.array([[False, True, False]])
    assert count_rankings(np.array([[2, 0, 1]]), 3, tied).worth.tolist() == [0.75, 0.0, 0.75]


def test_count_rankings__parts_add_up():
    rankings = np.array([[0, 1], [2, -1], [1, 0]])
    parts = count_rankings(rankings[:1], 3) + count_rankings(rankings[1:], 3)
    whole = count_rankings(rankings, 3)
    assert (parts.n_rows, parts.clicks.tolist()) == (whole.n_rows, whole.clicks.tolist())


def test_fit__complete_rankings_take_rows_as_they_are():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(200, 3))
    ranks = np.argsort(np.argsort(-(X @ rng.normal(size=(3, 4))), axis=1), axis=1) + 1
    model = AMMRankPlus(clickers_per_plane=1, epochs=20).fit(X, ranks=ranks)
    assert model.basis_.memberships.geometry == "euclidean"
    assert np.diff(model.basis_.memberships.start).tolist() == [10, 30]  # of 200 rows no more centres
    assert disagreement_error(model.decision_function(X), np.argsort(ranks, axis=1)) < 0.1


@pytest.mark.parametrize(("n_rows", "k"), [(30, 1), (39, 1), (40, 2), (4000, 200), (13_000, 216), (10**6, 800)])
def test_count_centers__grows_with_the_rows(n_rows, k):
    assert count_centers(n_rows) == k


def test_fit__fewer_rows_than_centres_have_no_memberships():
    X, rankings = draw(np.random.default_rng(6), 30)
    model = AMMRankPlus(n_categories=L).fit(X, rankings)
    assert model.weights_.shape[0] == D + 1


def test_fit_memberships__never_more_centres_than_rows():
    X = sp.csr_matrix(np.eye(3, dtype=np.float32))
    settings = ClusteringSettings(n_rows=3, n_clusterings=2, n_centers=50, geometry="cosine", seed=0)
    assert fit_memberships(X, settings).start.tolist() == [0, 3, 6]


def test_fit__one_training_user():
    model = AMMRankPlus(n_categories=3).fit(np.array([[1.0, 0.0]]), np.array([[2, 0]]))
    assert set(model.predict(np.array([[1.0, 0.0]]))[0, :2]) == {0, 2}  # which was clicked more is not learned


def test_fit__all_users_alike_rank_by_their_clicks():
    X = np.tile([[1.0, 2.0]], (100, 1))
    rankings = np.array([[1, -1]] * 60 + [[2, -1]] * 40)
    scores = AMMRankPlus(n_categories=4).fit(X, rankings).decision_function(X[:1])[0]
    assert np.isfinite(scores).all()
    assert np.argsort(-scores)[:2].tolist() == [1, 2]


def test_fit__users_without_events_get_the_prior_and_the_constant():
    X, rankings = draw(np.random.default_rng(8), 100)
    X = X.toarray()
    X[:50] = 0
    model = AMMRankPlus(n_categories=L).fit(X, rankings)
    scores = model.decision_function(np.zeros((2, D)))
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(scores[0], scores[1])


def test_fit__category_without_clicks_is_finite_and_last():
    X, rankings = draw(np.random.default_rng(9), 100)
    scores = AMMRankPlus(n_categories=L + 1).fit(X, rankings).decision_function(X)
    assert np.isfinite(scores).all()
    assert (scores.argmin(axis=1) == L).mean() > 0.95


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kappa": 0}, "kappa must be above 0, got 0"),
        ({"pace": np.inf}, "pace must be above 0, got inf"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": 1.5}, r"epochs must be a whole number, got 1\.5"),
        ({"max_planes": None}, "max_planes must be a whole number, got None"),
        ({"kappa": "a"}, "kappa must be above 0, got 'a'"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"max_planes": 0}, "max_planes must be at least 1, got 0"),
        ({"clickers_per_plane": 0}, "clickers_per_plane must be at least 1, got 0"),
        ({"n_clusterings": -1}, "n_clusterings must be 0 or above, got -1"),
        ({"n_centers": 0}, "n_centers must be at least 1, got 0"),
        ({"geometry": "flat"}, "geometry must be one of cosine, euclidean, or None, got flat"),
        ({"bias": np.nan}, "bias must be finite, got nan"),
        ({"seed": -1}, "seed must be 0 or above, got -1"),
        ({"own_groups": [0]}, "own_groups must come with own_columns, got no columns"),
        ({"own_columns": [[0, 1]]}, r"own_columns must be whole numbers of shape \(kinds, 3\), got int64 of \(1, 2\)"),
        ({"own_columns": [[-1, -1, -1]]}, "own_columns must name a column of at least one category, found only -1"),
        ({"own_columns": [[0, 2, -1]]}, "own_columns must hold columns from 0 to 1, or -1, got 2"),
        ({"own_columns": [[0, 0, -1]]}, "own_columns must name a column once, found one that is named twice"),
        (
            {"own_columns": [[0, 1, -1]], "own_groups": [0, 1]},
            "own_groups must have a number for each of the 1 kinds, got 2",
        ),
    ],
)  # fmt: skip
def test_fit__refuses_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        AMMRankPlus(**parameters, n_categories=3).fit(np.eye(2), np.array([[0], [2]]))


@pytest.mark.parametrize("name", ["regularization", "rank_weight"])
def test_init__has_no_parameter_of_amm_rank(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        AMMRankPlus(**{name: 1})


def test_fit__refuses_nan():
    with pytest.raises(ValueError, match="X must be finite in float32, found NaN or infinity"):
        AMMRankPlus().fit(np.array([[np.nan]]), np.array([[0]]))


def test_fit__refuses_rows_without_any_ranking():
    with pytest.raises(ValueError, match="rankings must hold at least one category, found only -1"):
        AMMRankPlus(n_categories=3).fit(np.eye(2), np.array([[-1], [-1]]))


def test_decision_function__refuses_rows_of_another_width(fitted):
    with pytest.raises(ValueError, match=f"X must have {D} features, got 3"):
        fitted[0].decision_function(np.zeros((1, 3)))


def test_own_columns_of_names__no_column_is_a_category():
    assert own_columns_of_names(["age:13-17", "pv:intensity:other", "height"], ["a", "b"]) is None


def test_own_columns_of_names__categories_may_hold_colons():
    table, groups = own_columns_of_names(["pv:intensity:a:b", "adv:recency:a:b"], ["x", "a:b"])
    np.testing.assert_array_equal(table, [[-1, 0], [-1, 1]])
    assert groups == [0, 1]


def test_check_own_columns__groups_are_numbered_from_0():
    term = check_own_columns([[0, 1], [2, 3], [4, 5]], [7, 3, 7], n_features=6, n_categories=2)
    np.testing.assert_array_equal(term.group, [1, 0, 1])


@pytest.mark.parametrize(
    ("n_rows", "has_own", "shards", "expected"),
    [
        (1_000, True, 1, (1.0, 3.0)),
        (40_000, True, 1, (2.0, 3.0)),
        (1_000_000, True, 1, (3.0, 3.0)),
        (1_000, False, 1, (3.0, 3.0)),
        (10_000, True, 4, (2.0, 6.0)),
    ],
)
def test_rates_of__follow_rows_own_term_and_shards(n_rows, has_own, shards, expected):
    own = OwnTerm.of_columns(np.array([[0, 1]]), np.zeros(1, int)) if has_own else OwnTerm.nothing(2)
    counts = RankingCounts(n_rows, np.array([n_rows, 0]), np.zeros(2), 0)
    options = {"max_planes": 1, "clickers_per_plane": 1, "n_clusterings": 0, "n_centers": None, "seed": 0}
    basis = make_basis(counts, sp.csr_matrix(np.eye(2, dtype=np.float32)), own, geometry=None, **options)
    assert rates_of(basis, shards) == expected
