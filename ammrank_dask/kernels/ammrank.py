"""Train and score AMM-rank on CSR rows."""

import numpy as np

from ammrank_dask.kernels.jit import kernel

# Above this share of pushed planes one contiguous multiply-add over all planes is cheaper than single writes.
_DENSE_SHARE = 0.25


@kernel
def train_rows(
    data, indices, indptr, rankings, order, rank_weights, regularization, bias, max_planes, step, sums,
    plane_category, n_planes,
):  # fmt: skip
    """Make one AMM-rank step for each row in `order`, as far as the planes fit into `sums`.

    With w = S / (λt) before step t, a pair i ≻ k is pushed where λt + S_k·x > S_i·x, by the rank weight of i,
    and S of the winning plane of a category grows by push · x. Nothing is ever decayed or rescaled. The zero
    plane of a category wins where no plane is above 0; a positive push makes it a plane of its own, if the
    category has fewer than `max_planes`; any other push on it is lost. Rows without a ranking are no steps.

    `sums`, `plane_category` and `n_planes` are changed in place.

    Parameters
    ----------
    data, indices, indptr
        The CSR rows, float32 values.
    rankings
        (n_rows, m) category codes, best first, padded with -1 at the end.
    order
        The rows to visit.
    rank_weights
        (m,) float32, ν of the ranks 1 … m.
    regularization, bias
        λ, and the value of the constant last feature.
    max_planes
        Limit of planes in one category.
    step
        t of the first row, from 1.
    sums
        (d + 1, capacity) float32, S feature-major with the bias as last row, planes in the order of birth.
        float32, because a row costs the memory traffic of its features' sums, and the rounding of a sum
        (6e-8 of it) stays far below one push for some 10⁸ steps.
    plane_category
        (capacity,) the category of each plane.
    n_planes
        (L,) planes of each category.

    Returns
    -------
    (position, step)
        How many rows of `order` were visited, fewer than all when `sums` may have no room for the births of
        the next row, and the next step's t.
    """
    n_categories = n_planes.shape[0]
    capacity = sums.shape[1]
    bias_row = np.uintp(sums.shape[0] - 1)
    max_length = rankings.shape[1]
    n_total = np.uintp(n_planes.sum())
    nothing = np.float32(0.0)
    plane_score = np.zeros(capacity, np.float32)
    plane_push = np.zeros(capacity, np.float32)
    best_score = np.zeros(n_categories, np.float32)
    best_plane = np.full(n_categories, -1, np.int64)
    rival = np.zeros(n_categories, np.float32)
    push = np.zeros(n_categories, np.float32)
    pushed = np.zeros(n_categories, np.uintp)

    for position in range(order.shape[0]):
        row = order[position]
        if max_length == 0 or rankings[row, 0] < 0:
            continue
        if n_total + np.uintp(max_length) > capacity:
            return position, step
        start, stop = np.uintp(indptr[row]), np.uintp(indptr[row + 1])
        _add_products(data, indices, start, stop, sums, bias, n_total, plane_score)

        for category in range(n_categories):
            best_score[category] = nothing
            best_plane[category] = -1
            push[category] = nothing
        for plane in range(n_total):
            owner = np.uintp(plane_category[plane])
            if plane_score[plane] > best_score[owner]:
                best_score[owner] = plane_score[plane]
                best_plane[owner] = plane

        # Categories leave the rivals from the best on, so that each meets exactly those it is preferred over.
        margin = np.float32(regularization * step)
        for category in range(n_categories):
            rival[category] = best_score[category] + margin
        for place in range(max_length):
            if rankings[row, place] < 0:
                break
            preferred = np.uintp(rankings[row, place])
            rival[preferred] = -np.inf
            threshold = best_score[preferred]
            weight = rank_weights[place]
            won = nothing
            for category in range(n_categories):
                pair_push = weight if rival[category] > threshold else nothing
                push[category] -= pair_push
                won += pair_push
            push[preferred] += won

        n_pushed = 0
        for category in range(n_categories):
            if push[category] == nothing:
                continue
            winner = best_plane[category]
            if winner < 0:
                if push[category] < nothing or n_planes[category] >= max_planes:
                    continue
                winner = np.int64(n_total)
                plane_category[winner] = category
                n_planes[category] += 1
                n_total += np.uintp(1)
            plane_push[winner] = push[category]
            pushed[n_pushed] = np.uintp(winner)
            n_pushed += 1
        if n_pushed > 0:
            _add_pushes(data, indices, start, stop, plane_push, pushed[:n_pushed], bias_row, bias, n_total, sums)
            for place in range(n_pushed):
                plane_push[pushed[place]] = nothing
        step += 1
    return order.shape[0], step


@kernel
def score_rows(data, indices, indptr, weights, plane_start, bias, out_score):
    """Write the maximum over the planes of each category for each row; -inf for a category without planes.

    Parameters
    ----------
    data, indices, indptr
        The CSR rows, float32 values.
    weights
        (d + 1, n_planes) float32, feature-major with the bias as last row, planes sorted by category.
    plane_start
        (L + 1,) the planes of category c are `plane_start[c]:plane_start[c + 1]`.
    bias
        The value of the constant last feature.
    out_score
        (n_rows, L) float32.
    """
    n_total = np.uintp(weights.shape[1])
    plane_score = np.zeros(weights.shape[1], np.float32)
    for row in range(out_score.shape[0]):
        start, stop = np.uintp(indptr[row]), np.uintp(indptr[row + 1])
        _add_products(data, indices, start, stop, weights, bias, n_total, plane_score)
        for category in range(out_score.shape[1]):
            best = np.float32(-np.inf)
            for plane in range(np.uintp(plane_start[category]), np.uintp(plane_start[category + 1])):
                best = max(best, plane_score[plane])
            out_score[row, category] = best


@kernel
def _add_products(data, indices, start, stop, weights, bias, n_total, out_plane_score):
    """Write the inner product of one row with each of the first `n_total` planes."""
    bias_row = np.uintp(weights.shape[0] - 1)
    constant = np.float32(bias)
    for plane in range(n_total):
        out_plane_score[plane] = constant * weights[bias_row, plane]
    # Four non-zeros at a time, so that the scores pass through memory once for four rows of weights.
    four = np.uintp(4)
    cell = start
    while cell + four <= stop:
        first, second = np.uintp(indices[cell]), np.uintp(indices[cell + np.uintp(1)])
        third, fourth = np.uintp(indices[cell + np.uintp(2)]), np.uintp(indices[cell + np.uintp(3)])
        a, b = data[cell], data[cell + np.uintp(1)]
        c, d = data[cell + np.uintp(2)], data[cell + np.uintp(3)]
        for plane in range(n_total):
            score = out_plane_score[plane]
            score += a * weights[first, plane]
            score += b * weights[second, plane]
            score += c * weights[third, plane]
            score += d * weights[fourth, plane]
            out_plane_score[plane] = score
        cell += four
    while cell < stop:
        first = np.uintp(indices[cell])
        a = data[cell]
        for plane in range(n_total):
            out_plane_score[plane] += a * weights[first, plane]
        cell += np.uintp(1)


@kernel
def _add_pushes(data, indices, start, stop, plane_push, pushed, bias_row, bias, n_total, sums):
    """Add push · x to the planes `pushed`; `plane_push` is 0 elsewhere. `sums` is changed in place."""
    constant = np.float32(bias)
    if pushed.shape[0] < _DENSE_SHARE * n_total:
        for place in range(pushed.shape[0]):
            sums[bias_row, pushed[place]] += plane_push[pushed[place]] * constant
        for cell in range(start, stop):
            feature, value = np.uintp(indices[cell]), data[cell]
            for place in range(pushed.shape[0]):
                sums[feature, pushed[place]] += plane_push[pushed[place]] * value
    else:
        for plane in range(n_total):
            sums[bias_row, plane] += plane_push[plane] * constant
        for cell in range(start, stop):
            feature, value = np.uintp(indices[cell]), data[cell]
            for plane in range(n_total):
                sums[feature, plane] += plane_push[plane] * value
