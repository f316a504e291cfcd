"""Predict a central ranking: of all users, of the user's age and gender group, or of the nearest users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from sklearn.neighbors import NearestNeighbors

from ammrank_dask.kernels.mallows import add_pairs, center_of_neighbors, center_order
from ammrank_dask.methods.base import LabelledBlocks, Method
from ammrank_dask.model.estimator import SCORE_ROWS

EXACT_CATEGORIES = 8
"""Up to so many categories the centre is found by trying all sets; above, by local improvement."""
DENSE_BYTES = 1 << 30
"""Sampled rows are kept dense for the search up to this size: three times as fast as sparse at 80 values a row."""


def count_preferences(rankings: np.ndarray, tied: np.ndarray, n_categories: int) -> np.ndarray:
    """Return (L, L) int64, how many rankings prefer i over j; counts of several blocks add up.

    Examples
    --------
    >>> count_preferences(np.array([[1, 0]]), np.array([[False, False]]), 3)
    array([[0, 0, 1],
           [1, 0, 1],
           [0, 0, 0]])
    """
    counts = np.zeros((n_categories, n_categories), np.int64)
    add_pairs(rankings, tied, np.arange(len(rankings)), counts)
    return counts


def find_center(counts: np.ndarray, tie_order: np.ndarray) -> np.ndarray:
    """Return the categories in the order that contradicts the fewest preferences, as far as the search finds it.

    The search starts with Borda's order and moves one category at a time while that helps, so it is never worse than
    Borda's; up to `EXACT_CATEGORIES` categories it is exact.
    """
    order = np.empty(len(counts), np.int64)
    center_order(counts, tie_order.astype(np.int64), EXACT_CATEGORIES, order)
    return order


def scores_of_order(order: np.ndarray) -> np.ndarray:
    """Return L for the first category of an order down to 1 for the last (float32)."""
    scores = np.empty(len(order), np.float32)
    scores[order] = np.arange(len(order), 0, -1)
    return scores


class CentralMallows(Method):
    """Predict for everybody the Mallows centre of the training rankings.

    Examples
    --------
    >>> CentralMallows().fit(np.zeros((3, 1)), np.array([[1, 0], [1, 2], [1, -1]])).predict(np.zeros((1, 1)))
    array([[1, 0, 2]], dtype=int32)
    """

    method: ClassVar[str] = "central-mal"

    def __init__(self, *, n_categories: int | None = None) -> None:
        self.n_categories = n_categories

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Add up the preferred pairs of all blocks and find their centre."""
        counts = np.zeros((n_categories, n_categories), np.int64)
        for _, rankings, tied in blocks:
            counts += count_preferences(rankings, tied, n_categories)
        self.order_ = find_center(counts, self.tie_order_)

    def score(self, X: Any) -> np.ndarray:
        """Return the same scores for every row."""
        return np.tile(scores_of_order(self.order_), (X.shape[0], 1))


class GroupMallows(Method):
    """Predict the Mallows centre of the user's group, for example of the same age and gender.

    Parameters
    ----------
    group_columns
        Sets of columns of which a row has at most one: a set for the age buckets, one for the genders. Rows with the
        same column in every set are a group; none is a value like any other.
    min_rows
        Groups of fewer training rows are predicted the centre of all.

    Attributes
    ----------
    group_orders_
        By group, a tuple with a position in each set (-1 for none), the categories of its centre, best first.
    """

    method: ClassVar[str] = "ag-mal"
    grid: ClassVar[Sequence[dict[str, Any]]] = ({"min_rows": 30}, {"min_rows": 300})

    def __init__(
        self,
        *,
        group_columns: Sequence[Sequence[int]] = (),
        min_rows: int = 30,
        n_categories: int | None = None,
    ) -> None:
        self.group_columns = group_columns
        self.min_rows = min_rows
        self.n_categories = n_categories

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Add up the preferred pairs of every group and find the centres."""
        sizes = [len(columns) + 1 for columns in self.group_columns]
        n_groups = int(np.prod(sizes, dtype=np.int64))
        counts = np.zeros((n_groups, n_categories, n_categories), np.int64)
        n_rows = np.zeros(n_groups, np.int64)
        for X, rankings, tied in blocks:
            group = self._groups(X)
            n_rows += np.bincount(group, minlength=n_groups)
            for number in np.unique(group):
                add_pairs(rankings, tied, np.flatnonzero(group == number), counts[number])
        overall = find_center(counts.sum(axis=0), self.tie_order_)
        self._scores = np.tile(scores_of_order(overall), (n_groups, 1))
        self.group_orders_: dict[tuple[int, ...], np.ndarray] = {}
        for number in np.flatnonzero(n_rows >= self.min_rows):
            order = find_center(counts[number], self.tie_order_)
            self._scores[number] = scores_of_order(order)
            place = np.unravel_index(number, sizes) if sizes else ()
            self.group_orders_[tuple(int(i) - 1 for i in place)] = order

    def score(self, X: Any) -> np.ndarray:
        """Return the scores of each row's group."""
        scores: np.ndarray = self._scores[self._groups(X)]
        return scores

    def _groups(self, X: Any) -> np.ndarray:
        """Return the number of each row's group."""
        group = np.zeros(X.shape[0], np.int64)
        for columns in self.group_columns:
            values = X[:, list(columns)].toarray()
            group = group * (len(columns) + 1) + np.where(values.any(axis=1), 1 + np.abs(values).argmax(axis=1), 0)
        return group


class NeighborMallows(Method):
    """Predict the Mallows centre of the nearest training users.

    The search is exact (Euclidean distance, every sampled row is looked at). Categories that the neighbours do not
    tell apart stand by training popularity.

    Parameters
    ----------
    n_neighbors
        k.
    max_rows
        Training rows searched; of more rows so many are drawn.
    seed
        Decides the sample.
    """

    method: ClassVar[str] = "ib-mal"
    grid: ClassVar[Sequence[dict[str, Any]]] = ({"n_neighbors": 10}, {"n_neighbors": 30}, {"n_neighbors": 100})

    def __init__(
        self, *, n_neighbors: int = 10, max_rows: int = 100_000, n_categories: int | None = None, seed: int = 0
    ) -> None:
        self.n_neighbors = n_neighbors
        self.max_rows = max_rows
        self.n_categories = n_categories
        self.seed = seed

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Keep a sample of the rows with a ranking: those with the smallest of random numbers."""
        if self.n_neighbors < 1 or self.max_rows < 1:
            raise ValueError(f"n_neighbors and max_rows must be at least 1, got {self.n_neighbors} and {self.max_rows}")
        draws = []
        for number, (_, rankings, _) in enumerate(blocks):
            draw = np.random.default_rng([self.seed, number]).random(len(rankings))
            draws.append(np.where((rankings >= 0).any(axis=1), draw, np.inf))
        every = np.concatenate(draws)
        n_kept = min(self.max_rows, int(np.isfinite(every).sum()))
        limit = np.partition(every, n_kept - 1)[n_kept - 1]
        kept_X, kept_rankings, kept_tied = [], [], []
        for draw, (X, rankings, tied) in zip(draws, blocks, strict=True):
            rows = np.flatnonzero(draw <= limit)
            kept_X.append(X[rows])
            kept_rankings.append(rankings[rows])
            kept_tied.append(tied[rows])
        self.rankings_ = _stack_padded(kept_rankings, -1).astype(np.int64)
        self.tied_ = _stack_padded(kept_tied, False)
        rows = sp.vstack(kept_X, format="csr")
        self._dense = rows.shape[0] * rows.shape[1] * 4 <= DENSE_BYTES
        neighbors = min(self.n_neighbors, rows.shape[0])
        search = NearestNeighbors(n_neighbors=neighbors, algorithm="brute", metric="euclidean")
        self._search = search.fit(rows.toarray() if self._dense else rows)

    def score(self, X: Any) -> np.ndarray:
        """Return the centre of each row's neighbours as scores."""
        scores = np.empty((X.shape[0], self.n_categories_), np.float32)
        tie_order = self.tie_order_.astype(np.int64)
        for start in range(0, X.shape[0], SCORE_ROWS):
            part = slice(start, start + SCORE_ROWS)
            rows = X[part].toarray() if self._dense else X[part]
            neighbors = self._search.kneighbors(rows, return_distance=False)
            center_of_neighbors(self.rankings_, self.tied_, neighbors, tie_order, EXACT_CATEGORIES, scores[part])
        return scores


def _stack_padded(parts: Sequence[np.ndarray], fill: int | bool) -> np.ndarray:
    """Return matrices of different width under each other, filled up on the right."""
    width = max(part.shape[1] for part in parts)
    padded = [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=fill) for part in parts]
    return np.concatenate(padded)
