"""Train AMM-rank-plus: a logistic loss over a row's pairs, steps by feature, and own weights all categories share."""

from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.ammrank import add_products, end_of_group
from ammrank_dask.kernels.jit import kernel

# Above this share of pushed planes one contiguous multiply-add over all planes is cheaper than single writes.
_DENSE_SHARE = 0.1
_LOWEST_EXPONENT = np.float32(-80.0)
# Eight factors of e^-80 on top of it are still above the least float64.
_SMALL_PRODUCT = 1e-20
_NEXT_TO_NOTHING = 1e-200
# Sums of float32 do not feel such a push, and the denormal products it makes take a hundred times as long.
_SMALL_PUSH = np.float32(1e-20)


class PlusBlock(NamedTuple):
    """Training rows as `plus_rows.write_rows` makes them, and what each row ranks, as in `ammrank.Block`."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    knot: np.ndarray
    own_scale: np.ndarray
    rankings: np.ndarray
    tied: np.ndarray


class PlusRule(NamedTuple):
    """How a step is made: λ and η of w = S / (λt + √H/η), the value of the constant last feature, the prior of each
    category, its limit of planes, and of the own columns kind and category, and the group of each kind."""

    regularization: float
    rate: float
    bias: float
    prior: np.ndarray
    limit: np.ndarray
    own_kind: np.ndarray
    own_category: np.ndarray
    own_group: np.ndarray


class PlusSums(NamedTuple):
    """What training adds up.

    `sums`, `category` and `n_planes` are those of `ammrank.Planes`. `squares` (d + 1,) float64 is H, the squared
    pushes that met each feature. `own_sums` and `own_squares` (n_kinds, 2 + most knots) float64 are those of the own
    weights, the linear one first, then one a knot, and nothing in the last.
    """

    sums: np.ndarray
    category: np.ndarray
    n_planes: np.ndarray
    squares: np.ndarray
    own_sums: np.ndarray
    own_squares: np.ndarray


HAT_SCALE = np.float32(0.1)


@kernel
def train_plus_rows(block, order, rule, step, state):
    """Make one step for each row in `order`, as far as the planes fit.

    The score of a category is prior + own term + the best of its planes. The push of a pair i ≻ k is
    e^s_k / (e^s_k + e^s_i) / pairs of the row; S of the winning plane grows by push · z, H by z² · Σ push² over the
    pushes that reach a plane, and an own weight is η Σ G / √(Σ G²) of its gradients G. The zero plane wins where no
    plane is above 0; a positive push makes it a plane of its own, any other push on it is lost. Rows without a pair are
    no steps. `state` is changed in place.

    Returns
    -------
    (position, step, loss)
        How many rows of `order` were visited, the next step's t, and the sum over the rows of the mean of
        ln(1 + e^(s_k − s_i)) over their pairs, each before its own step. Fewer than all were visited when the planes
        may have no room for the births of the next row.
    """
    sums, plane_category, n_planes = state.sums, state.category, state.n_planes
    n_categories, capacity = n_planes.shape[0], sums.shape[1]
    max_length = block.rankings.shape[1]
    bias_row = np.uintp(sums.shape[0] - 1)
    n_total = np.uintp(n_planes.sum())
    nothing = np.float32(0.0)
    longest = 0
    for row in range(block.indptr.shape[0] - 1):
        longest = max(longest, block.indptr[row + 1] - block.indptr[row])
    data, indices, squares = block.data, block.indices, state.squares
    slowness = 1.0 / rule.rate
    prior, limit = rule.prior, rule.limit
    scaled = np.zeros(longest, np.float32)
    values = np.zeros(longest, np.float32)
    met = np.zeros(longest, np.float64)
    own_cells = np.zeros((longest, 3), np.int64)
    own_values = np.zeros((longest, 2), np.float32)
    n_own = 0
    features = np.zeros(longest, np.uintp)
    plane_score = np.zeros(capacity, np.float32)
    plane_push = np.zeros(capacity, np.float32)
    score = np.zeros(n_categories, np.float32)
    best_plane = np.full(n_categories, -1, np.int64)
    strength = np.zeros(n_categories, np.float32)
    rival = np.zeros(n_categories, np.float32)
    push = np.zeros(n_categories, np.float32)
    right = np.zeros(n_categories, np.float32)
    wrong = np.zeros(n_categories, np.float32)
    pushed = np.zeros(n_categories, np.uintp)
    own = np.zeros(n_categories, np.float32)
    own_weight = np.zeros(state.own_sums.shape, np.float32)
    own_gradient = np.zeros(state.own_sums.shape, np.float64)
    has_own = state.own_sums.shape[0] > 0
    weigh_own(state.own_sums, state.own_squares, rule.rate, own_weight)
    loss = 0.0

    for position in range(order.shape[0]):
        row = order[position]
        n_pairs = count_pairs(block.rankings[row], block.tied[row], n_categories)
        if n_pairs == 0:
            continue
        if n_total + np.uintp(max_length) > capacity:
            return position, step, loss
        start, stop = np.uintp(block.indptr[row]), np.uintp(block.indptr[row + 1])
        length = stop - start
        decay = rule.regularization * step
        _scale_row(data, indices, start, length, squares, decay, slowness, features, values, met, scaled)
        constant = rule.bias / (decay + np.sqrt(squares[bias_row]) * slowness)
        add_products(scaled, features, np.uintp(0), length, sums, constant, n_total, plane_score)

        _find_winners(plane_score, plane_category, n_total, n_planes, limit, score, best_plane)
        for category in range(n_categories):
            own[category] = prior[category]
            push[category] = nothing
        if has_own:
            n_own = _find_own(block, row, rule.own_kind, rule.own_category, rule.own_group, own_cells, own_values)
            _add_own(own_cells, own_values, n_own, own_weight, own)
        _measure_strength(score, own, strength, rival)
        loss += _push_logistic(block.rankings[row], block.tied[row], strength, rival, right, wrong, push) / n_pairs

        n_pushed = 0
        reached = 0.0
        share = np.float32(1.0 / n_pairs)
        for category in range(n_categories):
            push[category] *= share
            if abs(push[category]) < _SMALL_PUSH:
                push[category] = nothing
                continue
            winner = best_plane[category]
            if winner < 0:
                if push[category] < nothing or n_planes[category] >= rule.limit[category]:
                    continue
                winner = np.int64(n_total)
                plane_category[winner] = category
                n_planes[category] += 1
                n_total += np.uintp(1)
            reached += np.float64(push[category]) * push[category]
            plane_push[winner] = push[category]
            pushed[n_pushed] = np.uintp(winner)
            n_pushed += 1
        if n_pushed > 0:
            _add_row(values, features, length, rule.bias, plane_push, pushed, n_pushed, n_total, sums)
            for place in range(n_pushed):
                plane_push[pushed[place]] = nothing
            for cell in range(length):
                value = np.float64(values[cell])
                squares[features[cell]] += value * value * reached
            squares[bias_row] += rule.bias * rule.bias * reached
        if has_own:
            _push_own(own_cells, own_values, n_own, push, own_gradient, state.own_sums, state.own_squares)
            weigh_own(state.own_sums, state.own_squares, rule.rate, own_weight)
        step += 1
    return order.shape[0], step, loss


@kernel
def _scale_row(data, indices, start, length, squares, decay, slowness, out_feature, out_value, out_met, out_scaled):
    """Write the features and values of one row, their H, and the values divided by λt + √H/η."""
    # Gathered first: the roots and quotients of a row are then computed side by side.
    for cell in range(length):
        out_feature[cell] = np.uintp(indices[start + cell])
        out_value[cell] = data[start + cell]
        out_met[cell] = squares[out_feature[cell]]
    for cell in range(length):
        out_scaled[cell] = np.float32(out_value[cell] / (decay + np.sqrt(out_met[cell]) * slowness))


@kernel
def _find_winners(plane_score, plane_category, n_total, n_planes, limit, out_score, out_plane):
    """Write the best plane of each category and its score: -1 and 0 for the zero plane of one below its limit."""
    for category in range(n_planes.shape[0]):
        full = n_planes[category] > 0 and n_planes[category] >= limit[category]
        out_score[category] = np.float32(-np.inf) if full else np.float32(0.0)
        out_plane[category] = -1
    for plane in range(n_total):
        owner = np.uintp(plane_category[plane])
        if plane_score[plane] > out_score[owner]:
            out_score[owner] = plane_score[plane]
            out_plane[owner] = plane


@kernel
def _measure_strength(score, own, out_strength, out_rival):
    """Add prior and own term to `score`, and write e^(score − the highest) of each category, twice."""
    top = np.float32(-np.inf)
    for category in range(score.shape[0]):
        score[category] += own[category]
        top = max(top, score[category])
    for category in range(score.shape[0]):
        out_strength[category] = np.exp(max(score[category] - top, _LOWEST_EXPONENT))
        out_rival[category] = out_strength[category]


@kernel
def count_pairs(ranking, tied, n_categories):
    """Return the number of pairs i ≻ k of one row; tied categories are no pairs."""
    n_pairs = 0
    first = 0
    while first < ranking.shape[0] and ranking[first] >= 0:
        end = end_of_group(ranking, tied, first)
        n_pairs += (end - first) * (n_categories - end)
        first = end
    return n_pairs


@kernel
def weigh_own(own_sums, own_squares, rate, out_weight):
    """Write the own weights η Σ G / √(Σ G²), 0 where there was no gradient."""
    for kind in range(own_sums.shape[0]):
        for place in range(own_sums.shape[1]):
            # Where no gradient was, the sum is 0 too, and 0 divided by next to nothing is 0.
            square = own_squares[kind, place] + _NEXT_TO_NOTHING
            out_weight[kind, place] = rate * own_sums[kind, place] / np.sqrt(square)


@kernel
def _find_own(block, row, own_kind, own_category, own_group, out_cells, out_values):
    """Write kind, category and lower knot of the own cells of one row, their linear values and shares of the next knot.

    Without a hat the knot is -1. Returned is the number of own cells.
    """
    count = 0
    for cell in range(np.uintp(block.indptr[row]), np.uintp(block.indptr[row + 1])):
        column = np.uintp(block.indices[cell])
        kind = own_kind[column]
        if kind >= 0:
            knot = block.knot[cell]
            lower = np.int64(knot)
            out_cells[count, 0] = kind
            out_cells[count, 1] = own_category[column]
            out_cells[count, 2] = lower
            out_values[count, 0] = block.data[cell] * block.own_scale[row, own_group[kind]]
            out_values[count, 1] = knot - np.float32(lower)
            count += 1
    return count


@kernel
def _add_own(cells, values, n_own, own_weight, out_score):
    """Add the own term of one row to the score of each category."""
    for cell in range(n_own):
        knot = np.float32(cells[cell, 2]) + values[cell, 1]
        out_score[cells[cell, 1]] += own_value(own_weight, cells[cell, 0], values[cell, 0], knot)


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
def _push_own(cells, values, n_own, push, gradient, own_sums, own_squares):
    """Add the gradients of one row to the sums of the own weights; `gradient` is work space, 0 before and after."""
    for cell in range(n_own):
        kind, lower = cells[cell, 0], cells[cell, 2]
        pushed = np.float64(push[cells[cell, 1]])
        gradient[kind, 0] += pushed * values[cell, 0]
        if lower >= 0:
            upper = HAT_SCALE * pushed * values[cell, 1]
            gradient[kind, lower + 1] += HAT_SCALE * pushed - upper
            gradient[kind, lower + 2] += upper
    for row_kind in range(own_sums.shape[0]):
        for weight in range(own_sums.shape[1]):
            own_sums[row_kind, weight] += gradient[row_kind, weight]
            own_squares[row_kind, weight] += gradient[row_kind, weight] * gradient[row_kind, weight]
            gradient[row_kind, weight] = 0.0


@kernel
def _push_logistic(ranking, tied, strength, rival, right, wrong, push):
    """Add the pushes of all pairs of one row to `push`, and return Σ ln(1 + e^(s_k − s_i)); `rival` changes too.

    `strength` is e^s of each category, and `rival` the same at first: a category leaves the rivals (0) when it is its
    turn, so that each meets exactly those it is preferred over. `right` and `wrong` are work space.
    """
    nothing = np.float32(0.0)
    n_categories = rival.shape[0]
    loss = 0.0
    product = 1.0
    first = 0
    while first < ranking.shape[0] and ranking[first] >= 0:
        end = end_of_group(ranking, tied, first)
        for place in range(first, end):
            rival[np.uintp(ranking[place])] = nothing
        for place in range(first, end):
            preferred = np.uintp(ranking[place])
            own = strength[preferred]
            for category in range(n_categories):
                inverse = np.float32(1.0) / (rival[category] + own)
                wrong[category] = rival[category] * inverse
                push[category] -= wrong[category]
                right[category] = own * inverse
            won = nothing
            category = 0
            # The chance to be right of a category that is no rival is 1. Four at a time, added in a fixed order.
            while category + 4 <= n_categories:
                a, b, c, d = right[category], right[category + 1], right[category + 2], right[category + 3]
                won += (wrong[category] + wrong[category + 1]) + (wrong[category + 2] + wrong[category + 3])
                product *= (np.float64(a) * b) * (np.float64(c) * d)
                if product < _SMALL_PRODUCT:
                    loss -= np.log(product)
                    product = 1.0
                category += 4
            while category < n_categories:
                won += wrong[category]
                product *= np.float64(right[category])
                category += 1
            if product < _SMALL_PRODUCT:
                loss -= np.log(product)
                product = 1.0
            push[preferred] += won
        first = end
    return loss - np.log(product)


@kernel
def _add_row(values, features, length, bias, plane_push, pushed, n_pushed, n_total, sums):
    """Add push · z to the planes `pushed`; `plane_push` is 0 elsewhere. `sums` is changed in place."""
    bias_row = np.uintp(sums.shape[0] - 1)
    constant = np.float32(bias)
    if n_pushed < _DENSE_SHARE * n_total:
        for place in range(n_pushed):
            sums[bias_row, pushed[place]] += plane_push[pushed[place]] * constant
        for cell in range(length):
            feature, value = features[cell], values[cell]
            for place in range(n_pushed):
                sums[feature, pushed[place]] += plane_push[pushed[place]] * value
    else:
        for plane in range(n_total):
            sums[bias_row, plane] += plane_push[plane] * constant
        for cell in range(length):
            feature, value = features[cell], values[cell]
            for plane in range(n_total):
                sums[feature, plane] += plane_push[plane] * value
