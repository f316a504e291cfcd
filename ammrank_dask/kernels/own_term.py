"""The own term of AMM-rank-plus: score with weights that all categories share, and learn them by AdaGrad."""

import numpy as np

from ammrank_dask.kernels.jit import kernel

HAT_SCALE = np.float32(0.1)
N_KNOTS = 6
"""Hats of a kind stand at the quantiles 0, .2, …, 1 of its stored values; equal ones are one."""
CHAINS = 4
"""Rows of sums of gradients, filled in turns."""
_NEXT_TO_NOTHING = 1e-200


@kernel
def own_value(own_weight, kind, linear, knot):
    """Return what one own column adds to the score of its category."""
    value = own_weight[kind, 0] * linear
    if knot >= 0:
        place = np.int64(knot)
        share = knot - np.float32(place)
        hats = (np.float32(1.0) - share) * own_weight[kind, place + 1] + share * own_weight[kind, place + 2]
        value += HAT_SCALE * hats
    return value


@kernel
def weigh_own(own_sums, own_squares, rate, out_weight):
    """Write the own weights η Σ G / √(Σ G²), 0 where there was no gradient."""
    for kind in range(own_sums.shape[0]):
        for place in range(own_sums.shape[1]):
            # Where no gradient was, the sum is 0 too, and 0 divided by next to nothing is 0.
            square = own_squares[kind, place] + _NEXT_TO_NOTHING
            out_weight[kind, place] = rate * own_sums[kind, place] / np.sqrt(square)


@kernel
def find_own(
    data, indices, knot, start, stop, own_kind, own_category, own_group, own_scale, prior_knot, width, out_cells,
    out_values,
):  # fmt: skip
    """Write of the own cells of one row category, linear weight and lower hat, and linear value and both hats' shares.

    Weights are numbered through all kinds, `width` a kind, those of the prior behind the last kind. Where a cell has no
    hats their shares are 0. A cell of the first kind is followed by one of the hats of the prior, which stands at
    `prior_knot` (L,) among its knots; that is empty where the prior has no hats. Returned is the number of cells, at
    most twice those of the row.
    """
    count = np.uintp(0)
    has_lift, lift_first = prior_knot.shape[0] > 0, np.uintp(own_group.shape[0] * width)
    for cell in range(start, stop):
        column = np.uintp(indices[cell])
        kind = own_kind[column]
        if kind >= 0:
            category = np.uintp(own_category[column])
            linear = data[cell] * own_scale[np.uintp(own_group[np.uintp(kind)])]
            _write_cell(count, category, np.uintp(kind * width), linear, knot[cell], out_cells, out_values)
            count += np.uintp(1)
            if kind == 0 and has_lift and knot[cell] >= 0:
                _write_cell(count, category, lift_first, np.float32(0.0), prior_knot[category], out_cells, out_values)
                count += np.uintp(1)
    return count


@kernel
def _write_cell(at, category, first, linear, knot, out_cells, out_values):
    """Write one own cell whose weights begin at `first`, by its linear value and its place among the knots."""
    scale = HAT_SCALE if knot >= 0 else np.float32(0.0)
    lower = np.uintp(max(knot, np.float32(0.0)))
    share = knot - np.float32(lower)
    out_cells[at, 0] = category
    out_cells[at, 1] = first
    out_cells[at, 2] = first + np.uintp(1) + lower
    out_values[at, 0] = linear
    out_values[at, 1] = scale * (np.float32(1.0) - share)
    out_values[at, 2] = scale * share


@kernel
def add_own(cells, values, n_own, own_weight, score):
    """Add the own term of one row to the score of each category."""
    for cell in range(n_own):
        lower = cells[cell, 2]
        own = own_weight[cells[cell, 1]] * values[cell, 0]
        own += values[cell, 1] * own_weight[lower] + values[cell, 2] * own_weight[lower + np.uintp(1)]
        score[cells[cell, 0]] += own


@kernel
def push_own(cells, values, n_own, push, gradient):
    """Add the gradients of the own weights for one row to `gradient` (4, weights), in turns.

    Cells of a kind follow each other: in one row of sums each would wait for the one before.
    """
    for cell in range(n_own):
        chain, lower = cell & np.uintp(CHAINS - 1), cells[cell, 2]
        pushed = np.float64(push[cells[cell, 0]])
        gradient[chain, cells[cell, 1]] += pushed * values[cell, 0]
        gradient[chain, lower] += pushed * values[cell, 1]
        gradient[chain, lower + np.uintp(1)] += pushed * values[cell, 2]


@kernel
def learn_own(gradient, rate, own_sums, own_squares, out_weight):
    """Count the gradients of one row into the sums of the own weights, and write the weights as `weigh_own` does.

    All are flat; `gradient` (4, weights) is 0 afterwards.
    """
    for place in range(own_sums.shape[0]):
        total = (gradient[0, place] + gradient[1, place]) + (gradient[2, place] + gradient[3, place])
        own_sums[place] += total
        own_squares[place] += total * total
        out_weight[place] = rate * own_sums[place] / np.sqrt(own_squares[place] + _NEXT_TO_NOTHING)
    gradient[:] = 0.0
