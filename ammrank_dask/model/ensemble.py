"""Add up the scores of several AMM-rank models."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import scipy.sparse as sp

from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.feature_maps import FeatureMap
from ammrank_dask.model.plane_model import NotFittedError
from ammrank_dask.model.rows import Rows


class AMMRankEnsemble:
    """Rank categories by the sum of the scaled scores of several AMM-rank models.

    Each member has its own order of rows, its own draw of a feature map if it has one, and its own sample of the
    rows. The scores of a member are taken as differences to their mean per row and divided by their spread over
    the training rows, so that members of different λ and different maps weigh the same.

    Parameters
    ----------
    members
        Pairs of an unfitted feature map (or None) and an unfitted AMMRank. They are copied, with the seed of
        copy i drawn from (seed, i).
    sample
        Share of the rows each member learns from, drawn without replacement.
    seed
        Decides samples and the members' seeds.

    Examples
    --------
    >>> X = np.random.default_rng(0).random((200, 2))
    >>> ranks = np.where(X[:, :1] > 0.5, [[1, 2]], [[2, 1]])
    >>> ensemble = AMMRankEnsemble([(None, AMMRank(epochs=20))] * 3).fit(X, ranks=ranks)
    >>> ensemble.predict(np.array([[0.9, 0.5], [0.1, 0.5]]))
    array([[0, 1],
           [1, 0]])
    """

    def __init__(
        self, members: Sequence[tuple[FeatureMap | None, AMMRank]], *, sample: float = 1.0, seed: int = 0
    ) -> None:
        self.members = members
        self.sample = sample
        self.seed = seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        return {"members": self.members, "sample": self.sample, "seed": self.seed}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name."""
        for name, value in params.items():
            if name not in self.get_params():
                raise ValueError(f"parameters of {type(self).__name__} are members, sample, seed, got {name}")
            setattr(self, name, value)
        return self

    def fit(self, X: Rows, rankings: np.ndarray | None = None, *, ranks: np.ndarray | None = None) -> Self:
        """Fit all members; arguments as in `AMMRank.fit`. Feature maps take dense rows only."""
        if not len(self.members):
            raise ValueError("members must hold at least one pair of feature map and ranker, got none")
        if not 0 < self.sample <= 1:
            raise ValueError(f"sample must be above 0 and at most 1, got {self.sample}")
        if not sp.issparse(X):
            X = np.asarray(X)
        self.members_: list[tuple[FeatureMap | None, AMMRank, float]] = []
        for i, (feature_map, ranker) in enumerate(self.members):
            rng = np.random.default_rng([self.seed, i])
            seeds = [int(seed) for seed in rng.integers(0, 2**31, 2)]
            n_rows = X.shape[0]
            rows = np.sort(rng.permutation(n_rows)[: max(1, round(self.sample * n_rows))])
            fitted_map = None
            mapped: Any = X[rows]
            if feature_map is not None:
                fitted_map = type(feature_map)(**{**feature_map.get_params(), "seed": seeds[0]}).fit(X[rows])
                mapped = fitted_map.transform(X[rows])
            fitted = AMMRank(**{**ranker.get_params(), "seed": seeds[1]})
            if ranks is not None:
                fitted.fit(mapped, ranks=np.asarray(ranks)[rows])
            else:
                fitted.fit(mapped, None if rankings is None else np.asarray(rankings)[rows])
            spread = float(np.std(center_scores(fitted.decision_function(mapped))))
            self.members_.append((fitted_map, fitted, spread or 1.0))
        return self

    def member_scores(self, X: Rows) -> np.ndarray:
        """Return the scaled scores of each member, (n_members, n, n_categories) float32."""
        if "members_" not in vars(self):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        found = []
        for feature_map, ranker, spread in self.members_:
            mapped = X if feature_map is None else feature_map.transform(np.asarray(X))
            found.append(center_scores(ranker.decision_function(mapped)) / np.float32(spread))
        return np.stack(found)

    def decision_function(self, X: Rows) -> np.ndarray:
        """Return the sums of the members' scaled scores, (n, n_categories) float32."""
        return self.member_scores(X).sum(axis=0)

    def predict(self, X: Rows) -> np.ndarray:
        """Return all codes per row, best first; equal scores by code."""
        return np.argsort(-self.decision_function(X), axis=1, kind="stable")


def center_scores(scores: np.ndarray) -> np.ndarray:
    """Return scores minus their mean per row; a category without planes stands just below the row's lowest."""
    missing = np.isneginf(scores)
    if missing.any():
        lowest = np.where(missing, np.inf, scores).min(axis=1, keepdims=True)
        scores = np.where(missing, lowest - 1, scores)
    return scores - scores.mean(axis=1, keepdims=True)
