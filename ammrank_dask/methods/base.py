"""Give every method of the comparison the same calls: fit, decision_function, predict, predict_top_k."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from ammrank_dask.model.estimator import RankingEstimator
from ammrank_dask.model.rows import (
    NO_CATEGORY,
    Blocks,
    Rows,
    as_codes,
    as_csr,
    check_n_features,
    check_rankings,
    count_categories,
)


class Method(RankingEstimator):
    """Base of a method: write `learn` and `score`, and the four calls are there.

    `learn(blocks, n_categories)` reads blocks of training rows, any number of times; `score(X)` returns what ranks
    the categories of rows. Both may trust what they get. Parameters are the keyword arguments of `__init__`, kept
    under their own names.

    Attributes
    ----------
    n_categories_, n_features_in_
        Sizes seen in training.
    popularity_
        (n_categories,) training rows that rank the category.
    """

    grid: ClassVar[Sequence[dict[str, Any]]] = ({},)
    """Parameters among which held-out users choose."""
    widens: ClassVar[Sequence[str]] = ()
    """Parameters whose grid goes on beyond its edge when the edge is chosen."""

    @abstractmethod
    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Learn from the blocks."""

    @abstractmethod
    def score(self, X: Any) -> np.ndarray:
        """Return the scores of float32 CSR rows, (n, n_categories), larger is better."""

    def learn_blocks(self, blocks: Blocks, n_categories: int | None) -> Self:
        """Check the blocks, count popularity, and learn. One block is in memory at a time."""
        blocks = LabelledBlocks(blocks)
        if n_categories is None:
            n_categories = count_categories(blocks)
        popularity = np.zeros(n_categories, np.int64)
        n_features = None
        for X, rankings, _ in blocks:
            n_features = X.shape[1] if n_features is None else n_features
            check_n_features(X, n_features)
            check_rankings(rankings, n_rows=X.shape[0], n_categories=n_categories)
            popularity += np.bincount(rankings[rankings >= 0], minlength=n_categories)
        if n_features is None or not popularity.any():
            raise ValueError(NO_CATEGORY)
        self.popularity_, self.n_features_in_ = popularity, n_features
        self.learn(blocks, n_categories)
        return self

    def decision_function(self, X: Rows) -> np.ndarray:
        """Return the scores, (n, n_categories) float32."""
        rows = self.check_rows(X)
        scores = np.asarray(self.score(rows), np.float32)
        # Kernels trust both: a NaN would count as right, and they would read past the end of a narrow row.
        shape = (rows.shape[0], self.n_categories_)
        if scores.shape != shape:
            raise ValueError(f"score of {type(self).__name__} must return {shape}, got {scores.shape}")
        if np.isnan(scores).any():
            raise ValueError(f"score of {type(self).__name__} must return numbers, got NaN")
        return scores


class LabelledBlocks:
    """Blocks as methods read them: float32 CSR rows, int32 rankings, and `tied` of the same shape, in their order."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
        return (self[block] for block in range(len(self)))

    def __getitem__(self, block: int) -> tuple[Any, np.ndarray, np.ndarray]:
        X, rankings, *rest = self.blocks[block]
        rankings = as_codes(rankings)
        if rankings.ndim == 2 and np.issubdtype(rankings.dtype, np.integer):
            rankings = rankings.astype(np.int32, copy=False)
        tied = rest[0] if rest and rest[0].size else np.zeros(rankings.shape, bool)
        return as_csr(X), rankings, tied
