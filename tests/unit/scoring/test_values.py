"""Lists by value: against a full sort, against HiGHS, and for groups of users; what is refused."""

import datetime as dt

import numpy as np
import pandas as pd
import pytest
from chance_world import CATEGORIES, CLICKS, all_chances, collect, make_features, save_table
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from reference_values import best_by_value, best_value

from ammrank_dask.kernels.balanced import Offers
from ammrank_dask.scoring.balanced import balance
from ammrank_dask.scoring.chance_table import allowed_counts
from ammrank_dask.scoring.exposure_bounds import ExposureBounds, exposure_bounds, parse_floor
from ammrank_dask.scoring.learn_chances import learn_chances
from ammrank_dask.scoring.score import score
from ammrank_dask.scoring.score_partition import best_by_worth
from ammrank_dask.scoring.settings import ClickValues, ScoreSettings
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import digest_tree

VALUES = {"autos": 0.02, "games/..=": 2.0, "<script>": 0.1, "ünï": 0.5, "no planes": 1.0}
POLICIES = ("user_top_k", "category_top_n", "balanced")


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 6), levels=st.sampled_from([2, 10**6]))
@examples(60)
def test_best_by_worth__equals_a_full_sort(seed, k, levels):
    rng = np.random.default_rng(seed)
    chances = (rng.integers(0, levels + 1, (9, 6)) / levels).astype(np.float32)
    chances[rng.random(chances.shape) < 0.2] = -1
    values = np.where(rng.random((3, 6)) < 0.3, 0, 10.0 ** rng.uniform(-2, 0, (3, 6)))
    values[0, 0] = 1.0
    group, tie_order = rng.integers(0, 3, 9).astype(np.uint8), rng.permutation(6)
    weights = ClickValues(values, True).weights
    codes = best_by_worth(Offers(chances, weights, group), k, tie_order)
    expected = best_by_value(chances, weights[group], k, tie_order.tolist())
    assert [[code for code in row if code >= 0] for row in codes.tolist()] == expected


def test_click_values__what_has_no_value_comes_last_by_chance():
    chances = np.array([[0.2, 0.9, 0.001]], np.float32)
    weights = ClickValues(np.array([[0.0, 0.0, 0.01]]), True).weights
    assert best_by_worth(Offers(chances, weights, np.zeros(1, np.uint8)), 3, np.arange(3)).tolist() == [[2, 1, 0]]


@given(
    seed=st.integers(0, 2**32 - 1), k=st.integers(1, 3), n_partitions=st.integers(1, 3),
    levels=st.sampled_from([2, 10, 10**6]),
)  # fmt: skip
@examples(40)
def test_balance__equals_the_linear_program_of_value(client, tmp_path_factory, seed, k, n_partitions, levels):
    rng = np.random.default_rng(seed)
    chances = (rng.integers(0, levels + 1, (20, 4)) / levels).astype(np.float32)
    chances[rng.random(chances.shape) < 0.15] = -1
    values = 10.0 ** rng.uniform(-2, 0, (1, 4))
    eligible, slots = allowed_counts(chances, k)
    floor = np.minimum(rng.integers(0, 8, 4), eligible)
    cap = np.minimum(floor + rng.integers(0, 15, 4), eligible)
    best = best_value(chances, np.broadcast_to(values, chances.shape), floor, cap, k)
    table = save_table(tmp_path_factory.mktemp("table"), chances, n_partitions)
    weights, unit = values / values.max(), float(values.max())
    arguments = client, table, ExposureBounds(floor, cap, slots), k, np.arange(4)
    if best is None:
        with pytest.raises(BadInput, match="floors and caps must leave every user something to hold"):
            balance(*arguments, weights=weights, unit=unit)
        return
    plan = balance(*arguments, weights=weights, unit=unit)
    codes, n_users, _ = collect(plan, table, chances, k)
    assert (n_users >= floor).all()
    assert (n_users <= cap).all()
    user, slot = np.nonzero(codes >= 0)
    held = codes[user, slot]
    value = float((chances[user, held] * values[0, held]).sum())
    assert value == pytest.approx(best, abs=1e-6)
    assert plan.to_json()["expected_value"] == pytest.approx(value, rel=1e-6)


def test_balance__has_999_parts_of_a_thousand_of_the_optimal_value(client, tmp_path):
    rng = np.random.default_rng(4)
    logit = -0.5 * np.log(np.arange(1, 51)) + rng.normal(0, 0.8, (1000, 1)) + rng.normal(0, 1, (1000, 50))
    chances = (1 / (1 + np.exp(-logit))).astype(np.float32)
    clicks, per_click = chances.sum(axis=0), 10.0 ** rng.uniform(-2, 0, (30, 50))
    group = rng.integers(0, 30, 1000).astype(np.uint8)
    eligible, slots = allowed_counts(chances, 10)
    bounds = exposure_bounds([str(code) for code in range(50)], clicks, eligible, slots, floor=0.5, cap=2.0)
    table = save_table(tmp_path, chances, 2, groups=group)
    values = ClickValues(per_click, True)
    plan = balance(client, table, bounds, 10, np.arange(50), weights=values.weights, unit=values.unit)
    codes, n_users, _ = collect(plan, table, chances, 10)
    assert bounds.n_outside(n_users) == 0
    value = float(np.take_along_axis(chances * per_click[group], codes, axis=1).sum())
    assert value >= 0.999 * best_value(chances, per_click[group], bounds.floor, bounds.cap, 10)
    assert -1e-9 <= plan.gap <= 1e-3


@pytest.fixture(scope="module")
def features(tmp_path_factory, model):
    return make_features(tmp_path_factory.mktemp("features") / "run", model, 1200)


@pytest.fixture(scope="module")
def chances(client, model, features):
    return learn_chances(model, features, client=client)


BY_GROUP = {
    "unknown-age": {"autos": 0.0, "news": 1.5},
    "unknown-gender": {"autos": 3.0, "ünï": 0.25},
    "65+": {"ünï": 9},
}
"""Nothing is known of these users: what is of an age comes before what is of a gender."""
PER_CLICK = np.array([{**VALUES, "autos": 0.0, "news": 1.5, "ünï": 0.25}.get(name, 0.0) for name in CATEGORIES])


@pytest.mark.parametrize("policy", POLICIES)
def test_score__by_value_under_every_policy(client, three_workers, tmp_path, model, features, chances, policy):
    options = {"k": 2, "policy": policy, "chances": chances, "n": 300, "floor": 0.2, "explore": 0.0}
    options |= {"values": VALUES, "values_by_group": BY_GROUP}
    quals = score(model, features, tmp_path / "value", client=client, objective="value", **options)
    frame = quals.to_pandas()
    ids, table = all_chances(model, features, chances)
    row_of = {user: row for row, user in enumerate(ids)}
    at = frame["user_id"].map(row_of).to_numpy(), frame["category"].map(CATEGORIES.index).to_numpy()
    np.testing.assert_allclose(frame["value"], table[at] * PER_CLICK[at[1]], rtol=1e-6)
    np.testing.assert_array_equal(frame["chance"], table[at])
    assert quals.counts.expected_value == pytest.approx(frame["value"].sum(), rel=1e-6)
    by_value = frame.sort_values(["user_id", "value"], ascending=[True, False], kind="stable")
    has_planes = frame["category"] != "no planes"
    assert (by_value["rank"].to_numpy() == frame["rank"].to_numpy())[has_planes].all() or policy == "balanced"
    clicks = score(model, features, tmp_path / "clicks", client=client, **options)
    beside = clicks.to_pandas()
    assert frame["value"].sum() > (1.02 if policy == "category_top_n" else 1.1) * beside["value"].sum()
    # Within one category value orders as click probability does, which scores of different users do not.
    assert (frame["chance"].sum() < beside["chance"].sum()) == (policy != "category_top_n")
    plain = {name: value for name, value in options.items() if not name.startswith("values")}
    without = score(model, features, tmp_path / "without", client=client, **plain).to_pandas()
    pd.testing.assert_frame_equal(beside.drop(columns="value"), without)
    if policy == "user_top_k":
        weights = np.broadcast_to(np.where(PER_CLICK > 0, PER_CLICK, 1e-8), table.shape)
        expected = best_by_value(
            table[np.argsort(ids)],
            np.broadcast_to(weights, table.shape),
            2,
            np.argsort(-CLICKS, kind="stable").tolist(),
        )
        assert frame["category"].map(CATEGORIES.index).to_numpy().reshape(-1, 2).tolist() == expected
    if policy == "category_top_n":
        for code, name in enumerate(CATEGORIES[:5]):
            lowest = frame[frame["category"] == name]["value"].min()
            others = np.setdiff1d(np.arange(len(ids)), at[0][at[1] == code])
            assert (table[others, code] * PER_CLICK[code]).max() <= lowest * (1 + 1e-6)
    three = score(model, features, tmp_path / "three", client=three_workers, objective="value", **options)
    assert digest_tree(three.path, ["."]) == digest_tree(quals.path, ["."])


@pytest.mark.parametrize("policy", POLICIES)
def test_score__explores_by_value(client, tmp_path, model, features, chances, policy):
    quals = score(
        model, features, tmp_path / "quals", client=client, k=2, policy=policy, also=POLICIES, chances=chances,
        explore=0.1, floor=0.8, objective="value", values=VALUES, values_by_group=BY_GROUP,
    )  # fmt: skip
    frame, facts = quals.to_pandas(), quals.facts["explored"]
    drawn = frame["propensity"] < 1
    assert facts["expected_value"] == pytest.approx(frame["value"][drawn].sum(), rel=1e-5)
    for name, support in facts["support"].items():
        own = frame["held_by"].astype(str).str.split().map(lambda names, name=name: name in names)
        assert support["expected_value"] >= 0.5 * frame["value"][own & ~drawn].sum() > 0, name
    ids, table = all_chances(model, features, chances)
    at = frame["user_id"].map({user: row for row, user in enumerate(ids)}), frame["category"].map(CATEGORIES.index)
    np.testing.assert_allclose(frame["value"], table[at] * PER_CLICK[at[1]], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "money"}, "objective must be one of clicks, value, got 'money'"),
        ({"objective": "value"}, "objective value needs values, found none"),
        ({"objective": "value", "values": VALUES}, "objective value needs chances, got none; learn them"),
        ({"values": {"auto": 1.0}}, "values: there is no ranked category 'auto'; did you mean 'autos'"),
        ({"values": {"autos": float("nan")}}, "values.autos must be .* got nan"),
        ({"values": {"autos": -0.5}}, "values.autos must be .* got -0.5"),
        ({"values": {"autos": 0.0, "news": 0.0}}, "values: no category has a value above 0; give at least one"),
        ({"values_by_group": {"old": {"autos": 1.0}}}, "values_by_group: there is no group of users 'old'"),
    ],
)
def test_score__refuses_values_that_say_nothing(client, tmp_path, model, features, options, message):
    with pytest.raises(BadInput, match=message):
        score(model, features, tmp_path / "q", client=client, k=2, **options)


def test_score_settings__without_values_are_stored_as_before():
    assert not {"objective", "values", "values_by_group"} & set(ScoreSettings().to_json())


def make_world(n=1000, n_categories=50):
    """Chances of users with tastes, and what a click is worth."""
    rng = np.random.default_rng(4)
    logit = -0.5 * np.log(np.arange(1, n_categories + 1)) + rng.normal(0, 0.8, (n, 1))
    chances = (1 / (1 + np.exp(-logit - rng.normal(0, 1, (n, n_categories))))).astype(np.float32)
    return chances, 10.0 ** rng.uniform(-2, 0, (1, n_categories))


@pytest.mark.parametrize("by_value", [False, True])
@pytest.mark.parametrize("n_partitions", [1, 3])
def test_balance__meets_floors_in_clicks_at_next_to_no_cost(client, tmp_path, by_value, n_partitions):
    chances, per_click = make_world()
    per_click = per_click if by_value else np.ones_like(per_click)
    names = [str(code) for code in range(50)]
    eligible, slots = allowed_counts(chances, 5)
    floors = {"48": "60 clicks", "30": "90 clicks", "3": "0.5 clicks", "12": 200}
    bounds = exposure_bounds(names, chances.sum(axis=0), eligible, slots, floor=0.1, cap=4.0, floors=floors)
    table = save_table(tmp_path, chances, n_partitions)
    weights = {"weights": ClickValues(per_click, True).weights, "unit": per_click.max()} if by_value else {}
    plan = balance(client, table, bounds, 5, np.arange(50), **weights)
    codes, n_users, _ = collect(plan, table, chances, 5)
    assert bounds.n_outside(n_users) == 0
    held = np.zeros(chances.shape, bool)
    np.put_along_axis(held, codes, True, axis=1)
    clicks = np.where(held, chances, 0).sum(axis=0, dtype=np.float64)
    assert (clicks >= bounds.clicks).all()
    value = float(np.where(held, chances * per_click, 0).sum(dtype=np.float64))
    best = best_value(chances, np.broadcast_to(per_click, chances.shape), bounds.floor, bounds.cap, 5, bounds.clicks)
    assert 0.999 * best <= value <= best * (1 + 1e-6)
    told = plan.to_json()
    assert told["expected_value" if by_value else "expected_clicks"] == pytest.approx(value, rel=1e-6)
    assert told["bound"] >= value * (1 - 1e-9)
    assert told["gap"] <= 1e-3
    has_price = np.array(told["click_prices"]) < 0  # no more than is asked for, where a click costs something
    assert clicks[has_price] == pytest.approx(bounds.clicks[has_price], rel=0.02)
    assert np.flatnonzero(has_price).tolist() == ([48] if by_value else [30, 48])
    np.testing.assert_allclose(told["clicks"], clicks, rtol=1e-6)


def test_balance__says_which_floors_in_clicks_stand_against_each_other(client, tmp_path):
    chances, _ = make_world(200, 4)
    eligible, slots = allowed_counts(chances, 1)
    most = chances.sum(axis=0, dtype=np.float64)
    floors = {"a": f"{0.7 * most[0]:.0f} clicks", "b": f"{0.7 * most[1]:.0f} clicks"}
    bounds = exposure_bounds(list("abcd"), most, eligible, slots, floor=0.0, cap=50.0, floors=floors, most_clicks=most)
    with pytest.raises(
        BadInput, match=r"floors in clicks cannot all be met: beside the others '[ab]' misses .* lower it to \d+"
    ):
        balance(client, save_table(tmp_path, chances), bounds, 1, np.arange(4))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("many", "floors: 'a' must be a number of users, a share of all slots below 1, or a text like"),
        ("10 clicks from 2026-02-01 to 2026-01-01", "must not end before it begins, got from 2026-02-01 to 2026-01-01"),
        ("10 clicks from soon", "floors: 'a' must be a number of users"),
        ("1.5 users", "floors: 'a' must be a whole number of users"),
        (301, "the floor of 'a' is 301 users and only 300 may hold it, 1 too few; lower it to 300"),
        ("90 clicks", "the floor of 'a' is 90 clicks and 60.0 are expected .*, 30.0 too few; lower it to 60 clicks"),
    ],
)
def test_exposure_bounds__say_how_far_a_floor_is_off(given, message):
    with pytest.raises(BadInput, match=message):
        exposure_bounds(
            ["a", "b"], np.array([5, 5]), np.array([300, 300]), 400, floors={"a": given}, cap=2.0,
            most_clicks=np.array([60.0, 60.0]),
        )  # fmt: skip


def test_parse_floor__holds_from_its_first_to_its_last_day():
    floor = parse_floor("a", "1_000 clicks from 2026-01-02 to 2026-01-03")
    days = [dt.date(2026, 1, day) for day in (1, 2, 3, 4)]
    assert (floor.given, [floor.holds_on(day) for day in days]) == ("1000 clicks", [False, True, True, False])
    assert parse_floor("a", "0.1 users to 2026-01-02").holds_on(dt.date(1999, 1, 1))
