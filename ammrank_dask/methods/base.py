"""Give every method of the comparison the same calls: fit, decision_function, predict, predict_top_k."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from sklearn.base import BaseEstimator

from ammrank_dask.kernels.topk import top_k_rows
from ammrank_dask.model.plane_model import NotFittedError
from ammrank_dask.model.rankings import check_rankings, rankings_from_ranks
from ammrank_dask.model.rows import Blocks, Rows, as_csr, check_n_features

SCORE_ROWS = 8192


class Ranker(Protocol):
    """What the comparison asks of a method."""

    n_categories: int | None

    @property
    def tie_order_(self) -> np.ndarray: ...

    def get_params(self, deep: bool = True) -> dict[str, Any]: ...

    def fit_blocks(self, blocks: Blocks) -> Any: ...

    def decision_function(self, X: Rows) -> np.ndarray: ...

    def predict(self, X: Rows) -> np.ndarray: ...

    def predict_top_k(self, X: Rows, k: int = 10) -> tuple[np.ndarray, np.ndarray]: ...


class Method(BaseEstimator, ABC):
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

    method: ClassVar[str]
    grid: ClassVar[Sequence[dict[str, Any]]] = ({},)
    """Parameters among which held-out users choose."""

    n_categories: int | None = None

    popularity_: np.ndarray
    n_categories_: int
    n_features_in_: int

    @abstractmethod
    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Learn from the blocks."""

    @abstractmethod
    def score(self, X: Any) -> np.ndarray:
        """Return the scores of float32 CSR rows, (n, n_categories), larger is better."""

    def fit(self, X: Rows, rankings: np.ndarray | None = None, *, ranks: np.ndarray | None = None) -> Self:
        """Learn from rows and their rankings, or their ranks; arguments as in `AMMRank.fit`."""
        if (rankings is None) == (ranks is None):
            found = "neither" if ranks is None else "both"
            raise ValueError(f"fit must be given rankings or ranks, got {found}")
        X = as_csr(X)
        if rankings is not None:
            return self.fit_blocks([(X, np.asarray(rankings))])
        ranks = np.asarray(ranks)
        rankings, tied = rankings_from_ranks(ranks)
        if self.n_categories not in (None, ranks.shape[1]):
            raise ValueError(f"ranks must have n_categories ({self.n_categories}) columns, got {ranks.shape[1]}")
        return self._fit(LabelledBlocks([(X, rankings, tied)]), ranks.shape[1])

    def fit_blocks(self, blocks: Blocks) -> Self:
        """Learn from blocks of rows, of which one is in memory at a time.

        Parameters
        ----------
        blocks
            A sequence of (X, rankings), or (X, rankings, tied), as in `AMMRank.fit_blocks`.
        """
        return self._fit(LabelledBlocks(blocks), self.n_categories)

    def _fit(self, blocks: LabelledBlocks, n_categories: int | None) -> Self:
        highest, n_features = -1, None
        for X, rankings, _ in blocks:
            highest = max(highest, int(rankings.max(initial=-1)))
            n_features = X.shape[1] if n_features is None else n_features
            check_n_features(X, n_features)
        if highest < 0 or n_features is None:
            raise ValueError("rankings must hold at least one category, found only -1; give labelled rows")
        n_categories = highest + 1 if n_categories is None else n_categories
        popularity = np.zeros(n_categories, np.int64)
        for X, rankings, _ in blocks:
            check_rankings(rankings, n_rows=X.shape[0], n_categories=n_categories)
            popularity += np.bincount(rankings[rankings >= 0], minlength=n_categories)
        self.popularity_, self.n_categories_, self.n_features_in_ = popularity, n_categories, n_features
        self.learn(blocks, n_categories)
        return self

    def decision_function(self, X: Rows) -> np.ndarray:
        """Return the scores, (n, n_categories) float32."""
        self._check_fitted()
        rows = as_csr(X)
        check_n_features(rows, self.n_features_in_)
        scores = np.asarray(self.score(rows), np.float32)
        # Kernels trust both: what is NaN would count as right, what is too narrow as whatever lies behind it.
        wanted = (rows.shape[0], self.n_categories_)
        if scores.shape != wanted:
            raise ValueError(f"score of {type(self).__name__} must return {wanted}, got {scores.shape}")
        if np.isnan(scores).any():
            raise ValueError(f"score of {type(self).__name__} must return numbers, got NaN")
        return scores

    def predict(self, X: Rows) -> np.ndarray:
        """Return all codes per row, best first; equal scores by training popularity, then lower code."""
        scores = self.decision_function(X)
        order = np.argsort(-scores[:, self.tie_order_], axis=1, kind="stable")
        return self.tie_order_[order]

    def predict_top_k(self, X: Rows, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best category codes and their scores, both (n, k), best first."""
        self._check_fitted()
        if not 1 <= k <= self.n_categories_:
            raise ValueError(f"k must be between 1 and n_categories ({self.n_categories_}), got {k}")
        rows = as_csr(X)
        codes = np.empty((rows.shape[0], k), np.int32)
        scores = np.empty((rows.shape[0], k), np.float32)
        for start in range(0, rows.shape[0], SCORE_ROWS):
            part = slice(start, start + SCORE_ROWS)
            top_k_rows(self.decision_function(rows[part]), self.tie_order_, codes[part], scores[part])
        return codes, scores

    @property
    def tie_order_(self) -> np.ndarray:
        """Category codes by training popularity, then lower code."""
        self._check_fitted()
        return np.argsort(-self.popularity_, kind="stable").astype(np.int32)

    def __sklearn_is_fitted__(self) -> bool:
        return "popularity_" in vars(self)

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")


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
        rankings = np.asarray(rankings)
        if rankings.ndim == 2 and np.issubdtype(rankings.dtype, np.integer):
            rankings = rankings.astype(np.int32, copy=False)
        tied = rest[0] if rest and rest[0].size else np.zeros(rankings.shape, bool)
        return as_csr(X), rankings, tied
