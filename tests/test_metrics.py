"""The disagreement error and the top-K measures."""

import numpy as np
import pytest
import reference_ranking

from ammrank_dask import metrics
from ammrank_dask.metrics import disagreement_error, top_k_metrics


def draw_truth(seed, n=60, n_categories=7, m=4):
    rng = np.random.default_rng([5, seed])
    scores = rng.integers(0, 5, (n, n_categories)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.1] = -np.inf
    rankings = np.argsort(rng.random((n, n_categories)), axis=1)[:, :m]
    rankings[np.arange(m)[None, :] >= rng.integers(0, m + 1, n)[:, None]] = -1
    return scores, rankings


def test_disagreement_error__by_hand():
    scores = np.array([[4.0, 3.0, 2.0, 1.0]])
    assert disagreement_error(scores, np.array([[0, 1]])) == 0.0
    # Pairs of 3 ≻ 0: 3 loses to 0, 1, 2; 0 wins against 1, 2. Five pairs, three wrong.
    assert disagreement_error(scores, np.array([[3, 0]])) == pytest.approx(3 / 5)
    assert disagreement_error(scores, np.array([[3, 2, 1, 0]])) == 1.0


def test_disagreement_error__equal_scores_count_half():
    assert disagreement_error(np.zeros((2, 3)), np.array([[0, 1], [2, -1]])) == 0.5
    assert disagreement_error(np.full((1, 2), -np.inf), np.array([[1]])) == 0.5


def test_disagreement_error__rows_without_ranking_do_not_count():
    scores = np.array([[1.0, 2.0], [1.0, 2.0]])
    assert disagreement_error(scores, np.array([[0], [-1]])) == 1.0


@pytest.mark.parametrize("chunk_rows", [7, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_disagreement_error__equals_twin(seed, chunk_rows, monkeypatch):
    monkeypatch.setattr(metrics, "_CHUNK_ROWS", chunk_rows)
    scores, rankings = draw_truth(seed)
    assert disagreement_error(scores, rankings) == pytest.approx(reference_ranking.disagreement(scores, rankings))


def test_top_k_metrics__by_hand():
    result = top_k_metrics(np.array([[4.0, 3.0, 2.0, 1.0]]), np.array([[2, 0]]), k=3)
    np.testing.assert_allclose(result["precision"], [1, 1 / 2, 2 / 3])
    np.testing.assert_allclose(result["recall"], [1 / 2, 1 / 2, 1])
    np.testing.assert_allclose(result["f1"], [2 / 3, 1 / 2, 4 / 5])
    ideal = 1 + 1 / np.log2(3)
    np.testing.assert_allclose(result["ndcg"], [1, 1 / ideal, 1.5 / ideal])


def test_top_k_metrics__f1_is_of_the_means():
    # Precision 1 and 1, recall ½ and 1: the harmonic mean of 1 and ¾, not the mean of ⅔ and 1.
    scores = np.array([[2.0, 1.0], [2.0, 1.0]])
    result = top_k_metrics(scores, np.array([[0, 1], [0, -1]]), k=1)
    np.testing.assert_allclose(result["f1"], [2 * 1 * 0.75 / 1.75])


@pytest.mark.parametrize("chunk_rows", [7, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_top_k_metrics__equals_twin(seed, chunk_rows, monkeypatch):
    monkeypatch.setattr(metrics, "_CHUNK_ROWS", chunk_rows)
    scores, rankings = draw_truth(seed)
    result = top_k_metrics(scores, rankings, k=5)
    for name, expected in reference_ranking.top_k_measures(scores, rankings, 5).items():
        np.testing.assert_allclose(result[name], expected, err_msg=name)


@pytest.mark.parametrize(
    ("scores", "rankings", "message"),
    [
        (np.zeros(3), np.zeros((3, 1), int), r"scores must have the shape \(n, n_categories\), got \(3,\)"),
        (np.full((1, 2), np.nan), np.zeros((1, 1), int), "scores must not be NaN"),
        (np.zeros((1, 2)), np.array([[2]]), "rankings must hold codes from 0 to 1, or -1, got 2"),
        (np.zeros((2, 2)), np.array([[0]]), r"whole numbers of shape \(2, m\)"),
        (np.zeros((1, 2)), np.array([[-1]]), "rankings must hold at least one"),
    ],
)
@pytest.mark.parametrize("measure", [disagreement_error, lambda s, r: top_k_metrics(s, r, k=1)])
def test_metrics__refuse_what_cannot_be_measured(measure, scores, rankings, message):
    with pytest.raises(ValueError, match=message):
        measure(scores, rankings)


@pytest.mark.parametrize("k", [0, 3])
def test_top_k_metrics__refuses_k_out_of_range(k):
    with pytest.raises(ValueError, match=rf"k must be between 1 and n_categories \(2\), got {k}"):
        top_k_metrics(np.zeros((1, 2)), np.array([[0]]), k=k)
