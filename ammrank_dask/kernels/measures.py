"""Count wrong pairs of predicted scores, and weigh users for the bootstrap."""

import numpy as np

from ammrank_dask.kernels.hashing import mix
from ammrank_dask.kernels.jit import kernel


@kernel
def count_wrong_pairs(scores, rankings, tied, out_wrong, out_pairs, category_wrong, category_pairs):
    """Write per row the preferred pairs i ≻ j, and those with j scored above i; equal scores count half.

    Parameters
    ----------
    scores
        (n, L), no NaN.
    rankings, tied
        (n, m) codes, best first, -1 after the last; True where a category ties with the one before.
    out_wrong, out_pairs
        (n,) float64.
    category_wrong, category_pairs
        (L,) float64; the counts are added to those of the preferred category i, in place.
    """
    n_categories = scores.shape[1]
    settled = np.empty(n_categories, np.bool_)
    for row in range(scores.shape[0]):
        settled[:] = False
        out_wrong[row], out_pairs[row] = 0.0, 0.0
        start = 0
        while start < rankings.shape[1] and rankings[row, start] >= 0:
            stop = start + 1
            while stop < rankings.shape[1] and rankings[row, stop] >= 0 and tied[row, stop]:
                stop += 1
            # Categories that tie are neither rivals of each other nor of what stands below them.
            for place in range(start, stop):
                settled[rankings[row, place]] = True
            for place in range(start, stop):
                own = rankings[row, place]
                wrong, pairs = 0.0, 0.0
                for other in range(n_categories):
                    if not settled[other]:
                        pairs += 1.0
                        if scores[row, other] > scores[row, own]:
                            wrong += 1.0
                        elif scores[row, other] == scores[row, own]:
                            wrong += 0.5
                out_wrong[row] += wrong
                out_pairs[row] += pairs
                category_wrong[own] += wrong
                category_pairs[own] += pairs
            start = stop


@kernel
def add_resampled(hashes, values, limits, sums):
    """Add to `sums` (replicates, c) the values of every row times its weight in the replicate; changes `sums`.

    A weight is Poisson with mean 1 and depends on the row's hash and the replicate only, so that every method and
    every partition weighs a user alike.

    Parameters
    ----------
    hashes
        (n,) uint64.
    values
        (n, c) float64.
    limits
        Bounds of a uniform uint64 between the weights 0, 1, 2, …
    """
    for replicate in range(sums.shape[0]):
        salt = mix(np.uint64(replicate))
        for row in range(hashes.shape[0]):
            draw = mix(hashes[row] ^ salt)
            weight = 0.0
            for limit in limits:
                if draw < limit:
                    break
                weight += 1.0
            if weight > 0:
                for column in range(values.shape[1]):
                    sums[replicate, column] += weight * values[row, column]
