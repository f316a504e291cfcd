"""AMM-rank-plus for tables: rows that all rank everything, few enough to be in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.estimator import RankingEstimator
from ammrank_dask.model.feature_maps import RandomBins
from ammrank_dask.model.rows import Blocks, Rows


@dataclass(kw_only=True, eq=False, repr=False)
class TableRanker(RankingEstimator):
    """Rank by AMM-rank-plus over the columns of a table and, beside them, the cells of random grids.

    Parameters
    ----------
    kappa, max_planes, epochs, n_categories, seed
        As in `AMMRankPlus`; planes are not limited by clickers, as every row ranks everything.
    bin_depth, n_bins
        Features cut by a grid, and its bins, as in `RandomBins`; a depth of 0 leaves the grids out.

    Attributes
    ----------
    model_
        The fitted `AMMRankPlus`.
    popularity_, n_features_in_, n_planes_
        As in `AMMRank`.

    Examples
    --------
    >>> X = np.random.default_rng(0).random((200, 2))
    >>> ranks = np.where(np.abs(X[:, :1] - 0.5) < 0.25, [[1, 2]], [[2, 1]])
    >>> TableRanker(bin_depth=1, epochs=20).fit(X, ranks=ranks).predict(np.array([[0.5, 0.5], [0.1, 0.5]]))
    array([[0, 1],
           [1, 0]], dtype=int32)
    """

    method: ClassVar[str] = AMMRankPlus.method

    kappa: float = 0.04
    max_planes: int = 5
    epochs: int = 30
    bin_depth: int = 0
    n_bins: int = 4
    n_categories: int | None = None
    seed: int = 0

    bins_: RandomBins | None = field(init=False)
    model_: AMMRankPlus = field(init=False)

    def learn_blocks(self, blocks: Blocks, n_categories: int | None) -> Self:
        """Draw the grids on all rows, and learn."""
        if self.bin_depth < 0:
            raise ValueError(f"bin_depth must be 0 or above, got {self.bin_depth}")
        parts: list[Any] = [blocks[block] for block in range(len(blocks))]
        self.bins_ = None
        if self.bin_depth:
            bins = RandomBins(depth=self.bin_depth, n_bins=self.n_bins, keep_rows=True, seed=self.seed)
            self.bins_ = bins.fit(np.concatenate([_dense(X) for X, *_ in parts]))
        model = AMMRankPlus(
            kappa=self.kappa, max_planes=self.max_planes, clickers_per_plane=1, epochs=self.epochs, seed=self.seed
        )
        self.model_ = model.learn_blocks([(self.map_rows(X), *labels) for X, *labels in parts], n_categories)
        self.popularity_, self.n_features_in_ = self.model_.popularity_, parts[0][0].shape[1]
        return self

    def map_rows(self, X: Rows) -> Rows:
        """Return rows as the model reads them: with their cells, if there are grids."""
        return X if self.bins_ is None else self.bins_.transform(_dense(X))

    def decision_function(self, X: Rows) -> np.ndarray:
        """Return the scores, (n, n_categories) float32."""
        return self.model_.decision_function(self.map_rows(self.check_rows(X)))

    @property
    def n_planes_(self) -> np.ndarray:
        """Planes of each category."""
        self.check_fitted()
        return self.model_.n_planes_


def _dense(X: Rows) -> np.ndarray:
    return X if isinstance(X, np.ndarray) else X.toarray()
