"""Map rows of a table to more features, in which few planes can say more."""

from typing import Any, Protocol, Self

import numpy as np
import scipy.sparse as sp

from ammrank_dask.model.estimator import Parameters


class FeatureMap(Protocol):
    """A map that is fitted to training rows and then applied to any; its draw follows `seed` or `random_state`.

    `y` (n, L) is what the rows like, the higher the better, for maps that learn from it.
    """

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self: ...

    def transform(self, X: np.ndarray) -> np.ndarray | sp.csr_matrix: ...

    def get_params(self, deep: bool = True) -> dict[str, Any]: ...


class RandomBins(Parameters):
    """Describe a row by the cell it falls into in each of many random grids.

    A grid cuts a few randomly chosen features, in the scale of their training quantiles, into a random number
    of equal bins with a random offset; its cells are 0/1 features divided by √n_grids, one of them non-zero per
    row (the random binning features of Rahimi and Recht, 2007, over few features each). A cell that no training
    row fell into has no feature. A linear score of these features is a smooth sum of step functions, as that of
    a forest is, and costs a sparse row of n_grids non-zeros.

    Parameters
    ----------
    n_grids
        Number of grids.
    depth
        Features cut by one grid; 1 makes additive scores.
    n_bins
        Bins of a feature are between 2 and 2 · n_bins.
    keep_rows
        Put the row itself before its cells.
    seed
        Decides the grids.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).random((100, 3))
    >>> RandomBins(n_grids=10).fit(X).transform(X).getnnz(axis=1).max()
    np.int32(10)
    """

    def __init__(
        self, *, n_grids: int = 200, depth: int = 2, n_bins: int = 4, keep_rows: bool = False, seed: int = 0
    ) -> None:
        self.n_grids = n_grids
        self.depth = depth
        self.n_bins = n_bins
        self.keep_rows = keep_rows
        self.seed = seed

    def fit(self, X: np.ndarray, y: np.ndarray | None = None) -> Self:
        """Draw the grids and learn quantiles and used cells from training rows (n, d); what they like is not used."""
        del y
        for name in ("n_grids", "depth", "n_bins"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        rng = np.random.default_rng(self.seed)
        n_features = X.shape[1]
        depth = min(self.depth, n_features)
        self.features_ = np.argsort(rng.random((self.n_grids, n_features)), axis=1)[:, :depth]
        self.bins_ = rng.integers(2, 2 * self.n_bins + 1, (self.n_grids, depth))
        self.offset_ = rng.random((self.n_grids, depth))
        self.quantiles_ = np.sort(X, axis=0)
        self.used_ = [np.unique(cells) for cells in self._cells(X)]
        return self

    def transform(self, X: np.ndarray) -> sp.csr_matrix:
        """Return the cells of each row, (n, number of used cells) CSR float32, behind the row if it is kept."""
        column = np.empty((len(X), self.n_grids), np.int32)
        is_used = np.empty(column.shape, bool)
        n_columns = 0
        for grid, (row_cells, used) in enumerate(zip(self._cells(X), self.used_, strict=True)):
            position = np.minimum(np.searchsorted(used, row_cells), len(used) - 1)
            is_used[:, grid] = used[position] == row_cells
            column[:, grid] = n_columns + position
            n_columns += len(used)
        indptr = np.concatenate([[0], np.cumsum(is_used.sum(axis=1))])
        indices = column[is_used]
        data = np.full(len(indices), 1 / np.sqrt(self.n_grids), np.float32)
        cells = sp.csr_matrix((data, indices, indptr), shape=(len(X), n_columns))
        return sp.hstack([sp.csr_matrix(X, dtype=np.float32), cells], format="csr") if self.keep_rows else cells

    def _cells(self, X: np.ndarray):  # type: ignore[no-untyped-def]
        """Yield the cell of each row for one grid after the other."""
        quantile = np.empty(X.shape)
        for feature, values in enumerate(self.quantiles_.T):
            low, high = (np.searchsorted(values, X[:, feature], side) for side in ("left", "right"))
            quantile[:, feature] = (low + high) / (2 * len(values))
        for features, bins, offset in zip(self.features_, self.bins_, self.offset_, strict=True):
            cells = np.zeros(len(X), np.int64)
            for feature, n, shift in zip(features, bins, offset, strict=True):
                cells = cells * (n + 1) + np.floor(quantile[:, feature] * n + shift).astype(np.int64)
            yield cells


def likings_of(rankings: np.ndarray, n_categories: int) -> np.ndarray:
    """Return how much each row likes each category, (n, n_categories): minus its position, from 0.

    Those that are not ranked share the positions that are left.

    Examples
    --------
    >>> likings_of(np.array([[2, 0, 1], [1, -1, -1]]), 3)
    array([[-1. , -2. ,  0. ],
           [-1.5,  0. , -1.5]])
    """
    n_ranked = (rankings >= 0).sum(axis=1)
    likings = np.repeat(-(n_ranked + n_categories - 1) / 2, n_categories).reshape(len(rankings), n_categories)
    row, position = np.nonzero(rankings >= 0)
    likings[row, rankings[row, position]] = -position
    return likings
