"""Match rows, rankings and counts of an earlier label window to the columns and categories of another, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ammrank_dask.features.store import Features
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.training.warm_start import rename_column, rename_once


@dataclass(frozen=True)
class RowMatch:
    """Where the columns and the categories of a store are among those of another; -1 for those that are gone.

    Examples
    --------
    >>> match = RowMatch(np.array([1, -1]), np.array([-1, 2]), n_columns=3, n_categories=3)
    >>> match.rows(sp.csr_matrix([[4.0, 5.0]])).toarray().tolist()
    [[0.0, 4.0, 0.0]]
    >>> match.rankings(np.array([[0, 1], [1, -1]])).tolist()
    [[2, -1], [2, -1]]
    >>> match.clickers(np.array([[9, 5, 6]])).tolist()
    [[9, 0, 0, 6]]
    """

    columns: np.ndarray
    categories: np.ndarray
    n_columns: int
    n_categories: int

    def rows(self, X: sp.csr_matrix) -> sp.csr_matrix:
        """Return rows without the columns that are gone; those that came since are 0."""
        column = self.columns[X.indices]
        kept = column >= 0
        indptr = np.concatenate([[0], np.cumsum(kept)])[X.indptr]
        matched = sp.csr_matrix((X.data[kept], column[kept], indptr), shape=(X.shape[0], self.n_columns))
        matched.sort_indices()
        return matched

    def rankings(self, rankings: np.ndarray) -> np.ndarray:
        """Return rankings in the codes of the other, without the categories that are gone; -1 stays behind the last."""
        codes = np.append(self.categories, -1).astype(rankings.dtype)[rankings]  # -1 takes the last
        return np.take_along_axis(codes, np.argsort(codes < 0, axis=1, kind="stable"), axis=1)

    def clickers(self, counts: np.ndarray) -> np.ndarray:
        """Return (periods, 1 + L) counts of clickers by the codes of the other; nobody clicked what came since."""
        matched = np.zeros((len(counts), 1 + self.n_categories), counts.dtype)
        kept = self.categories >= 0
        matched[:, 0] = counts[:, 0]
        matched[:, 1 + self.categories[kept]] = counts[:, 1:][:, kept]
        return matched


def match_features(
    features: Features, target: Features, variant: str | None, renames: Mapping[str, str]
) -> RowMatch | None:
    """Return how a store is read with the columns and categories of another, None when they are the same.

    Raises BadInput when they share no column or no category. `renames` says which categories have other names in the
    other store; of several that became one, only one counts, as in `rename_once`.
    """
    renamed = rename_once(features.categories, lambda name: renames.get(name, name))
    columns = [rename_column(name, renamed) for name in features.columns_of(variant)]
    wanted, categories = target.columns_of(variant), list(renamed.values())
    if columns == wanted and categories == target.categories:
        return None
    match = RowMatch(
        _positions(columns, wanted), _positions(categories, target.categories), len(wanted), target.n_categories
    )
    for what, positions in (("columns", match.columns), ("categories", match.categories)):
        if not (positions >= 0).any():
            raise BadInput(
                f"features at {features.path} must share {what} with {target.path}, found none in common;"
                " leave them out"
            )
    return match


def _positions(names: Sequence[str], others: Sequence[str]) -> np.ndarray:
    """Return where each name is among others, -1 where it is not."""
    place = {name: number for number, name in enumerate(others)}
    return np.array([place.get(name, -1) for name in names], np.int64)
