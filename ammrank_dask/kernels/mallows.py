"""Count preferred pairs of rankings and find the order that contradicts the fewest."""

import numpy as np

from ammrank_dask.kernels.jit import kernel


@kernel
def add_pairs(rankings, tied, rows, counts):
    """Add to `counts` (L, L) the rankings that prefer i over j, of the given rows only; changes `counts`.

    A category of a ranking is preferred over the later ones that do not tie with it, and over all that are not in it.

    Parameters
    ----------
    rankings, tied
        (n, m) codes, best first, -1 after the last; True where a category ties with the one before.
    rows
        Row numbers; -1 is skipped.
    """
    n_categories = counts.shape[0]
    inside = np.zeros(n_categories, np.bool_)
    for visit in range(rows.shape[0]):
        row = rows[visit]
        if row < 0:
            continue
        inside[:] = False
        length = 0
        while length < rankings.shape[1] and rankings[row, length] >= 0:
            inside[rankings[row, length]] = True
            length += 1
        for place in range(length):
            own = rankings[row, place]
            later = place + 1
            while later < length and tied[row, later]:
                later += 1
            for other in range(later, length):
                counts[own, rankings[row, other]] += 1
            for other in range(n_categories):
                if not inside[other]:
                    counts[own, other] += 1


@kernel
def borda_order(counts, tie_order, out_order):
    """Write the categories by wins minus losses, most first; equal ones in `tie_order`."""
    n_categories = counts.shape[0]
    balance = np.zeros(n_categories, np.int64)
    for one in range(n_categories):
        for other in range(n_categories):
            balance[one] += counts[one, other] - counts[other, one]
    for visit in range(n_categories):
        category = tie_order[visit]
        place = visit
        while place > 0 and balance[out_order[place - 1]] < balance[category]:
            out_order[place] = out_order[place - 1]
            place -= 1
        out_order[place] = category


@kernel
def improve_order(counts, order):
    """Move single categories to where they contradict the fewest pairs, until no move helps; changes `order`."""
    n_categories = order.shape[0]
    moved = True
    while moved:
        moved = False
        for start in range(n_categories):
            category = order[start]
            best_gain, best_place = 0, start
            gain = 0
            for place in range(start - 1, -1, -1):
                gain += counts[category, order[place]] - counts[order[place], category]
                if gain > best_gain:
                    best_gain, best_place = gain, place
            gain = 0
            for place in range(start + 1, n_categories):
                gain += counts[order[place], category] - counts[category, order[place]]
                if gain > best_gain:
                    best_gain, best_place = gain, place
            if best_gain > 0:
                moved = True
                step = 1 if best_place > start else -1
                for place in range(start, best_place, step):
                    order[place] = order[place + step]
                order[best_place] = category


@kernel
def exact_order(counts, order):
    """Replace `order` by one that contradicts the fewest pairs, when there is a better one; few categories only.

    A set of categories, as bits, is best arranged with some member last; of equal arrangements the one is kept whose
    last member stands latest in the given order.
    """
    n_categories = order.shape[0]
    n_sets = 1 << n_categories
    cost = np.zeros(n_sets, np.int64)
    last = np.zeros(n_sets, np.int8)
    for members in range(1, n_sets):
        best = np.int64(-1)
        for place in range(n_categories - 1, -1, -1):
            if not members >> place & 1:
                continue
            before = members & ~(1 << place)
            found = cost[before]
            for other in range(n_categories):
                if before >> other & 1:
                    found += counts[order[place], order[other]]
            if best < 0 or found < best:
                best = found
                last[members] = place
        cost[members] = best
    given = order.copy()
    members = n_sets - 1
    for place in range(n_categories - 1, -1, -1):
        order[place] = given[last[members]]
        members &= ~(1 << last[members])


@kernel
def center_order(counts, tie_order, n_exact, out_order):
    """Write the Mallows centre: exact up to `n_exact` categories, above it Borda's order improved by single moves."""
    borda_order(counts, tie_order, out_order)
    if counts.shape[0] <= n_exact:
        exact_order(counts, out_order)
    else:
        improve_order(counts, out_order)


@kernel
def center_of_neighbors(rankings, tied, neighbors, tie_order, n_exact, out_scores):
    """Write the centre of the rankings of each row's `neighbors` (n, k) as scores: L for the first, 1 for the last."""
    n_categories = tie_order.shape[0]
    counts = np.zeros((n_categories, n_categories), np.int64)
    order = np.empty(n_categories, np.int64)
    for row in range(neighbors.shape[0]):
        counts[:, :] = 0
        add_pairs(rankings, tied, neighbors[row], counts)
        center_order(counts, tie_order, n_exact, order)
        for place in range(n_categories):
            out_scores[row, order[place]] = n_categories - place
