"""The kernels of the balanced policy against plain twins."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from reference_balanced import best_assignment, dual, hold, smooth
from scipy.optimize import minimize

from ammrank_dask.kernels.balanced import (
    COST_BINS,
    assign_priced,
    cost_bin,
    count_margins,
    earned,
    list_movable,
    smooth_sums,
    step_prices,
)
from ammrank_dask.kernels.repair import repair_counts
from ammrank_dask.scoring.prices import offers_of

SEEDS = st.integers(0, 2**32 - 1)


def make_chances(rng, n, n_categories, levels=10**6, closed=0.2):
    chances = (rng.integers(0, levels + 1, (n, n_categories)) / levels).astype(np.float32)
    return np.where(rng.random(chances.shape) < closed, np.float32(-1), chances)


def make_slots(rng, n, k):
    """Slots of each user: k for all, or any number up to it."""
    return rng.integers(0, k + 1, n) if rng.random() < 0.5 else np.full(n, k)


def held_at(chances, prices, slots):
    codes, border = np.empty((len(chances), max(1, slots.max())), np.int32), np.empty((len(chances), 2))
    sums = assign_priced(
        offers_of(chances),
        prices,
        slots,
        np.arange(chances.shape[1], dtype=np.int32),
        codes,
        border,
        np.zeros(chances.shape[1]),
    )
    return codes, border, sums


@given(seed=SEEDS, k=st.integers(1, 5), temperature=st.sampled_from([0.3, 1e-2, 1e-4]))
@examples(40)
def test_smooth_sums__equals_a_bracketed_root(seed, k, temperature):
    rng = np.random.default_rng(seed)
    chances, prices = make_chances(rng, 5, 7, levels=rng.choice([3, 10**6])), rng.normal(0, 0.2, 7)
    users, hessian, slots = np.zeros(7), np.zeros((7, 7)), make_slots(rng, 5, k)
    total = smooth_sums(offers_of(chances), prices, slots, temperature, users, hessian)
    expected, shares = smooth(chances, prices, slots, temperature)
    assert total == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(users, shares, atol=1e-7)
    assert users.sum() == pytest.approx(np.minimum((chances >= 0).sum(axis=1), slots).sum(), abs=1e-9)


def test_smooth_sums__second_derivatives_are_those_of_the_shares():
    rng = np.random.default_rng(3)
    chances, prices = make_chances(rng, 40, 6), rng.normal(0, 0.1, 6)
    hessian = np.zeros((6, 6))
    smooth_sums(offers_of(chances), prices, np.full(40, 2), 0.05, np.zeros(6), hessian)
    for c in range(6):
        ahead, behind = (smooth(chances, prices + step * np.eye(6)[c], 2, 0.05)[1] for step in (1e-5, -1e-5))
        np.testing.assert_allclose(hessian[:, c], (behind - ahead) / 2e-5, atol=1e-4)


@given(seed=SEEDS, k=st.integers(1, 5), levels=st.sampled_from([1, 3, 10**6]))
@examples(60)
def test_hold_priced__equals_sorted_lists(seed, k, levels):
    rng = np.random.default_rng(seed)
    chances = make_chances(rng, 6, 7, levels)
    prices = rng.choice([-0.25, 0.0, 0.5], 7)
    tie_order = rng.permutation(7).astype(np.int32)
    codes, border, slots = np.empty((6, k), np.int32), np.empty((6, 2)), make_slots(rng, 6, k)
    chance, value = assign_priced(offers_of(chances), prices, slots, tie_order, codes, border, np.zeros(7))
    rows = hold(chances, prices, slots, tie_order.tolist())
    assert [[c for c in row if c >= 0] for row in codes.tolist()] == rows
    assert chance == pytest.approx(sum(float(chances[u, c]) for u, row in enumerate(rows) for c in row))
    assert value == pytest.approx(sum(float(chances[u, c]) - prices[c] for u, row in enumerate(rows) for c in row))
    for user, row in enumerate(rows):
        others = [float(chances[user, c]) - prices[c] for c in range(7) if c not in row and chances[user, c] >= 0]
        if others and row:
            worst = float(chances[user, row[-1]]) - prices[row[-1]]
            assert border[user].tolist() == [worst, max(others)]
        else:
            assert np.isnan(border[user]).all()


def test_cost_bin__ascends_and_stays_inside():
    costs = np.concatenate([[0.0, 1e-12], np.geomspace(2.0**-30, 100, 5000)])
    bins = [cost_bin(cost) for cost in costs]
    assert bins == sorted(bins)
    assert bins[0] == 0
    assert bins[-1] == COST_BINS - 1
    assert len(set(bins)) > 120


@given(seed=SEEDS, k=st.integers(1, 4), levels=st.sampled_from([2, 10**6]))
@examples(30)
def test_list_movable__lists_what_is_near_and_the_ends(seed, k, levels):
    rng = np.random.default_rng(seed)
    chances, prices = make_chances(rng, 8, 6, levels), rng.choice([0.0, 0.125], 6)
    slots = make_slots(rng, 8, k)
    codes, border, _ = held_at(chances, prices, slots)
    leave, enter = (np.zeros((6, COST_BINS), np.int64) for _ in range(2))
    count_margins(offers_of(chances), prices, codes, border, leave, enter)
    last = rng.integers(-1, COST_BINS, (2, 6))
    indptr = np.empty(9, np.int64)
    list_movable(
        offers_of(chances), prices, codes, border, last[0], last[1], indptr, np.empty(0, np.int32), np.empty(0, bool)
    )  # fmt: skip
    listed, holds = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], bool)
    list_movable(offers_of(chances), prices, codes, border, last[0], last[1], indptr, listed, holds)
    counts = np.zeros((2, 6, COST_BINS), np.int64)
    for user, row in enumerate(hold(chances, prices, slots, range(6))):
        value = [float(chances[user, c]) - prices[c] for c in range(6)]
        others = [c for c in range(6) if c not in row and chances[user, c] >= 0]
        expected = {}
        if others and row:
            best = max(value[c] for c in others)
            near = {c: (True, cost_bin(value[c] - best)) for c in row}
            near |= {c: (False, cost_bin(value[row[-1]] - value[c])) for c in others}
            for c, (is_held, at) in near.items():
                counts[0 if is_held else 1, c, at] += 1
            expected = {c: is_held for c, (is_held, at) in near.items() if at <= last[0 if is_held else 1][c]}
            if expected:
                expected |= {row[-1]: True} | {c: False for c in others if value[c] == best}
        items = slice(indptr[user], indptr[user + 1])
        assert dict(zip(listed[items].tolist(), holds[items].tolist(), strict=True)) == expected
    assert (counts[0] == leave).all()
    assert (counts[1] == enter).all()


@given(seed=SEEDS)
@examples(30)
def test_step_prices__finds_the_lowest_point_of_the_model(seed):
    rng = np.random.default_rng(seed)
    n = 4
    half = rng.normal(0, 1, (n, n))
    hessian = half @ half.T + 0.3 * np.eye(n)
    prices, users = rng.choice([0.0, -0.3, 0.3], n), rng.uniform(0, 4, n)
    floor = rng.uniform(0, 2, n)
    cap = floor + rng.uniform(0, 3, n)
    reach = rng.choice([0.2, 5.0])

    def model(step):
        new = prices + step
        kinks = (np.maximum(new, 0) * cap - np.maximum(-new, 0) * floor).sum()
        return -users @ step + 0.5 * step @ hessian @ step + kinks

    step = np.empty(n)
    promised = step_prices(prices, users, hessian, floor, cap, reach, 5000, step)
    assert (np.abs(step) <= reach).all()
    assert promised == pytest.approx(model(np.zeros(n)) - model(step), abs=1e-9)

    def split(parts):  # prices as a − b with a, b ≥ 0 make the model smooth
        up, down = parts[:n], parts[n:]
        change = up - down - prices
        return -users @ change + 0.5 * change @ hessian @ change + up @ cap - down @ floor

    start = np.concatenate([np.maximum(prices, 0), np.maximum(-prices, 0)])
    if reach == 5.0:
        lowest = minimize(split, start, method="L-BFGS-B", bounds=[(0, None)] * (2 * n), options={"ftol": 1e-15}).fun
        if (np.abs(step) < reach).all():
            assert model(step) == pytest.approx(lowest, abs=1e-4)


@given(seed=SEEDS, k=st.integers(1, 3), levels=st.sampled_from([2, 10**6]))
@examples(60)
def test_repair_counts__from_any_prices_ends_at_the_optimum(seed, k, levels):
    """With everybody listed, successive shortest paths reach what the linear program does, and prove it."""
    rng = np.random.default_rng(seed)
    n, n_categories = 12, 5
    chances = make_chances(rng, n, n_categories, levels, closed=0.1)
    prices = rng.choice([0.0, 0.1, -0.1, 0.33], n_categories)
    floor = rng.integers(0, 5, n_categories)
    cap = floor + rng.integers(0, 7, n_categories)
    slots = make_slots(rng, n, k)
    codes, border, (chance, _) = held_at(chances, prices, slots)
    everything = np.full(n_categories, COST_BINS - 1)
    indptr = np.empty(n + 1, np.int64)
    list_movable(
        offers_of(chances), prices, codes, border, everything, everything, indptr,
        np.empty(0, np.int32), np.empty(0, bool),
    )  # fmt: skip
    listed, holds = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], bool)
    list_movable(offers_of(chances), prices, codes, border, everything, everything, indptr, listed, holds)
    user = np.repeat(np.arange(n), np.diff(indptr))
    items = chances[user, listed].astype(np.float64)
    n_users = np.bincount(codes[codes >= 0], minlength=n_categories)
    before, new_prices = holds.copy(), prices.copy()
    left = repair_counts(indptr, listed, items, holds, n_users, floor, cap, 0.0, new_prices)
    expected = best_assignment(chances, floor, cap, slots)
    if expected is None:
        assert left > 0
        return
    assert left == 0
    assert (n_users >= floor).all()
    assert (n_users <= cap).all()
    value = chance + items[holds].sum() - items[before].sum()
    assert value == pytest.approx(expected, abs=1e-6)
    assert dual(chances, new_prices, floor, cap, slots) == pytest.approx(value, abs=1e-6)


def test_earned__is_the_cap_above_zero_and_the_floor_below():
    assert [earned(price, 2.0, 5.0) for price in (0.5, 0.0, -0.5)] == [2.5, 0.0, -1.0]
