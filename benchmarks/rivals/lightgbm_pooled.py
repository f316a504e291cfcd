"""LightGBM over user × category: one boosted model for all categories. Needs lightgbm, the extra `peers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ammrank_dask.methods.base import LabelledBlocks, Method


class LightGBMPooled(Method):
    """Rank categories by one boosted model of pairs (user, category): will this user click that category?

    A pair is described by the user's own interest in the category (a value for every event group, intensity and
    recency apart), the same summed over all categories, the category's log-odds among the training rows, and the
    category itself. So what "bought it, buys it again" is worth is learned once for all categories.

    Parameters
    ----------
    n_trees, n_leaves, rate
        Trees of the model, leaves of a tree, and the learning rate.
    own_columns
        (kinds, categories) column numbers of a category's own interest, -1 where there is none.
    max_pairs
        Pairs to learn from at most; whole rows are drawn by the seed.
    seed
        Of the draw and of LightGBM.
    """

    method: ClassVar[str] = "lightgbm-pooled"
    grid: ClassVar[Sequence[dict[str, Any]]] = ({"n_trees": 100}, {"n_trees": 300})
    reads_stored_rows: ClassVar[bool] = True

    def __init__(
        self,
        *,
        n_trees: int = 200,
        n_leaves: int = 31,
        rate: float = 0.1,
        own_columns: Sequence[Sequence[int]] | None = None,
        max_pairs: int = 5_000_000,
        n_categories: int | None = None,
        seed: int = 0,
    ) -> None:
        self.n_trees = n_trees
        self.n_leaves = n_leaves
        self.rate = rate
        self.own_columns = own_columns
        self.max_pairs = max_pairs
        self.n_categories = n_categories
        self.seed = seed

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Describe the pairs of all rows, or of a sample, and fit one model."""
        if self.own_columns is None:
            raise ValueError("own_columns must say which columns are a category's own interest; a table has none")
        try:
            import lightgbm
        except ImportError:
            raise ValueError("lightgbm is not installed; run: pip install 'ammrank-dask[peers]'") from None
        n_rows = sum(len(rankings) for _, rankings, _ in blocks)
        counts = self.popularity_
        self.prior_ = np.log((counts + 0.5) / (n_rows - counts + 0.5)).astype(np.float32)
        rng = np.random.default_rng(self.seed)
        share = min(1.0, self.max_pairs / (n_rows * n_categories))
        described, clicked = [], []
        for X, rankings, _ in blocks:
            rows = np.flatnonzero(rng.random(len(rankings)) < share)
            if len(rows):
                described.append(self.describe_pairs(X[rows]))
                inside = np.zeros((len(rows), n_categories), bool)
                row, place = np.nonzero(rankings[rows] >= 0)
                inside[row, rankings[rows][row, place]] = True
                clicked.append(inside.ravel())
        self.model_ = lightgbm.LGBMClassifier(
            n_estimators=self.n_trees, num_leaves=self.n_leaves, learning_rate=self.rate, random_state=self.seed,
            n_jobs=1, deterministic=True, force_row_wise=True, verbose=-1,
        )  # fmt: skip
        pairs = np.concatenate(described)
        self.model_.fit(pairs, np.concatenate(clicked), categorical_feature=[pairs.shape[1] - 1])

    def describe_pairs(self, X: Any) -> np.ndarray:
        """Return (rows × categories, 2 kinds + 2) float32: own values, their sums, log-odds, and the code."""
        columns = np.asarray(self.own_columns)
        n_kinds, n_categories = columns.shape
        own = np.zeros((X.shape[0], n_categories, 2 * n_kinds + 2), np.float32)
        for kind in range(n_kinds):
            present = np.flatnonzero(columns[kind] >= 0)
            own[:, present, kind] = X[:, columns[kind, present]].toarray()
        own[:, :, n_kinds : 2 * n_kinds] = own[:, :, :n_kinds].sum(axis=1, keepdims=True)
        own[:, :, -2] = self.prior_
        own[:, :, -1] = np.arange(n_categories)
        return own.reshape(-1, own.shape[2])

    def score(self, X: Any) -> np.ndarray:
        """Return the log-odds of a click."""
        if not X.shape[0]:
            return np.empty((0, self.n_categories_))
        scores = self.model_.predict(self.describe_pairs(X), raw_score=True)
        return np.asarray(scores).reshape(X.shape[0], -1)
