"""Looking forward: measures of lists by hand, and their paired differences over partitions."""

import json
import math

import numpy as np
import pytest

from ammrank_dask import AMMRank
from ammrank_dask.evaluation.compare import fit_on_window
from ammrank_dask.evaluation.summary import describe_sources
from ammrank_dask.features.store import open_features
from ammrank_dask.features.write import write_features
from ammrank_dask.methods.own import ItemKnn
from ammrank_dask.model.search import Trial, Tuning
from ammrank_dask.training.forward import MEASURES, ForwardResult, compare_forward, measure_scores

COLUMNS = ["pv:intensity:a", "pv:intensity:b", "pv:intensity:c"]
# Scores are the rows themselves. The last user has no event, so is not asked.
ROWS = np.array([[3, 2, 1], [1, 2, 3], [2, 3, 1], [0, 0, 0]], np.float32)
RANKINGS = np.array([[0, 2], [0, -1], [1, -1], [0, -1]], np.int32)
DISCOUNT = 1 / math.log2(3)
# Of lists of two. User 0 clicked 0 and 2, the list is 0, 1; pairs 0≻1, 0≻2, 2≻1, the last one wrong. User 1 clicked
# 0, the list is 2, 1, and both pairs are wrong. User 2 clicked 1, the list is 1, 0, and nothing is wrong.
BY_HAND = {
    "hits": [1, 0, 1], "ndcg": [1 / (1 + DISCOUNT), 0, 1], "precision_1": [1, 0, 1], "disagreement": [1 / 3, 1, 0],
}  # fmt: skip
# The other way round, scores are -x: lists 2, 1 and 0, 1 and 2, 0; of the pairs those are wrong that were right.
TURNED = {
    "hits": [1, 1, 0], "ndcg": [1 / (1 + DISCOUNT), 1, 0], "precision_1": [1, 1, 0], "disagreement": [2 / 3, 0, 1],
}  # fmt: skip


def one_plane_model(weights):
    """Return a model with one plane per category and no bias."""
    n = len(weights)
    model = AMMRank(bias=0.0, n_categories=n)
    with_bias = np.vstack([np.array(weights, np.float32).T, np.zeros((1, n), np.float32)])
    model.set_planes(with_bias, np.arange(n), np.ones(n, np.int64), n_steps=1)
    return model


def test_measure_scores__by_hand():
    for scores, expected in ((ROWS[:3], BY_HAND), (-ROWS[:3], TURNED)):
        measured = measure_scores(scores, RANKINGS[:3], np.arange(3, dtype=np.int32), 2)
        assert dict(zip(MEASURES, measured, strict=True)) == {
            name: pytest.approx(values) for name, values in expected.items()
        }


def test_measure_scores__equal_scores_are_in_the_order_of_ties_and_half_wrong():
    scores, rankings = np.zeros((1, 3), np.float32), np.array([[2, -1]], np.int32)
    measured = measure_scores(scores, rankings, np.array([1, 2, 0], np.int32), 2)
    assert measured[:, 0] == pytest.approx([1, DISCOUNT, 0, 0.5])


@pytest.mark.parametrize("n_partitions", [1, 3])
def test_compare_forward__differences_are_paired_by_user(client, tmp_path, n_partitions):
    write_features(
        tmp_path / "features", ROWS, np.arange(4), COLUMNS, RANKINGS, categories=list("abc"), n_partitions=n_partitions,
        normalize=False,
    )  # fmt: skip
    one_plane_model(np.eye(3)).save(tmp_path / "saved")
    models = {"saved": tmp_path / "saved", "turned": one_plane_model(-np.eye(3))}
    result = compare_forward(client, open_features(tmp_path / "features"), models, k=2)
    assert (result.k, result.n_users) == (2, 3)
    for measure in MEASURES:
        ours, other = np.array(BY_HAND[measure]), np.array(TURNED[measure])
        assert result.mean("saved", measure) == pytest.approx(ours.mean())
        assert result.mean("turned", measure) == pytest.approx(other.mean())
        error = (ours - other).std(ddof=1) / math.sqrt(3)
        assert result.gain("turned", measure) == pytest.approx(((ours - other).mean(), error), abs=1e-12)
        assert result.gain("saved", measure, of="turned") == pytest.approx(((other - ours).mean(), error), abs=1e-12)


def test_compare_forward__asks_as_many_of_the_first_partitions_as_are_enough(client, tmp_path):
    rows, rankings = np.tile(ROWS[:3], (40, 1)), np.tile(RANKINGS[:3], (40, 1))
    write_features(
        tmp_path / "features", rows, np.arange(120), COLUMNS, rankings, categories=list("abc"), n_partitions=3,
        normalize=False,
    )  # fmt: skip
    features, models = open_features(tmp_path / "features"), {"model": one_plane_model(np.eye(3))}
    sizes = [len(features.partition(number).user_ids) for number in range(3)]
    assert min(sizes) > 0
    for enough, parts in ((1, 1), (sizes[0], 1), (sizes[0] + 1, 2), (119, 3), (1000, 3), (None, 3)):
        assert compare_forward(client, features, models, k=2, enough_users=enough).n_users == sum(sizes[:parts])


@pytest.mark.parametrize(
    ("hits", "squares", "expected"),
    [
        ([8.0, 3.0, 0, 0], [8.0, 1.0, 0, 0], True),  # 1 more, ± √(1/3)
        ([6.0, 3.0, 0, 0], [8.0, 1.0, 0, 0], False),  # a half, ± √(7/12)
        ([4.0, 3.0, 0, 0], [0.0, 0.36, 0, 0], True),  # equal hits; NDCG has a quarter more, ± √(0.0275/3)
        ([4.0, 3.0, 0, 0], [4.0, 0.36, 0, 0], False),  # as many hits, but of other users
        ([4.0, 2.0, 0, 0], [0.0, 0.0, 0, 0], False),
    ],
)
def test_is_ahead__by_hits_or_where_all_users_have_equal_ones_by_ndcg(hits, squares, expected):
    sums = {"own": np.array([4.0, 2.0, 0, 0]), "model": np.array(hits)}
    result = ForwardResult(10, 4, sums, {("own", "model"): np.array(squares)})
    assert result.is_ahead("model", "own") is expected
    assert not result.is_ahead("own", "model")


def test_describe_sources__differences_are_from_the_first():
    sums = {"own-history": np.array([4.0, 2.0, 2.0, 1.0]), "model": np.array([8.0, 3.0, 2.0, 0.5])}
    squares = {("own-history", "model"): np.array([8.0, 1.0, 0.0, 0.25])}
    described = describe_sources(ForwardResult(10, 4, sums, squares))
    assert (described["reference"], described["users"], described["k"]) == ("own-history", 4, 10)
    assert described["sources"]["own-history"]["hits"] == {"mean": 1.0}
    # Hits differ by 1 on average and by 8/4 - 1² = 1 in their variance, so the error is √(1/3).
    hits = {"mean": 2.0, "difference": 1.0, "standard_error": pytest.approx(math.sqrt(1 / 3))}
    assert described["sources"]["model"]["hits"] == hits
    # ε_dis by -1/8, and 1/16 - 1/64 = 3/64 in its variance.
    error = {"mean": 0.125, "difference": -0.125, "standard_error": pytest.approx(math.sqrt(3 / 64 / 3))}
    assert described["sources"]["model"]["disagreement"] == error


def test_tuning__by_hand():
    sums = {"0": np.array([8.0, 3.0, 2.0, 0.5]), "1": np.array([12.0, 2.0, 2.0, 1.0]), "2": np.array([8.0, 3, 2, 1])}
    squares = {("0", "1"): np.array([8.0, 1.0, 0.0, 0.25]), ("0", "2"): np.array([8.0, 0, 0, 0])}
    settings = [{"kappa": 0.005}, {"kappa": 0.1}, {"kappa": 0.001}]
    tuning = ForwardResult(10, 4, sums, squares).tuning(settings)
    # Hits of the second are 1 above those of the first, with the error √(1/3); those of the third are the same.
    second = Trial({"kappa": 0.1}, 0.25, 1.0, pytest.approx(math.sqrt(1 / 3)), 3.0)
    assert tuning.trials[1] == second
    assert (tuning.trials[0].gain, tuning.trials[0].standard_error, tuning.trials[2].gain) == (0, 0, 0)
    assert tuning.best == {"kappa": 0.1}
    assert Tuning.from_json(json.loads(json.dumps(tuning.to_json()))) == tuning
    assert [line.split() for line in tuning.to_text().splitlines()] == [
        ["kappa", "ε_dis", "versus", "the", "first", "hits@10"],
        ["0.1", "0.2500", "+1.0000", "±", "0.5774", "3.000", "*"],
        ["0.005", "0.1250", "+0.0000", "±", "0.0000", "2.000"],
        ["0.001", "0.2500", "+0.0000", "±", "0.8165", "2.000"],
    ]


@pytest.mark.parametrize("n_partitions", [1, 3])
def test_fit_on_window__partitions_are_one_set_of_rows(tmp_path, n_partitions):
    rng = np.random.default_rng(4)
    rows, rankings = rng.random((40, 3)).astype(np.float32), rng.integers(0, 3, (40, 1))
    write_features(
        tmp_path / "features", rows, np.arange(40), COLUMNS, rankings, categories=list("abc"), n_partitions=n_partitions
    )
    fitted = fit_on_window("item-knn", tmp_path / "features", None, 0)
    expected = ItemKnn(n_categories=3).fit(rows, rankings)
    assert fitted.decision_function(rows) == pytest.approx(expected.decision_function(rows), abs=1e-5)
    assert fit_on_window("own-logit", tmp_path / "features", None, 0).columns_.tolist() == [[0, 1, 2]]


def test_fit_on_window__a_method_that_cannot_be_fitted_is_none(tmp_path):
    write_features(
        tmp_path / "features", ROWS, np.arange(4), COLUMNS, np.full((4, 1), -1), categories=list("abc"), n_partitions=1
    )
    assert fit_on_window("item-knn", tmp_path / "features", None, 0) is None
