"""Rank categories by how their clicks go together with what a user has: neighbours of items, by the cosine."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.preprocessing import normalize

from ammrank_dask.methods.base import LabelledBlocks, Method
from ammrank_dask.methods.logistic import click_targets

POPULAR_POWER, SHRINKAGE = 0.75, 0.3
"""The power of a category's clicks, ½ for the cosine, and what is added to the denominator: few clicks tell little."""


class ItemKnn(Method):
    """Rank categories by the sum of their similarities to a row's columns, weighted by the row.

    With rows u = x/‖x‖, clicks y of 0 and 1, c_i = Σ y_i and c̄ the mean c of clicked categories, the similarity is

        C_fi = (Σ u_f y_i - Σ u_f Σ y_i / n) / (√(Σ u_f²) · c_i^¾ · c̄^-¼ + 0.3)

    the cosine of column and clicks beyond what chance gives, lowered for popular categories. The scores are u C.
    Where rows rank every category, y is the share of the others that the category is ranked above.

    Attributes
    ----------
    similarities_
        (n_features, n_categories) float32.

    Examples
    --------
    >>> ItemKnn().fit(np.eye(2), np.array([[1], [0]])).predict(np.array([[3.0, 0.0], [0.0, 2.0]]))
    array([[1, 0],
           [0, 1]], dtype=int32)
    """

    method: ClassVar[str] = "item-knn"

    def __init__(self, *, n_categories: int | None = None) -> None:
        self.n_categories = n_categories

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Add up what the similarities are made of, one pass over the blocks."""
        n_features = self.n_features_in_
        together = np.zeros((n_features, n_categories))
        sums, squares, clicks, n_rows = np.zeros(n_features), np.zeros(n_features), np.zeros(n_categories), 0
        for X, rankings, tied in blocks:
            rows, targets = _unit_rows(X), click_targets(rankings, tied, n_categories)
            together += rows.T @ targets
            sums += np.bincount(rows.indices, rows.data, minlength=n_features)
            squares += np.bincount(rows.indices, rows.data**2, minlength=n_features)
            clicks += targets.sum(axis=0, dtype=np.float64)
            n_rows += len(rankings)
        mean = clicks[clicks > 0].mean()
        popular = clicks**POPULAR_POWER * mean ** (0.5 - POPULAR_POWER)
        together -= np.outer(sums / n_rows, clicks)
        together /= np.outer(np.sqrt(squares), popular) + SHRINKAGE
        self.similarities_ = together.astype(np.float32)

    def score(self, X: Any) -> np.ndarray:
        """Return the sums of similarities."""
        scores: np.ndarray = _unit_rows(X) @ self.similarities_
        return scores


def _unit_rows(X: Any) -> Any:
    """Return float64 CSR rows of norm 1; rows of zeros stay."""
    return normalize(X.astype(np.float64))
