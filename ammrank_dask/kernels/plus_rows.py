"""Bring CSR rows into the form that AMM-rank-plus learns from: unit rows, memberships, places among knots."""

from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.jit import kernel
from ammrank_dask.kernels.memberships import ROWS, weigh_nearest
from ammrank_dask.kernels.scoring import score_planes


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
        Beside `out_data`: the place among the knots of an own column, -1 for none.
    out_own_scale
        (n_rows, n_groups) float32: what makes of a value of an own column its share of the group's norm, divided
        by the root of the number of groups.
    """
    n_rows = indptr.shape[0] - 1
    n_columns = centers.weights.shape[1] - 1
    n_members = centers.n_nearest.sum()
    affinity = np.empty((ROWS, centers.weights.shape[0] * centers.weights.shape[2]), np.float32)
    center = np.empty(n_members, np.int32)
    weight = np.empty(n_members, np.float32)
    group_square = np.zeros(out_own_scale.shape[1])
    # Not as tuples to the helpers of the inner loops: every array in one would be counted as a reference.
    own_kind, own_group, knots, n_knots = own.kind, own.group, own.knots, own.n_knots
    starts, n_nearest, temperature = centers.start, centers.n_nearest, centers.temperature
    has_own = own_group.shape[0] > 0
    at = np.uintp(0)
    out_indptr[0] = 0
    for first in range(0, n_rows, ROWS):
        stop = min(n_rows, first + ROWS)
        if n_members > 0:
            score_planes(data, indices, indptr, first, stop, centers, affinity)
        for row in range(first, stop):
            begin, end = np.uintp(indptr[row]), np.uintp(indptr[row + 1])
            square = add_squares(data, indices, begin, end, own_kind, own_group, group_square)
            inverse = np.float32(1.0 / np.sqrt(square)) if square > 0 else np.float32(0.0)
            factor = inverse if centers.unit_rows else np.float32(1.0)
            for group in range(group_square.shape[0]):
                out_own_scale[row, group] = own_scale(group_square, group) / factor if factor > 0 else 0.0
            for cell in range(begin, end):
                column = np.uintp(indices[cell])
                out_indices[at] = column
                out_data[at] = data[cell] * factor
                kind = own_kind[column] if has_own else -1
                out_knot[at] = knot_place(data[cell], kind, knots, n_knots) if kind >= 0 else np.float32(-1.0)
                at += np.uintp(1)
            if n_members > 0 and square > 0:
                weigh_nearest(
                    affinity, np.uintp(row - first), factor, starts, n_nearest, temperature, centers.unit_sum, center,
                    weight,
                )  # fmt: skip
                for place in range(n_members):
                    out_indices[at] = n_columns + center[place]
                    out_data[at] = weight[place]
                    out_knot[at] = -1.0
                    at += np.uintp(1)
            out_indptr[row + 1] = at
    return at


@kernel
def add_squares(data, indices, start, stop, own_kind, own_group, out_group_square):
    """Return the sum of the squares of one row, and write those of the own columns of each group."""
    out_group_square[:] = 0.0
    square = 0.0
    for cell in range(start, stop):
        value = np.float64(data[cell])
        square += value * value
        kind = own_kind[np.uintp(indices[cell])]
        if kind >= 0:
            out_group_square[own_group[kind]] += value * value
    return square


@kernel
def own_scale(group_square, group):
    """Return 1 / (norm of the group · √groups), 0 for an empty group."""
    if group_square[group] == 0:
        return np.float32(0.0)
    return np.float32(1.0 / np.sqrt(group_square[group] * group_square.shape[0]))


@kernel
def knot_place(value, kind, knots, n_knots):
    """Return where a value stands among the knots of its kind: whole numbers at the knots, -1 for no hat at all."""
    last = n_knots[kind] - 1
    if last < 0 or value == 0:
        return np.float32(-1.0)
    if value <= knots[kind, 0]:
        return np.float32(0.0)
    for knot in range(1, last + 1):
        if value < knots[kind, knot]:
            before = knots[kind, knot - 1]
            return np.float32(knot - 1) + (value - before) / (knots[kind, knot] - before)
    return np.float32(last)
