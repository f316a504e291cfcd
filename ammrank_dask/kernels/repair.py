"""Move users between categories until every category is between its floor and its cap, at the lowest cost in chances.

This is a flow of least cost by successive shortest paths. The nodes are the categories and a bank. A user who holds c
and not d is an arc from c to d that costs chance(c) − chance(d); less the difference of the prices that is never
negative where users hold what is best at the prices. The bank takes the users of a category between floor and cap.
"""

from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.jit import kernel


class Swaps(NamedTuple):
    """Swaps as nodes of skew heaps, one heap for each pair of categories: item `give` is given up for item `take`.

    `n_nodes` (1,) counts the nodes in use; `left` and `right` are the children, -1 for none.
    """

    give: np.ndarray
    take: np.ndarray
    left: np.ndarray
    right: np.ndarray
    n_nodes: np.ndarray


@kernel
def repair_counts(indptr, code, chance, holds, n_users, floor, cap, slack, prices):
    """Move users along the cheapest paths, and return how many units are left that no path leads away.

    Parameters
    ----------
    indptr, code, chance
        The categories that each user may give up or take: codes and chances (float64) of user u from `indptr[u]` to
        `indptr[u + 1]`. Users stand by id; of equal swaps the first goes first.
    holds
        Whether the user holds each of them; changed in place.
    n_users
        (L,) users of every category, of all users; changed in place.
    floor, cap
        (L,) int64.
    slack
        A category between floor and cap may stay where it is if that costs at most this much of the dual.
    prices
        (L,) float64, at which users hold what is best; changed in place to prices at which what they hold now is.
    """
    n_categories = n_users.shape[0]
    bank = n_categories
    cost = np.full((n_categories, n_categories), np.inf)
    root = np.full((n_categories, n_categories), -1, np.int64)
    swaps = _all_swaps(indptr, code, chance, holds, root)
    for c in range(n_categories):
        for d in range(n_categories):
            _drop_stale(swaps, chance, holds, c, d, root, cost)
    owner = np.empty(code.shape[0], np.int64)
    for user in range(indptr.shape[0] - 1):
        owner[indptr[user] : indptr[user + 1]] = user
    taken = np.empty(n_categories, np.int64)
    excess = np.empty(n_categories + 1, np.int64)
    _bank_users(n_users, floor, cap, prices, slack, taken, excess)
    distance = np.empty(n_categories + 1)
    before = np.empty(n_categories + 1, np.int64)
    path = np.empty(n_categories + 1, np.int64)
    while True:
        target = _shortest_path(cost, prices, taken, floor, cap, excess, distance, before)
        if target < 0:
            break
        shift = min(distance[bank], distance[target])
        for c in range(n_categories):
            prices[c] += shift - min(distance[c], distance[target])
        length = 1
        path[0] = target
        while before[path[length - 1]] >= 0:
            path[length] = before[path[length - 1]]
            length += 1
        source = path[length - 1]
        first_cost = _path_cost(path, length, cost, taken, floor, cap)
        # Equal users take the same path one after the other without another search.
        while (
            excess[source] > 0
            and excess[target] < 0
            and _path_cost(path, length, cost, taken, floor, cap) == first_cost
        ):
            for step in range(length - 1, 0, -1):
                c, d = path[step], path[step - 1]
                if d == bank:
                    taken[c] += 1
                elif c == bank:
                    taken[d] -= 1
                else:
                    swaps = _make_swap(swaps, indptr, code, chance, holds, owner, c, d, root, cost)
                    n_users[c] -= 1
                    n_users[d] += 1
            excess[source] -= 1
            excess[target] += 1
    left = 0
    for node in range(n_categories + 1):
        left += max(0, excess[node])
    return left


@kernel
def _bank_users(n_users, floor, cap, prices, slack, out_taken, out_excess):
    """Write how many users of each category the bank takes, and what is too much or too little then."""
    total = 0
    for c in range(n_users.shape[0]):
        inside = min(cap[c], max(floor[c], n_users[c]))
        bound = cap[c] if prices[c] > 0.0 else floor[c] if prices[c] < 0.0 else inside
        out_taken[c] = inside if abs(prices[c]) * abs(bound - inside) <= slack else bound
        out_excess[c] = n_users[c] - out_taken[c]
        total += out_excess[c]
    out_excess[n_users.shape[0]] = -total


@kernel
def _shortest_path(cost, prices, taken, floor, cap, excess, out_distance, out_before):
    """Return the nearest node that lacks users to those that have too many, -1 for none; distances up to it are final.

    Distances of nodes that are farther are upper bounds that lie beyond it.
    """
    bank = cost.shape[0]
    done = np.zeros(bank + 1, np.bool_)
    for node in range(bank + 1):
        out_distance[node] = 0.0 if excess[node] > 0 else np.inf
        out_before[node] = -1
    while True:
        c = -1
        for node in range(bank + 1):
            if not done[node] and out_distance[node] < np.inf and (c < 0 or out_distance[node] < out_distance[c]):
                c = node
        if c < 0 or excess[c] < 0:
            return c
        done[c] = True
        if c == bank:
            for d in range(bank):
                if taken[d] > floor[d]:
                    _relax(c, d, out_distance[c] + max(0.0, prices[d]), out_distance, out_before)
            continue
        if taken[c] < cap[c]:
            _relax(c, bank, out_distance[c] + max(0.0, -prices[c]), out_distance, out_before)
        for d in range(bank):
            reduced = max(0.0, cost[c, d] - prices[c] + prices[d])
            _relax(c, d, out_distance[c] + reduced, out_distance, out_before)


@kernel
def _relax(c, d, through, distance, before):
    """Reach d through c if that is nearer; changes both arrays."""
    if through < distance[d]:
        distance[d] = through
        before[d] = c


@kernel
def _path_cost(path, length, cost, taken, floor, cap):
    """Return what a user costs along a path, infinite if it is closed."""
    total = 0.0
    bank = cost.shape[0]
    for step in range(length - 1, 0, -1):
        c, d = path[step], path[step - 1]
        if d == bank:
            total += 0.0 if taken[c] < cap[c] else np.inf
        elif c == bank:
            total += 0.0 if taken[d] > floor[d] else np.inf
        else:
            total += cost[c, d]
    return total


@kernel
def _all_swaps(indptr, code, chance, holds, root):
    """Return the swaps that users could make; `root` is changed."""
    n_swaps = 0
    for user in range(indptr.shape[0] - 1):
        n_given = 0
        for item in range(indptr[user], indptr[user + 1]):
            n_given += holds[item]
        n_swaps += n_given * (indptr[user + 1] - indptr[user] - n_given)
    size = 2 * n_swaps + 1024
    swaps = Swaps(
        np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32),
        np.zeros(1, np.int64),
    )  # fmt: skip
    for user in range(indptr.shape[0] - 1):
        for give in range(indptr[user], indptr[user + 1]):
            if holds[give]:
                for take in range(indptr[user], indptr[user + 1]):
                    if not holds[take]:
                        _push(swaps, code, chance, give, take, root)
    return swaps


@kernel
def _push(swaps, code, chance, give, take, root):
    """Add a swap to its heap."""
    node = swaps.n_nodes[0]
    swaps.n_nodes[0] = node + 1
    swaps.give[node], swaps.take[node] = give, take
    swaps.left[node] = swaps.right[node] = -1
    c, d = code[give], code[take]
    root[c, d] = _merge_heaps(swaps, chance, root[c, d], node)


@kernel
def _merge_heaps(swaps, chance, one, other):
    """Return the root of two heaps in one."""
    if one < 0:
        return other
    if other < 0:
        return one
    if _is_before(swaps, chance, other, one):
        one, other = other, one
    root = at = one
    while True:
        below = np.int64(swaps.right[at])
        swaps.right[at] = swaps.left[at]
        if below < 0:
            swaps.left[at] = other
            return root
        if _is_before(swaps, chance, other, below):
            below, other = other, below
        swaps.left[at] = below
        at = below


@kernel
def _is_before(swaps, chance, one, other):
    """Return whether a swap is cheaper than another, or as cheap and of an earlier user."""
    cost = chance[swaps.give[one]] - chance[swaps.take[one]]
    other_cost = chance[swaps.give[other]] - chance[swaps.take[other]]
    return cost < other_cost or (cost == other_cost and swaps.give[one] < swaps.give[other])


@kernel
def _drop_stale(swaps, chance, holds, c, d, root, cost):
    """Take swaps that can no longer be made off the top of a heap, and write what the next one costs."""
    top = root[c, d]
    while top >= 0 and not (holds[swaps.give[top]] and not holds[swaps.take[top]]):
        top = _merge_heaps(swaps, chance, np.int64(swaps.left[top]), np.int64(swaps.right[top]))
    root[c, d] = top
    cost[c, d] = np.inf if top < 0 else chance[swaps.give[top]] - chance[swaps.take[top]]


@kernel
def _make_swap(swaps, indptr, code, chance, holds, owner, c, d, root, cost):
    """Make the cheapest swap from c to d; return the swaps with those that have become possible."""
    give, take = np.int64(swaps.give[root[c, d]]), np.int64(swaps.take[root[c, d]])
    holds[give], holds[take] = False, True
    start, stop = indptr[owner[give]], indptr[owner[give] + 1]
    if swaps.n_nodes[0] + 2 * (stop - start) > swaps.give.shape[0]:
        swaps = _grow(swaps)
    for item in range(start, stop):
        if holds[item]:
            if item != take:
                _push(swaps, code, chance, item, give, root)
                _drop_stale(swaps, chance, holds, code[item], code[give], root, cost)
                _drop_stale(swaps, chance, holds, code[item], code[take], root, cost)
        elif item != give:
            _push(swaps, code, chance, take, item, root)
            _drop_stale(swaps, chance, holds, code[take], code[item], root, cost)
            _drop_stale(swaps, chance, holds, code[give], code[item], root, cost)
    _push(swaps, code, chance, take, give, root)
    _drop_stale(swaps, chance, holds, code[take], code[give], root, cost)
    _drop_stale(swaps, chance, holds, code[give], code[take], root, cost)
    return swaps


@kernel
def _grow(swaps):
    """Return the swaps with room for as many again."""
    room = np.empty(swaps.give.shape[0], np.int32)
    return Swaps(
        np.concatenate((swaps.give, room)), np.concatenate((swaps.take, room)), np.concatenate((swaps.left, room)),
        np.concatenate((swaps.right, room)), swaps.n_nodes,
    )  # fmt: skip
