"""EASE: one linear map from what a user did to what they click, in closed form. Needs nothing but numpy and scipy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from ammrank_dask.methods.base import LabelledBlocks, Method

MAX_COLUMNS = 20_000
"""Columns whose products with each other are kept dense: 3 GiB at most."""


class Ease(Method):
    """Rank categories by x·B, B the least squares from rows to clicks with an L2 penalty.

    EASE (Steck 2019) forbids an item to explain itself. Here the past is on one side and the label window on the
    other, no item is on both, and its closed form is that of ridge regression. Columns and clicks are centred, so that
    an empty row is ranked by popularity.

    Parameters
    ----------
    penalty
        Weight of ‖B‖² against the sum of squared errors.
    """

    method: ClassVar[str] = "ease"
    grid: ClassVar[Sequence[dict[str, Any]]] = ({"penalty": 1.0}, {"penalty": 10.0}, {"penalty": 100.0})
    widens: ClassVar[Sequence[str]] = ("penalty",)

    def __init__(self, *, penalty: float = 10.0, n_categories: int | None = None) -> None:
        self.penalty = penalty
        self.n_categories = n_categories

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Add up the products of columns with columns and with clicks, and solve once."""
        d = self.n_features_in_
        if not self.penalty > 0:
            raise ValueError(f"penalty must be above 0, got {self.penalty}")
        if d > MAX_COLUMNS:
            raise ValueError(f"ease keeps columns × columns in memory and takes {MAX_COLUMNS:,} columns, got {d:,}")
        squares, products = np.zeros((d, d)), np.zeros((d, n_categories))
        columns, clicks, n_rows = np.zeros(d), np.zeros(n_categories), 0
        for X, rankings, _ in blocks:
            X, y = X.astype(np.float64), clicks_of(rankings, n_categories)
            squares += (X.T @ X).toarray()
            products += X.T @ y
            columns += np.asarray(X.sum(axis=0)).ravel()
            clicks += y.sum(axis=0)
            n_rows += X.shape[0]
        squares -= np.outer(columns, columns) / n_rows
        products -= np.outer(columns, clicks) / n_rows
        squares[np.diag_indices(d)] += self.penalty
        self.weights_ = cho_solve(cho_factor(squares, overwrite_a=True), products)
        self.intercept_ = clicks / n_rows - columns / n_rows @ self.weights_

    def score(self, X: Any) -> np.ndarray:
        """Return the expected clicks."""
        return np.asarray(X @ self.weights_ + self.intercept_)


def clicks_of(rankings: np.ndarray, n_categories: int) -> np.ndarray:
    """Return (n, L) float64: 1 where the category is in the ranking."""
    clicks = np.zeros((len(rankings), n_categories))
    rows, places = np.nonzero(rankings >= 0)
    clicks[rows, rankings[rows, places]] = 1.0
    return clicks
