"""Take the rows and rankings a model reads, in the form that training reads, and refuse what it cannot read."""

from typing import Any, Protocol, TypeAlias

import numpy as np
import scipy.sparse as sp

from ammrank_dask.storage.in_memory import check_in_memory
from ammrank_dask.storage.store.scratch_arrays import RowReader

Rows: TypeAlias = np.ndarray | sp.csr_matrix | sp.csr_array
LARGER = ", else call fit with Dask arrays for both X and rankings"
"""What to do with rows that do not fit into memory."""

NO_CATEGORY = "rankings must hold at least one category, found only -1; give labelled rows"


class Blocks(Protocol):
    """Blocks of training rows that can be read again in every epoch, in any order.

    A block is (X, rankings) or (X, rankings, tied), with `tied` as `rankings_from_ranks` returns it.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, block: int, /) -> tuple[Rows, np.ndarray] | tuple[Rows, np.ndarray, np.ndarray]: ...


def as_csr(X: Rows) -> sp.csr_matrix | sp.csr_array:
    """Return finite float32 CSR rows."""
    check_in_memory("X", X, LARGER)
    if not sp.issparse(X):
        X = as_array("X", X)
        if X.ndim != 2:
            raise ValueError(f"X must have two dimensions, got {X.ndim}")
        X = _as_numbers(X)
    # A value too large for float32 becomes inf, which is refused just below.
    with np.errstate(over="ignore"):
        rows = sp.csr_matrix(X, dtype=np.float32)
    if not np.isfinite(rows.data).all():
        raise ValueError("X must be finite in float32, found NaN or infinity; fill or drop those values")
    return rows


def as_array(name: str, values: Any) -> np.ndarray:
    """Return rows as an array; refuse what holds none: a path, an open store, rows of several lengths."""
    if not isinstance(values, list | tuple | int | float) and not hasattr(values, "__array__"):
        hint = "; pass train(features) or features.to_dask()" if type(values).__name__ == "Features" else ""
        raise ValueError(f"{name} must be an array, a table or a Dask array, got {type(values).__name__}{hint}")
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(
            f"{name} must have rows of one length, found several; pass an array, with -1 at the ends of shorter"
            " rankings"
        ) from None


def _as_numbers(X: np.ndarray) -> np.ndarray:
    """Return values of any kind as real numbers; refuse those that are none, as the NA of pandas."""
    if X.dtype.kind == "O":
        try:
            return X.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError("X must hold numbers, found other values; fill or drop them") from None
    if X.dtype.kind not in "biuf":
        raise ValueError(f"X must hold numbers, found {X.dtype}; convert them")
    return X


def read_csr(reader: RowReader, start: int, stop: int, prefix: str = "") -> sp.csr_matrix:
    """Return the rows from `start` to `stop` of a saved CSR matrix: arrays data, indices and indptr, fact `columns`."""
    indptr = reader.read(f"{prefix}indptr", start, stop + 1)
    begin, end = int(indptr[0]), int(indptr[-1])
    data, indices = (reader.read(f"{prefix}{part}", begin, end) for part in ("data", "indices"))
    return sp.csr_matrix((data, indices, indptr - begin), shape=(stop - start, reader.facts["columns"]))


class RowStack:
    """CSR rows that are put below each other without a second copy of them all.

    Memory that nothing was written to is no memory yet: some more room than is needed costs nothing.
    """

    def __init__(self, n_values: int) -> None:
        room = n_values + n_values // 8
        self._data, self._indices = np.empty(room, np.float32), np.empty(room, np.int32)
        self._ends = [np.zeros(1, np.int64)]
        self._n_values, self._n_columns = 0, 0

    def add(self, X: sp.csr_matrix | sp.csr_array) -> None:
        """Append rows, all with as many columns; where there are more values than expected, all of them move."""
        start, self._n_columns = self._n_values, X.shape[1]
        stop = self._n_values = start + X.nnz
        if stop > len(self._data):
            self._data, self._indices = (_grow(values, start, stop) for values in (self._data, self._indices))
        self._data[start:stop], self._indices[start:stop] = X.data, X.indices
        self._ends.append(X.indptr[1:] + np.int64(start))

    def rows(self) -> sp.csr_matrix:
        """Return all rows."""
        n = self._n_values
        indptr = np.concatenate(self._ends)
        return sp.csr_matrix((self._data[:n], self._indices[:n], indptr), shape=(len(indptr) - 1, self._n_columns))


def _grow(values: np.ndarray, n_kept: int, n_wanted: int) -> np.ndarray:
    """Return room for half as many values again as are wanted, with those that are kept."""
    grown = np.empty(n_wanted + n_wanted // 2, values.dtype)
    grown[:n_kept] = values[:n_kept]
    return grown


def check_n_features(X: sp.csr_matrix | sp.csr_array, n_features: int) -> None:
    """Refuse rows of another width than the model's."""
    if X.shape[1] != n_features:
        raise ValueError(f"X must have {n_features} features, got {X.shape[1]}")


def as_codes(rankings: Any, name: str = "rankings") -> np.ndarray:
    """Return rankings or ranks as an array; refuse those that are not in memory."""
    check_in_memory(name, rankings, LARGER)
    return as_array(name, rankings)


def check_rankings(rankings: np.ndarray, *, n_rows: int, n_categories: int) -> None:
    """Refuse rankings that are not (n, m) distinct codes per row, padded with -1 at the end."""
    if rankings.ndim != 2 or rankings.shape[0] != n_rows or not np.issubdtype(rankings.dtype, np.integer):
        raise ValueError(
            f"rankings must be whole numbers of shape ({n_rows}, m), got {rankings.dtype} of {rankings.shape}"
        )
    if rankings.size == 0:
        return
    low, high = int(rankings.min()), int(rankings.max())
    if low < -1 or high >= n_categories:
        wrong = low if low < -1 else high
        raise ValueError(f"rankings must hold codes from 0 to {n_categories - 1}, or -1, got {wrong}")
    if ((rankings[:, :-1] < 0) & (rankings[:, 1:] >= 0)).any():
        raise ValueError("rankings must be padded with -1 only at the end, found a category after -1")
    by_code = np.sort(rankings, axis=1)
    twice = (by_code[:, 1:] == by_code[:, :-1]) & (by_code[:, 1:] >= 0)
    if twice.any():
        row = int(np.flatnonzero(twice.any(axis=1))[0])
        raise ValueError(f"rankings must name a category once per row, found one twice in row {row}")


def rankings_from_ranks(ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rankings of ranks, and where a category ties with the one before it.

    Parameters
    ----------
    ranks
        (n, L) whole numbers, 1 best, 0 unranked, equal is a tie. Only their order counts.

    Returns
    -------
    (rankings, tied)
        (n, m) category codes, best first, padded with -1 at the end, tied ones by code; and (n, m) booleans,
        (n, 0) when no row has a tie.

    Examples
    --------
    >>> rankings_from_ranks(np.array([[2, 1, 2, 0]]))
    (array([[1, 0, 2]], dtype=int32), array([[False, False,  True]]))
    """
    if ranks.ndim != 2 or not np.issubdtype(ranks.dtype, np.integer):
        raise ValueError(f"ranks must be whole numbers of shape (n, n_categories), got {ranks.dtype} of {ranks.shape}")
    if ranks.size and ranks.min() < 0:
        raise ValueError(f"ranks must be 1 or more, or 0 for unranked, got {ranks.min()}")
    present = ranks > 0
    length = int(present.sum(axis=1).max(initial=0))
    unranked_last = np.where(present, ranks, np.iinfo(ranks.dtype).max)
    rankings = np.argsort(unranked_last, axis=1, kind="stable")[:, :length].astype(np.int32)
    ordered = np.take_along_axis(ranks, rankings, axis=1)
    tied = np.zeros(rankings.shape, bool)
    tied[:, 1:] = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] > 0)
    rankings[ordered == 0] = -1
    return rankings, tied if tied.any() else tied[:, :0]


def count_categories(blocks: Blocks) -> int:
    """Return one more than the highest code in the rankings of the blocks."""
    highest = max((int(np.max(as_codes(blocks[i][1]), initial=-1)) for i in range(len(blocks))), default=-1)
    if highest < 0:
        raise ValueError(NO_CATEGORY)
    return highest + 1
