"""Slow, plain twins of lists by value: sorted lists, and a linear program over users and categories."""

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog


def best_by_value(chances, weights, k, tie_order):
    """The k categories of each user of the highest chance × weight as float32, equal ones in the tie order."""
    position = {category: number for number, category in enumerate(tie_order)}
    lists = []
    for row, own in zip(chances, weights, strict=True):
        allowed = [code for code in range(len(row)) if row[code] >= 0]
        lists.append(sorted(allowed, key=lambda code: (-np.float32(float(row[code]) * own[code]), position[code]))[:k])
    return lists


def best_value(chances, per_click, floor, cap, k, clicks=None):
    """The largest expected value between floors and caps in users by HiGHS, None when there is no assignment.

    `per_click` (n, L) is what a click is worth; `clicks` (L,) are fewest expected clicks of a category.
    """
    n, n_categories = chances.shape
    allowed = chances >= 0
    chance = np.where(allowed, chances, 0).astype(float)
    users = sp.kron(sp.eye(n), np.ones((1, n_categories)), format="csr")
    categories = sp.kron(np.ones((1, n)), sp.eye(n_categories), format="csr")
    below, limits = [categories, -categories], [cap, -np.asarray(floor)]
    if clicks is not None:
        below.append(-categories @ sp.diags(chance.ravel()))
        limits.append(-np.asarray(clicks))
    done = linprog(
        -(chance * per_click).ravel(),
        A_eq=users,
        b_eq=np.minimum(allowed.sum(axis=1), k),
        A_ub=sp.vstack(below),
        b_ub=np.concatenate(limits),
        bounds=np.stack([np.zeros(allowed.size), allowed.ravel()], axis=1),
        method="highs",
    )
    return -done.fun if done.status == 0 else None
