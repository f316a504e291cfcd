"""Exploration: who is drawn what, how probable it was, and what is left for the policies."""

import numpy as np
import pandas as pd
import pytest
from chance_world import CATEGORIES, CLICKS
from distributed import Client
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from ammrank_dask.report.thresholds import starved
from ammrank_dask.scoring import score_passes
from ammrank_dask.scoring.exploration import (
    Drawn,
    PolicyLists,
    append_drawn,
    draw_slots,
    expect_draws,
    hold_probability,
    leave_room,
    order_drawn,
    plan_exploration,
)
from ammrank_dask.scoring.exposure_bounds import exposure_bounds
from ammrank_dask.scoring.score import score
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import digest_tree
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.qualifications import QualificationRows

POLICIES = ("user_top_k", "category_top_n", "balanced")


def make_draws(rng, n_partitions, share, k, seed=0, n=60, n_categories=8):
    """Plan and draw for made-up users of a few partitions: ids, what they may hold, plan and draws of each."""
    targets = np.flatnonzero(rng.random(n_categories) < 0.5)
    ids = [ids_from_values(np.arange(n) + 1000 * number) for number in range(n_partitions)]
    allowed = [rng.random((n, n_categories)) < 0.8 for _ in range(n_partitions)]
    expected = [expect_draws(own, targets, k, share)[0].sum() for own in allowed]
    plan = plan_exploration(expected, targets, share=share, k=k, seed=seed)
    return ids, allowed, plan, [draw_slots(plan, ids[p], allowed[p], p) for p in range(n_partitions)]


@given(
    seed=st.integers(0, 2**32 - 1), n_partitions=st.integers(1, 4), share=st.sampled_from([0.02, 0.2, 0.5]),
    k=st.integers(1, 6),
)  # fmt: skip
@examples(40)
def test_draw_users__propensities_sum_to_the_slots_that_are_drawn(seed, n_partitions, share, k):
    rng = np.random.default_rng(seed)
    _, allowed, plan, draws = make_draws(rng, n_partitions, share, k, seed)
    total = sum(
        float((drawn.propensity * own[:, plan.targets].sum(axis=1)).sum())
        for own, drawn in zip(allowed, draws, strict=True)
    )
    assert total == pytest.approx(plan.n_slots, abs=1e-6)
    assert sum(int(drawn.n_slots.sum()) for drawn in draws) == plan.n_slots
    for own, drawn in zip(allowed, draws, strict=True):
        user, slot = np.nonzero(drawn.codes >= 0)
        code = drawn.codes[user, slot]
        assert own[user, code].all()
        assert np.isin(code, plan.targets).all()
        assert len(np.unique(user * 100 + code)) == len(code)
        assert (drawn.propensity <= 0.5).all()
        expected = plan.scale * expect_draws(own, plan.targets, k, share)[0]
        assert (np.abs(drawn.n_slots - expected) < 1).all()


def test_draw_users__pairs_are_drawn_as_often_as_their_propensities_say():
    n_draws, n, n_categories = 2000, 40, 6
    rng = np.random.default_rng(5)
    allowed = rng.random((n, n_categories)) < 0.8
    targets, ids = np.array([1, 2, 4, 5]), ids_from_values(np.arange(n))
    count, propensity = np.zeros((n, n_categories)), None
    expected = expect_draws(allowed, targets, 5, 0.3)[0].sum()
    for seed in range(n_draws):
        drawn = draw_slots(plan_exploration([expected], targets, share=0.3, k=5, seed=seed), ids, allowed, 0)
        user, slot = np.nonzero(drawn.codes >= 0)
        count[user, drawn.codes[user, slot]] += 1
        assert propensity is None or (propensity == drawn.propensity).all()
        propensity = drawn.propensity
    may = allowed & np.isin(np.arange(n_categories), targets)
    assert not count[~may].any()
    chance = np.broadcast_to(propensity[:, None], may.shape)[may]
    z = (count[may] / n_draws - chance) / np.sqrt(chance * (1 - chance) / n_draws)
    assert np.abs(z).max() < 4.5
    assert 0.7 < z.std() < 1.3


def test_draw_users__depends_on_seed_and_user_not_on_the_cut_of_partitions():
    rng = np.random.default_rng(1)
    ids, allowed, plan, draws = make_draws(rng, 2, 0.3, 5, seed=7)
    again = draw_slots(plan, ids[0], allowed[0], 0)
    assert (again.codes == draws[0].codes).all()
    other = plan_exploration(np.diff(plan.ends), plan.targets, share=0.3, k=5, seed=8)
    assert (draw_slots(other, ids[0], allowed[0], 0).n_slots != draws[0].n_slots).any()


def test_append_drawn__comes_after_all_others_by_score():
    rows = QualificationRows(
        ids_from_values([3, 9]), np.array([0, 2, 3]), np.array([4, 1], np.int32).repeat([1, 2]),
        np.array([9, 8, 7], np.float32),
    )  # fmt: skip
    scores = np.arange(10, dtype=np.float32).reshape(5, 2)
    drawn = order_drawn(Drawn(np.array([[0, 2], [3, -1]], np.int32), np.array([0.25, 0.5])), scores, np.arange(5))
    joined = append_drawn(rows, drawn, scores)
    assert joined.indptr.tolist() == [0, 4, 6]
    assert joined.category.tolist() == [4, 1, 2, 0, 1, 3]
    assert joined.score.tolist() == [9, 8, 4, 0, 7, 7]
    assert joined.propensity.tolist() == [1, 1, 0.25, 0.25, 1, 0.5]
    assert joined.is_drawn.tolist() == [False, False, True, True, False, True]


def test_leave_room__takes_the_worst_away():
    codes, scores = np.array([[0, 1, 2], [0, 1, -1]], np.int32), np.array([[3, 2, 1], [3, 2, -np.inf]], np.float32)
    left, own = leave_room(codes, scores, Drawn(np.array([[5, 6], [4, -1]]), np.zeros(2)), 3)
    assert left.tolist() == [[0, -1, -1], [0, -1, -1]]
    assert own.tolist() == [[3, -np.inf, -np.inf]] * 2


@pytest.mark.parametrize("policy", POLICIES)
def test_score__explores_at_the_last_ranks(client, tmp_path, model, features, chances, policy):
    options = {"k": 2, "policy": policy, "chances": chances, "explore": 0.1, "exclude": ["news"], "floor": 0.9}
    quals = score(model, features, tmp_path / "quals", client=client, **options)
    frame, facts = quals.to_pandas(), quals.facts["explored"]
    plain = score(
        model, features, tmp_path / "plain", client=client, **options | {"policy": "user_top_k", "explore": 0.0}
    )
    held = plain.to_pandas()["category"].value_counts().reindex(CATEGORIES, fill_value=0).to_numpy()
    floor = np.maximum(1, np.ceil(0.9 * CLICKS / CLICKS.sum() * 12_000 - 1e-9))
    floor[CATEGORIES.index("news")] = 0
    assert facts["targets"] == np.flatnonzero(held < floor).tolist() != []
    drawn = frame[frame["propensity"] < 1]
    assert len(drawn) == facts["slots"] == 1200
    assert set(drawn["category"]) <= {CATEGORIES[code] for code in facts["targets"]}
    counted = drawn["category"].value_counts().reindex(CATEGORIES, fill_value=0)
    assert counted.tolist() == facts["users"]
    assert facts["expected_clicks"] == pytest.approx(drawn["chance"].sum(), rel=1e-5)
    assert len(frame) == 12_000
    assert not frame.duplicated(["user_id", "category"]).any()
    last = frame.groupby("user_id")["rank"].transform("max")
    assert (drawn["rank"] == last[drawn.index]).all()
    if policy != "category_top_n":
        assert set(frame.groupby("user_id").size()) == {2}
    rest = frame[frame["propensity"] == 1]
    if policy == "balanced":
        eligible = np.where(np.array(CATEGORIES) == "news", 0, 6000 - counted.to_numpy())
        bounds = exposure_bounds(CATEGORIES, CLICKS, eligible, 10_800, floor=0.9, explored=1200)
        n_users = rest["category"].value_counts().reindex(CATEGORIES, fill_value=0).to_numpy()
        assert bounds.n_outside(n_users) == 0
        everybody = frame["category"].value_counts().reindex(CATEGORIES, fill_value=0).to_numpy()
        assert not starved(everybody, CLICKS, 0.9, eligible).any()
        assert quals.facts["policies"]["balanced"]["gap"] <= 1e-3
        assert quals.counts.expected == pytest.approx(frame["chance"].sum(), rel=1e-5)
    by_category = pd.concat([pd.read_parquet(path) for path in sorted((tmp_path / "quals").rglob("by_category/*/*"))])
    assert (by_category["propensity"] < 1).sum() == len(drawn)
    support = facts["support"][policy]
    assert support["slots"] == support["supported"]
    assert support["slots"] == 12_000 if policy != "category_top_n" else support["slots"] <= 12_000
    own = frame[frame["held_by"] == policy]
    assert own["inclusion"].between(0, 1 + 1e-6).all()
    # One over the probability of being held adds up to all slots of the lists, but for what the draw happened to be.
    assert (1 / own["inclusion"]).sum() == pytest.approx(support["slots"], rel=0.02)


def test_hold_probability__is_how_often_users_hold_a_category():
    n_draws, n, n_categories, k = 1500, 30, 7, 4
    rng = np.random.default_rng(3)
    allowed = rng.random((n, n_categories)) < 0.85
    scores = np.where(allowed, rng.normal(0, 1, (n, n_categories)), -np.inf).astype(np.float32)
    codes = np.argsort(-scores, axis=1)[:, :k].astype(np.int32)
    codes[~np.take_along_axis(allowed, codes, axis=1)] = -1
    targets, ids, held = np.array([1, 2, 4, 5]), ids_from_values(np.arange(n)), np.zeros((n, n_categories))
    expected = expect_draws(allowed, targets, k, 0.4)[0].sum()
    for seed in range(n_draws):
        plan = plan_exploration([expected], targets, share=0.4, k=k, seed=seed)
        drawn = draw_slots(plan, ids, allowed, 0)
        left, _ = leave_room(codes, np.take_along_axis(scores, codes, axis=1), drawn, k)
        for lists in (left, drawn.codes):
            user, slot = np.nonzero(lists >= 0)
            held[user, lists[user, slot]] += 1
    probability = hold_probability(PolicyLists(codes), plan, allowed)
    error = np.sqrt(probability * (1 - probability) / n_draws)
    assert (np.abs(held / n_draws - probability) <= 5 * error + 1e-9).all()
    assert ((probability > 0) & (probability < 1)).mean() > 0.1


def test_score__draws_are_the_same_on_any_number_of_workers_and_after_a_kill(
    client, tmp_path, model, features, chances, monkeypatch
):
    options = {"k": 2, "policy": "balanced", "chances": chances, "explore": 0.2, "floor": 0.5}
    score(model, features, tmp_path / "one", client=client, **options)
    with Client(processes=False, n_workers=3, threads_per_worker=1, dashboard_address=None, memory_limit=0) as three:
        score(model, features, tmp_path / "three", client=three, **options)
    draw = score_passes.draw_partitions

    def dies(*arguments):
        if 2 in arguments[-1]:
            raise OSError("killed")
        return draw(*arguments)

    monkeypatch.setattr(score_passes, "USERS_OF_TASK", 1)
    monkeypatch.setattr(score_passes, "draw_partitions", dies)
    with pytest.raises(OSError, match="killed"):
        score(model, features, tmp_path / "killed", client=client, **options)
    monkeypatch.setattr(score_passes, "draw_partitions", draw)
    score(model, features, tmp_path / "killed", client=client, **options)
    assert len({digest_tree(tmp_path / name, ["."]) for name in ("one", "three", "killed")}) == 1


def test_score__draws_nothing_that_a_user_may_not_hold(client, tmp_path, model, features):
    ids = features.partition(0).user_ids.to_arrow().to_pylist()[:200]
    opt_out = [(user, name) for user in ids for name in CATEGORIES[:4]]
    quals = score(
        model, features, tmp_path / "quals", client=client, k=2, explore=0.5, floor=2.0, opt_out=opt_out, seed=3
    )
    frame = quals.to_pandas()
    assert (frame["propensity"] < 1).any()
    mine = frame[frame["user_id"].isin(ids)]
    assert not mine["category"].isin(CATEGORIES[:4]).any()
    assert "chance" not in frame
    other = score(
        model, features, tmp_path / "other", client=client, k=2, explore=0.5, floor=2.0, opt_out=opt_out, seed=4
    )
    assert not other.to_pandas().equals(frame)


def test_score__draws_nothing_where_every_category_has_its_floor(client, tmp_path, model, features, chances):
    options = {"k": 5, "policy": "balanced", "chances": chances, "floor": 1e-6, "exclude": ["no planes"]}
    quals = score(model, features, tmp_path / "drawn", client=client, explore=0.1, **options)
    assert (quals.facts["explored"]["slots"], quals.facts["explored"]["targets"]) == (0, [])
    frame = quals.to_pandas()
    assert (frame["propensity"] == 1).all()
    plain = score(model, features, tmp_path / "plain", client=client, **options).to_pandas()
    assert frame[list(plain)].equals(plain)


@pytest.mark.parametrize("explore", [-0.1, 0.51, float("nan")])
def test_score__refuses_to_explore_more_than_half(client, tmp_path, model, features, explore):
    with pytest.raises(BadInput, match=rf"explore must be a share of all slots between 0 and 0.5, got {explore}"):
        score(model, features, tmp_path / "q", client=client, k=2, explore=explore)


def test_score__without_exploration_there_is_no_propensity(client, tmp_path, model, features):
    quals = score(model, features, tmp_path / "q", client=client, k=2)
    assert not {"propensity", "inclusion", "held_by"} & set(quals.to_pandas())
    assert "explored" not in quals.facts
