"""Convert CSR rows into the form that AMM-rank-plus learns from: unit rows, memberships, places among knots."""

from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.jit import kernel
from ammrank_dask.kernels.memberships import ROWS, find_memberships, make_work

CHAINS = 4
"""Sums of squares that are filled in turns, so that none waits for the value before."""


class OwnCells(NamedTuple):
    """Which columns are a category's own, and the knots of their values.

    `kind` and `category` (d, or more where rows get further columns) say of which kind and category a column is, -1 for
    none. `group` (n_kinds,) is the event group of a kind: kinds of a group share a norm. `knots` is (n_kinds, m)
    float32 rising, of which the first `n_knots` (n_kinds,) count.
    """

    kind: np.ndarray
    category: np.ndarray
    group: np.ndarray
    knots: np.ndarray
    n_knots: np.ndarray


@kernel
def write_rows(data, indices, indptr, centers, own, out_indptr, out_indices, out_data, out_knot, out_own_scale):
    """Write rows as training reads them and return the number of values.

    A row is x/‖x‖ (x itself without `centers.unit_rows`), then its memberships as columns from d on; an empty row has
    none.

    Parameters
    ----------
    data, indices, indptr
        The CSR rows as stored.
    centers, own
        The clusterings, and the categories' own columns.
    out_indptr, out_indices, out_data
        The CSR rows, with room for Σ n_nearest more values a row.
    out_knot
        Beside `out_data`: the place among the knots of an own column, -1 for none. Nothing is written where no column
        is a category's own.
    out_own_scale
        (n_rows, n_groups) float32: what makes of a value of an own column its share of the group's norm, divided
        by the root of the number of groups.
    """
    n_rows = indptr.shape[0] - 1
    n_columns = centers.weights.shape[1] - 1
    n_members = centers.n_nearest.sum()
    work = make_work(centers)
    member_indptr = np.zeros(ROWS + 1, np.int64)
    member = np.zeros(ROWS * n_members, np.int32)
    weight = np.zeros(ROWS * n_members, np.float32)
    inverse = np.zeros(ROWS, np.float32)
    squares = np.zeros((CHAINS, out_own_scale.shape[1] + 1))
    column_group = group_columns(own.kind, own.group, out_own_scale.shape[1])
    # Not as tuples to the helpers of the inner loops: every array in one would be counted as a reference.
    own_kind, knots, n_knots, n_kinds = own.kind, own.knots, own.n_knots, own.group.shape[0]
    at = np.uintp(0)
    out_indptr[0] = 0
    for first in range(0, n_rows, ROWS):
        stop = min(n_rows, first + ROWS)
        for row in range(first, stop):
            inverse[row - first] = measure_row(data, indices, indptr, row, column_group, squares, out_own_scale)
        if n_members > 0:
            find_memberships(data, indices, indptr, first, stop, centers, inverse, work, member_indptr, member, weight)
        for row in range(first, stop):
            lane = np.uintp(row - first)
            factor = inverse[lane] if centers.unit_rows else np.float32(1.0)
            for group in range(out_own_scale.shape[1]):
                out_own_scale[row, group] = out_own_scale[row, group] / factor if factor > 0 else np.float32(0.0)
            begin = at
            for cell in range(np.uintp(indptr[row]), np.uintp(indptr[row + 1])):
                out_indices[at] = indices[cell]
                out_data[at] = data[cell] * factor
                at += np.uintp(1)
            for place in range(np.uintp(member_indptr[lane]), np.uintp(member_indptr[lane + np.uintp(1)])):
                out_indices[at] = n_columns + member[place]
                out_data[at] = weight[place]
                at += np.uintp(1)
            if n_kinds > 0:
                out_knot[begin:at] = -1.0
                for cell in range(np.uintp(indptr[row]), np.uintp(indptr[row + 1])):
                    kind = own_kind[np.uintp(indices[cell])]
                    if kind >= 0:
                        out_knot[begin] = knot_place(data[cell], kind, knots, n_knots)
                    begin += np.uintp(1)
            out_indptr[row + 1] = at
    return at


@kernel
def group_columns(own_kind, own_group, n_groups):
    """Return the group of each column, `n_groups` for one that is no category's own."""
    column_group = np.empty(own_kind.shape[0], np.uintp)
    for column in range(own_kind.shape[0]):
        kind = own_kind[column]
        column_group[column] = np.uintp(own_group[np.uintp(kind)] if kind >= 0 else n_groups)
    return column_group


@kernel
def measure_row(data, indices, indptr, row, column_group, squares, out_own_scale):
    """Return 1 / ‖x‖ of one row, 0 for an empty one, and write 1 / (norm · √groups) of each group of its own columns.

    `column_group` is of `group_columns`, `squares` (4, n_groups + 1) is work space. An empty group has 0.
    """
    n_groups = out_own_scale.shape[1]
    squares[:] = 0.0
    for cell in range(np.uintp(indptr[row]), np.uintp(indptr[row + 1])):
        value = np.float64(data[cell])
        squares[cell & np.uintp(CHAINS - 1), column_group[np.uintp(indices[cell])]] += value * value
    total = 0.0
    for group in range(n_groups + 1):
        square = (squares[0, group] + squares[1, group]) + (squares[2, group] + squares[3, group])
        total += square
        if group < n_groups:
            out_own_scale[row, group] = np.float32(1.0 / np.sqrt(square * n_groups)) if square > 0 else np.float32(0.0)
    return np.float32(1.0 / np.sqrt(total)) if total > 0 else np.float32(0.0)


@kernel
def knot_place(value, kind, knots, n_knots):
    """Return where a value stands among the knots of its kind: whole numbers at the knots, -1 for no hat at all."""
    n = n_knots[kind]
    n_below = 0
    # Where a value stands cannot be foreseen, so nothing here waits for a branch.
    for knot in range(n):
        n_below += 1 if value >= knots[kind, knot] else 0
    if n == 0 or value == 0:
        return np.float32(-1.0)
    if n_below == 0:
        return np.float32(0.0)
    if n_below == n:
        return np.float32(n - 1)
    before = knots[kind, n_below - 1]
    return np.float32(n_below - 1) + (value - before) / (knots[kind, n_below] - before)
