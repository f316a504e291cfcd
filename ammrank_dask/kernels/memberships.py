"""Cluster CSR rows and tell how much each row belongs to its nearest centres."""

from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.jit import kernel
from ammrank_dask.kernels.scoring import score_planes

ROWS = 128
"""Rows whose products with all centres are held at a time."""


class Centers(NamedTuple):
    """The centres of some clusterings, one after the other, as `score_planes` reads planes.

    `weights` is (n_panels, d + 1, width) float32, zeros behind the last centre; the last row, times `bias`, is what
    turns a product into the affinity of a row to a centre: 0 where that is the cosine, −½‖c‖² where rows are near
    in the Euclidean sense. `start` (n_clusterings + 1,) is the first centre of each clustering. A row belongs to its
    `n_nearest` centres of each by exp(affinity / `temperature`), divided by their sum or, without `unit_sum`, by
    their norm. With `unit_rows` affinities are divided by the norm of the row.
    """

    weights: np.ndarray
    start: np.ndarray
    n_nearest: np.ndarray
    temperature: np.ndarray
    unit_rows: bool
    unit_sum: bool
    bias: float


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
                out_affinity[row, clustering] = affinity[row - first, best] * inverse


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
def weigh_nearest(affinity, lane, inverse_norm, starts, nearest_counts, temperature, unit_sum, out_center, out_weight):
    """Write the nearest centres of one row in all clusterings and how much the row belongs to each.

    Parameters
    ----------
    affinity
        (lanes, centres) float32, products as `score_planes` writes them.
    lane
        The row's place in `affinity`.
    inverse_norm
        What the products are multiplied by.
    starts, nearest_counts, temperature, unit_sum
        `start`, `n_nearest`, `temperature` and `unit_sum` of the `Centers`.
    out_center, out_weight
        (Σ n_nearest,) centres counted over all clusterings, nearest first within each, and float32 weights.
    """
    first = 0
    for clustering in range(starts.shape[0] - 1):
        n_nearest = nearest_counts[clustering]
        last = first + n_nearest - 1
        n_kept = 0
        bound = _bound_nearest(affinity, lane, starts[clustering], starts[clustering + 1], first, n_nearest, out_weight)
        for center in range(np.uintp(starts[clustering]), np.uintp(starts[clustering + 1])):
            value = affinity[lane, center]
            if value < bound or (n_kept == n_nearest and value <= out_weight[last]):
                continue
            # Earlier centres keep their place before an equal one.
            place = first + min(n_kept, n_nearest - 1)
            while place > first and out_weight[place - 1] < value:
                out_weight[place] = out_weight[place - 1]
                out_center[place] = out_center[place - 1]
                place -= 1
            out_weight[place] = value
            out_center[place] = center
            if n_kept < n_nearest:
                n_kept += 1
        scale = inverse_norm / temperature[clustering]
        nearest = out_weight[first]
        total = np.float32(0.0)
        for place in range(first, first + n_nearest):
            weight = np.float32(np.exp((out_weight[place] - nearest) * scale))
            out_weight[place] = weight
            total += weight if unit_sum else weight * weight
        inverse = np.float32(1.0) / (total if unit_sum else np.float32(np.sqrt(total)))
        for place in range(first, first + n_nearest):
            out_weight[place] *= inverse
        first += n_nearest


@kernel
def _bound_nearest(affinity, lane, start, stop, first, n_nearest, work):
    """Return a value that at least `n_nearest` centres reach: the least of the maxima over as many groups of them.

    Groups take turns, so that their maxima are computed side by side; `work` from `first` on is work space.
    """
    for group in range(n_nearest):
        work[first + group] = affinity[lane, start + group]
    center = start + n_nearest
    while center + n_nearest <= stop:
        for group in range(n_nearest):
            work[first + group] = max(work[first + group], affinity[lane, center + group])
        center += n_nearest
    bound = work[first]
    for group in range(n_nearest):
        bound = min(bound, work[first + group])
    return bound
