"""Add up what measures rankings over rows: `measure_rows` is the chunk step, `+` combines, the properties finalize."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ammrank_dask.kernels.measures import count_wrong_pairs
from ammrank_dask.kernels.topk import top_k_rows

_CHUNK_ROWS = 16_384
_ROWS, _RANKED, _ERROR, _FIRST = 0, 1, 2, 3
"""Columns of values: rows, rows with a preferred pair, their errors; then k each of hits, recall and NDCG."""


@dataclass(frozen=True)
class RankingSums:
    """Sums over rows.

    `values` is (3 + 3k,), or (n, 3 + 3k) for n sets of rows; the measures have the same leading axis.
    """

    values: np.ndarray

    def __add__(self, other: RankingSums) -> RankingSums:
        """Return the sums of both sets of rows."""
        return RankingSums(self.values + other.values)

    @property
    def k(self) -> int:
        """Top places measured."""
        return (self.values.shape[-1] - _FIRST) // 3

    @property
    def n_rows(self) -> int:
        """Rows added up."""
        return int(self.values[..., _ROWS])

    @property
    def disagreement(self) -> np.ndarray:
        """ε_dis, the mean over rows with a preferred pair; NaN without any."""
        with np.errstate(invalid="ignore"):
            error: np.ndarray = self.values[..., _ERROR] / self.values[..., _RANKED]
        return error

    @property
    def precision(self) -> np.ndarray:
        """Precision at 1 … k."""
        return self._mean(0) / np.arange(1, self.k + 1)

    @property
    def recall(self) -> np.ndarray:
        """Recall at 1 … k."""
        return self._mean(1)

    @property
    def f1(self) -> np.ndarray:
        """Harmonic mean of mean precision and mean recall at 1 … k, as in the paper."""
        precision, recall = self.precision, self.recall
        both = precision + recall
        return np.divide(2 * precision * recall, both, out=np.zeros_like(both), where=both > 0)

    @property
    def ndcg(self) -> np.ndarray:
        """NDCG with binary relevance at 1 … k."""
        return self._mean(2)

    def _mean(self, measure: int) -> np.ndarray:
        start = _FIRST + measure * self.k
        with np.errstate(invalid="ignore"):
            mean: np.ndarray = self.values[..., start : start + self.k] / self.values[..., [_ROWS]]
        return mean


@dataclass(frozen=True)
class RowMeasures:
    """What was measured of every row, (n, 3 + 3k), and the wrong and all pairs by preferred category, (L,)."""

    values: np.ndarray
    category_wrong: np.ndarray
    category_pairs: np.ndarray

    @property
    def is_ranked(self) -> np.ndarray:
        """Rows with a preferred pair."""
        return self.values[:, _RANKED] > 0

    @property
    def error(self) -> np.ndarray:
        """Share of wrong pairs, 0 for rows without a pair."""
        return self.values[:, _ERROR]

    def sum(self) -> RankingSums:
        """Return the sums over the rows."""
        # Column by column: numpy then adds pairwise, which rounds less than adding row to row.
        return RankingSums(np.array([column.sum() for column in self.values.T]))


def measure_rows(scores: np.ndarray, rankings: np.ndarray, tied: np.ndarray, k: int) -> RowMeasures:
    """Measure every row; equal scores stand in the order of their codes, and count half in the error.

    Parameters
    ----------
    scores
        (n, L), no NaN.
    rankings, tied
        (n, m) codes, best first, -1 after the last, every row with at least one; `tied` as `rankings_from_ranks`
        returns it, of the same shape.
    k
        Top places to measure; with fewer categories the places after the last are empty.
    """
    n_rows, n_categories = scores.shape
    wrong, pairs = np.empty(n_rows), np.empty(n_rows)
    category_wrong, category_pairs = np.zeros(n_categories), np.zeros(n_categories)
    count_wrong_pairs(scores, rankings, tied, wrong, pairs, category_wrong, category_pairs)
    values = np.empty((n_rows, _FIRST + 3 * k))
    values[:, _ROWS], values[:, _RANKED] = 1.0, pairs > 0
    values[:, _ERROR] = np.divide(wrong, pairs, out=np.zeros(n_rows), where=pairs > 0)
    for start in range(0, n_rows, _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        _measure_top(scores[part], rankings[part], k, values[part, _FIRST:])
    return RowMeasures(values, category_wrong, category_pairs)


def _measure_top(scores: np.ndarray, rankings: np.ndarray, k: int, out_values: np.ndarray) -> None:
    """Write hits, recall and NDCG at 1 … k, one after the other."""
    n_rows, n_categories = scores.shape
    filled = min(k, n_categories)
    codes = np.empty((n_rows, filled), np.int32)
    by_code = np.arange(n_categories, dtype=np.int32)
    top_k_rows(np.ascontiguousarray(scores), by_code, codes, np.empty((n_rows, filled), scores.dtype))
    inside = np.zeros((n_rows, n_categories + 1), bool)
    # The code -1 falls into a last column, which no top place has.
    np.put_along_axis(inside, rankings.astype(np.int64) % (n_categories + 1), True, axis=1)
    relevant = np.zeros((n_rows, k))
    relevant[:, :filled] = np.take_along_axis(inside, codes, axis=1)
    places = np.arange(1, k + 1)
    length = (rankings >= 0).sum(axis=1)[:, None]
    hits = np.cumsum(relevant, axis=1)
    discount = 1 / np.log2(places + 1)
    ideal = np.cumsum(discount)[np.minimum(places, length) - 1]
    out_values[:, :k] = hits
    out_values[:, k : 2 * k] = hits / length
    out_values[:, 2 * k :] = np.cumsum(relevant * discount, axis=1) / ideal
