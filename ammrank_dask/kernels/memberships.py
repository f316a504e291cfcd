"""Cluster CSR rows and tell how much each row belongs to its nearest centres."""

from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.exponential import exp_below
from ammrank_dask.kernels.jit import kernel
from ammrank_dask.kernels.scoring import LANES, score_planes

ROWS = LANES
"""Rows whose products with all centres are held at a time."""
# Loops over a multiple of this have no rest that is computed one by one.
_STRIDE = 32


class Centers(NamedTuple):
    """The centres of some clusterings, one after the other, as `score_planes` reads planes.

    `weights` is (n_panels, d + 1, width), float32 or whole numbers of 16 bits, of which each is worth `unit`, zeros
    behind the last centre; the last row, times `bias`, is what turns a product into the affinity of a row to a centre:
    0 where that is the cosine, −½‖c‖² where rows are near in the Euclidean sense. `start` (n_clusterings + 1,) is the
    first centre of each clustering. A row belongs to its `n_nearest` centres of each by exp(affinity / `temperature`),
    divided by their sum or, without `unit_sum`, by their norm. With `unit_rows` affinities are divided by the norm of
    the row.
    """

    weights: np.ndarray
    start: np.ndarray
    n_nearest: np.ndarray
    temperature: np.ndarray
    unit_rows: bool
    unit_sum: bool
    bias: float
    unit: float


class Members(NamedTuple):
    """What `find_memberships` found of some rows, as CSR: centres over all clusterings, ascending, and weights."""

    indptr: np.ndarray
    center: np.ndarray
    weight: np.ndarray


class NearestWork(NamedTuple):
    """Work space of `find_memberships`; `make_work` says how much."""

    affinity: np.ndarray
    candidate: np.ndarray
    value: np.ndarray
    rank: np.ndarray


@kernel
def nearest_centers(data, indices, indptr, norms, centers, out_center, out_affinity):
    """Write the nearest centre of each row in each clustering, the lower one of equals, and its affinity.

    Parameters
    ----------
    data, indices, indptr
        The CSR rows.
    norms
        (n_rows,) float32, what affinities are divided by; 0 counts as 1.
    out_center
        (n_rows, n_clusterings), counted within the clustering.
    out_affinity
        (n_rows, n_clusterings) float32.
    """
    n_rows = indptr.shape[0] - 1
    affinity = np.empty((ROWS, centers.weights.shape[0] * centers.weights.shape[2]), np.float32)
    for first in range(0, n_rows, ROWS):
        stop = min(n_rows, first + ROWS)
        score_planes(data, indices, indptr, first, stop, centers, affinity)
        for row in range(first, stop):
            inverse = np.float32(1.0) / norms[row] if norms[row] > 0 else np.float32(1.0)
            for clustering in range(centers.start.shape[0] - 1):
                begin = centers.start[clustering]
                best = begin
                for center in range(begin, centers.start[clustering + 1]):
                    if affinity[row - first, center] > affinity[row - first, best]:
                        best = center
                out_center[row, clustering] = best - begin
                out_affinity[row, clustering] = affinity[row - first, best] * inverse * np.float32(centers.unit)


@kernel
def add_members(data, indices, indptr, norms, center, out_sums, out_count):
    """Add every row, divided by its norm, to the sum of its centre; rows in their order, values as they stand.

    `out_sums` (k, d) float64 and `out_count` (k,) are added to.
    """
    for row in range(indptr.shape[0] - 1):
        owner = center[row]
        inverse = 1.0 / norms[row] if norms[row] > 0 else 1.0
        out_count[owner] += 1
        for cell in range(indptr[row], indptr[row + 1]):
            out_sums[owner, np.uintp(indices[cell])] += data[cell] * inverse


@kernel
def make_work(centers):
    """Return work space for `find_memberships`."""
    n_centers = centers.weights.shape[0] * centers.weights.shape[2]
    room = n_centers + 2 * _STRIDE
    return NearestWork(
        np.zeros((ROWS, n_centers), np.float32),
        np.zeros(room, np.int32),
        np.zeros(room, np.float32),
        np.zeros(room, np.int32),
    )


@kernel
def find_memberships(
    data, indices, indptr, first, stop, centers, inverse_norm, work, out_indptr, out_center, out_weight
):
    """Write the nearest centres of some rows in all clusterings and how much each row belongs to them, as CSR rows.

    Parameters
    ----------
    data, indices, indptr
        The CSR rows as stored.
    first, stop
        The rows to look at, at most `ROWS`.
    centers, work
        The clusterings, and work space for them.
    inverse_norm
        (stop − first,) float32, 0 for an empty row, which belongs nowhere.
    out_indptr, out_center, out_weight
        Centres counted over all clusterings, ascending in each row, and their float32 weights.
    """
    affinity, candidate, value, rank = work.affinity, work.candidate, work.value, work.rank
    starts, n_nearest, temperature = centers.start, centers.n_nearest, centers.temperature
    score_planes(data, indices, indptr, first, stop, centers, affinity)
    at = np.uintp(0)
    out_indptr[0] = 0
    for lane in range(np.uintp(stop - first)):
        if inverse_norm[lane] > 0:
            factor = (inverse_norm[lane] if centers.unit_rows else np.float32(1.0)) * np.float32(centers.unit)
            for number in range(n_nearest.shape[0]):
                begin, end, wanted = np.uintp(starts[number]), np.uintp(starts[number + 1]), np.uintp(n_nearest[number])
                keep_nearest(affinity, lane, begin, end, wanted, candidate, value, rank)
                weigh_centers(value, wanted, factor / temperature[number], centers.unit_sum)
                for place in range(wanted):
                    out_center[at + place] = candidate[place]
                    out_weight[at + place] = value[place]
                at += wanted
        out_indptr[lane + np.uintp(1)] = at


@kernel
def keep_nearest(affinity, lane, start, stop, n_nearest, out_center, out_affinity, rank):
    """Write the `n_nearest` centres of one row from `start` to `stop`, ascending, and their affinities.

    Of equal ones the lower are nearer. Outputs need room for all centres and two strides; `rank` is work space.
    """
    bound = _bound_nearest(affinity, lane, start, stop, n_nearest, out_affinity, rank)
    n_near = np.uintp(0)
    # Which centres are near cannot be foreseen: all are written, and a far one is written over.
    for center in range(start, stop):
        out_center[n_near] = center
        n_near += np.uintp(affinity[lane, center] >= bound)
    for place in range(n_near):
        out_affinity[place] = affinity[lane, np.uintp(out_center[place])]
    _rank_values(out_affinity, n_near, rank)
    n_kept, wanted = np.uintp(0), np.int32(n_nearest)
    for place in range(n_near):
        out_center[n_kept] = out_center[place]
        out_affinity[n_kept] = out_affinity[place]
        n_kept += np.uintp(rank[place] < wanted)
    if n_kept > n_nearest:
        _drop_last_equals(out_center, out_affinity, n_kept, n_nearest)


@kernel
def weigh_centers(affinity, n_nearest, scale, unit_sum):
    """Replace affinities by exp(affinity · scale), divided by their sum, or by their norm without `unit_sum`."""
    nearest = affinity[0]
    for place in range(n_nearest):
        nearest = max(nearest, affinity[place])
    for place in range(n_nearest):
        affinity[place] = exp_below((affinity[place] - nearest) * scale)
    total = np.float32(0.0)
    for place in range(n_nearest):
        total += affinity[place] if unit_sum else affinity[place] * affinity[place]
    inverse = np.float32(1.0) / (total if unit_sum else np.float32(np.sqrt(total)))
    for place in range(n_nearest):
        affinity[place] *= inverse


@kernel
def _bound_nearest(affinity, lane, start, stop, n_nearest, highest, rank):
    """Return a value that at least `n_nearest` centres reach, few of them more than needed where there are many.

    It is the `n_nearest`-th of the maxima over twice as many groups of centres. Groups take turns, so that their maxima
    are computed side by side; `highest` and `rank` are work space.
    """
    # Not a constant: the compiler would write out loops over a known number of groups one by one.
    groups = n_nearest + n_nearest
    if stop - start < groups + groups:
        return np.float32(-np.inf)
    for group in range(groups):
        highest[group] = affinity[lane, start + group]
    center = start + groups
    while center + groups <= stop:
        for group in range(groups):
            value = affinity[lane, center + group]
            highest[group] = value if value > highest[group] else highest[group]
        center += groups
    _rank_values(highest, groups, rank)
    # The group of the highest rank that is wanted. As whole numbers, whose maximum is computed side by side.
    last, wanted, n_groups = np.int32(0), np.int32(n_nearest), np.int32(groups)
    for group in range(n_groups):
        key = rank[group] * n_groups + group if rank[group] < wanted else 0
        last = max(last, np.int32(key))
    return highest[np.uintp(last % n_groups)]


@kernel
def _rank_values(values, n_values, out_rank):
    """Write how many of the first `n_values` values are above each of them; values behind them are written over."""
    padded = (n_values + np.uintp(_STRIDE - 1)) // np.uintp(_STRIDE) * np.uintp(_STRIDE)
    for place in range(n_values, padded):
        values[place] = -np.inf
    for place in range(padded):
        out_rank[place] = 0
    rival = np.uintp(0)
    # Four rivals in one pass: beginning a loop costs more than a few comparisons in it.
    while rival < n_values:
        a, b = values[rival], values[rival + np.uintp(1)]
        c, d = values[rival + np.uintp(2)], values[rival + np.uintp(3)]
        for place in range(padded):
            value = values[place]
            above = np.int32(np.int32(a > value) + np.int32(b > value))
            above = np.int32(above + np.int32(np.int32(c > value) + np.int32(d > value)))
            out_rank[place] = np.int32(out_rank[place] + above)
        rival += np.uintp(4)


@kernel
def _drop_last_equals(center, affinity, n_kept, n_nearest):
    """Drop as many of the last centres with the least affinity as are too many."""
    least = affinity[0]
    for place in range(n_kept):
        least = min(least, affinity[place])
    n_equal = np.uintp(0)
    for place in range(n_kept):
        n_equal += np.uintp(1) if affinity[place] == least else np.uintp(0)
    n_left = n_equal + n_nearest - n_kept
    at = np.uintp(0)
    for place in range(n_kept):
        if affinity[place] == least:
            if n_left == 0:
                continue
            n_left -= np.uintp(1)
        center[at] = center[place]
        affinity[at] = affinity[place]
        at += np.uintp(1)
