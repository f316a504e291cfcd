"""AMM-rank-plus for tables: rows that all rank everything, few enough to be in memory.

It is a method of its own in one file, as `python -m benchmarks safety --data FOLDER` takes it.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ammrank_dask.methods.base import LabelledBlocks, Method
from ammrank_dask.methods.mallows import CentralMallows
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.metrics import disagreement_errors
from ammrank_dask.model.rows import Rows
from benchmarks.label_ranking.boosted_trees import BoostedTrees
from benchmarks.label_ranking.feature_maps import FeatureMap, RandomBins, likings_of
from benchmarks.label_ranking.tree_cells import TreeCells

KAPPAS = (0.04, 0.4, 4.0, 40.0)
"""What κ is chosen from."""
_MAPS = ("bin_depth", "leaf_rows", "boosted_trees")
FOLDS, SMALL = 4, 5_000
"""A fourth of the rows, held out, chooses κ; of fewer than `SMALL` rows every fourth in turn."""


@dataclass(kw_only=True, eq=False, repr=False)
class TableRanker(Method):
    """Rank by AMM-rank-plus over the columns of a table and, beside them, cells of random grids or what trees say.

    Parameters
    ----------
    kappa
        As in `AMMRankPlus`. None: rows that are held out choose it, or one ranking for all, the Mallows centre,
        where there is nothing to learn; this takes some four times as long, with few rows twelve times.
    max_planes, epochs, n_categories, seed
        As in `AMMRankPlus`; planes are not limited by clickers, as every row ranks everything.
    bin_depth, n_bins
        Features cut by a grid, and its bins, as in `RandomBins`; a depth of 0 leaves the grids out.
    leaf_rows
        Training rows that a leaf has at least, of trees as in `TreeCells`; 0 leaves the trees out. Rows are not
        clustered then: they are near where trees put them together.
    boosted_trees, random_cuts, n_pairs
        Number of trees that give scores as in `BoostedTrees`, 0 leaves them out, and how they cut. Rows are not
        clustered then either.

    Attributes
    ----------
    model_
        The fitted `AMMRankPlus`, with the κ that was given or chosen, or the `CentralMallows` that stands in for it.
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

    method: ClassVar[str] = "table-ranker"

    kappa: float | None = None
    max_planes: int = 5
    epochs: int = 30
    bin_depth: int = 0
    n_bins: int = 4
    leaf_rows: int = 0
    boosted_trees: int = 0
    random_cuts: bool = False
    n_pairs: int = 0
    n_categories: int | None = None
    seed: int = 0

    map_: FeatureMap | None = field(init=False)
    model_: AMMRankPlus | CentralMallows = field(init=False)

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Draw the grids on all rows, and learn."""
        for name in _MAPS:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or above, got {getattr(self, name)}")
        given = [name for name in _MAPS if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"only one of {', '.join(_MAPS)} must be given, got {' and '.join(given)}")
        parts: list[Any] = list(blocks)
        kappa = self._choose_kappa(parts, n_categories) if self.kappa is None else self.kappa
        self.map_ = None if kappa is None else self._fit_map(parts, n_categories)
        model = CentralMallows() if kappa is None else self._plus(kappa)
        self.model_ = model.learn_blocks([(self.map_rows(X), *labels) for X, *labels in parts], n_categories)

    def _plus(self, kappa: float) -> AMMRankPlus:
        model = AMMRankPlus(
            kappa=kappa,
            max_planes=self.max_planes,
            clickers_per_plane=1,
            epochs=self.epochs,
            seed=self.seed,
        )
        return model.set_params(n_clusterings=0) if self.leaf_rows or self.boosted_trees else model

    def _fit_map(self, parts: list[Any], n_categories: int) -> FeatureMap | None:
        """Return the grids or trees of all rows, None without any."""
        feature_map: FeatureMap
        if self.leaf_rows:
            feature_map = TreeCells(min_rows=self.leaf_rows, seed=self.seed)
        elif self.boosted_trees:
            feature_map = BoostedTrees(
                n_trees=self.boosted_trees, random_cuts=self.random_cuts, n_pairs=self.n_pairs, seed=self.seed
            )
        elif self.bin_depth:
            feature_map = RandomBins(depth=self.bin_depth, n_bins=self.n_bins, keep_rows=True, seed=self.seed)
        else:
            return None
        likings = [likings_of(rankings, n_categories) for _, rankings, *_ in parts]
        return feature_map.fit(np.concatenate([_dense(X) for X, *_ in parts]), np.concatenate(likings))

    def _choose_kappa(self, parts: list[Any], n_categories: int) -> float | None:
        """Return the κ with the least error on rows that are held out, or None if one ranking for all is as good.

        As good is within two standard errors of the difference: with few rows the least of four errors is chance.
        """
        draw = np.random.default_rng(self.seed)
        folds = [draw.integers(0, FOLDS, X.shape[0]) for X, *_ in parts]
        is_small = sum(map(len, folds)) < SMALL
        found = [self._try_fold(parts, folds, fold, n_categories) for fold in range(FOLDS if is_small else 1)]
        constant, *errors = np.concatenate(found, axis=1)
        if len(constant) < 2:
            return None
        best = int(np.argmin(np.mean(errors, axis=1)))
        gain = constant - errors[best]
        return KAPPAS[best] if np.mean(gain) > 2 * np.std(gain, ddof=1) / np.sqrt(len(gain)) else None

    def _try_fold(self, parts: list[Any], folds: list[np.ndarray], fold: int, n_categories: int) -> np.ndarray:
        """Return the errors of the rows of a fold, (1 + κs, n): with one ranking for all, and with every κ."""
        learnt = [tuple(array[rows != fold] for array in part) for part, rows in zip(parts, folds, strict=True)]
        tested = [tuple(array[rows == fold] for array in part) for part, rows in zip(parts, folds, strict=True)]
        if not any((rankings >= 0).any() for _, rankings, *_ in learnt):
            return np.empty((1 + len(KAPPAS), 0))
        rankers = [CentralMallows(), *(TableRanker(**{**self.get_params(), "kappa": kappa}) for kappa in KAPPAS)]
        errors = []
        for ranker in rankers:
            ranker.learn_blocks(learnt, n_categories)
            by_part = [disagreement_errors(ranker.decision_function(X), *labels) for X, *labels in tested]
            errors.append(np.concatenate(by_part))
        return np.stack(errors)[:, ~np.isnan(errors[0])]

    def map_rows(self, X: Rows) -> Rows:
        """Return rows as the model reads them: with what grids or trees add, if there are any."""
        return X if self.map_ is None else self.map_.transform(_dense(X))

    def score(self, X: Rows) -> np.ndarray:
        """Return the scores, (n, n_categories)."""
        return self.model_.decision_function(self.map_rows(X))

    @property
    def n_planes_(self) -> np.ndarray:
        """Planes of each category; none where one ranking stands for all."""
        if isinstance(self.model_, CentralMallows):
            return np.zeros(self.n_categories_, np.int64)
        return self.model_.n_planes_


def _dense(X: Rows) -> np.ndarray:
    return X if isinstance(X, np.ndarray) else X.toarray()
