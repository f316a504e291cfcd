"""Find the price of every category at which users, left to choose, share the categories out as is asked for.

With prices π every user holds the k categories of highest worth − π, worth being the chance of a click times a weight.
D(π) = Σ_u (the k best of worth − π) + Σ_c (cap_c·max(π_c, 0) − floor_c·max(−π_c, 0)) is at least the sum of worths of
any assignment between floors and caps,
and the lowest D equals that of the best one. D has corners; it is smoothed at a temperature that falls
(`kernels.balanced.smooth_sums`), and every step goes to the minimum of a quadratic model inside a box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ammrank_dask.kernels.balanced import Offers, smooth_sums, step_prices

TEMPERATURES = (1e-2, 3e-3, 1e-3, 3e-4)
"""Temperatures one after the other, as shares of the chance of an average slot at the start."""

_MAX_STEPS = 30
_SWEEPS = 2000
_RIDGE = 1e-9


@dataclass(frozen=True)
class SmoothSums:
    """Sums over users at some prices and a temperature; they add over blocks of users.

    `total` is the smoothed dual without what the prices earn, `users` (L,) the shares that are held of each category,
    `hessian` (L, L) the second derivatives.
    """

    total: float
    users: np.ndarray
    hessian: np.ndarray

    def __add__(self, other: SmoothSums) -> SmoothSums:
        """Return the sums of both sets of users."""
        return SmoothSums(self.total + other.total, self.users + other.users, self.hessian + other.hessian)


Evaluate = Callable[[np.ndarray, float], SmoothSums]
"""Takes prices and a temperature, and returns the sums over all users."""


def offers_of(chances: np.ndarray | Offers) -> Offers:
    """Return what users are offered: chances (n, L) alone are worth what they are.

    Examples
    --------
    >>> offers_of(np.array([[0.5, -1.0]], np.float32)).weights.tolist()
    [[1.0, 1.0]]
    """
    if isinstance(chances, Offers):
        return chances
    return Offers(chances, np.ones((1, chances.shape[1])), np.zeros(len(chances), np.uint8))


def worth_of(offers: Offers) -> np.ndarray:
    """Return what categories are worth to users, (n, L); below 0 where a user may not hold the category."""
    if len(offers.weights) == 1 and (offers.weights == 1).all():
        return offers.chances
    return np.where(offers.chances >= 0, offers.chances * offers.weights[offers.group], -1.0)


def sum_block(chances: np.ndarray | Offers, prices: np.ndarray, k: int | np.ndarray, temperature: float) -> SmoothSums:
    """Return the sums of one block of users; chances are below 0 where a user may not hold a category.

    `k` is a number for all, or one for each user (n,).
    """
    offers = offers_of(chances)
    n_users, n_categories = offers.chances.shape
    users, hessian = np.zeros(n_categories), np.zeros((n_categories, n_categories))
    total = smooth_sums(offers, prices, slots_of(k, n_users), temperature, users, hessian)
    return SmoothSums(total, users, hessian)


def slots_of(k: int | np.ndarray, n_users: int) -> np.ndarray:
    """Return how many categories each user holds, (n,) int64, from one number for all or one for each.

    Examples
    --------
    >>> slots_of(3, 2).tolist()
    [3, 3]
    """
    return np.full(n_users, k, np.int64) if isinstance(k, int | np.integer) else np.asarray(k, np.int64)


@dataclass(frozen=True)
class PriceSearch:
    """Where a search for prices is: `reach` is how far the next step may go, `n_evaluations` what it took."""

    prices: np.ndarray
    reach: float
    n_evaluations: int = 0


def find_prices(
    chances: np.ndarray | Offers,
    floor: np.ndarray,
    cap: np.ndarray,
    k: int | np.ndarray,
    *,
    temperatures: Sequence[float],
    start: np.ndarray | None = None,
) -> PriceSearch:
    """Return prices for users whose chances are in memory.

    Parameters
    ----------
    chances
        (n, L) float32, below 0 where a user may not hold the category, with weights or without.
    floor, cap
        (L,) the fewest and the most users of each category; may be fractions where the users are a sample.
    temperatures
        Falling ones; with good prices to start from, the last alone will do.
    start
        (L,) prices to start from, by default 0.

    Examples
    --------
    >>> chances = np.array([[0.5, 0.4], [0.5, 0.1]], np.float32)
    >>> search = find_prices(chances, np.array([1, 1]), np.array([2, 2]), 1, temperatures=[1e-2, 1e-3])
    >>> bool(0.1 < search.prices[0] - search.prices[1] < 0.4)
    True
    """

    offers = offers_of(chances)

    def evaluate(prices: np.ndarray, temperature: float) -> SmoothSums:
        return sum_block(offers, prices, k, temperature)

    search = PriceSearch(
        np.zeros(offers.chances.shape[1]) if start is None else start.astype(np.float64), 5 * temperatures[0]
    )
    for temperature in temperatures:
        search = descend(evaluate, floor, cap, search, temperature)
    return search


def descend(
    evaluate: Evaluate,
    floor: np.ndarray,
    cap: np.ndarray,
    search: PriceSearch,
    temperature: float,
    *,
    max_steps: int = _MAX_STEPS,
    tolerance: float = 1e-7,
) -> PriceSearch:
    """Lower the smoothed dual until a step promises less than `tolerance` of it, or after `max_steps`.

    Every step costs one evaluation, and the start costs one. The last promise is taken without asking.
    """
    prices, reach = search.prices, search.reach
    sums = evaluate(prices, temperature)
    n_evaluations = 1
    for number in range(max_steps + 1):
        value = sums.total + earnings(prices, floor, cap)
        step, promised = propose(prices, sums, floor, cap, reach)
        if promised <= tolerance * abs(value) or number == max_steps:
            prices = prices + step
            break
        trial = evaluate(prices + step, temperature)
        n_evaluations += 1
        gained = value - trial.total - earnings(prices + step, floor, cap)
        if gained > 0:
            prices, sums = prices + step, trial
        if gained < 0.25 * promised:
            reach *= 0.3
        elif gained > 0.75 * promised and np.abs(step).max() > 0.9 * reach:
            reach *= 2.5
    return PriceSearch(prices, reach, search.n_evaluations + n_evaluations)


def propose(
    prices: np.ndarray, sums: SmoothSums, floor: np.ndarray, cap: np.ndarray, reach: float
) -> tuple[np.ndarray, float]:
    """Return the best step of the quadratic model with no price moving farther than `reach`, and what it promises."""
    step = np.empty(len(prices))
    # A category that nobody is near has no curvature; the ridge only keeps its step finite, the box keeps it short.
    ridge = _RIDGE * max(float(np.trace(sums.hessian)), float(sums.users.sum()), 1e-300)
    hessian = sums.hessian + ridge * np.eye(len(prices))
    promised = step_prices(
        prices, sums.users, hessian, floor.astype(np.float64), cap.astype(np.float64), reach, _SWEEPS, step
    )
    return step, float(promised)


def earnings(prices: np.ndarray, floor: np.ndarray, cap: np.ndarray) -> float:
    """Return what the prices add to the dual.

    Examples
    --------
    >>> earnings(np.array([0.5, -0.25]), np.array([0, 4]), np.array([10, 10]))
    4.0
    """
    return float((prices * np.where(prices > 0, cap, floor)).sum())
