"""Rows as AMM-rank-plus learns from them: made once from stored rows, then read in every epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ammrank_dask.kernels.memberships import Centers, Members
from ammrank_dask.kernels.plus_rows import OwnCells, write_rows


@dataclass(frozen=True)
class PlusRows:
    """CSR rows with memberships (`data`, `indices`, `indptr`), and what the own term needs.

    `knot` stands beside `data`, or is empty where no column is a category's own, `own_scale` is (n_rows, n_groups);
    `kernels.plus_rows.write_rows` says what they are. `indices` has 16 bits where they are enough: rows are read from
    files in every epoch, by all workers at once.
    """

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    knot: np.ndarray
    own_scale: np.ndarray

    @property
    def n_bytes(self) -> int:
        """Memory of the arrays."""
        return sum(array.nbytes for array in vars(self).values())

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def members(self, n_features: int) -> Members:
        """Return the memberships alone: the columns of a row behind the `n_features` of the store."""
        is_member = self.indices >= n_features
        n_before = np.concatenate([[0], np.cumsum(is_member)])
        return Members(n_before[self.indptr], self.indices[is_member] - np.int32(n_features), self.data[is_member])


def prepare_plus_rows(X: sp.csr_matrix | sp.csr_array, centers: Centers, own: OwnCells) -> PlusRows:
    """Return stored rows in the form of training."""
    n_rows = X.shape[0]
    room = X.nnz + n_rows * int(centers.n_nearest.sum())
    n_columns = X.shape[1] + int(centers.start[-1])
    indptr, indices = np.empty(n_rows + 1, np.int64), np.empty(room, np.uint16 if n_columns <= 2**16 else np.int32)
    data, knot = np.empty(room, np.float32), np.empty(room if len(own.group) else 0, np.float32)
    own_scale = np.zeros((n_rows, int(own.group.max(initial=-1)) + 1), np.float32)
    n = write_rows(X.data, X.indices, X.indptr, centers, own, indptr, indices, data, knot, own_scale)
    return PlusRows(data[:n], indices[:n], indptr, knot[:n], own_scale)
