"""Train AMM-rank-plus: a loss over what a row ranks, steps by feature, and own weights all categories share."""

from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.ammrank import end_of_group
from ammrank_dask.kernels.exponential import exp_below
from ammrank_dask.kernels.jit import kernel
from ammrank_dask.kernels.own_term import CHAINS, add_own, find_own, learn_own, push_own

# Above this share of pushed planes one contiguous multiply-add over all planes is cheaper than single writes.
_DENSE_SHARE = 0.1
# So many factors of e^-80, the least that a chance can be, on top of the small product are above the least float64.
_SMALL_PRODUCT = 1e-20
_MOST_FACTORS = 7
# Sums of float32 do not feel such a push, and the denormal products it makes take a hundred times as long.
_SMALL_PUSH = np.float32(1e-20)
# What the loss of every category by itself counts beside that of the clicked ones against all others.
_ALONE = np.float32(0.1)


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
    """How a step is made: λ and η of w = S / (λt + √H/η), the η of the own weights, the value of the constant last
    feature, the prior of each category, its limit of planes, of the own columns kind and category, the group of each
    kind, where each category's prior stands among its knots, or nothing where it has no hats, the columns (n, L) of
    popularity whose weights are learned, and whether rows only tell which categories were clicked."""

    regularization: float
    rate: float
    own_rate: float
    bias: float
    prior: np.ndarray
    limit: np.ndarray
    own_kind: np.ndarray
    own_category: np.ndarray
    own_group: np.ndarray
    prior_knot: np.ndarray
    trends: np.ndarray
    by_clicks: bool


class PlusSums(NamedTuple):
    """What training adds up.

    `sums`, `category` and `n_planes` are those of `ammrank.Planes`. `squares` (d + 1,) float64 is H, the squared
    pushes that met each feature. `own_sums` and `own_squares` (n_kinds + 1, 2 + most knots) float64 are those of the
    own weights, the linear one first, then one a knot, and nothing in the last; behind the kinds are a row of the
    prior's hats, and one of the columns of popularity where there are any.
    """

    sums: np.ndarray
    category: np.ndarray
    n_planes: np.ndarray
    squares: np.ndarray
    own_sums: np.ndarray
    own_squares: np.ndarray


@kernel
def train_plus_rows(block, order, rule, step, state):
    """Make one step for each row in `order`, as far as the planes fit.

    The score of a category is prior + popularity + own term + the best of its planes. Pushes are those of
    `_push_clicks`, or, where rows rank all categories, of pairs: i ≻ k pushes by e^s_k / (e^s_k + e^s_i) / pairs of the
    row. S of the winning plane grows by push · z, H by z² · Σ push² over the pushes that reach a plane, and an own
    weight is η Σ G / √(Σ G²) of its gradients G. The zero plane wins where no plane is above 0; a positive push makes
    it a plane of its own, any other push on it is lost. Rows without a pair are no steps. `state` is changed in place.

    Returns
    -------
    (position, step, loss)
        How many rows of `order` were visited, the next step's t, and the sum of their losses, each before its own
        step. Fewer than all were visited when the planes may have no room for the births of the next row.
    """
    # Not as tuples to the helpers of the inner loops: every array in one would be counted as a reference.
    data, indices, knot, own_scale = block.data, block.indices, block.knot, block.own_scale
    sums, plane_category, n_planes, squares = state.sums, state.category, state.n_planes, state.squares
    own_kind, own_category, own_group = rule.own_kind, rule.own_category, rule.own_group
    prior, limit, prior_knot, trends = rule.prior, rule.limit, rule.prior_knot, rule.trends
    n_categories, capacity, n_kinds = n_planes.shape[0], sums.shape[1], own_group.shape[0]
    n_total = np.uintp(n_planes.sum())
    longest = _longest_row(block.indptr)
    scaled, met = np.zeros(longest, np.float32), np.zeros(longest, np.float32)
    plane_score, plane_push = np.zeros(capacity, np.float32), np.zeros(capacity, np.float32)
    score, best_plane = np.zeros(n_categories, np.float32), np.zeros(n_categories, np.int64)
    strength, rival = np.zeros(n_categories, np.float32), np.zeros(n_categories, np.float32)
    push, wrong = np.zeros(n_categories, np.float32), np.zeros(n_categories, np.float32)
    right, pushed = np.zeros(n_categories), np.zeros(n_categories, np.uintp)
    cells, values = np.zeros((2 * longest, 3), np.uintp), np.zeros((2 * longest, 3), np.float32)
    width = state.own_sums.shape[1]
    own_sums, own_squares = state.own_sums.reshape(-1), state.own_squares.reshape(-1)
    own_weight, gradient = np.zeros(own_sums.shape[0], np.float32), np.zeros((CHAINS, own_sums.shape[0]))
    learn_own(gradient, rule.own_rate, own_sums, own_squares, own_weight)
    n_own, loss, first_trend = np.uintp(0), 0.0, own_sums.shape[0] - width

    for position in range(order.shape[0]):
        row = order[position]
        ranking, tied = block.rankings[row], block.tied[row]
        n_pairs = count_pairs(ranking, tied, n_categories)
        if n_pairs == 0:
            continue
        if n_total + np.uintp(ranking.shape[0]) > capacity:
            return position, step, loss
        start, stop = np.uintp(block.indptr[row]), np.uintp(block.indptr[row + 1])
        constant = _scale_row(
            data, indices, start, stop, squares, rule.regularization * step, rule.rate, rule.bias, met, scaled
        )
        _score_planes(scaled, indices, start, stop - start, sums, constant, n_total, plane_score)
        _find_winners(plane_score, plane_category, n_total, n_planes, limit, score, best_plane)
        if n_kinds > 0:
            n_own = find_own(
                data, indices, knot, start, stop, own_kind, own_category, own_group, own_scale[row],
                prior_knot, width, cells, values,
            )  # fmt: skip
            add_own(cells, values, n_own, own_weight, score)
        _add_trends(trends, own_weight, first_trend, score)
        _measure_strength(score, prior, strength, rival)
        if rule.by_clicks:
            loss, share = loss + _push_clicks(ranking, score, strength, rival, right, push), np.float32(1.0)
        else:
            share = np.float32(1.0 / n_pairs)
            loss += _push_logistic(ranking, tied, strength, rival, right, wrong, push) / n_pairs
        n_total, n_pushed, reached = _push_planes(
            push, share, best_plane, limit, n_planes, plane_category, n_total, plane_push, pushed
        )
        _add_row(data, indices, start, stop, rule.bias, plane_push, pushed, n_pushed, n_total, sums)
        _add_squares(data, indices, start, stop, rule.bias, reached, squares)
        if n_kinds > 0:
            push_own(cells, values, n_own, push, gradient)
        _push_trends(trends, push, first_trend, gradient)
        learn_own(gradient, rule.own_rate, own_sums, own_squares, own_weight)
        step += 1
    return order.shape[0], step, loss


@kernel
def _longest_row(indptr):
    """Return the most values of a row."""
    longest = 0
    for row in range(indptr.shape[0] - 1):
        longest = max(longest, indptr[row + 1] - indptr[row])
    return longest


@kernel
def _scale_row(data, indices, start, stop, squares, decay, rate, bias, out_met, out_scaled):
    """Write the values of one row divided by λt + √H/η, and return the constant divided so; `out_met` is work space."""
    # Gathered first: the roots and quotients of a row are then computed side by side.
    for cell in range(start, stop):
        out_met[cell - start] = np.float32(squares[np.uintp(indices[cell])])
    slow_decay, slowness = np.float32(decay), np.float32(1.0 / rate)
    for cell in range(stop - start):
        out_scaled[cell] = data[start + cell] / (slow_decay + np.sqrt(out_met[cell]) * slowness)
    return np.float32(bias / (decay + np.sqrt(squares[squares.shape[0] - 1]) / rate))


@kernel
def _score_planes(scaled, indices, start, length, sums, constant, n_total, out_plane_score):
    """Write the inner product of one scaled row with the sums of each plane."""
    bias_row = np.uintp(sums.shape[0] - 1)
    for plane in range(n_total):
        out_plane_score[plane] = constant * sums[bias_row, plane]
    one, two, three, four = np.uintp(1), np.uintp(2), np.uintp(3), np.uintp(4)
    five, six, seven, eight = np.uintp(5), np.uintp(6), np.uintp(7), np.uintp(8)
    cell = np.uintp(0)
    # Eight values at a time: the scores pass through memory once for eight rows of sums, which are fetched together.
    while cell + eight <= length:
        at = start + cell
        f0, f1, f2, f3 = indices[at], indices[at + one], indices[at + two], indices[at + three]
        f4, f5, f6, f7 = indices[at + four], indices[at + five], indices[at + six], indices[at + seven]
        f0, f1, f2, f3 = np.uintp(f0), np.uintp(f1), np.uintp(f2), np.uintp(f3)
        f4, f5, f6, f7 = np.uintp(f4), np.uintp(f5), np.uintp(f6), np.uintp(f7)
        x0, x1, x2, x3 = scaled[cell], scaled[cell + one], scaled[cell + two], scaled[cell + three]
        x4, x5, x6, x7 = scaled[cell + four], scaled[cell + five], scaled[cell + six], scaled[cell + seven]
        for plane in range(n_total):
            score = out_plane_score[plane]
            score += x0 * sums[f0, plane]
            score += x1 * sums[f1, plane]
            score += x2 * sums[f2, plane]
            score += x3 * sums[f3, plane]
            score += x4 * sums[f4, plane]
            score += x5 * sums[f5, plane]
            score += x6 * sums[f6, plane]
            score += x7 * sums[f7, plane]
            out_plane_score[plane] = score
        cell += eight
    while cell < length:
        feature, value = np.uintp(indices[start + cell]), scaled[cell]
        for plane in range(n_total):
            out_plane_score[plane] += value * sums[feature, plane]
        cell += one


@kernel
def _find_winners(plane_score, plane_category, n_total, n_planes, limit, out_score, out_plane):
    """Write the best plane of each category and its score: -1 and 0 for the zero plane of one below its limit."""
    for category in range(n_planes.shape[0]):
        full = n_planes[category] > 0 and n_planes[category] >= limit[category]
        out_score[category] = np.float32(-np.inf) if full else np.float32(0.0)
        out_plane[category] = -1
    # Which plane wins cannot be foreseen, so nothing here waits for a branch.
    for plane in range(n_total):
        owner = np.uintp(plane_category[plane])
        new, old = plane_score[plane], out_score[owner]
        out_plane[owner] = np.int64(plane) if new > old else out_plane[owner]
        out_score[owner] = new if new > old else old


@kernel
def _measure_strength(score, prior, out_strength, out_rival):
    """Add the prior to `score`, and write e^(score − the highest) of each category, twice."""
    top = np.float32(-np.inf)
    for category in range(score.shape[0]):
        score[category] += prior[category]
        top = max(top, score[category])
    for category in range(score.shape[0]):
        out_strength[category] = exp_below(score[category] - top)
        out_rival[category] = out_strength[category]


@kernel
def _add_trends(trends, own_weight, first, score):
    """Add the columns of popularity, by their weights, to the score of each category."""
    for column in range(trends.shape[0]):
        weight = own_weight[first + column]
        for category in range(score.shape[0]):
            score[category] += weight * trends[column, category]


@kernel
def _push_trends(trends, push, first, gradient):
    """Add the gradients of the weights of the columns of popularity for one row to the first row of `gradient`."""
    for column in range(trends.shape[0]):
        total = 0.0
        for category in range(push.shape[0]):
            total += np.float64(push[category]) * trends[column, category]
        gradient[0, first + column] += total


@kernel
def _push_clicks(ranking, score, strength, rival, right, out_push):
    """Write the pushes of one row that tells which m categories were clicked, and return its loss.

    That is the mean over the clicked i of −ln(e^s_i / (e^s_i + Σ e^s of all that were not)), and a tenth of the
    logistic loss of every category by itself. `strength` and `rival` are e^s up to a factor; `rival` becomes 0 at the
    clicked ones, and `right` is work space.
    """
    n_clicked = 0
    while n_clicked < ranking.shape[0] and ranking[n_clicked] >= 0:
        rival[np.uintp(ranking[n_clicked])] = 0.0
        n_clicked += 1
    others = _sum_of(rival)
    share = np.float32(1.0) / np.float32(n_clicked)
    loss, shares = 0.0, np.float32(0.0)
    for place in range(n_clicked):
        both = others + strength[np.uintp(ranking[place])]
        loss += np.float64(share) * np.log(np.float64(both) / np.float64(strength[np.uintp(ranking[place])]))
        shares += np.float32(1.0) / both
    alone = 0.0
    for category in range(score.shape[0]):
        certain = exp_below(-abs(score[category]))
        likely = np.float32(1.0) / (np.float32(1.0) + certain)
        right[category] = np.float64(likely)
        chance = likely if score[category] >= 0 else certain * likely
        is_clicked = rival[category] == 0
        alone += np.float64(max(np.float32(0.0), -score[category] if is_clicked else score[category]))
        out_push[category] = -_ALONE * chance - share * shares * rival[category]
    for place in range(n_clicked):
        clicked = np.uintp(ranking[place])
        out_push[clicked] += _ALONE + share * others / (others + strength[clicked])
    return loss + np.float64(_ALONE) * (alone - _log_of_product(right))


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
def _push_logistic(ranking, tied, strength, rival, right, wrong, out_push):
    """Write the sum of the pushes of all pairs of one row, and return Σ ln(1 + e^(s_k − s_i)); `rival` changes too.

    `strength` is e^s of each category, and `rival` the same at first: a category leaves the rivals (0) when it is its
    turn, so that each meets exactly those it is preferred over. `right` and `wrong` are work space.
    """
    out_push[:] = 0.0
    right[:] = 1.0
    loss = 0.0
    n_factors = 0
    first = 0
    while first < ranking.shape[0] and ranking[first] >= 0:
        end = end_of_group(ranking, tied, first)
        for place in range(first, end):
            rival[np.uintp(ranking[place])] = 0.0
        for place in range(first, end):
            preferred = np.uintp(ranking[place])
            own = strength[preferred]
            # The chance to be right about a category that is no rival is 1.
            for category in range(rival.shape[0]):
                inverse = np.float32(1.0) / (rival[category] + own)
                wrong[category] = rival[category] * inverse
                out_push[category] -= wrong[category]
                right[category] *= np.float64(own * inverse)
            out_push[preferred] += _sum_of(wrong)
            n_factors += 1
            if n_factors == _MOST_FACTORS:
                loss -= _log_of_product(right)
                right[:] = 1.0
                n_factors = 0
        first = end
    return loss - _log_of_product(right)


@kernel
def _sum_of(values):
    """Return the sum of the values, four at a time."""
    total = np.float32(0.0)
    place = np.uintp(0)
    one, two, three, four = np.uintp(1), np.uintp(2), np.uintp(3), np.uintp(4)
    while place + four <= values.shape[0]:
        total += (values[place] + values[place + one]) + (values[place + two] + values[place + three])
        place += four
    while place < values.shape[0]:
        total += values[place]
        place += one
    return total


@kernel
def _log_of_product(factors):
    """Return the logarithm of the product of all factors, each at least e^-560 and at most 1."""
    total = 0.0
    product = 1.0
    for place in range(factors.shape[0]):
        product *= factors[place]
        if product < _SMALL_PRODUCT:
            total += np.log(product)
            product = 1.0
    return total + np.log(product)


@kernel
def _push_planes(push, share, best_plane, limit, n_planes, plane_category, n_total, out_plane_push, out_pushed):
    """Multiply pushes by `share` and give each to the winning plane of its category; a plane is born where it must be.

    Returned are the number of planes, how many of them are pushed, and the sum of the squares of their pushes.
    """
    n_pushed = np.uintp(0)
    reached = 0.0
    for category in range(push.shape[0]):
        pushed = push[category] * share
        push[category] = pushed if abs(pushed) >= _SMALL_PUSH else np.float32(0.0)
        winner = best_plane[category]
        if winner < 0:
            if push[category] <= 0 or n_planes[category] >= limit[category]:
                continue
            winner = np.int64(n_total)
            plane_category[winner] = category
            n_planes[category] += 1
            n_total += np.uintp(1)
        reached += np.float64(push[category]) * push[category]
        out_plane_push[np.uintp(winner)] = push[category]
        out_pushed[n_pushed] = np.uintp(winner)
        n_pushed += np.uintp(1)
    return n_total, n_pushed, reached


@kernel
def _add_row(data, indices, start, stop, bias, plane_push, pushed, n_pushed, n_total, sums):
    """Add push · z to the planes `pushed`; `plane_push` is 0 elsewhere, and all 0 afterwards."""
    bias_row = np.uintp(sums.shape[0] - 1)
    constant = np.float32(bias)
    if n_pushed < _DENSE_SHARE * n_total:
        for place in range(n_pushed):
            sums[bias_row, pushed[place]] += plane_push[pushed[place]] * constant
        for cell in range(start, stop):
            feature, value = np.uintp(indices[cell]), data[cell]
            for place in range(n_pushed):
                sums[feature, pushed[place]] += plane_push[pushed[place]] * value
    else:
        for plane in range(n_total):
            sums[bias_row, plane] += plane_push[plane] * constant
        for cell in range(start, stop):
            feature, value = np.uintp(indices[cell]), data[cell]
            for plane in range(n_total):
                sums[feature, plane] += plane_push[plane] * value
    for place in range(n_pushed):
        plane_push[pushed[place]] = 0.0


@kernel
def _add_squares(data, indices, start, stop, bias, reached, squares):
    """Add z² · Σ push² to H."""
    for cell in range(start, stop):
        value = np.float64(data[cell])
        squares[np.uintp(indices[cell])] += value * value * reached
    squares[np.uintp(squares.shape[0] - 1)] += bias * bias * reached
