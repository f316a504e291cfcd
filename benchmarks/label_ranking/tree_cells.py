"""Map rows of a table to the leaves of trees that were grown to tell rankings apart."""

from __future__ import annotations

from typing import Self

import numpy as np
import scipy.sparse as sp

from ammrank_dask.model.estimator import Parameters


class TreeCells(Parameters):
    """Describe a row by the leaf it falls into in each of many extremely randomized trees, behind the row itself.

    As with `RandomBins` a cell is a 0/1 feature divided by √n_trees, one of each tree non-zero per row; but the cuts
    are those, of randomly placed ones, that bring rows of similar rankings together. A forest would add up the mean
    ranks of a row's leaves; here a model of all categories learns what a leaf is worth.

    Parameters
    ----------
    n_trees
        Number of trees.
    min_rows
        Training rows that a leaf has at least.
    seed
        Decides the cuts.

    Examples
    --------
    >>> X = np.random.default_rng(0).random((100, 3))
    >>> cells = TreeCells(n_trees=10).fit(X, X).transform(X)
    >>> cells[:, 3:].getnnz(axis=1).max()
    np.int32(10)
    """

    def __init__(self, *, n_trees: int = 100, min_rows: int = 5, seed: int = 0) -> None:
        self.n_trees = n_trees
        self.min_rows = min_rows
        self.seed = seed

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Grow the trees on training rows (n, d) and what they like, (n, L), the higher the better."""
        for name in ("n_trees", "min_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        from sklearn.ensemble import ExtraTreesRegressor  # takes long to import, and a night has no table

        trees = ExtraTreesRegressor(self.n_trees, min_samples_leaf=self.min_rows, random_state=self.seed)
        self.trees_ = trees.fit(X, y)
        is_leaf = [tree.tree_.children_left < 0 for tree in self.trees_.estimators_]
        first = np.cumsum([0, *(int(leaves.sum()) for leaves in is_leaf)])
        self.column_of_node_ = [
            (np.cumsum(leaves) - 1 + start).astype(np.int32) for leaves, start in zip(is_leaf, first[:-1], strict=True)
        ]
        self.n_cells_ = int(first[-1])
        return self

    def transform(self, X: np.ndarray) -> sp.csr_matrix:
        """Return each row and behind it its leaves, (n, d + leaves of all trees) CSR float32."""
        nodes = self.trees_.apply(X)
        column = np.stack([of_node[node] for of_node, node in zip(self.column_of_node_, nodes.T, strict=True)], axis=1)
        data = np.full(column.size, 1 / np.sqrt(self.n_trees), np.float32)
        indptr = np.arange(0, column.size + 1, self.n_trees)
        cells = sp.csr_matrix((data, column.ravel(), indptr), shape=(len(X), self.n_cells_))
        return sp.hstack([sp.csr_matrix(X, dtype=np.float32), cells], format="csr")
