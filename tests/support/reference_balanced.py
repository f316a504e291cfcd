"""Slow, plain twins of the balanced policy: a linear program, sorted lists and a bracketed root."""

import math

import numpy as np
import scipy.sparse as sp
from scipy.optimize import brentq, linprog


def best_assignment(chances, floor, cap, k):
    """The largest sum of chances between floors and caps by HiGHS, None when there is no assignment."""
    n, n_categories = chances.shape
    allowed = chances >= 0
    users = sp.kron(sp.eye(n), np.ones((1, n_categories)), format="csr")
    categories = sp.kron(np.ones((1, n)), sp.eye(n_categories), format="csr")
    done = linprog(
        -np.where(allowed, chances, 0).astype(float).ravel(),
        A_eq=users,
        b_eq=np.minimum(allowed.sum(axis=1), k),
        A_ub=sp.vstack([categories, -categories]),
        b_ub=np.concatenate([cap, -np.asarray(floor)]),
        bounds=np.stack([np.zeros(allowed.size), allowed.ravel()], axis=1),
        method="highs",
    )
    return -done.fun if done.status == 0 else None


def hold(chances, prices, k, tie_order):
    """What each user holds, highest chance − price first, equal ones in the tie order; k may be one for each user."""
    position = {category: number for number, category in enumerate(tie_order)}
    rows = []
    for row, own in zip(chances, np.broadcast_to(k, len(chances)), strict=True):
        allowed = [c for c in range(len(row)) if row[c] >= 0]
        rows.append(sorted(allowed, key=lambda c: (-(float(row[c]) - prices[c]), position[c]))[:own])
    return rows


def smooth(chances, prices, k, temperature):
    """The smoothed dual without what prices earn, and the shares held of each category; k may be one for each user."""
    total, shares = 0.0, np.zeros(len(prices))
    for row, own in zip(chances, np.broadcast_to(k, len(chances)), strict=True):
        allowed = [c for c in range(len(row)) if row[c] >= 0]
        values = np.array([float(row[c]) - prices[c] for c in allowed])
        if own == 0:
            continue
        if len(allowed) <= own:
            total += values.sum()
            shares[allowed] += 1
            continue

        def share(border, values=values):
            return 1 / (1 + np.exp(np.clip(-(values - border) / temperature, -700, 700)))

        far = 800 * temperature
        border = brentq(
            lambda b, f=share, own=own: f(b).sum() - own, values.min() - far, values.max() + far, xtol=1e-15
        )
        total += own * border
        total += sum(temperature * np.logaddexp(0, (value - border) / temperature) for value in values)
        shares[allowed] += share(border)
    return total, shares


def dual(chances, prices, floor, cap, k):
    """What no assignment between floors and caps exceeds."""
    rows = hold(chances, prices, k, range(len(prices)))
    total = sum(float(chances[user, c]) - prices[c] for user, row in enumerate(rows) for c in row)
    return total + math.fsum(price * (cap[c] if price > 0 else floor[c]) for c, price in enumerate(prices))


def skewed_chances(n, n_categories, seed, skew, cold=0):
    """Chances and clicks of made-up users with tastes, of whom the last `cold` are all alike."""
    rng = np.random.default_rng(seed)
    popularity = 0.5 - skew * np.log(np.arange(1, n_categories + 1))
    logit = popularity + rng.normal(0, 0.8, (n, 1)) + rng.normal(0, 1, (n, n_categories))
    if cold:
        logit[-cold:] = popularity - 1
    chances = (1 / (1 + np.exp(-logit))).astype(np.float32)
    return chances, (rng.random(chances.shape) < chances).sum(axis=0)
