"""Assign categories at prices: what users would hold, how close others come, and how that changes with the prices.

What a user gains by a category is its worth, a click probability times a weight of the category, less its price. Every
user holds the k categories of highest gain, or all they may hold if those are fewer. k is a number of each user's own:
what was drawn for them before is taken off.
"""

import math
from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.jit import kernel

COST_BINS = 128
"""Bins of `count_margins`: four to an octave, the last for costs of 4 and more, the first for those below 2⁻³⁰."""


class Offers(NamedTuple):
    """What categories are worth to users: `chances` (n, L) float32, times `weights` (groups, L) float64.

    A chance below 0 marks what a user may not hold. `group` (n,) uint8 is the row of the weights of each user.
    """

    chances: np.ndarray
    weights: np.ndarray
    group: np.ndarray


_FAR = 36.0  # beyond so many temperatures a share is 0 or 1 to the last bit
_ROOT_STEPS = 60


@kernel
def smooth_sums(offers, prices, slots, temperature, out_users, out_hessian):
    """Add up the smoothed assignment, and return the sum over users of k·μ + T·Σ ln(1 + exp((gain − μ)/T)).

    User u holds the share x = 1/(1 + exp(−(gain − μ_u)/T)) of a category, with μ_u such that the shares sum to k. The
    sum returned is the smoothed dual less what the prices earn; its gradient by the prices is −out_users.

    Parameters
    ----------
    offers
        What n users are offered.
    prices
        (L,) float64.
    slots
        (n,) int64, k of each user.
    out_users
        (L,) float64, the shares of all users, added to.
    out_hessian
        (L, L) float64, the second derivatives, added to; (0, 0) for none.
    """
    n_users, n_categories = offers.chances.shape
    gain = np.empty(n_categories, np.float64)
    code = np.empty(n_categories, np.int64)
    best = np.empty(n_categories + 1, np.float64)
    near = np.empty(n_categories, np.int64)
    share = np.empty(n_categories, np.float64)
    total = 0.0
    for user in range(n_users):
        k = slots[user]
        if k == 0:
            continue
        n_allowed = _gains_of(offers, prices, user, gain, code)
        if n_allowed <= k:
            for item in range(n_allowed):
                total += gain[item]
                out_users[np.uintp(code[item])] += 1.0
            continue
        _best_gains(gain, n_allowed, k + 1, best)
        low, high = best[k] - _FAR * temperature, best[k - 1] + _FAR * temperature
        n_near = 0
        n_sure = 0
        sure = 0.0
        for item in range(n_allowed):
            if gain[item] > high:
                n_sure += 1
                sure += gain[item]
                out_users[np.uintp(code[item])] += 1.0
            elif gain[item] >= low:
                near[n_near] = item
                n_near += 1
        middle = 0.5 * (best[k - 1] + best[k])
        border = _find_border(gain, near, n_near, k - n_sure, middle, temperature, share)
        total += sure + (k - n_sure) * border
        weight = 0.0
        for i in range(n_near):
            scaled = (gain[near[i]] - border) / temperature
            total += temperature * (max(scaled, 0.0) + math.log1p(math.exp(-abs(scaled))))
            out_users[np.uintp(code[near[i]])] += share[i]
            weight += share[i] * (1.0 - share[i])
        if out_hessian.shape[0] > 0 and weight > 0.0:
            _add_curvature(code, near, n_near, share, weight, temperature, out_hessian)
    return total


@kernel
def _gains_of(offers, prices, user, out_gain, out_code):
    """Write the gains and codes of what a user may hold, and return how many those are."""
    n_allowed = 0
    own = offers.weights[offers.group[user]]
    for category in range(offers.chances.shape[1]):
        chance = offers.chances[user, category]
        if chance >= 0.0:
            out_gain[n_allowed] = np.float64(chance) * own[category] - prices[category]
            out_code[n_allowed] = category
            n_allowed += 1
    return n_allowed


@kernel
def _best_gains(gain, n, size, out_best):
    """Write the `size` highest of n gains, best first; there are as many, or more."""
    n_kept = 0
    for item in range(n):
        new = gain[item]
        if n_kept == size and new <= out_best[size - 1]:
            continue
        at = n_kept if n_kept < size else size - 1
        while at > 0 and out_best[at - 1] < new:
            out_best[at] = out_best[at - 1]
            at -= 1
        out_best[at] = new
        if n_kept < size:
            n_kept += 1


@kernel
def _find_border(gain, near, n_near, wanted, start, temperature, out_share):
    """Return μ with Σ 1/(1 + exp(−(gain − μ)/T)) = wanted over the near items, and write their shares.

    Newton steps inside a bracket that every evaluation narrows; halved where a step would leave it.
    """
    low = start - 2.0 * _FAR * temperature
    high = start + 2.0 * _FAR * temperature
    for i in range(n_near):
        low = min(low, gain[near[i]] - _FAR * temperature)
        high = max(high, gain[near[i]] + _FAR * temperature)
    border = start
    for _ in range(_ROOT_STEPS):
        total = 0.0
        slope = 0.0
        for i in range(n_near):
            share = 1.0 / (1.0 + math.exp(min(700.0, (border - gain[near[i]]) / temperature)))
            out_share[i] = share
            total += share
            slope += share * (1.0 - share)
        excess = total - wanted
        if abs(excess) < 1e-12:
            break
        if excess > 0.0:
            low = border
        else:
            high = border
        step = border + temperature * excess / slope if slope > 0.0 else low - 1.0
        border = step if low < step < high else 0.5 * (low + high)
    return border


@kernel
def _add_curvature(code, near, n_near, share, weight, temperature, out_hessian):
    """Add (diag(w) − w wᵀ/Σw)/T with w = x(1 − x) of one user."""
    for i in range(n_near):
        own = share[i] * (1.0 - share[i])
        if own < 1e-12:
            continue
        row = np.uintp(code[near[i]])
        out_hessian[row, row] += own / temperature
        factor = own / (weight * temperature)
        for j in range(n_near):
            out_hessian[row, np.uintp(code[near[j]])] -= factor * share[j] * (1.0 - share[j])


@kernel
def assign_priced(offers, prices, slots, tie_order, out_code, out_border, out_clicks):
    """Write what each user holds at the prices, highest gain first, and return Σ worth and Σ gain.

    Parameters
    ----------
    slots
        (n,) int64, k of each user.
    tie_order
        (L,) category codes, the one to prefer among equal gains first.
    out_code
        (n, largest k) int32, -1 where the user may hold fewer.
    out_border
        (n, 2) float64: the lowest gain that is held, and the highest that is not; NaN for users who hold all they may
        and for those without a slot.
    out_clicks
        (L,) float64, the chances of what is held, added to.
    """
    n_users, n_ranks = out_code.shape
    best = np.empty(n_ranks + 1, np.float64)
    best_code = np.empty(n_ranks + 1, np.int64)
    total_worth = 0.0
    total_gain = 0.0
    for user in range(n_users):
        k = slots[user]
        own = offers.weights[offers.group[user]]
        n_kept = 0
        for position in range(tie_order.shape[0]):
            category = np.uintp(tie_order[position])
            chance = offers.chances[user, category]
            if chance < 0.0:
                continue
            new = np.float64(chance) * own[category] - prices[category]
            if n_kept > k and new <= best[k]:
                continue
            at = n_kept if n_kept <= k else k
            while at > 0 and best[at - 1] < new:
                best[at] = best[at - 1]
                best_code[at] = best_code[at - 1]
                at -= 1
            best[at] = new
            best_code[at] = category
            if n_kept <= k:
                n_kept += 1
        n_held = min(k, n_kept)
        for rank in range(n_ranks):
            out_code[user, rank] = best_code[rank] if rank < n_held else -1
            if rank < n_held:
                total_gain += best[rank]
                category = np.uintp(best_code[rank])
                chance = np.float64(offers.chances[user, category])
                total_worth += chance * own[category]
                out_clicks[category] += chance
        can_swap = n_kept > k and k > 0
        out_border[user, 0] = best[k - 1] if can_swap else np.nan
        out_border[user, 1] = best[k] if can_swap else np.nan
    return total_worth, total_gain


@kernel
def cost_bin(cost):
    """Return the bin of a cost; bins ascend with the cost."""
    if cost < 2.0**-30:
        return 0
    fraction, exponent = math.frexp(cost)
    return min(COST_BINS - 1, 1 + (exponent + 29) * 4 + int((fraction - 0.5) * 8.0))


@kernel
def count_margins(offers, prices, code, border, out_leave, out_enter):
    """Count by category and `cost_bin` what it costs holders to leave it, and others to enter it.

    A holder who leaves takes their best category that is not held; who enters gives up the worst one held.

    Parameters
    ----------
    code, border
        As `assign_priced` writes them.
    out_leave, out_enter
        (L, COST_BINS) int64, added to.
    """
    holds = np.zeros(offers.chances.shape[1], np.bool_)
    for user in range(offers.chances.shape[0]):
        if np.isnan(border[user, 0]):
            continue
        own = offers.weights[offers.group[user]]
        _mark(code[user], True, holds)
        for category in range(offers.chances.shape[1]):
            chance = offers.chances[user, category]
            if chance >= 0.0:
                gain = np.float64(chance) * own[category] - prices[category]
                if holds[category]:
                    out_leave[category, cost_bin(gain - border[user, 1])] += 1
                else:
                    out_enter[category, cost_bin(border[user, 0] - gain)] += 1
        _mark(code[user], False, holds)


@kernel
def _mark(code, mark, out_holds):
    """Write a mark for the categories that are held; -1 is none."""
    for rank in range(code.shape[0]):
        if code[rank] >= 0:
            out_holds[np.uintp(code[rank])] = mark


@kernel
def list_movable(offers, prices, code, border, last_leave, last_enter, out_indptr, out_code, out_holds):
    """Write for each user the categories that may be given up or taken; return nothing when only counts are asked for.

    Listed are the held categories that cost at most the bin `last_leave[c]` to leave, the others that cost at most
    `last_enter[c]` to enter; and if there are any, also the worst one held and the best one that is not.

    Parameters
    ----------
    last_leave, last_enter
        (L,) int64, -1 for none.
    out_indptr
        (n + 1,) int64, where the categories of each user start. Written when `out_code` is empty, else read.
    out_code, out_holds
        The categories by code and whether the user holds them, or empty.
    """
    n_categories = offers.chances.shape[1]
    counting = out_code.shape[0] == 0
    holds = np.zeros(n_categories, np.bool_)
    if counting:
        out_indptr[0] = 0
    for user in range(offers.chances.shape[0]):
        if counting:
            out_indptr[user + 1] = out_indptr[user]
        elif out_indptr[user] == out_indptr[user + 1]:
            continue
        if np.isnan(border[user, 0]):
            continue
        _mark(code[user], True, holds)
        last = code.shape[1] - 1
        while code[user, last] < 0:
            last -= 1
        worst_held = np.uintp(code[user, last])
        own = offers.weights[offers.group[user]]
        n_listed = 0
        n_ends = 0
        for category in range(n_categories):
            chance = offers.chances[user, category]
            if chance < 0.0:
                continue
            gain = np.float64(chance) * own[category] - prices[category]
            if holds[category]:
                listed = cost_bin(gain - border[user, 1]) <= last_leave[category]
                is_end = category == worst_held
            else:
                listed = cost_bin(border[user, 0] - gain) <= last_enter[category]
                is_end = gain == border[user, 1]
            if listed or is_end:
                if not counting:
                    at = out_indptr[user] + n_listed
                    out_code[at] = category
                    out_holds[at] = holds[category]
                n_listed += 1
                if not listed:
                    n_ends += 1
        if counting and n_listed > n_ends:
            out_indptr[user + 1] += n_listed
        _mark(code[user], False, holds)


@kernel
def step_prices(prices, users, hessian, floor, cap, reach, sweeps, out_step):
    """Write the step that minimises the quadratic model of the dual in a box, and return what the model gains by it.

    The model is −users·d + ½ dᵀ hessian d + Σ_c φ_c(price_c + d_c) with φ_c(π) = cap_c·π for π > 0 and floor_c·π for
    π < 0, over |d_c| ≤ reach. One coordinate after the other is minimised exactly, `sweeps` times at most.
    """
    n = prices.shape[0]
    out_step[:] = 0.0
    slope = -users.copy()
    for _ in range(sweeps):
        largest = 0.0
        for c in range(n):
            curvature = hessian[c, c]
            rest = slope[c] - curvature * out_step[c]
            step = -(rest + cap[c]) / curvature
            if prices[c] + step < 0.0:
                step = -(rest + floor[c]) / curvature
                if prices[c] + step > 0.0:
                    step = -prices[c]
            step = min(reach, max(-reach, step))
            moved = step - out_step[c]
            if moved != 0.0:
                for other in range(n):
                    slope[other] += hessian[other, c] * moved
                out_step[c] = step
                largest = max(largest, abs(moved))
        if largest <= 1e-4 * reach:
            break
    gained = 0.0
    for c in range(n):
        gained += out_step[c] * (users[c] - 0.5 * (slope[c] + users[c]))
        gained += earned(prices[c], floor[c], cap[c]) - earned(prices[c] + out_step[c], floor[c], cap[c])
    return gained


@kernel
def earned(price, floor, cap):
    """Return what a price adds to the dual."""
    return price * (cap if price > 0.0 else floor)
