"""Measure predicted scores against the rankings of the truth."""

import numpy as np

from ammrank_dask.kernels.measures import count_wrong_pairs
from ammrank_dask.kernels.topk import top_k_rows
from ammrank_dask.model.rankings import check_rankings

_CHUNK_ROWS = 16_384


def disagreement_error(scores: np.ndarray, rankings: np.ndarray, tied: np.ndarray | None = None) -> float:
    """Return ε_dis, the mean share of preferred pairs i ≻ j that the scores put the other way round.

    A row's share is (wrong pairs + ½ pairs of equal score) / (L_t (L − ½ (L_t + 1))), where L_t is the length
    of its ranking; pairs that tie in the ranking are not counted, above or below the line. Rows without a pair do
    not count.

    Parameters
    ----------
    scores
        (n, L), larger is better, no NaN; -inf is a score like any other.
    rankings
        (n, m) category codes, best first, padded with -1 at the end.
    tied
        (n, m) booleans, True where a category ties with the one before, as `rankings_from_ranks` returns it.

    Examples
    --------
    >>> disagreement_error(np.array([[3.0, 2.0, 1.0]]), np.array([[0, 2, -1]]))
    0.3333333333333333
    """
    errors = disagreement_errors(scores, rankings, tied)
    if np.isnan(errors).all():
        raise ValueError("rankings must hold at least one preferred pair, found none")
    return float(np.nanmean(errors))


def disagreement_errors(scores: np.ndarray, rankings: np.ndarray, tied: np.ndarray | None = None) -> np.ndarray:
    """Return the shares of each row (n,), of which `disagreement_error` is the mean; NaN for rows without a pair."""
    scores, rankings = _check(scores, rankings)
    wrong, n_pairs = np.empty(len(scores)), np.empty(len(scores))
    by_category = np.zeros(scores.shape[1])
    tied = _check_tied(tied, rankings)
    count_wrong_pairs(scores, rankings, tied, wrong, n_pairs, by_category, by_category.copy())
    return np.divide(wrong, n_pairs, out=np.full(len(scores), np.nan), where=n_pairs > 0)


def top_k_metrics(scores: np.ndarray, rankings: np.ndarray, k: int = 10) -> dict[str, np.ndarray]:
    """Return precision, recall, F1 and NDCG at 1 … k, each an array of length k.

    Relevant are the categories in the ranking, in any order. Precision, recall and NDCG are means over the
    rows with a ranking; F1 is the harmonic mean of mean precision and mean recall, as in the paper. Equal
    scores stand in the order of their codes.

    Parameters
    ----------
    scores
        (n, L), larger is better, no NaN; -inf is a score like any other.
    rankings
        (n, m) category codes, best first, padded with -1 at the end.

    Examples
    --------
    >>> top_k_metrics(np.array([[3.0, 2.0, 1.0]]), np.array([[0, 2]]), k=2)["recall"]
    array([0.5, 0.5])
    """
    scores, rankings = _check(scores, rankings)
    n_categories = scores.shape[1]
    if not 1 <= k <= n_categories:
        raise ValueError(f"k must be between 1 and n_categories ({n_categories}), got {k}")
    places = np.arange(1, k + 1)
    discount = 1 / np.log2(places + 1)
    ideal = np.cumsum(discount)
    hits, recall, ndcg = np.zeros(k), np.zeros(k), np.zeros(k)
    n_counted = 0
    for start in range(0, len(scores), _CHUNK_ROWS):
        chunk = rankings[start : start + _CHUNK_ROWS]
        length = (chunk >= 0).sum(axis=1)
        counted = length > 0
        chunk, length = chunk[counted], length[counted]
        chunk_scores = np.ascontiguousarray(scores[start : start + _CHUNK_ROWS][counted])
        codes = np.empty((len(chunk), k), np.int32)
        top_k_rows(chunk_scores, np.arange(n_categories, dtype=np.int32), codes, np.empty_like(codes, scores.dtype))
        relevant = np.take_along_axis(_membership(chunk, n_categories), codes, axis=1)
        found = np.cumsum(relevant, axis=1)
        hits += found.sum(axis=0)
        recall += (found / length[:, None]).sum(axis=0)
        best = ideal[np.minimum(places[None, :], length[:, None]) - 1]
        ndcg += (np.cumsum(relevant * discount, axis=1) / best).sum(axis=0)
        n_counted += len(chunk)
    if n_counted == 0:
        raise ValueError("rankings must hold at least one category, found only -1")
    precision, recall = hits / n_counted / places, recall / n_counted
    both = precision + recall
    f1 = np.divide(2 * precision * recall, both, out=np.zeros(k), where=both > 0)
    return {"precision": precision, "recall": recall, "f1": f1, "ndcg": ndcg / n_counted}


def _check(scores: np.ndarray, rankings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores, rankings = np.asarray(scores), np.asarray(rankings)
    if scores.dtype != np.float32:
        scores = scores.astype(np.float64)
    if scores.ndim != 2 or scores.shape[1] == 0:
        raise ValueError(f"scores must have the shape (n, n_categories), got {scores.shape}")
    check_rankings(rankings, n_rows=len(scores), n_categories=scores.shape[1])
    if np.isnan(scores).any():
        raise ValueError("scores must not be NaN, found some; give -inf to what should come last")
    return scores, rankings


def _check_tied(tied: np.ndarray | None, rankings: np.ndarray) -> np.ndarray:
    if tied is None or tied.size == 0:
        return np.zeros(rankings.shape, bool)
    if tied.shape != rankings.shape:
        raise ValueError(f"tied must have the shape of rankings, {rankings.shape}, got {tied.shape}")
    return tied


def _membership(rankings: np.ndarray, n_categories: int) -> np.ndarray:
    """Return (n, L) booleans: the category is in the ranking."""
    inside = np.zeros((len(rankings), n_categories + 1), bool)
    # The code -1 falls into a last column, which is cut off.
    np.put_along_axis(inside, rankings.astype(np.int64) % (n_categories + 1), True, axis=1)
    return inside[:, :n_categories]
