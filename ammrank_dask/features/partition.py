"""One partition of features: all of its users, and their rows at once or in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ammrank_dask.features.columns import DEMOGRAPHIC_GROUPS, FeatureColumns
from ammrank_dask.features.csr import CsrRows, choose, count_in_columns, cut_rows, pad_rankings
from ammrank_dask.kernels.features import normalize_rows
from ammrank_dask.storage.store.groups import Group
from ammrank_dask.storage.store.ids import ID_ARRAYS, UserIds, ids_from_arrays


@dataclass(frozen=True)
class FeaturePartition:
    """The users of one partition, ascending by id, with their rows in the chosen columns.

    `rankings` is (n_rows, m), codes best first, -1 after the last; None when the store has no labels.
    `n_event_features` counts the values of a row that come from events: 0 is a cold user.
    """

    X: sp.csr_matrix
    user_ids: UserIds
    age_bucket: np.ndarray
    gender: np.ndarray
    n_event_features: np.ndarray
    rankings: np.ndarray | None


class OpenFeaturePartition:
    """A partition that is open: all of its users, and their rows as they are asked for."""

    def __init__(
        self, part: Group, columns: FeatureColumns, variant: str | None, *, normalize: bool, has_rankings: bool
    ) -> None:
        self._part, self._normalize = part, normalize
        self._chosen, self._n_stored = columns.chosen(variant), len(columns.names)
        event_groups = np.array([group not in DEMOGRAPHIC_GROUPS for group, _ in columns.groups])
        self._from_events = event_groups[columns.group_of[self._chosen]]
        self.user_ids = ids_from_arrays({name: part.rows(name) for name in ID_ARRAYS if name in part.arrays})
        self.age_bucket, self.gender = part.rows("age_bucket"), part.rows("gender")
        self.indptr = part.rows("X/indptr")
        """Where the values of each row begin, of all columns."""
        self.rankings = None
        if has_rankings:
            self.rankings = pad_rankings(part.rows("ranking/indptr"), part.rows("ranking/category"))

    @property
    def n_rows(self) -> int:
        """Number of users."""
        return len(self.indptr) - 1

    @property
    def n_columns(self) -> int:
        """Number of columns of the variant."""
        return len(self._chosen)

    def read(self, start: int, stop: int) -> tuple[sp.csr_matrix, np.ndarray]:
        """Return the rows from `start` to `stop`, and how many values of each are of events."""
        rows, n_event_features = self._prepare(start, stop)
        return rows.to_matrix(), n_event_features

    def _prepare(self, start: int, stop: int) -> tuple[CsrRows, np.ndarray]:
        """Return rows in the chosen columns, normalised."""
        begin, end = int(self.indptr[start]), int(self.indptr[stop])
        indptr = self.indptr[start : stop + 1] - begin
        indices, data = (self._part.rows(name, begin, end) for name in ("X/indices", "X/data"))
        if len(self._chosen) < self._n_stored:
            indptr, indices, data = choose(indptr, indices, data, self._chosen, self._n_stored)
        n_event_features = count_in_columns(indptr, indices, self._from_events)
        if self._normalize:
            normalize_rows(indptr, data)
        return CsrRows(data, indices, indptr, self.n_columns), n_event_features

    def pieces(self) -> Iterator[tuple[slice, CsrRows, np.ndarray]]:
        """Yield all rows, some at a time, with their position and what `read` says of them.

        What is in memory does not depend on how many rows there are: they have about `VALUES_AT_ONCE` values.
        """
        for rows in cut_rows(self.indptr):
            yield rows, *self._prepare(rows.start, rows.stop)
