"""Rows of a CSR matrix as a partition stores them: their types, in pieces, in the columns one asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ammrank_dask.kernels.features import choose_columns, count_below, count_marked

VALUES_AT_ONCE = 1 << 20
"""Values that are in memory at a time when the rows of a partition are read in pieces."""
ROWS_AT_ONCE = 1 << 14
"""Rows that are, at most."""


class CsrRows(NamedTuple):
    """Rows as kernels take them, with columns of the stored type: scipy would make wider ones."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    n_columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return len(self.indptr) - 1, self.n_columns

    def to_matrix(self) -> sp.csr_matrix:
        """Return the rows as a matrix of scipy."""
        indices = self.indices.view(signed_type(self.indices))
        X = sp.csr_matrix((self.data, indices, self.indptr), shape=self.shape)
        X.has_sorted_indices = True
        return X


def csr_arrays(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, n_columns: int) -> dict[str, np.ndarray]:
    """Return the arrays of a CSR matrix under their stored names and types."""
    return {
        "X/data": np.ascontiguousarray(data, np.float32),
        "X/indices": indices.astype(unsigned_type(n_columns), copy=False),
        "X/indptr": indptr.astype(np.int64, copy=False),
    }


def csr_attributes(n_rows: int, n_columns: int) -> dict[str, dict[str, Any]]:
    """Return the attributes by which AnnData and others know a CSR group."""
    return {"X": {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [n_rows, n_columns]}}


def cut_rows(indptr: np.ndarray) -> Iterator[slice]:
    """Yield all rows of a CSR matrix, some at a time: of about `VALUES_AT_ONCE` values, but one row at least.

    They end with the last row before a multiple of that, where a chunk of values ends. Nor are they more than
    `ROWS_AT_ONCE`: whatever is worked out for a row takes room too, however few values it has.

    Examples
    --------
    >>> list(cut_rows(np.array([0, 7, 7, 1 << 20, 1 << 30, (1 << 30) + 1])))
    [slice(0, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    start = 0
    while start < len(indptr) - 1:
        # A row that lies across the end of a chunk goes with those of the next one.
        chunk = (int(indptr[start]) + VALUES_AT_ONCE // 4) // VALUES_AT_ONCE
        last = np.searchsorted(indptr, (chunk + 1) * VALUES_AT_ONCE, side="right") - 1
        stop = max(start + 1, min(int(last), start + ROWS_AT_ONCE))
        yield slice(start, stop)
        start = stop


def choose(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, chosen: np.ndarray, n_stored: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the CSR arrays with the chosen columns only, renumbered in their order."""
    new_column = np.full(n_stored, -1, np.int64)
    new_column[chosen] = np.arange(len(chosen))
    out_indptr, out_indices, out_data = np.empty_like(indptr), np.empty_like(indices), np.empty_like(data)
    n = choose_columns(indptr, indices, data, new_column, out_indptr, out_indices, out_data)
    return out_indptr, out_indices[:n], out_data[:n]


def count_in_columns(indptr: np.ndarray, indices: np.ndarray, marked: np.ndarray) -> np.ndarray:
    """Return how many values of each row, whose columns ascend, are in marked columns (int32)."""
    counts = np.empty(len(indptr) - 1, np.int32)
    n_marked = int(marked.sum())
    if n_marked == len(marked):  # as in a store without age and gender
        np.subtract(indptr[1:], indptr[:-1], out=counts, casting="same_kind")
        return counts
    if marked[:n_marked].all():  # as in every store that is made from a log: age and gender come last
        count_below(indptr, indices, n_marked, counts)
    else:
        count_marked(indptr, indices, marked, counts)
    return counts


def pad_rankings(indptr: np.ndarray, category: np.ndarray) -> np.ndarray:
    """Return ragged rankings as a matrix, -1 after the last of a row (int32)."""
    counts = np.diff(indptr)
    width = int(counts.max()) if len(counts) else 0
    padded = np.full((len(counts), width), -1, np.int32)
    padded[np.arange(width) < counts[:, None]] = category
    return padded


def unsigned_type(n: int) -> np.dtype:
    """Return the smallest type that numbers so many columns or categories."""
    return np.dtype(np.uint16 if n <= 1 << 16 else np.uint32)


def signed_type(indices: np.ndarray) -> np.dtype:
    """Return the type in which scipy takes the indices without a copy; 16-bit ones it widens itself."""
    return np.dtype(np.int32) if indices.dtype == np.uint32 else indices.dtype
