"""Gradients and votes of many logistic models at once, one contiguous multiply-add per value of a sparse row."""

import math

import numpy as np

from ammrank_dask.kernels.jit import kernel

_ONE = np.float32(1.0)


@kernel
def add_logistic_gradient(data, indices, indptr, targets, weights, gradient, loss):
    """Add Σ log(1 + exp(z)) − y·z and its gradient over some rows, for L models z = w·x + b; changes the last two.

    Parameters
    ----------
    data, indices, indptr
        CSR rows, float32 values.
    targets
        (n, L) float32 between 0 and 1.
    weights, gradient
        (d + 1, L) float32, the intercepts as last row.
    loss
        (L,) float64.
    """
    n_models = weights.shape[1]
    last = weights.shape[0] - 1
    z = np.empty(n_models, np.float32)
    for row in range(indptr.shape[0] - 1):
        z[:] = weights[last]
        for cell in range(indptr[row], indptr[row + 1]):
            feature, value = np.uintp(indices[cell]), data[cell]
            for model in range(n_models):
                z[model] += value * weights[feature, model]
        for model in range(n_models):
            margin, target = z[model], targets[row, model]
            small = math.exp(-abs(margin))
            loss[model] += math.log1p(small) + max(margin, np.float32(0.0)) - target * margin
            positive = _ONE / (_ONE + small)
            z[model] = (positive if margin >= 0 else small * positive) - target
        for cell in range(indptr[row], indptr[row + 1]):
            feature, value = np.uintp(indices[cell]), data[cell]
            for model in range(n_models):
                gradient[feature, model] += value * z[model]
        for model in range(n_models):
            gradient[last, model] += z[model]


@kernel
def score_linear(data, indices, indptr, weights, out_scores):
    """Write w·x + b of every row and model; weights as in `add_logistic_gradient`."""
    last = weights.shape[0] - 1
    for row in range(indptr.shape[0] - 1):
        out_scores[row] = weights[last]
        for cell in range(indptr[row], indptr[row + 1]):
            feature, value = np.uintp(indices[cell]), data[cell]
            for model in range(weights.shape[1]):
                out_scores[row, model] += value * weights[feature, model]


@kernel
def add_pair_gradient(data, indices, indptr, rankings, tied, rows, weights, gradient):
    """Add the gradient of Σ log(1 + exp(−z_ik)) over the preferred pairs i ≻ k of some rows; changes `gradient`.

    Only entries [:, i, k] of the preferred category i are written; a pair's gradient is [:, i, k] − [:, k, i].

    Parameters
    ----------
    data, indices, indptr
        CSR rows, float32 values.
    rankings, tied
        (n, m) codes, best first, -1 after the last; True where a category ties with the one before.
    rows
        The rows to visit.
    weights, gradient
        (d + 1, L, L) float32, antisymmetric in the last two; the intercepts as last row.
    """
    last, n_categories = weights.shape[0] - 1, weights.shape[1]
    z = np.empty((n_categories, n_categories), np.float32)
    settled = np.empty(n_categories, np.bool_)
    for visit in range(rows.shape[0]):
        row = rows[visit]
        length = 0
        while length < rankings.shape[1] and rankings[row, length] >= 0:
            z[length] = weights[last, rankings[row, length]]
            length += 1
        for cell in range(indptr[row], indptr[row + 1]):
            feature, value = np.uintp(indices[cell]), data[cell]
            for place in range(length):
                own = np.uintp(rankings[row, place])
                for other in range(n_categories):
                    z[place, other] += value * weights[feature, own, other]
        settled[:] = False
        first_of_tie = 0
        for place in range(length):
            if not tied[row, place]:
                for before in range(first_of_tie, place):
                    settled[rankings[row, before]] = True
                first_of_tie = place
            for other in range(n_categories):
                # σ(−z) and not 1 − σ(z), which has no digits left for confident pairs.
                z[place, other] = np.float32(0.0) if settled[other] else -_ONE / (_ONE + math.exp(z[place, other]))
            for same in range(first_of_tie, length):
                if same > place and not tied[row, same]:
                    break
                z[place, rankings[row, same]] = np.float32(0.0)
        for cell in range(indptr[row], indptr[row + 1]):
            feature, value = np.uintp(indices[cell]), data[cell]
            for place in range(length):
                own = np.uintp(rankings[row, place])
                for other in range(n_categories):
                    gradient[feature, own, other] += value * z[place, other]
        for place in range(length):
            for other in range(n_categories):
                gradient[last, rankings[row, place], other] += z[place, other]


@kernel
def step_pairs(weights, gradient, squares, rate, decay):
    """Make an AdaGrad step with the gradient plus decay·w (not on intercepts) and clear it; changes the first three."""
    n_features, n_categories = weights.shape[0] - 1, weights.shape[1]
    for feature in range(n_features + 1):
        shrink = decay if feature < n_features else np.float32(0.0)
        for one in range(n_categories):
            for other in range(one + 1, n_categories):
                slope = gradient[feature, one, other] - gradient[feature, other, one]
                gradient[feature, one, other] = np.float32(0.0)
                gradient[feature, other, one] = np.float32(0.0)
                weight = weights[feature, one, other]
                slope += shrink * weight
                if slope != 0:
                    square = squares[feature, one, other] + slope * slope
                    squares[feature, one, other] = square
                    weight -= rate * slope / math.sqrt(square)
                    weights[feature, one, other] = weight
                    weights[feature, other, one] = -weight


@kernel
def vote_pairs(data, indices, indptr, weights, out_scores):
    """Write for each row and category the sum of its soft votes, Σ_k σ(z_ik)."""
    last, n_categories = weights.shape[0] - 1, weights.shape[1]
    z = np.empty((n_categories, n_categories), np.float32)
    for row in range(indptr.shape[0] - 1):
        z[:, :] = weights[last]
        for cell in range(indptr[row], indptr[row + 1]):
            feature, value = np.uintp(indices[cell]), data[cell]
            for one in range(n_categories):
                for other in range(one + 1, n_categories):
                    z[one, other] += value * weights[feature, one, other]
        out_scores[row] = np.float32(0.0)
        for one in range(n_categories):
            for other in range(one + 1, n_categories):
                vote = _ONE / (_ONE + math.exp(-z[one, other]))
                out_scores[row, one] += vote
                out_scores[row, other] += _ONE - vote
