"""Map rows of a table to the scores that boosted trees give its categories."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ammrank_dask.model.estimator import Parameters
from benchmarks.label_ranking.boosting import push_scores

SAMPLE = 0.5
"""Share of the rows that a tree is grown on, drawn anew for each."""


class BoostedTrees(Parameters):
    """Describe a row by the row itself and a score of each category, added up by trees that are grown one by one.

    Each tree is grown on what AMM-rank-plus's loss, Σ ln(1 + e^(s_k − s_i)) over the pairs i ≻ k of a row, pushes the
    scores of the trees before it to; a leaf moves the scores of its rows by a Newton step times `rate`. One tree
    serves all categories. A model over these columns begins where the trees end.

    Parameters
    ----------
    n_trees, max_leaves
        Number of trees, and leaves that each has at most.
    min_rows
        Training rows that a leaf has at least.
    rate
        Share of a Newton step that a leaf makes.
    random_cuts
        Cut a feature at a random value, as extremely randomized trees do, instead of at the best one: rougher trees,
        smoother sums.
    n_pairs
        Pairs of features, drawn from all, whose sum and difference can be cut as well.
    seed
        Decides pairs, samples and cuts.

    Examples
    --------
    >>> X = np.random.default_rng(0).random((200, 2))
    >>> y = np.where(np.abs(X[:, :1] - 0.5) < 0.25, [[1.0, 0.0]], [[0.0, 1.0]])
    >>> scores = BoostedTrees(n_trees=50).fit(X, y).transform(np.array([[0.5, 0.5], [0.1, 0.5]]))[:, 2:]
    >>> scores.argmax(axis=1)
    array([0, 1])
    """

    def __init__(
        self,
        *,
        n_trees: int = 250,
        max_leaves: int = 64,
        min_rows: int = 2,
        rate: float = 0.05,
        random_cuts: bool = False,
        n_pairs: int = 0,
        seed: int = 0,
    ) -> None:
        self.n_trees = n_trees
        self.max_leaves = max_leaves
        self.min_rows = min_rows
        self.rate = rate
        self.random_cuts = random_cuts
        self.n_pairs = n_pairs
        self.seed = seed

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Grow the trees on training rows (n, d) and what they like, (n, L), the higher the better."""
        for name, least in (("n_trees", 1), ("max_leaves", 2), ("min_rows", 1), ("n_pairs", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate must be above 0 and at most 1, got {self.rate}")
        rng = np.random.default_rng(self.seed)
        first, second = np.triu_indices(X.shape[1], 1)
        drawn = np.sort(rng.permutation(len(first))[: self.n_pairs])
        self.pairs_ = first[drawn], second[drawn]
        features, likings = self._features(X), np.ascontiguousarray(y, np.float64)
        scores, pushes, curvatures = (np.zeros(y.shape) for _ in range(3))
        self.trees_: list[tuple[Any, np.ndarray]] = []
        for _ in range(self.n_trees):
            push_scores(scores, likings, pushes, curvatures)
            rows = np.sort(rng.permutation(len(X))[: max(1, round(SAMPLE * len(X)))])
            tree = self._new_tree(int(rng.integers(2**31))).fit(features[rows], pushes[rows]).tree_
            leaf = tree.apply(features)
            sums, weights = (
                np.stack([np.bincount(leaf[rows], column[rows], tree.node_count) for column in columns.T], axis=1)
                for columns in (pushes, curvatures)
            )
            steps = self.rate * sums / (weights + 1)
            self.trees_.append((tree, steps))
            scores += steps[leaf]
        # Columns of the size of a standardised row, whose norm is about 1.
        self.scale_ = float(np.std(scores)) * np.sqrt(y.shape[1]) or 1.0
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Return each row and behind it the scores of the categories, (n, d + L)."""
        features = self._features(X)
        scores = np.zeros((len(X), self.trees_[0][1].shape[1]))
        for tree, steps in self.trees_:
            scores += steps[tree.apply(features)]
        return np.hstack([X, scores / self.scale_])

    def _features(self, X: np.ndarray) -> np.ndarray:
        first, second = self.pairs_
        return np.hstack([X, X[:, first] + X[:, second], X[:, first] - X[:, second]]).astype(np.float32, order="C")

    def _new_tree(self, seed: int) -> Any:
        from sklearn.tree import DecisionTreeRegressor  # takes long to import, and a night has no table

        return DecisionTreeRegressor(
            splitter="random" if self.random_cuts else "best", max_leaf_nodes=self.max_leaves,
            min_samples_leaf=self.min_rows, random_state=seed,
        )  # fmt: skip
