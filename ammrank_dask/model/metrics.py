"""Measure predicted scores against the rankings of the truth."""

import numpy as np

from ammrank_dask.kernels.measures import count_wrong_pairs
from ammrank_dask.model.ranking_sums import RankingSums, measure_rows
from ammrank_dask.model.rows import check_rankings
from ammrank_dask.storage.in_memory import check_in_memory
from ammrank_dask.storage.numbers import list_length

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
    return mean_error(disagreement_errors(scores, rankings, tied))


def mean_error(errors: np.ndarray) -> float:
    """Return the mean of the errors of rows that have a pair."""
    if np.isnan(errors).all():
        raise ValueError("rankings must hold at least one preferred pair, found none")
    return float(np.nanmean(errors))


def disagreement_errors(scores: np.ndarray, rankings: np.ndarray, tied: np.ndarray | None = None) -> np.ndarray:
    """Return the disagreement error of each row (n,); NaN for rows without a pair."""
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
    k = list_length(k, n_categories)
    counted = np.flatnonzero((rankings >= 0).any(axis=1))
    if not len(counted):
        raise ValueError("rankings must hold at least one category, found only -1")
    sums: RankingSums | None = None
    for start in range(0, len(counted), _CHUNK_ROWS):
        rows = counted[start : start + _CHUNK_ROWS]
        tied = np.zeros((len(rows), rankings.shape[1]), bool)
        chunk = measure_rows(scores[rows], rankings[rows], tied, k).sum()
        sums = chunk if sums is None else sums + chunk
    assert sums is not None
    return {name: getattr(sums, name) for name in ("precision", "recall", "f1", "ndcg")}


def _check(scores: np.ndarray, rankings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    check_in_memory("scores", scores)
    check_in_memory("rankings", rankings)
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
