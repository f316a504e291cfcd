"""LightGBM per category: boosted trees that say whether this user will click it. Needs lightgbm, the extra `peers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from ammrank_dask.methods.base import LabelledBlocks, Method


class LightGBMPerCategory(Method):
    """Rank categories by the log-odds of one boosted model each, all columns of the row as input.

    A category that nobody clicked, or everybody, gets its share of the rows, kept away from 0 and 1 by half a click.

    Parameters
    ----------
    n_trees, n_leaves, rate
        Trees of a model, leaves of a tree, and the learning rate.
    seed
        Of LightGBM.
    """

    method: ClassVar[str] = "lightgbm"
    grid: ClassVar[Sequence[dict[str, Any]]] = ({"n_trees": 25}, {"n_trees": 50}, {"n_trees": 100})
    widens: ClassVar[Sequence[str]] = ()

    def __init__(
        self,
        *,
        n_trees: int = 100,
        n_leaves: int = 15,
        rate: float = 0.1,
        n_categories: int | None = None,
        seed: int = 0,
    ) -> None:
        self.n_trees = n_trees
        self.n_leaves = n_leaves
        self.rate = rate
        self.n_categories = n_categories
        self.seed = seed

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Fit the models one after the other to all rows, which must fit in memory."""
        lightgbm = _import_lightgbm()
        parts = [(X, rankings) for X, rankings, _ in blocks]
        X = sp.vstack([part[0] for part in parts], format="csr")
        n_rows = X.shape[0]
        clicked = [np.zeros(n_rows, bool) for _ in range(n_categories)]
        start = 0
        for part, rankings in parts:
            rows, places = np.nonzero(rankings >= 0)
            for code in np.unique(rankings[rows, places]):
                clicked[code][start + rows[rankings[rows, places] == code]] = True
            start += part.shape[0]
        counts = self.popularity_
        self.prior_ = np.log((counts + 0.5) / (n_rows - counts + 0.5))
        options = {
            "n_estimators": self.n_trees, "num_leaves": self.n_leaves, "learning_rate": self.rate,
            "random_state": self.seed, "n_jobs": 1, "deterministic": True, "force_row_wise": True, "verbose": -1,
        }  # fmt: skip
        self.models_ = [
            lightgbm.LGBMClassifier(**options).fit(X, column) if 0 < count < n_rows else None
            for column, count in zip(clicked, counts, strict=True)
        ]

    def score(self, X: Any) -> np.ndarray:
        """Return the log-odds of a click."""
        scores = np.tile(self.prior_, (X.shape[0], 1))
        for code, model in enumerate(self.models_):
            if model is not None and X.shape[0]:
                scores[:, code] = model.predict(X, raw_score=True)
        return scores


def _import_lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError:
        raise ValueError("lightgbm is not installed; run: pip install 'ammrank-dask[peers]'") from None
    return lightgbm
