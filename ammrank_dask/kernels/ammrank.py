"""Train and score AMM-rank and multi-class AMM on CSR rows."""

from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.jit import kernel

# Above this share of pushed planes one contiguous multiply-add over all planes is cheaper than single writes.
_DENSE_SHARE = 0.25


class Block(NamedTuple):
    """Training rows: CSR with float32 values, and what each row ranks.

    `rankings` is (n_rows, m) category codes, best first, padded with -1 at the end. `tied` is (n_rows, m)
    booleans, true where a category ties with the one before it, or (n_rows, 0) when there are no ties.
    """

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    rankings: np.ndarray
    tied: np.ndarray


class Rule(NamedTuple):
    """How a step is made: λ, the value of the constant last feature, the limit of planes in one category,
    whether only the top category is a positive and only its strongest rival is pushed, and cloning."""

    regularization: float
    bias: float
    max_planes: int
    top_only: bool
    clone_probability: float
    clone_decay: float


class Planes(NamedTuple):
    """Sums of pushed rows S with w = S / (λt), and whose they are.

    `sums` is (d + 1, capacity) float32, feature-major with the bias as last row, planes in the order of their
    birth: sorted by category they train no faster (benchmarks/README.md), and a birth would move the others.
    float32, because a row costs the memory traffic of its features' sums, and the rounding of a sum (6e-8 of
    it) stays far below one push for some 10⁸ steps. `category` is (capacity,), `n_planes` (L,).
    """

    sums: np.ndarray
    category: np.ndarray
    n_planes: np.ndarray


@kernel
def train_rows(block, order, clone_draws, rank_weights, rule, step, stop_step, planes):
    """Make one step for each row in `order`, up to step `stop_step` and as far as the planes fit.

    With w = S / (λt) before step t, a pair i ≻ k is pushed where λt + S_k·x > S_i·x, by the rank weight of i,
    and S of the winning plane of a category grows by push · x. Nothing is ever decayed or rescaled. The zero
    plane of a category wins where no plane is above 0; a positive push makes it a plane of its own, any other
    push on it is lost. Rows without a ranking are no steps.

    A category at its limit has no zero plane left: its best plane wins and is pushed, also at or below 0. That is
    what scoring does, which knows only real planes, and what one plane per category needs to be a linear ranker.
    Were pushes on the zero plane lost there, a limit of 1 would rank at τ .635 instead of .793, of 5 at .849 instead
    of .867 (mean of seven public tables, benchmarks/README.md); given to the best plane, but scored 0, in between.

    `planes` is changed in place.

    Parameters
    ----------
    block
        The rows.
    order
        The rows to visit.
    clone_draws
        (len(order), L) float32, uniform in [0, 1), or (0, 0) for no cloning. A winning plane with a positive
        push is doubled first, and only one of the two is pushed, where the draw is below clone_probability ·
        clone_decay ^ planes of the category and the category is below its limit.
    rank_weights
        (m,) float32, ν of the ranks 1 … m; tied categories share the best rank of their group.
    rule
        What a step does.
    step, stop_step
        t of the first row, from 1, and the t before which to stop.
    planes
        The state.

    Returns
    -------
    (position, step, loss)
        How many rows of `order` were visited, the next step's t, and Σ ν max(0, 1 + g(k) − g(i)) over the pairs
        i ≻ k of these rows, each before its own step. Fewer than all were visited at `stop_step`, or when
        `planes` may have no room for the births of the next row.
    """
    sums = planes.sums
    n_categories, capacity = planes.n_planes.shape[0], sums.shape[1]
    max_length = block.rankings.shape[1]
    n_total = np.uintp(planes.n_planes.sum())
    nothing = np.float32(0.0)
    plane_score = np.zeros(capacity, np.float32)
    plane_push = np.zeros(capacity, np.float32)
    best_score = np.zeros(n_categories, np.float32)
    best_plane = np.full(n_categories, -1, np.int64)
    rival = np.zeros(n_categories, np.float32)
    push = np.zeros(n_categories, np.float32)
    pushed = np.zeros(n_categories, np.uintp)
    loss = 0.0
    most_births = n_categories if clone_draws.shape[0] > 0 else max_length

    for position in range(order.shape[0]):
        row = order[position]
        if max_length == 0 or block.rankings[row, 0] < 0:
            continue
        if step >= stop_step or n_total + np.uintp(most_births) > capacity:
            return position, step, loss
        start, stop = np.uintp(block.indptr[row]), np.uintp(block.indptr[row + 1])
        add_products(block.data, block.indices, start, stop, sums, rule.bias, n_total, plane_score)

        _find_best_planes(plane_score, planes, n_total, rule.max_planes, best_score, best_plane)
        margin = np.float32(rule.regularization * step)
        for category in range(n_categories):
            rival[category] = best_score[category] + margin
            push[category] = nothing
        if rule.top_only:
            total = _push_strongest(block.rankings[row], block.tied[row], rank_weights, best_score, rival, push)
        else:
            total = _push_pairs(block.rankings[row], block.tied[row], rank_weights, best_score, rival, push)

        n_pushed, n_total, lead = _take_pushes(
            push, best_score, best_plane, clone_draws, position, rule, n_total, planes, plane_push, pushed
        )
        if n_pushed > 0:
            add_pushes(block.data, block.indices, start, stop, plane_push, pushed[:n_pushed], rule.bias, n_total, sums)
            for place in range(n_pushed):
                plane_push[pushed[place]] = nothing
        # Over the pushed pairs Σ ν (1 + g(k) − g(i)) is their weight less the sum of pushes times scores.
        loss += total - lead / margin
        step += 1
    return order.shape[0], step, loss


@kernel
def _find_best_planes(plane_score, planes, n_total, max_planes, out_score, out_plane):
    """Write the best plane of each category and its score: -1 and 0 for the zero plane of one below its limit."""
    for category in range(planes.n_planes.shape[0]):
        full = planes.n_planes[category] > 0 and planes.n_planes[category] >= max_planes
        out_score[category] = np.float32(-np.inf) if full else np.float32(0.0)
        out_plane[category] = -1
    for plane in range(n_total):
        owner = np.uintp(planes.category[plane])
        if plane_score[plane] > out_score[owner]:
            out_score[owner] = plane_score[plane]
            out_plane[owner] = plane


@kernel
def _take_pushes(push, best_score, best_plane, clone_draws, position, rule, n_total, planes, out_push, out_pushed):
    """Write the planes that pushes reach, and the push of each; a plane may be born or cloned for it.

    Returned are how many planes are pushed, how many there are now, and the sum of pushes times scores. `planes` is
    changed in place.
    """
    nothing = np.float32(0.0)
    clones = clone_draws.shape[0] > 0
    n_planes = planes.n_planes
    n_pushed = 0
    lead = 0.0
    for category in range(n_planes.shape[0]):
        if push[category] == nothing:
            continue
        lead += push[category] * best_score[category]
        winner = best_plane[category]
        if winner < 0:
            if push[category] < nothing or n_planes[category] >= rule.max_planes:
                continue
            winner = np.int64(n_total)
            planes.category[winner] = category
            n_planes[category] += 1
            n_total += np.uintp(1)
        elif clones and push[category] > nothing and n_planes[category] < rule.max_planes:
            chance = rule.clone_probability * rule.clone_decay ** n_planes[category]
            if clone_draws[position, category] < chance:
                for feature in range(planes.sums.shape[0]):
                    planes.sums[feature, n_total] = planes.sums[feature, winner]
                planes.category[n_total] = category
                n_planes[category] += 1
                n_total += np.uintp(1)
        out_push[winner] = push[category]
        out_pushed[n_pushed] = np.uintp(winner)
        n_pushed += 1
    return n_pushed, n_total, lead


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
        add_products(data, indices, start, stop, weights, bias, n_total, plane_score)
        for category in range(out_score.shape[1]):
            best = np.float32(-np.inf)
            for plane in range(np.uintp(plane_start[category]), np.uintp(plane_start[category + 1])):
                best = max(best, plane_score[plane])
            out_score[row, category] = best


@kernel
def _push_pairs(ranking, tied, rank_weights, best_score, rival, push):
    """Add the pushes of all pairs of one row to `push` and return the weight of the pushed pairs.

    `rival` (score + margin) and `push` change in place.
    """
    nothing = np.float32(0.0)
    total = 0.0
    length = ranking.shape[0]
    first = 0
    # Groups of tied categories leave the rivals from the best on, so that each meets exactly those it is
    # preferred over.
    while first < length and ranking[first] >= 0:
        end = end_of_group(ranking, tied, first)
        for place in range(first, end):
            rival[np.uintp(ranking[place])] = -np.inf
        weight = rank_weights[first]
        for place in range(first, end):
            preferred = np.uintp(ranking[place])
            threshold = best_score[preferred]
            won = nothing
            for category in range(rival.shape[0]):
                pair_push = weight if rival[category] > threshold else nothing
                push[category] -= pair_push
                won += pair_push
            push[preferred] += won
            total += float(won)
        first = end
    return total


@kernel
def _push_strongest(ranking, tied, rank_weights, best_score, rival, push):
    """Add the push of the top category and its strongest rival to `push`, and return its weight.

    `rival` and `push` change in place. Of tied top categories the first is the one positive; the others are no rivals.
    """
    for place in range(0, end_of_group(ranking, tied, 0)):
        rival[np.uintp(ranking[place])] = -np.inf
    strongest = np.uintp(0)
    for category in range(rival.shape[0]):
        if rival[category] > rival[strongest]:
            strongest = np.uintp(category)
    top = np.uintp(ranking[0])
    if rival[strongest] > best_score[top]:
        push[top] += rank_weights[0]
        push[strongest] -= rank_weights[0]
        return np.float64(rank_weights[0])
    return 0.0


@kernel
def end_of_group(ranking, tied, first):
    """Return the place after the last category that ties with the one at place `first`."""
    end = first + 1
    if tied.shape[0] > 0:
        while end < ranking.shape[0] and ranking[end] >= 0 and tied[end]:
            end += 1
    return end


@kernel
def add_products(data, indices, start, stop, weights, bias, n_total, out_plane_score):
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
def add_pushes(data, indices, start, stop, plane_push, pushed, bias, n_total, sums):
    """Add push · x to the planes `pushed`; `plane_push` is 0 elsewhere. `sums` is changed in place."""
    bias_row = np.uintp(sums.shape[0] - 1)
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
