"""The disagreement error and the top-K measures."""

import numpy as np
import pytest
import reference_methods as plain
import reference_ranking
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from ammrank_dask.evaluation.measures import TOP, Measures, measure_block
from ammrank_dask.model import metrics, ranking_sums
from ammrank_dask.model.metrics import disagreement_error, top_k_metrics
from ammrank_dask.model.rows import rankings_from_ranks


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


@pytest.mark.parametrize("seed", range(3))
def test_disagreement_error__equals_twin(seed):
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
    with pytest.raises(ValueError, match="k must be a whole number, got '1'"):
        top_k_metrics(np.zeros((1, 2)), np.array([[0]]), k="1")
    with pytest.raises(ValueError, match=rf"k must be between 1 and n_categories \(2\), got {k}"):
        top_k_metrics(np.zeros((1, 2)), np.array([[0]]), k=k)


def test_disagreement_error__tied_pairs_do_not_count():
    # 0 and 1 tie above 2: two pairs, of which 1 ≻ 2 is wrong.
    rankings, tied = rankings_from_ranks(np.array([[1, 1, 2]]))
    assert disagreement_error(np.array([[3.0, 1.0, 2.0]]), rankings, tied) == 0.5
    with pytest.raises(ValueError, match=r"tied must have the shape of rankings, \(1, 3\), got \(1, 2\)"):
        disagreement_error(np.zeros((1, 3)), rankings, tied[:, :2])
    with pytest.raises(ValueError, match="at least one preferred pair"):
        disagreement_error(np.zeros((1, 2)), *rankings_from_ranks(np.array([[1, 1]])))


@st.composite
def predictions(draw):
    n_categories, n_rows = draw(st.integers(2, 13)), draw(st.integers(1, 9))
    cells = n_rows * n_categories
    ranks = draw(st.lists(st.integers(0, 4), min_size=cells, max_size=cells))
    scores = draw(st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, 3.0]), min_size=cells, max_size=cells))
    ranks = np.array(ranks).reshape(n_rows, n_categories)
    kept = ranks.any(axis=1)
    return np.array(scores).reshape(n_rows, n_categories)[kept], ranks[kept]


def measure(scores, ranks, slices=None):
    rankings, tied = rankings_from_ranks(ranks)
    tied = tied if tied.size else np.zeros(rankings.shape, bool)
    hashes = np.arange(len(ranks), dtype=np.uint64)
    return measure_block(scores, rankings, tied, hashes, slices or {})


@given(predictions(), st.sampled_from([2, 1000]))
@examples(150)
def test_measure_block__equals_brute_force(case, chunk_rows):
    scores, ranks = case
    if not len(ranks):
        return
    before = ranking_sums._CHUNK_ROWS
    ranking_sums._CHUNK_ROWS = chunk_rows
    try:
        found = measure(scores, ranks)
    finally:
        ranking_sums._CHUNK_ROWS = before
    errors = [plain.disagreement_of(row, rank) for row, rank in zip(scores, ranks, strict=True)]
    errors = [error for error in errors if error is not None]
    if errors:
        assert found.disagreement == pytest.approx(np.mean(errors))
    else:
        assert np.isnan(found.disagreement)
    top = [plain.top_k_of(row, rank, TOP) for row, rank in zip(scores, ranks, strict=True)]
    hits, recall, ndcg = (np.mean([row[i] for row in top], axis=0) for i in range(3))
    precision = hits / np.arange(1, TOP + 1)
    np.testing.assert_allclose(found.precision, precision)
    np.testing.assert_allclose(found.recall, recall)
    np.testing.assert_allclose(found.ndcg, ndcg)
    both = np.where(precision + recall > 0, precision + recall, 1)
    np.testing.assert_allclose(found.f1, 2 * precision * recall / both)
    assert found.n_users == len(ranks)
    if (ranks > 0).all() and errors:
        assert found.kendall_tau == pytest.approx(1 - 2 * np.mean(errors))
    else:
        assert found.kendall_tau is None or np.isnan(found.kendall_tau)


def test_measures__kendall_tau_by_hand():
    # Pairs of 0 ≻ 1 ≻ 2: 0 over 1 right, 0 over 2 right, 1 over 2 wrong: τ = (2 − 1) / 3.
    assert measure(np.array([[3.0, 1.0, 2.0]]), np.array([[1, 2, 3]])).kendall_tau == pytest.approx(1 / 3)


def test_measures__parts_add_up_to_the_whole():
    rng = np.random.default_rng(4)
    scores, ranks = rng.integers(0, 5, (40, 6)).astype(float), rng.integers(0, 4, (40, 6))
    ranks[:, 0] = np.maximum(ranks[:, 0], 1)
    rankings, tied = rankings_from_ranks(ranks)
    hashes = rng.integers(0, 2**63, 40).astype(np.uint64)
    group = rng.integers(-1, 3, 40)

    def part(rows):
        return measure_block(scores[rows], rankings[rows], tied[rows], hashes[rows], {"group": (group[rows], 3)})

    whole, parts = part(slice(None)), part(slice(0, 13)) + part(slice(13, 40))
    np.testing.assert_allclose(parts.sums.values, whole.sums.values)
    np.testing.assert_allclose(parts.replicates.values, whole.replicates.values)
    assert parts.n_complete == whole.n_complete
    for name in ("group", "category"):
        np.testing.assert_allclose(parts.slices[name].error, whole.slices[name].error)
        np.testing.assert_array_equal(parts.slices[name].count, whole.slices[name].count)


def test_measures__slices_by_hand():
    scores, ranks = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]), np.array([[1, 2, 0], [1, 2, 0]])
    found = measure(scores, ranks, {"gender": (np.array([1, -1]), 2)})
    # Row 0 has no wrong pair; in row 1 category 0 loses both of its pairs and category 1 its only one.
    np.testing.assert_array_equal(found.slices["category"].error, [2, 1, 0])
    np.testing.assert_array_equal(found.slices["category"].count, [4, 2, 0])
    np.testing.assert_array_equal(found.slices["gender"].error, [0, 0])
    np.testing.assert_array_equal(found.slices["gender"].count, [0, 1])


def bootstrap_truth(n=4000):
    rng = np.random.default_rng(9)
    ranks = np.zeros((n, 5), np.int64)
    ranks[:, 0] = 1
    return rng, ranks, rng.integers(0, 2**63, n).astype(np.uint64)


def test_interval__is_that_of_the_normal_law():
    rng, ranks, hashes = bootstrap_truth()
    rankings, tied = rankings_from_ranks(ranks)
    tied = np.zeros(rankings.shape, bool)
    found = measure_block(rng.random((4000, 5)), rankings, tied, hashes, {})
    low, high = found.interval("disagreement")
    # Errors are even on 0, ¼, ½, ¾, 1: a deviation of √⅛.
    expected = 1.96 * np.sqrt(1 / 8 / 4000)
    assert (high - low) / 2 == pytest.approx(expected, rel=0.2)
    assert low < found.disagreement < high
    assert found.interval("f1").shape == (2, TOP)


def test_difference__is_paired():
    rng, ranks, hashes = bootstrap_truth()
    rankings, _ = rankings_from_ranks(ranks)
    tied = np.zeros(rankings.shape, bool)
    scores = rng.random((4000, 5))
    one = measure_block(scores, rankings, tied, hashes, {})
    scores[:400, 0] = 2.0  # a few users become right, all others stay as they were
    other = measure_block(scores, rankings, tied, hashes, {})
    change, low, high = other.difference(one)
    assert change == pytest.approx(other.disagreement - one.disagreement)
    assert low < change < high < 0
    # Far narrower than the intervals of both.
    assert high - low < 0.5 * np.diff(one.interval("disagreement"))[0]
    assert isinstance(one + other, Measures)
