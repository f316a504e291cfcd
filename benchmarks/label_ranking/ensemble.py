"""Add up the scores of several models."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import scipy.sparse as sp

from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.estimator import RankingEstimator
from ammrank_dask.model.rows import LARGER, Blocks, Rows, check_rankings, count_categories
from ammrank_dask.storage.in_memory import check_in_memory
from benchmarks.label_ranking.feature_maps import FeatureMap, likings_of

Member: TypeAlias = tuple[FeatureMap | None, AMMRank | AMMRankPlus, float]
"""A fitted map or None, a fitted model, and the spread of its scores over the rows it learned from."""


class AMMRankEnsemble(RankingEstimator):
    """Rank categories by the sum of the scaled scores of several models of AMM-rank or AMM-rank-plus.

    Each member has its own order of rows, its own draw of a feature map if it has one, and its own sample of the
    rows. The scores of a member are taken as differences to their mean per row and divided by their spread over
    the training rows, so that members of different λ and different maps weigh the same.

    Parameters
    ----------
    members
        Pairs of an unfitted feature map (or None) and an unfitted model. They are copied, with the seed of
        copy i drawn from (seed, i).
    sample
        Share of the rows each member learns from, drawn without replacement.
    seed
        Decides samples and the members' seeds.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).random((200, 2))
    >>> ranks = np.where(X[:, :1] > 0.5, [[1, 2]], [[2, 1]])
    >>> ensemble = AMMRankEnsemble([(None, AMMRank(epochs=20))] * 3).fit(X, ranks=ranks)
    >>> ensemble.predict(np.array([[0.9, 0.5], [0.1, 0.5]]))
    array([[0, 1],
           [1, 0]], dtype=int32)
    """

    method: ClassVar[str] = "amm-rank-ensemble"

    def __init__(
        self, members: Sequence[tuple[FeatureMap | None, AMMRank | AMMRankPlus]], *, sample: float = 1.0, seed: int = 0
    ) -> None:
        self.members = members
        self.sample = sample
        self.seed = seed

    def learn_blocks(self, blocks: Blocks, n_categories: int | None) -> Self:
        """Fit all members on rows that are all in memory; feature maps take dense rows only."""
        if not len(self.members):
            raise ValueError("members must hold at least one pair of feature map and ranker, got none")
        if not 0 < self.sample <= 1:
            raise ValueError(f"sample must be above 0 and at most 1, got {self.sample}")
        n_categories = count_categories(blocks) if n_categories is None else n_categories
        popularity = np.zeros(n_categories, np.int64)
        rows = [blocks[i] for i in range(len(blocks))]
        for X, rankings, *_ in rows:
            check_rankings(rankings, n_rows=X.shape[0], n_categories=n_categories)
            popularity += np.bincount(rankings[rankings >= 0], minlength=n_categories)
        self.members_ = [self._fit_member(i, rows, n_categories) for i in range(len(self.members))]
        self.popularity_, self.n_features_in_ = popularity, rows[0][0].shape[1]
        return self

    def _fit_member(self, i: int, blocks: Sequence[Any], n_categories: int) -> Member:
        """Return the fitted copies of feature map and model i, and the spread of the model's scores."""
        feature_map, ranker = self.members[i]
        rng = np.random.default_rng([self.seed, i])
        map_seed, ranker_seed = (int(seed) for seed in rng.integers(0, 2**31, 2))
        sampled: list[Any] = []
        for block in blocks:
            n_rows = block[0].shape[0]
            rows = np.sort(rng.permutation(n_rows)[: max(1, round(self.sample * n_rows))])
            sampled.append(tuple(part[rows] for part in block))
        if feature_map is not None:
            params = feature_map.get_params()
            seed_name = "seed" if "seed" in params else "random_state"
            feature_map = type(feature_map)(**{**params, seed_name: map_seed})
            likings = [likings_of(rankings, n_categories) for _, rankings, *_ in sampled]
            feature_map.fit(np.concatenate([X for X, *_ in sampled]), np.concatenate(likings))
            sampled = [(feature_map.transform(X), *labels) for X, *labels in sampled]
        fitted = type(ranker)(**{**ranker.get_params(), "seed": ranker_seed}).learn_blocks(sampled, n_categories)
        scores = [center_scores(fitted.decision_function(X)) for X, *_ in sampled]
        return feature_map, fitted, float(np.std(np.concatenate(scores))) or 1.0

    def read_rows(self, X: Rows) -> Any:
        """Return rows as the members' maps read them: as they are."""
        check_in_memory("X", X, LARGER)
        return X if sp.issparse(X) else np.asarray(X)

    def member_scores(self, X: Rows) -> np.ndarray:
        """Return the scaled scores of each member, (n_members, n, n_categories) float32."""
        X = self.check_rows(X)
        scores = []
        for feature_map, ranker, spread in self.members_:
            mapped = X if feature_map is None else feature_map.transform(np.asarray(X))
            scores.append(center_scores(ranker.decision_function(mapped)) / np.float32(spread))
        return np.stack(scores)

    def decision_function(self, X: Rows) -> np.ndarray:
        """Return the sums of the members' scaled scores, (n, n_categories) float32."""
        return self.member_scores(X).sum(axis=0)


def center_scores(scores: np.ndarray) -> np.ndarray:
    """Return scores minus their mean per row; a category without planes stands just below the row's lowest."""
    missing = np.isneginf(scores)
    if missing.any():
        lowest = np.where(missing, np.inf, scores).min(axis=1, keepdims=True)
        scores = np.where(missing, lowest - 1, scores)
    return scores - scores.mean(axis=1, keepdims=True)
