"""Rank categories for everybody by how many users clicked them: what every other method must beat."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ammrank_dask.methods.base import LabelledBlocks, Method


class Popularity(Method):
    """Rank categories by the training rows that rank them; equal ones by the rows' places for them.

    Places decide where every row ranks every category, as in tables: the order is then Borda's.

    Attributes
    ----------
    scores_
        (n_categories,) 0 for the least popular, equal numbers for what neither tells apart.

    Examples
    --------
    >>> Popularity().fit(np.zeros((3, 1)), np.array([[1, 0], [1, 2], [2, -1]])).decision_function(np.zeros((1, 1)))
    array([[0., 2., 1.]], dtype=float32)
    """

    method: ClassVar[str] = "popularity"

    def __init__(self, *, n_categories: int | None = None) -> None:
        self.n_categories = n_categories

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Add up, for every category, how many ranked categories its rows put it above."""
        points = np.zeros(n_categories)
        for _, rankings, tied in blocks:
            points += count_points(rankings, tied, n_categories)
        _, scores = np.unique(np.stack([self.popularity_, points]), axis=1, return_inverse=True)
        self.scores_ = scores.astype(np.float32)

    def score(self, X: Any) -> np.ndarray:
        """Return the same scores for every row."""
        return np.tile(self.scores_, (X.shape[0], 1))


def count_points(rankings: np.ndarray, tied: np.ndarray, n_categories: int) -> np.ndarray:
    """Return (L,) float64: a row gives its last category 0 points, the one before 1, …; tied ones share theirs.

    Examples
    --------
    >>> count_points(np.array([[2, 0, 1]]), np.array([[False, False, True]]), 3)
    array([0.5, 0.5, 2. ])
    """
    n_rows, width = rankings.shape
    ranked = rankings >= 0
    begins = ranked & ~tied
    # Places of a row that tie are a run; its points are the mean over the run.
    run = np.cumsum(begins.ravel()) - 1
    places = ranked.sum(axis=1, keepdims=True) - 1 - np.arange(width)
    inside = ranked.ravel()
    run, points = run[inside], np.broadcast_to(places, (n_rows, width)).ravel()[inside].astype(np.float64)
    mean = np.bincount(run, points) / np.bincount(run)
    return np.bincount(rankings.ravel()[inside], mean[run], minlength=n_categories)
