"""The AMMRank estimator and its stored form."""

import ast
import gc
import json
import logging
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import reference_ranking
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from ammrank_dask import AMM, AMMRank
from ammrank_dask.model.metrics import disagreement_error
from ammrank_dask.model.plane_sums import PlaneSums, StepSettings, WeightMean, train_block
from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.store import models
from ammrank_dask.storage.store.models import read_model, save_model


def draw_rows(seed, n=300, n_categories=5, m=3):
    """Points in the plane; each category likes one direction and its opposite, which one plane cannot say."""
    rng = np.random.default_rng([6, seed])
    X = rng.standard_normal((n, 2))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    angle = np.pi * np.arange(n_categories) / n_categories
    liking = np.abs(X @ np.stack([np.cos(angle), np.sin(angle)]))
    return X, np.argsort(-liking, axis=1)[:, :m]


def test_fit__learns_what_one_plane_cannot():
    X, rankings = draw_rows(0)
    unseen, truth = draw_rows(1)
    flat = AMMRank(max_planes=1, epochs=20).fit(X, rankings)
    bent = AMMRank(max_planes=3, epochs=20).fit(X, rankings)
    assert disagreement_error(bent.decision_function(unseen), truth) < 0.1
    assert disagreement_error(flat.decision_function(unseen), truth) > 0.3


def test_fit__equals_twin_over_two_epochs():
    X, rankings = draw_rows(2, n=50)
    options = {"regularization": 0.05, "bias": 0.5, "max_planes": 3}
    model = AMMRank(epochs=2, seed=4, rank_weight="reciprocal", average=False, **options).fit(X, rankings)
    order = np.concatenate([np.random.default_rng([4, epoch, 0]).permutation(50) for epoch in range(2)])
    planes = reference_ranking.train_as_printed(X, rankings, order, 1 / np.arange(1, 4), **options, n_categories=5)
    category = np.array([c for c, _ in planes])
    weights = np.array([w for _, w in planes]).T
    expected = reference_ranking.score_rows(X, weights, category, 0.5, 5)
    assert model.n_steps_ == 100
    np.testing.assert_array_equal(model.n_planes_, np.bincount(category, minlength=5))
    np.testing.assert_allclose(model.decision_function(X), expected, rtol=1e-3, atol=1e-3)


def test_fit__sparse_equals_dense_and_is_repeatable():
    X, rankings = draw_rows(3)
    dense = AMMRank(seed=1).fit(X, rankings)
    sparse = AMMRank(seed=1).fit(sp.csr_matrix(X), rankings)
    np.testing.assert_array_equal(dense.weights_, sparse.weights_)
    assert not np.array_equal(dense.weights_, AMMRank(seed=2).fit(X, rankings).weights_)


def test_fit__rows_without_ranking_teach_nothing():
    X, rankings = draw_rows(4, n=20)
    padded = np.vstack([rankings, np.full((5, 3), -1)])
    model = AMMRank(epochs=1).fit(np.vstack([X, np.full((5, 2), 9.0)]), padded)
    assert model.n_steps_ == 20
    np.testing.assert_array_equal(model.popularity_, np.bincount(rankings.ravel(), minlength=5))


def test_fit__average_is_the_mean_of_the_last_half_of_the_epochs():
    X, rankings = draw_rows(5)
    same = {"max_planes": 3, "regularization": 0.01}
    ends = [AMMRank(epochs=epochs, average=False, **same).fit(X, rankings) for epochs in (2, 3)]
    mean = AMMRank(epochs=3, average=True, **same).fit(X, rankings)
    # Of three epochs the last two count; no plane is born in the third here, so the planes correspond.
    np.testing.assert_array_equal(ends[0].plane_category_, ends[1].plane_category_)
    expected = (ends[0].weights_ + AMMRank(epochs=3, average=False, **same).fit(X, rankings).weights_) / 2
    np.testing.assert_allclose(mean.weights_, expected, rtol=1e-5, atol=1e-6)
    once = [AMMRank(epochs=1, average=average).fit(X, rankings).weights_ for average in (True, False)]
    np.testing.assert_array_equal(*once)


def test_fit_blocks__visits_blocks_and_rows_in_seeded_order():
    X, rankings = draw_rows(6, n=30)
    blocks = [(X[i : i + 10], rankings[i : i + 10]) for i in range(0, 30, 10)]
    model = AMMRank(epochs=1, seed=3, n_categories=5, average=False).fit_blocks(blocks)
    order = [
        10 * block + row
        for block in np.random.default_rng([3, 0]).permutation(3)
        for row in np.random.default_rng([3, 0, block]).permutation(10)
    ]
    planes = PlaneSums.empty(2, 5)
    settings = StepSettings(regularization=1e-3, bias=1.0, max_planes=50)
    train_block(planes, sp.csr_matrix(X, dtype=np.float32), rankings, np.array(order), settings)
    by_category = np.argsort(planes.plane_category[: planes.n_planes.sum()], kind="stable")
    np.testing.assert_array_equal(model.weights_, planes.weights(1e-3)[:, by_category])


def test_train_block__room_for_planes_does_not_change_the_result():
    # Rows that share no feature: every one gives birth to a plane.
    X = sp.csr_matrix(np.eye(60, dtype=np.float32))
    rankings = np.arange(60)[:, None] % 5
    settings = StepSettings(regularization=1e-2, bias=0.0, max_planes=40)
    grown, roomy = PlaneSums.empty(60, 5), PlaneSums.empty(60, 5)
    roomy.reserve(1000)
    for planes in (grown, roomy):
        train_block(planes, X, rankings, np.arange(60), settings)
    assert grown.sums.shape[1] < roomy.sums.shape[1]
    np.testing.assert_array_equal(grown.n_planes, [12] * 5)
    np.testing.assert_array_equal(grown.n_planes, roomy.n_planes)
    np.testing.assert_array_equal(grown.weights(1e-2), roomy.weights(1e-2))


@pytest.mark.parametrize("block_rows", [60, 25, 7])
def test_train_block__prunes_at_steps_whatever_the_blocks(block_rows):
    # Multiples of 1/8, so that the twin in float64 prunes the same planes.
    rng = np.random.default_rng([6, 20])
    X = rng.integers(-8, 9, (60, 4)) / 8
    rankings = np.argsort(rng.random((60, 5)), axis=1)[:, :3]
    rankings[::7] = -1
    options = {"regularization": 0.25, "bias": 0.5, "max_planes": 4, "prune_every": 10, "prune_c": 3.0}
    expected, step, _ = reference_ranking.train_in_sums(X, rankings, range(60), np.ones(3), n_categories=5, **options)
    unpruned, *_ = reference_ranking.train_in_sums(
        X, rankings, range(60), np.ones(3), n_categories=5, **{**options, "prune_every": None}
    )
    planes = PlaneSums.empty(4, 5)
    for start in range(0, 60, block_rows):
        rows = slice(start, start + block_rows)
        part = sp.csr_matrix(X[rows], dtype=np.float32)
        train_block(planes, part, rankings[rows], np.arange(part.shape[0]), StepSettings(**options))
    n_total = planes.n_planes.sum()
    assert planes.step == step
    assert len(planes.plane_id) == n_total == len(expected) < planes.next_id
    assert len(expected) != len(unpruned) or planes.next_id > len(unpruned)
    np.testing.assert_array_equal(planes.plane_category[:n_total], [c for c, _ in expected])
    np.testing.assert_array_equal(planes.sums[:, :n_total], np.array([total for _, total in expected]).T)
    assert not planes.sums[:, n_total:].any()


def test_prune__smallest_first_within_c_and_never_the_last_of_a_category():
    def grown():
        planes = PlaneSums.empty(1, 3)
        planes.reserve(5)
        planes.sums[0, :5] = [3.0, 1.0, 2.0, 0.5, 2.0]
        planes.plane_category[:5] = [0, 0, 1, 2, 0]
        planes.n_planes[:] = [3, 1, 1]
        planes.plane_id, planes.next_id = np.arange(5), 5
        return planes

    # Plane 3 is the smallest, but the last of category 2: it stays and does not count.
    for c, kept in (
        (0.9, [0, 1, 2, 3, 4]),
        (1.0, [0, 2, 3, 4]),
        (2.2, [0, 2, 3, 4]),
        (2.3, [0, 2, 3]),
        (9.0, [0, 2, 3]),
    ):
        planes = grown()
        assert planes.prune(c) == 5 - len(kept)
        np.testing.assert_array_equal(planes.plane_id, kept)
        np.testing.assert_array_equal(planes.sums[0, : len(kept)], np.array([3.0, 1.0, 2.0, 0.5, 2.0])[kept])
        np.testing.assert_array_equal(planes.n_planes, np.bincount(np.array([0, 0, 1, 2, 0])[kept], minlength=3))


def test_weight_mean__models_without_planes_have_a_mean_without_planes():
    mean, nothing = WeightMean(), np.zeros(0, np.int64)
    for _ in range(2):
        mean.add(np.zeros((4, 0), np.float32), nothing)
    assert mean.n_models == 2
    assert mean.weights().shape == (4, 0)


def test_weight_mean__follows_planes_by_id():
    mean = WeightMean()
    mean.add(np.array([[2.0, 4.0, 6.0]], np.float32), np.array([0, 1, 2]))
    mean.add(np.array([[2.0, 4.0, 6.0]], np.float32), np.array([0, 1, 2]))
    # Plane 1 was pruned; plane 3 was born and is zero in the first two.
    mean.add(np.array([[5.0, 0.0, 3.0]], np.float32), np.array([0, 2, 3]))
    np.testing.assert_allclose(mean.weights(), [[3.0, 4.0, 1.0]])


def test_fit__ranks_without_ties_equal_rankings():
    X, rankings = draw_rows(12)
    ranks = np.zeros((len(X), 5), int)
    np.put_along_axis(ranks, rankings, np.arange(1, 4)[None, :], axis=1)
    by_ranks = AMMRank().fit(X, ranks=ranks)
    np.testing.assert_array_equal(by_ranks.weights_, AMMRank(n_categories=5).fit(X, rankings).weights_)
    np.testing.assert_array_equal(AMMRank().fit(X, ranks=ranks * 7).weights_, by_ranks.weights_)


def test_fit__ties_teach_no_order():
    X, _ = draw_rows(13, n=40)
    model = AMMRank().fit(X, ranks=np.tile([1, 1, 2], (40, 1)))
    scores = model.decision_function(X)
    # 0 and 1 get the same pushes in every step, so they stay equal.
    np.testing.assert_array_equal(scores[:, 0], scores[:, 1])
    np.testing.assert_array_equal(model.popularity_, [40, 40, 40])


def test_fit__rank_weight_may_be_a_table():
    X, rankings = draw_rows(14)
    table = AMMRank(rank_weight=[1.0, 0.5, 1 / 3]).fit(X, rankings)
    np.testing.assert_array_equal(table.weights_, AMMRank(rank_weight="reciprocal").fit(X, rankings).weights_)
    with pytest.raises(ValueError, match=r"a number for each of the 3 ranks of the longest ranking, got 2"):
        AMMRank(rank_weight=(1.0, 0.5)).fit(X, rankings)


def test_fit__clones_grow_planes_and_are_repeatable():
    X, rankings = draw_rows(15)
    plain = AMMRank().fit(X, rankings)
    cloned = [AMMRank(clone_probability=0.2).fit(X, rankings) for _ in range(2)]
    assert cloned[0].n_planes_.sum() > plain.n_planes_.sum()
    np.testing.assert_array_equal(cloned[0].weights_, cloned[1].weights_)


def test_fit__pruning_leaves_fewer_planes():
    X, rankings = draw_rows(16)
    sizes = [
        AMMRank(prune_every=every, prune_c=30.0, clone_probability=0.2).fit(X, rankings).n_planes_
        for every in (None, 100)
    ]
    assert sizes[1].sum() < sizes[0].sum()
    assert sizes[1].min() >= 1


def test_amm__learns_the_top_category_only():
    X, rankings = draw_rows(17)
    unseen, truth = draw_rows(18)
    model = AMM(epochs=20).fit(X, rankings)
    assert np.mean(model.predict(unseen)[:, 0] == truth[:, 0]) > 0.9
    top = AMM(epochs=20, n_categories=5).fit(X, rankings[:, :1])
    np.testing.assert_array_equal(model.weights_, top.weights_)


def test_amm__equals_twin():
    X, rankings = draw_rows(19, n=50)
    options = {"regularization": 0.05, "bias": 0.5, "max_planes": 3}
    model = AMM(epochs=1, seed=4, average=False, **options).fit(X, rankings)
    order = np.random.default_rng([4, 0, 0]).permutation(50)
    planes, step, _ = reference_ranking.train_in_sums(
        X, rankings, order, np.ones(3), n_categories=5, top_only=True, **options
    )
    category = np.array([c for c, _ in planes])
    weights = np.array([total for _, total in planes]).T / (0.05 * step)
    expected = reference_ranking.score_rows(X, weights, category, 0.5, 5)
    np.testing.assert_allclose(model.decision_function(X), expected, rtol=1e-3, atol=1e-3)


def test_amm__has_its_own_store(tmp_path):
    X, rankings = draw_rows(20)
    model = AMM().fit(X, rankings)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(AMM.load(tmp_path / "m").predict(X), model.predict(X))
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(BadInput, match="must be of amm-rank, got amm"):
        AMMRank.load(tmp_path / "m")


def test_explain__names_plane_and_features():
    model = AMMRank(bias=2.0, n_categories=3)
    # Category 0 has two planes, category 2 one, category 1 none.
    weights = np.array([[1.0, 3.0, -1.0], [2.0, -4.0, 0.5], [9.0, 9.0, 9.0], [0.5, 0.25, 1.0]], np.float32)
    model.set_planes(weights, np.array([0, 0, 2]), np.array([1, 0, 1]), n_steps=1)
    for x in (np.array([2.0, 1.0, 0.0]), sp.csr_matrix([[2.0, 1.0, 0.0]])):
        found = model.explain(x)
        assert [(c.category, c.score, c.plane, c.bias) for c in found] == [
            (0, 5.0, 0, 1.0),
            (2, 0.5, 0, 2.0),
            (1, -np.inf, None, 0.0),
        ]
        np.testing.assert_array_equal(found[0].features, [0, 1])
        np.testing.assert_array_equal(found[0].contributions, [2.0, 2.0])
        np.testing.assert_array_equal(found[1].features, [1, 0])
        np.testing.assert_array_equal(found[1].contributions, [0.5, -2.0])
    with pytest.raises(ValueError, match="x must be one row, got 2"):
        model.explain(np.ones((2, 3)))


def test_explain__adds_up_to_the_scores():
    X, rankings = draw_rows(21)
    model = AMMRank().fit(X, rankings)
    for c in model.explain(X[0]):
        assert c.score == pytest.approx(c.bias + c.contributions.sum())
        assert c.score == pytest.approx(float(model.decision_function(X[:1])[0, c.category]), rel=1e-4, abs=1e-5)


def test_predict__equal_scores_by_popularity_then_code():
    # Only categories 1 and 3 are ever clicked; 0, 2 and 4 have no planes and no clicks.
    X, rankings = np.eye(3), np.array([[3], [3], [1]])
    model = AMMRank(n_categories=5).fit(X, rankings)
    scores = model.decision_function(X)
    assert scores.dtype == np.float32
    assert np.isneginf(scores[:, [0, 2, 4]]).all()
    np.testing.assert_array_equal(model.predict(X)[:, 2:], [[0, 2, 4]] * 3)
    # A category that is clicked but has no planes comes before those that are not clicked.
    model.popularity_ = np.array([0, 1, 0, 2, 7])
    np.testing.assert_array_equal(model.predict(X)[:, 2:], [[4, 0, 2]] * 3)


def test_predict_top_k__is_the_head_of_predict():
    X, rankings = draw_rows(8, n=60)
    model = AMMRank(n_categories=7).fit(X, rankings)
    codes, scores = model.predict_top_k(X, k=6)
    np.testing.assert_array_equal(codes, model.predict(X)[:, :6])
    np.testing.assert_array_equal(scores, np.take_along_axis(model.decision_function(X), codes, axis=1))
    with pytest.raises(ValueError, match=r"k must be a whole number, got 2\.5"):
        model.predict_top_k(X, k=2.5)
    with pytest.raises(ValueError, match=r"k must be between 1 and n_categories \(7\), got 8"):
        model.predict_top_k(X, k=8)


def test_fit_blocks__logs_one_line_per_epoch(caplog):
    X, rankings = draw_rows(9, n=20)
    with caplog.at_level(logging.INFO, logger="ammrank_dask.model.plane_model"):
        AMMRank(epochs=2).fit(X, rankings)
    assert [record.getMessage()[:23] for record in caplog.records] == [
        "epoch 1 of 2: 20 rows, ",
        "epoch 2 of 2: 20 rows, ",
    ]


def test_params__work_with_sklearn_clone():
    model = AMMRank(regularization=0.5, rank_weight="reciprocal").set_params(epochs=2)
    twin = clone(model)
    assert twin is not model
    assert twin.get_params() == model.get_params()
    assert twin.get_params()["epochs"] == 2
    assert "rank_weight='reciprocal'" in repr(twin)
    with pytest.raises(ValueError, match=r"Invalid parameter 'depth' for estimator AMMRank.*'average', 'bias'"):
        model.set_params(depth=1)


def test_params__are_the_shared_ones_and_those_of_the_class():
    assert set(AMMRank().get_params()) - set(AMM().get_params()) == {"rank_weight"}
    assert set(AMM().get_params()) < set(AMMRank().get_params())
    assert repr(AMM(epochs=2)) == "AMM(epochs=2)"
    with pytest.raises(TypeError, match="unexpected keyword argument 'rank_weight'"):
        AMM(rank_weight="uniform")


def test_fit__again_with_another_width_forgets_the_first():
    X, rankings = draw_rows(22, n=20)
    model = AMMRank().fit(X, rankings).fit(np.hstack([X, X]), rankings)
    assert model.n_features_in_ == 4
    np.testing.assert_array_equal(model.weights_, AMMRank().fit(np.hstack([X, X]), rankings).weights_)


@pytest.mark.parametrize("method", ["decision_function", "predict", "predict_top_k"])
def test_unfitted__is_refused(method):
    with pytest.raises(NotFittedError, match="this AMMRank is not fitted yet; call fit first"):
        getattr(AMMRank(), method)(np.zeros((1, 2)))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"regularization": 0.0}, "regularization must be above 0, got 0.0"),
        ({"regularization": float("nan")}, "regularization must be above 0, got nan"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": "3"}, "epochs must be a whole number, got '3'"),
        ({"n_categories": 2.5}, r"n_categories must be a whole number, got 2\.5"),
        ({"bias": "x"}, "bias must be finite, got 'x'"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
        ({"max_planes": 0}, "max_planes must be at least 1, got 0"),
        ({"rank_weight": "log"}, "rank_weight must be one of uniform, reciprocal, or numbers, got log"),
        (
            {"rank_weight": [1.0, -1.0]},
            r"rank_weight must be finite numbers from 0 up, one per rank, got \[1.0, -1.0\]",
        ),
        ({"prune_every": 0}, "prune_every must be at least 1, got 0"),
        ({"prune_c": -1.0}, "prune_c must be 0 or above, got -1.0"),
        ({"clone_probability": 1.5}, "clone_probability must be between 0 and 1, got 1.5"),
        ({"clone_decay": float("nan")}, "clone_decay must be between 0 and 1, got nan"),
        ({"bias": float("inf")}, "bias must be finite, got inf"),
        ({"n_categories": 0}, "n_categories must be at least 1, got 0"),
        ({"seed": -1}, "seed must be 0 or above, got -1"),
    ],
)
def test_fit__refuses_bad_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        AMMRank(**parameters).fit(np.ones((1, 1)), np.array([[0]]))


@pytest.mark.parametrize(
    ("X", "rankings", "message"),
    [
        ([[np.nan], [1.0]], [[0], [1]], "X must be finite in float32, found NaN or infinity"),
        ([[1e300], [1.0]], [[0], [1]], "X must be finite in float32"),
        ([1.0, 2.0], [[0], [1]], "X must have two dimensions, got 1"),
        ([[None], ["a"]], [[0], [1]], "X must hold numbers, found other values; fill or drop them"),
        ([["a"], ["b"]], [[0], [1]], "X must hold numbers, found <U1; convert them"),
        ([[1.0], [1.0]], [[0], [3]], "rankings must hold codes from 0 to 2, or -1, got 3"),
        ([[1.0], [1.0]], [[0], [-2]], "rankings must hold codes from 0 to 2, or -1, got -2"),
        ([[1.0], [1.0]], [[0, 1], [2, 2]], "a category once per row, found one twice in row 1"),
        ([[1.0], [1.0]], [[0, 1], [-1, 2]], "padded with -1 only at the end"),
        ([[1.0], [1.0]], [[-1], [-1]], "rankings must hold at least one category, found only -1"),
        ([[1.0], [1.0]], [[0]], r"whole numbers of shape \(2, m\), got int64 of \(1, 1\)"),
        ([[1.0], [1.0]], [[0.5], [1.0]], "whole numbers of shape"),
    ],
)
def test_fit__refuses_bad_rows(X, rankings, message):
    with pytest.raises(ValueError, match=message):
        AMMRank(n_categories=3).fit(np.array(X), np.array(rankings))


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([[1, -1, 0]], "ranks must be 1 or more, or 0 for unranked, got -1"),
        ([[1.0, 2.0, 0.0]], r"ranks must be whole numbers of shape \(n, n_categories\), got float64 of \(1, 3\)"),
        ([1, 2, 3], "ranks must be whole numbers of shape"),
        ([[1, 2]], r"ranks must have n_categories \(3\) columns, got 2"),
        ([[0, 0, 0]], "rankings must hold at least one category, found only -1"),
        ([[1, 2, 3], [1, 2, 3]], r"whole numbers of shape \(1, m\)"),
    ],
)
def test_fit__refuses_bad_ranks(ranks, message):
    with pytest.raises(ValueError, match=message):
        AMMRank(n_categories=3).fit(np.ones((1, 1)), ranks=np.array(ranks))


def test_fit__refuses_rankings_and_ranks_together_or_none():
    with pytest.raises(ValueError, match="fit must be given rankings or ranks, got neither"):
        AMMRank().fit(np.ones((1, 1)))
    with pytest.raises(ValueError, match="fit must be given rankings or ranks, got both"):
        AMMRank().fit(np.ones((1, 1)), np.array([[0]]), ranks=np.array([[1]]))


def test_fit__refuses_rankings_of_nothing_when_categories_are_counted():
    with pytest.raises(ValueError, match="found only -1; give labelled rows"):
        AMMRank().fit(np.ones((1, 1)), np.array([[-1]]))


def test_width__must_stay_the_same():
    X, rankings = draw_rows(10, n=20)
    with pytest.raises(ValueError, match=r"X must have [23] features, got [23]"):
        AMMRank().fit_blocks([(X, rankings), (np.ones((1, 3)), np.array([[0]]))])
    with pytest.raises(ValueError, match="X must have 2 features, got 3"):
        AMMRank().fit(X, rankings).predict(np.ones((1, 3)))


def test_save__keeps_everything(tmp_path):
    X, rankings = draw_rows(11)
    model = AMMRank(regularization=0.01, seed=7, n_categories=6, rank_weight=[1, 1, 0.5]).fit(X, rankings)
    model.categories_, model.columns_, model.variant_ = list("abcdef"), ["ü", "x"], "adv"
    for _ in range(2):  # the second save replaces the first
        model.save(tmp_path / "models" / "m")
    loaded = AMMRank.load(tmp_path / "models" / "m")
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["m"]
    assert loaded.get_params() == model.get_params()
    assert (loaded.categories_, loaded.columns_, loaded.variant_) == (list("abcdef"), ["ü", "x"], "adv")
    assert loaded.n_steps_ == model.n_steps_
    np.testing.assert_array_equal(loaded.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def model_arrays(**more):
    """The arrays of a model with 2 columns, 3 planes and 4 categories."""
    return {
        "weights": np.arange(9, dtype=np.float32).reshape(3, 3),
        "plane_category": np.array([0, 0, 3], np.int32),
        "popularity": np.array([5, 0, 0, 2]),
        **more,
    }


def test_save_model__same_model_same_bytes_and_no_pickle(tmp_path):
    arrays = model_arrays(weights=np.zeros((3, 0), np.float32), plane_category=np.zeros(0, np.int32))
    for name in "ab":
        save_model(tmp_path / name, arrays, {"n": 1, "names": ["x"]})
    files = {name: sorted(p.relative_to(tmp_path / name) for p in (tmp_path / name).rglob("*")) for name in "ab"}
    assert files["a"] == files["b"]
    for file in files["a"]:
        if (tmp_path / "a" / file).is_file():
            assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    loaded, attributes = read_model(tmp_path / "a")
    assert attributes == {"n": 1, "names": ["x"]}
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype


def test_save_model__is_two_files_that_numpy_reads_alone(tmp_path):
    arrays = model_arrays()
    arrays["weights"] = np.asfortranarray(arrays["weights"])
    save_model(tmp_path / "m", arrays, {"model": "amm-rank", "columns": ["ü", "x"]})
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["arrays.npz", "model.json"]
    about = json.loads((tmp_path / "m" / "model.json").read_text(encoding="utf-8"))
    assert (about["model"], about["columns"]) == ("amm-rank", ["ü", "x"])
    with np.load(tmp_path / "m" / "arrays.npz", allow_pickle=False) as found:
        assert found.files == sorted(arrays)
        assert found["weights"].flags.c_contiguous
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
    with zipfile.ZipFile(tmp_path / "m" / "arrays.npz") as file:
        stored = {(entry.compress_type, entry.date_time) for entry in file.infolist()}
    assert stored == {(zipfile.ZIP_STORED, (1980, 1, 1, 0, 0, 0))}  # no clock in the bytes


def test_save_model__failure_leaves_the_old_model(tmp_path):
    save_model(tmp_path / "m", model_arrays(), {})
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_model(tmp_path / "m", model_arrays(popularity=np.zeros(4, int)), {"bad": float("nan")})
    with pytest.raises(DamagedStore, match=r"a model part has unknown arrays \['a'\], lacks \[\]"):
        save_model(tmp_path / "m", model_arrays(a=np.ones(2)), {})
    np.testing.assert_array_equal(read_model(tmp_path / "m")[0]["popularity"], [5, 0, 0, 2])
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_save_model__leaves_other_files_alone(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-mother.txt").write_text("dear")
    with pytest.raises(BadInput, match=r"letters must be free or hold a model, found other files there; choose"):
        save_model(tmp_path / "letters", model_arrays(), {})
    assert [p.name for p in (tmp_path / "letters").iterdir()] == ["to-mother.txt"]


def test_read_model__refuses_what_was_not_written(tmp_path):
    with pytest.raises(BadInput, match="there must be a model at"):
        read_model(tmp_path / "none")
    save_model(tmp_path / "m", model_arrays(), {"model": "other"})
    with pytest.raises(BadInput, match="must be of amm-rank, got other"):
        AMMRank.load(tmp_path / "m")
    (tmp_path / "m" / "arrays.npz").unlink()
    with pytest.raises(DamagedStore, match=r"arrays\.npz is missing; train it again with `ammrank train`"):
        read_model(tmp_path / "m")


def test_read_model__refuses_another_format(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "FORMAT", 99)
    save_model(tmp_path / "m", model_arrays(), {})
    monkeypatch.undo()
    wanted = f"has format 99, this version reads {models.FORMAT}; train it again with `ammrank train`"
    with pytest.raises(BadInput, match=wanted):
        read_model(tmp_path / "m")


def test_read_model__decodes_no_array_before_its_checksum_is_compared(tmp_path):
    save_model(tmp_path / "m", model_arrays(), {})
    path = tmp_path / "m" / "arrays.npz"
    path.write_bytes(path.read_bytes().replace(b"'<f4'", b"'|O8'"))  # numpy would speak of pickles
    with pytest.raises(DamagedStore, match=r"arrays\.npz is not what was written \(checksum differs\); train it again"):
        read_model(tmp_path / "m")


def test_read_model__a_flipped_bit_in_any_file_is_refused_or_changes_nothing(tmp_path):
    arrays = model_arrays()
    attributes = {"name": "ä", "columns": ["ü", "x"], "numbers": [1, 2.5], "nothing": None}
    save_model(tmp_path / "m", arrays, attributes)
    files = sorted(path for path in (tmp_path / "m").rglob("*") if path.is_file())
    assert [path.name for path in files] == ["arrays.npz", "model.json"]
    refused = []
    for path in files:
        written = path.read_bytes()
        for place in range(0, len(written), 1 + len(written) // 40):
            path.write_bytes(written[:place] + bytes([written[place] ^ 0x14]) + written[place + 1 :])
            try:
                loaded, found = read_model(tmp_path / "m")
            except BadInput as error:
                refused.append(str(error))
            else:
                assert found == attributes
                for name, array in arrays.items():
                    np.testing.assert_array_equal(loaded[name], array)
        path.write_bytes(written)
    assert len(refused) > 50
    assert all(message.endswith("(checksum differs); train it again with `ammrank train`") for message in refused)


def test_read_model__in_many_threads_at_once(tmp_path):
    """Threads change places while one reads the header of an array: Python 3.11.7 loses count of its depth then."""
    save_model(tmp_path / "m", model_arrays(), {})

    def pause(phase, info):
        caller = sys._getframe().f_back
        if caller is not None and caller.f_code is ast.parse.__code__:
            time.sleep(1e-3)

    before = gc.get_threshold()
    gc.callbacks.append(pause)
    gc.set_threshold(1)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(read_model, [tmp_path / "m"] * 40))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(pause)
    assert all(sorted(arrays) == sorted(model_arrays()) for arrays, _ in found)
