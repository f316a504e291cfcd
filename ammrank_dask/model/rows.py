"""Take the rows of features a model reads, from memory or from scratch, and refuse what it cannot read."""

from typing import Protocol, TypeAlias

import numpy as np
import scipy.sparse as sp

from ammrank_dask.storage.store.scratch_arrays import RowReader

Rows: TypeAlias = np.ndarray | sp.csr_matrix | sp.csr_array


class Blocks(Protocol):
    """Blocks of training rows that can be read again in every epoch, in any order.

    A block is (X, rankings) or (X, rankings, tied), with `tied` as `rankings_from_ranks` returns it.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, block: int, /) -> tuple[Rows, np.ndarray] | tuple[Rows, np.ndarray, np.ndarray]: ...


def as_csr(X: Rows) -> sp.csr_matrix | sp.csr_array:
    """Return finite float32 CSR rows."""
    if not sp.issparse(X):
        X = np.asarray(X)
        if X.ndim != 2:
            raise ValueError(f"X must have two dimensions, got {X.ndim}")
    # A value too large for float32 becomes inf, which is refused just below.
    with np.errstate(over="ignore"):
        rows = sp.csr_matrix(X, dtype=np.float32)
    if not np.isfinite(rows.data).all():
        raise ValueError("X must be finite in float32, found NaN or infinity; fill or drop those values")
    return rows


def read_csr(reader: RowReader, start: int, stop: int, prefix: str = "") -> sp.csr_matrix:
    """Return the rows from `start` to `stop` of a saved CSR matrix: arrays data, indices and indptr, fact `columns`."""
    indptr = reader.read(f"{prefix}indptr", start, stop + 1)
    begin, end = int(indptr[0]), int(indptr[-1])
    data, indices = (reader.read(f"{prefix}{part}", begin, end) for part in ("data", "indices"))
    return sp.csr_matrix((data, indices, indptr - begin), shape=(stop - start, reader.facts["columns"]))


def check_n_features(X: sp.csr_matrix | sp.csr_array, n_features: int) -> None:
    """Refuse rows of another width than the model's."""
    if X.shape[1] != n_features:
        raise ValueError(f"X must have {n_features} features, got {X.shape[1]}")
