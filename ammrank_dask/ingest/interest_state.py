"""The interest state of users: per (group, category) cell the pair (Σ α^(T−tᵢ), max tᵢ), merged by (+, max)."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ammrank_dask.ingest.routing import lay_out_users
from ammrank_dask.kernels.interest import aggregate_cells, count_range, fold_cells, take_stretches
from ammrank_dask.storage.lake.events import cell_dtype
from ammrank_dask.storage.store.ids import UserIds, empty_ids, ids_from_arrays
from ammrank_dask.storage.store.parts import PartRef, Recoding
from ammrank_dask.storage.store.registry import PartSchema
from ammrank_dask.storage.vocabulary import DAY_US

DAYS_AT_ONCE = 16
"""Days that are folded in one pass over the state: their partials are in memory together."""


def end_of(date: dt.date) -> int:
    """Return T, the end of a date, in microseconds since 1970 UTC."""
    return (date - dt.date(1970, 1, 1)).days * DAY_US + DAY_US


@dataclass(frozen=True)
class InterestState:
    """The cells of some users at the end of a date, in CSR form, users ascending by id.

    `intensity` is the value at the end of that date, so that a state can be read without further arithmetic.
    """

    user_ids: UserIds
    indptr: np.ndarray
    cell: np.ndarray
    intensity: np.ndarray
    last: np.ndarray

    @property
    def cell_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The arrays with one entry a cell."""
        return self.cell, self.intensity, self.last

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays under their names in the registry."""
        return {
            **self.user_ids.to_arrays(),
            "indptr": self.indptr,
            "cell": self.cell,
            "intensity": self.intensity,
            "last": self.last,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> InterestState:
        """Return the state that `to_arrays` stored."""
        return cls(ids_from_arrays(arrays), arrays["indptr"], arrays["cell"], arrays["intensity"], arrays["last"])

    @classmethod
    def empty(cls, kind: str, n_cells: int) -> InterestState:
        """Return the neutral element: no users, no cells."""
        return cls(
            empty_ids(kind),
            np.zeros(1, np.int64),
            np.empty(0, cell_dtype(n_cells)),
            np.empty(0, np.float64),
            np.empty(0, np.int64),
        )

    @classmethod
    def from_part(cls, part: PartRef, schema: PartSchema) -> InterestState:
        """Read a partition of a day or a state; its categories get the codes that they have now."""
        state = cls.from_arrays(part.read(schema))
        return state if part.recoding is None else state.recode(part.recoding)

    def recode(self, recoding: Recoding) -> InterestState:
        """Return the state with other codes of categories, without those that have none.

        Cells that become one are merged by (+, max), in the order of their codes before.
        """
        n_users, n_cells = len(self.user_ids), recoding.n_groups * recoding.n_categories
        cell = recode_cells(self.cell, recoding)
        user = np.repeat(np.arange(n_users), np.diff(self.indptr))
        kept = np.flatnonzero(cell >= 0)
        kept = kept[np.lexsort((cell[kept], user[kept]))]
        user, cell = user[kept], cell[kept]
        is_first = np.ones(len(kept), bool)
        is_first[1:] = (user[1:] != user[:-1]) | (cell[1:] != cell[:-1])
        starts = np.flatnonzero(is_first)
        counts = np.bincount(user[starts], minlength=n_users)
        intensity, last = self.intensity[kept], self.last[kept]
        if len(starts) < len(kept):
            intensity, last = np.add.reduceat(intensity, starts), np.maximum.reduceat(last, starts)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        cell = cell[starts].astype(cell_dtype(n_cells))
        return InterestState(self.user_ids, indptr, cell, intensity, last).drop_empty_users()

    def select_cells(self, keep: np.ndarray) -> InterestState:
        """Return the state with the cells of the mask only; users without any stay, with no cells."""
        kept = np.concatenate([[0], np.cumsum(keep)])
        return InterestState(self.user_ids, kept[self.indptr], self.cell[keep], self.intensity[keep], self.last[keep])

    def select_range(self, first: int, stop: int) -> InterestState:
        """Return the state with the cells from `first` to `stop` (excluded), without users who have none of them."""
        begin, count = np.empty((2, len(self.user_ids)), np.int64)
        count_range(self.indptr, self.cell, first, stop, begin, count)
        return self._take_stretches(np.flatnonzero(count), begin, count)

    def select_users(self, rows: np.ndarray) -> InterestState:
        """Return the state with the users at these positions only, which ascend."""
        return self._take_stretches(rows, self.indptr[:-1], np.diff(self.indptr))

    def _take_stretches(self, rows: np.ndarray, begin: np.ndarray, count: np.ndarray) -> InterestState:
        """Return the state of some users with one stretch of cells each."""
        begin, count = begin[rows], count[rows]
        indptr = np.concatenate([[0], np.cumsum(count)])
        cells = tuple(np.empty(indptr[-1], array.dtype) for array in self.cell_arrays)
        take_stretches(begin, count, *self.cell_arrays, *cells)
        return InterestState(self.user_ids.take(rows), indptr, *cells)

    def place(self, users: UserIds) -> InterestState:
        """Return the state with one row for each of `users` (sorted); users that it does not know have no cells."""
        positions = users.positions_of(self.user_ids)
        counts = np.zeros(len(users) + 1, np.int64)
        counts[positions + 1] = np.diff(self.indptr)
        return InterestState(users, np.cumsum(counts), self.cell, self.intensity, self.last)

    def drop_empty_users(self) -> InterestState:
        """Return the state without users that have no cell."""
        counts = np.diff(self.indptr)
        if counts.all():
            return self
        keep = np.flatnonzero(counts)
        indptr = np.concatenate([[0], np.cumsum(counts[keep])])
        return InterestState(self.user_ids.take(keep), indptr, self.cell, self.intensity, self.last)


def recode_cells(cell: np.ndarray, recoding: Recoding) -> np.ndarray:
    """Return cells with the codes that their categories have now (int64), -1 where they have none.

    Examples
    --------
    >>> recode_cells(np.array([0, 1, 2, 3], np.uint16), Recoding((2, -1), 3, 2)).tolist()
    [2, -1, 5, -1]
    """
    group, category = np.divmod(cell.astype(np.int64), len(recoding.codes))
    code = np.array(recoding.codes, np.int64)[category]
    return np.where(code < 0, -1, group * recoding.n_categories + code)


def aggregate_events(
    user_ids: UserIds,
    user: np.ndarray,
    cell: np.ndarray,
    time: np.ndarray,
    *,
    end: int,
    alpha: float,
    n_cells: int,
) -> InterestState:
    """Return the interest state of events at time `end`: intensity Σ α^(end−tᵢ) in days, and the newest time.

    Parameters
    ----------
    user_ids
        The users, sorted.
    user, cell, time
        Of every event: position in `user_ids`, cell code, microseconds since 1970 UTC.
    """
    n, n_users = len(user), len(user_ids)
    out_indptr = np.empty(n_users + 1, np.int64)
    out_cell = np.empty(n, cell_dtype(n_cells))
    out_intensity = np.empty(n, np.float64)
    out_last = np.empty(n, np.int64)
    written = aggregate_cells(
        user, cell, time, end, math.log(alpha) / DAY_US,
        np.empty(n, cell_dtype(n_cells)), np.empty(n, np.int64), np.zeros(n_users + 1, np.int64),
        np.empty(n_cells, np.float64), np.empty(n_cells, np.int64), np.full(n_cells, -1, np.int64),
        np.empty(n_cells, np.int64),
        out_indptr, out_cell, out_intensity, out_last,
    )  # fmt: skip
    return InterestState(
        user_ids,
        out_indptr,
        out_cell[:written].copy(),
        out_intensity[:written].copy(),
        out_last[:written].copy(),
    )


def fold_days(
    base: InterestState,
    days: Iterable[InterestState | None],
    *,
    first_end: int,
    alpha: float,
    max_age_days: int | None,
) -> InterestState:
    """Return a state after the partials of consecutive days; users without cells are in it with no cells.

    Every day is one step `state · α + partial` in float64, so that a state is the same bits whether it was
    folded night by night or in one go. Some days are taken together, which saves passes over the state.

    Parameters
    ----------
    base
        The state at the end of the day before the first one.
    days
        The partial of each day, None for a day without any.
    first_end
        End of the first day, microseconds.
    max_age_days
        Cells whose newest event is older than this many days are dropped; None keeps all.
    """
    state, end = base, first_end
    remaining = iter(days)
    while some := list(itertools.islice(remaining, DAYS_AT_ONCE)):
        ends = end + np.arange(len(some)) * DAY_US
        lowest = np.full(len(some), np.iinfo(np.int64).min)
        oldest = lowest if max_age_days is None else ends - max_age_days * DAY_US
        end += len(some) * DAY_US
        nothing = InterestState(
            empty_ids(base.user_ids.kind), np.zeros(1, np.int64), *(a[:0] for a in base.cell_arrays)
        )
        parts = [nothing if day is None else day for day in some]
        users, positions = lay_out_users([state.user_ids, *(part.user_ids for part in parts)])
        first_cell = np.concatenate([[0], np.cumsum([len(part.cell) for part in parts])])
        day_start = np.concatenate([[0], np.cumsum([len(part.user_ids) for part in parts])])
        cell_begin, cell_end = (
            np.concatenate([part.indptr[which] + first for part, first in zip(parts, first_cell[:-1], strict=True)])
            for which in (slice(None, -1), slice(1, None))
        )
        cells = [np.concatenate(arrays) for arrays in zip(*(part.cell_arrays for part in parts), strict=True)]
        size = len(state.cell) + len(cells[0])
        n = 1 + max(int(state.cell.max(initial=0)), int(cells[0].max(initial=0)))
        out_indptr = np.empty(len(users) + 1, np.int64)
        out_cell, out_intensity, out_last = np.empty(size, state.cell.dtype), np.empty(size), np.empty(size, np.int64)
        written = fold_cells(
            positions[0], state.indptr, *state.cell_arrays,
            day_start, np.concatenate(positions[1:]), cell_begin, cell_end, *cells, alpha, oldest,
            day_start[:-1].copy(), np.empty(n), np.empty(n, np.int64), np.empty(n, np.int64),
            np.full(n, -1, np.int64), np.empty(n, np.int64), np.empty(n), np.empty(n, np.int64),
            out_indptr, out_cell, out_intensity, out_last,
        )  # fmt: skip
        state = InterestState(users, out_indptr, out_cell[:written], out_intensity[:written], out_last[:written])
    return state
