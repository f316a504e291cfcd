"""The balanced policy against the linear program: tiny problems, skewed tables, ties, any number of partitions."""

import numpy as np
import pytest
from chance_world import collect, save_table
from distributed import Client
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from reference_balanced import best_assignment, dual, skewed_chances

from ammrank_dask.report.thresholds import starved
from ammrank_dask.scoring import balanced
from ammrank_dask.scoring.balanced import balance
from ammrank_dask.scoring.chance_table import allowed_counts
from ammrank_dask.scoring.exposure_bounds import ExposureBounds, exposure_bounds
from ammrank_dask.scoring.prices import find_prices
from ammrank_dask.storage.errors import BadInput

NAMES = ["autos", "games", "news", "travel"]


@given(
    seed=st.integers(0, 2**32 - 1), k=st.integers(1, 3), n_partitions=st.integers(1, 3),
    levels=st.sampled_from([2, 10, 10**6]),
)  # fmt: skip
@examples(40)
def test_balance__equals_the_linear_program(client, tmp_path_factory, seed, k, n_partitions, levels):
    rng = np.random.default_rng(seed)
    chances = (rng.integers(0, levels + 1, (20, 4)) / levels).astype(np.float32)
    chances[rng.random(chances.shape) < 0.15] = -1
    eligible, slots = allowed_counts(chances, k)
    floor = np.minimum(rng.integers(0, 8, 4), eligible)
    cap = np.minimum(floor + rng.integers(0, 15, 4), eligible)
    bounds = ExposureBounds(floor, cap, slots)
    table = save_table(tmp_path_factory.mktemp("table"), chances, n_partitions)
    expected = best_assignment(chances, floor, cap, k)
    if expected is None:
        with pytest.raises(BadInput, match=r"floors and caps must leave every user something to hold, found none"):
            balance(client, table, bounds, k, np.arange(4))
        return
    plan = balance(client, table, bounds, k, np.arange(4))
    _, n_users, value = collect(plan, table, chances, k)
    assert (n_users >= floor).all()
    assert (n_users <= cap).all()
    assert n_users.tolist() == plan.n_users.tolist()
    assert value == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert plan.worth == pytest.approx(value, abs=1e-6)
    assert plan.bound == pytest.approx(dual(chances, plan.bound_prices, floor, cap, k), abs=1e-6)
    assert plan.bound >= expected - 1e-6


@pytest.mark.parametrize(
    ("n", "n_categories", "skew", "floor", "cap"),
    [(1000, 50, 1.2, 0.25, 4.0), (1000, 50, 1.2, 0.8, 1.25), (600, 200, 1.6, 0.25, 4.0), (500, 30, 1.0, 1.0, 1.1)],
)
def test_balance__skewed_tables_have_no_gap(client, tmp_path, n, n_categories, skew, floor, cap):
    chances, clicks = skewed_chances(n, n_categories, 0, skew)
    eligible, slots = allowed_counts(chances, 10)
    bounds = exposure_bounds([str(c) for c in range(n_categories)], clicks, eligible, slots, floor=floor, cap=cap)
    table = save_table(tmp_path, chances, 3)
    plan = balance(client, table, bounds, 10, np.arange(n_categories))
    _, n_users, value = collect(plan, table, chances, 10)
    assert bounds.n_outside(n_users) == 0
    assert -1e-9 <= plan.gap <= 1e-6
    assert plan.bound == pytest.approx(dual(chances, plan.bound_prices, bounds.floor, bounds.cap, 10), rel=1e-9)
    assert value == pytest.approx(plan.worth, rel=1e-9)
    if n_categories < 100:
        assert value == pytest.approx(best_assignment(chances, bounds.floor, bounds.cap, 10), rel=1e-6)
    if floor <= 0.25:
        assert not starved(n_users, clicks, 0.25).any()


def test_balance__a_large_sample_is_priced_by_a_part_of_it_first(client, tmp_path, monkeypatch):
    chances, clicks = skewed_chances(6000, 12, 4, 1.2)
    eligible, slots = allowed_counts(chances, 3)
    bounds = exposure_bounds([str(c) for c in range(12)], clicks, eligible, slots, floor=0.6, cap=1.3)
    table = save_table(tmp_path, chances, 2, share=1.0)
    plan = balance(client, table, bounds, 3, np.arange(12))
    _, n_users, value = collect(plan, table, chances, 3)
    assert bounds.n_outside(n_users) == 0
    assert value == pytest.approx(plan.worth, rel=1e-9)
    assert plan.bound == pytest.approx(dual(chances, plan.bound_prices, bounds.floor, bounds.cap, 3), rel=1e-9)
    assert -1e-9 <= plan.gap <= 1e-6
    priced = []
    monkeypatch.setattr(
        balanced,
        "find_prices",
        lambda *a, **o: priced.append((len(a[0].chances), len(o["temperatures"]))) or find_prices(*a, **o),
    )
    again, *_ = balanced.price_sample(table, bounds, 3, None)
    assert priced == [(1500, 3), (6000, 1)]
    whole = find_prices(chances, bounds.floor, bounds.cap, 3, temperatures=[step * 0.3 for step in (1e-2, 1e-3, 3e-4)])
    np.testing.assert_allclose(again.prices - again.prices.mean(), whole.prices - whole.prices.mean(), atol=0.01)


def test_balance__users_who_are_all_alike_are_told_apart_by_id(client, tmp_path):
    chances, clicks = skewed_chances(900, 12, 1, 1.0, cold=600)
    eligible, slots = allowed_counts(chances, 3)
    bounds = exposure_bounds([str(c) for c in range(12)], clicks, eligible, slots, floor=0.7, cap=1.3)
    table = save_table(tmp_path / "one", chances)
    plan = balance(client, table, bounds, 3, np.arange(12))
    codes, n_users, value = collect(plan, table, chances, 3)
    assert bounds.n_outside(n_users) == 0
    assert value == pytest.approx(best_assignment(chances, bounds.floor, bounds.cap, 3), rel=1e-6)
    split = save_table(tmp_path / "two", chances, 4)
    again, _, _ = collect(balance(client, split, bounds, 3, np.arange(12)), split, chances, 3)
    assert (np.sort(codes, axis=1) == np.sort(again, axis=1)).all()


def test_balance__is_the_same_on_any_number_of_workers(client, tmp_path):
    chances, clicks = skewed_chances(2000, 20, 2, 1.2)
    eligible, slots = allowed_counts(chances, 5)
    bounds = exposure_bounds([str(c) for c in range(20)], clicks, eligible, slots, floor=0.8, cap=1.3)
    plans = []
    table = save_table(tmp_path, chances, 7, share=0.2)
    with Client(processes=False, n_workers=3, threads_per_worker=1, dashboard_address=None, memory_limit=0) as three:
        for one in (client, three):
            plan = balance(one, table, bounds, 5, np.arange(20))
            plans.append((plan.to_json(), collect(plan, table, chances, 5)[0].tobytes()))
    assert plans[0] == plans[1]


def test_balance__prices_of_the_night_before_lead_to_the_same_value(client, tmp_path):
    chances, clicks = skewed_chances(1000, 30, 4, 1.2)
    eligible, slots = allowed_counts(chances, 5)
    bounds = exposure_bounds([str(c) for c in range(30)], clicks, eligible, slots, floor=0.8, cap=1.3)
    table = save_table(tmp_path, chances, 2)
    first = balance(client, table, bounds, 5, np.arange(30))
    second = balance(client, table, bounds, 5, np.arange(30), start=first.bound_prices)
    assert second.worth == pytest.approx(first.worth, rel=1e-7)
    assert second.gap <= 1e-6


def test_find_prices__price_parts_the_users_who_must_change():
    # Two of four users must hold category 1: those whose chances differ least, by .1 and .2; the others by .3 and .4.
    chances = np.array([[0.5, 0.4], [0.5, 0.3], [0.5, 0.2], [0.5, 0.1]], np.float32)
    search = find_prices(chances, np.array([0, 2]), np.array([4, 4]), 1, temperatures=[1e-2, 1e-3])
    assert 0.2 < search.prices[0] - search.prices[1] < 0.3


def test_exposure_bounds__multiples_of_the_click_share():
    bounds = exposure_bounds(NAMES, np.array([60, 30, 10, 0]), np.array([100, 100, 100, 0]), 200, floor=0.5, cap=1.5)
    assert bounds.floor.tolist() == [60, 30, 10, 0]  # .5 × share × 200; nobody may hold the last
    assert bounds.cap.tolist() == [100, 90, 30, 0]  # no more than may hold it
    bounds = exposure_bounds(NAMES, np.array([98, 1, 1, 0]), np.full(4, 200), 200, floor=0.25, cap=4)
    assert bounds.floor.tolist() == [49, 1, 1, 1]
    assert bounds.cap.tolist() == [200, 8, 8, 1]


def test_exposure_bounds__without_a_cap_there_is_room_for_all_slots():
    clicks, eligible = np.array([97, 2, 1, 0]), np.full(4, 100)
    # Of 200 slots, 4 times the click share has room for 125, 16 times for 197; 32 times for 265.
    assert exposure_bounds(NAMES, clicks, eligible, 100).cap.tolist() == [100, 8, 4, 1]
    assert exposure_bounds(NAMES, clicks, eligible, 200).cap.tolist() == [100, 100, 64, 1]
    assert exposure_bounds(NAMES, clicks, eligible, 400).cap.tolist() == [100] * 4


def test_exposure_bounds__by_name_in_users_or_shares():
    clicks, eligible = np.full(4, 25), np.full(4, 100)
    bounds = exposure_bounds(NAMES, clicks, eligible, 200, floors={"news": 80, "autos": 0.1}, caps={"games": 3})
    assert bounds.floor.tolist() == [20, 3, 80, 13]
    assert bounds.cap.tolist() == [100, 3, 100, 100]


def test_exposure_bounds__floors_of_the_click_shares_fit_after_rounding():
    clicks = np.array([10, 10, 10, 0])
    bounds = exposure_bounds(NAMES, clicks, np.full(4, 20), 20, floor=1.0, cap=2.0)
    assert bounds.floor.sum() == 20
    assert bounds.floor.min() == 1


@pytest.mark.parametrize("ratio", [0.1, 0.25, 1 / 3])
@pytest.mark.parametrize("seed", range(5))
def test_exposure_bounds__no_category_at_its_floor_is_starved(ratio, seed):
    rng = np.random.default_rng(seed)
    clicks = rng.integers(0, 1000, 30)
    bounds = exposure_bounds([str(c) for c in range(30)], clicks, np.full(30, 5000), 5000, floor=ratio, cap=9)
    assert not starved(np.append(bounds.floor, 5000 - bounds.floor.sum()), np.append(clicks, 0), ratio)[:-1].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"floors": {"news": 90}}, r"the floor of 'news' is 90 users and only 50 may hold it, 40 too few; lower it"),
        ({"floors": {"autos": 20}, "caps": {"autos": 9}},
         r"the floor of 'autos' is 20 users, above its cap of 9; lower the floor or raise the cap"),
        ({"floors": {"autos": 90, "games": 90, "travel": 90}},
         r"the floors sum to 283 users and there are 200 slots for all; lower floor or raise k"),
        ({"caps": dict.fromkeys(NAMES, 10)}, r"the caps sum to 40 users and there are 200 slots to fill; raise cap"),
        ({"floors": {"nws": 3}}, r"floors: there is no ranked category 'nws'"),
        ({"floor": 2.0, "cap": 1.0}, r"floor must be at least 0 and at most cap, got floor 2 and cap 1"),
        ({"floor": -1.0}, r"floor must be at least 0 and at most cap, got floor -1"),
        ({"floor": np.nan}, r"floor must be a finite multiple of the click share, got nan"),
        ({"cap": np.inf}, r"cap must be a finite multiple of the click share, got inf"),
        ({"caps": {"news": 1.5}}, r"caps: 'news' must be a whole number of users or a share below 1, got 1.5"),
        ({"caps": {"news": "many"}}, r"caps: 'news' must be a number of users or a share of all slots below 1"),
    ],
)  # fmt: skip
def test_exposure_bounds__refuses_what_cannot_be(options, message):
    with pytest.raises(BadInput, match=message):
        exposure_bounds(NAMES, np.full(4, 25), np.array([100, 100, 50, 100]), 200, **options)
