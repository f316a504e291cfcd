"""The fused scoring kernel against the unfused one and against full sorts; also run as plain Python."""

import numpy as np
import pytest
import reference_ranking
import scipy.sparse as sp
from examples import PROFILE, examples
from hypothesis import given
from hypothesis import strategies as st

from ammrank_dask.features.eligibility import UNKNOWN_AGE, Eligibility, group_of
from ammrank_dask.kernels.changes import Pairs, count_changes, list_changes, match_pairs
from ammrank_dask.kernels.selection import order_key, order_ties, sort_by_score
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.plane_panels import arrange_planes, top_categories
from ammrank_dask.scoring.category_cutoffs import order_keys


def make_model(rng, *, n_features=7, counts=(2, 0, 3, 1, 0, 1), whole=False, bias=1.0):
    """A model with the given number of planes per category; `whole` weights make scores that tie often."""
    plane_category = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    shape = (n_features + 1, len(plane_category))
    weights = rng.integers(-1, 2, shape) if whole else rng.standard_normal(shape)
    model = AMMRank(bias=bias)
    model.set_planes(weights.astype(np.float32), plane_category, rng.integers(0, 3, len(counts)), n_steps=1)
    return model


def make_rows(rng, n_rows, n_features, *, whole=False):
    values = rng.integers(0, 2, (n_rows, n_features)) if whole else rng.random((n_rows, n_features))
    return sp.csr_matrix(np.where(rng.random(values.shape) < 0.7, values, 0).astype(np.float32))


@given(
    seed=st.integers(0, 2**32 - 1), n_rows=st.integers(0, 140), whole=st.booleans(),
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=9).filter(any), data=st.data(),
)  # fmt: skip
@examples(40)
def test_predict_top_k__equals_a_full_sort(seed, n_rows, whole, counts, data):
    rng = np.random.default_rng(seed)
    model = make_model(rng, counts=counts, whole=whole)
    X = make_rows(rng, n_rows, 7, whole=whole)
    k = data.draw(st.integers(1, len(counts)))
    codes, scores = model.predict_top_k(X, k)
    assert codes.shape == scores.shape == (n_rows, k)
    everything = model.decision_function(X)
    if n_rows:
        expected_codes, expected_scores = reference_ranking.top_k(everything, model.tie_order_, k)
        np.testing.assert_array_equal(codes, expected_codes)
        np.testing.assert_array_equal(scores, expected_scores)


@pytest.mark.parametrize(("n_features", "n_planes"), [(300, 3), (40, 700), (5000, 90)])
def test_top_categories__all_scores_are_the_bits_of_decision_function(n_features, n_planes):
    rng = np.random.default_rng(3)
    counts = np.bincount(rng.integers(0, 11, n_planes), minlength=11)
    model = make_model(rng, n_features=n_features, counts=counts)
    n_rows = 150 if PROFILE != "nojit" else 10
    X = sp.random(n_rows, n_features, 0.2, format="csr", dtype=np.float32, rng=rng)
    codes, scores, everything = top_categories(X, model.panels(), 4, keep_all=True)
    np.testing.assert_array_equal(everything.T.view(np.uint32), model.decision_function(X).view(np.uint32))
    np.testing.assert_array_equal(np.take_along_axis(everything.T, codes, axis=1), scores)


def test_predict_top_k__categories_without_planes_come_last_by_popularity():
    model = AMMRank(bias=1.0)
    weights = np.array([[1.0], [-5.0]], np.float32)  # one plane, below zero for every row
    model.set_planes(weights, np.array([2], np.int32), np.array([4, 9, 0, 9]), n_steps=1)
    codes, scores = model.predict_top_k(np.array([[1.0]]), 4)
    assert codes.tolist() == [[2, 1, 3, 0]]
    assert scores.tolist() == [[-4.0, -np.inf, -np.inf, -np.inf]]


def test_limits__hold_by_group_and_score():
    # Three categories with scores 3, 2, 1 for everyone, and one without planes.
    weights = np.array([[0.0, 0.0, 0.0], [3.0, 2.0, 1.0]], np.float32)
    panels = arrange_planes(weights, np.array([0, 1, 2]), np.array([3, 2, 1, 0]), 1.0)
    X = sp.csr_matrix((4, 1), dtype=np.float32)
    age_bucket, gender = np.array([0, 3, -1, 0], np.int8), np.array([0, 1, -1, -1], np.int8)
    limits = Eligibility(
        exclude=frozenset({2}),
        exclude_by_group={"13-17": frozenset({0}), "male": frozenset({3}), UNKNOWN_AGE: frozenset({1, 3})},
    )
    kept = limits.filter(4, age_bucket, gender)
    codes, scores, everything = top_categories(X, panels, 3, kept, keep_all=True)
    assert codes.tolist() == [[1, 3, -1], [0, 1, -1], [0, -1, -1], [1, 3, -1]]
    assert scores[0].tolist() == [2.0, -np.inf, -np.inf]
    assert everything[2].tolist() == [-np.inf] * 4
    assert everything[0].tolist() == [-np.inf, 3.0, 3.0, -np.inf]
    strict = Eligibility(min_score=2.0).filter(4, age_bucket, gender)
    assert top_categories(X, panels, 4, strict)[0].tolist() == [[0, 1, -1, -1]] * 4
    nothing = Eligibility(min_score=9.0).filter(4, age_bucket, gender)
    assert top_categories(X, panels, 4, nothing)[0].tolist() == [[-1] * 4] * 4


def test_group_of__unknown_stands_last():
    assert group_of(np.array([0, 8, -1], np.int8), np.array([1, -1, 0], np.int8)).tolist() == [1, 26, 27]


@given(values=st.lists(st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0]), max_size=30))
def test_sort_by_score__equals_a_stable_sort(values):
    scores, in_order = np.array(values, np.float32), np.empty(len(values), np.uint64)
    sort_by_score(scores.view(np.uint32), in_order)
    assert in_order.astype(np.uint32).tolist() == sorted(range(len(values)), key=lambda i: -scores[i] + 0.0)


@pytest.mark.parametrize("spread", [0, 9, 13, 14, 26, 27, 31])
def test_sort_by_score__takes_as_many_passes_as_scores_need(spread):
    rng = np.random.default_rng(spread)
    bits = (0x3F000000 + rng.integers(0, 2**spread, 200)).astype(np.uint32)  # from .5, or over negative ones and all
    bits = np.where(bits.view(np.float32) == bits.view(np.float32), bits, 0).astype(np.uint32)
    in_order = np.empty(200, np.uint64)
    sort_by_score(bits, in_order)
    scores = bits.view(np.float32)
    assert in_order.astype(np.uint32).tolist() == sorted(range(200), key=lambda i: -scores[i] + 0.0)


@given(pairs=st.lists(st.tuples(st.integers(0, 2), st.integers(-9, 9)), max_size=40))
def test_order_ties__sorts_by_score_then_rank(pairs):
    scores, rank = np.array([pair[0] for pair in pairs], np.float32), np.array([pair[1] for pair in pairs], np.int64)
    in_order = np.empty(len(pairs), np.uint64)
    sort_by_score(scores.view(np.uint32), in_order)
    order_ties(rank, in_order)
    assert in_order.astype(np.uint32).tolist() == sorted(range(len(pairs)), key=lambda i: (-scores[i], rank[i]))


@given(a=st.floats(width=32, allow_nan=False), b=st.floats(width=32, allow_nan=False))
def test_order_key__orders_as_the_floats_do(a, b):
    bits = np.array([a, b], np.float32).view(np.uint32)
    keys = [int(order_key(value)) for value in bits]
    assert (a < b, a == b) == (keys[0] < keys[1], keys[0] == keys[1])
    assert order_keys(bits).tolist() == keys


def test_match_pairs__by_hand():
    # User 0 had 1 and now has 1 and 2; user 1 had nothing and has 0; user 2 had 2 and has nothing.
    now, before = np.array([0, 2, 3, 3]), np.array([0, 1, 1, 2])
    codes, old_codes = np.array([1, 2, 0], np.int32), np.array([1, 2], np.int32)
    match, removed = np.empty(3, np.int64), np.empty(2, bool)
    match_pairs(now, codes, before, old_codes, np.full(3, -1), match, removed)
    assert match.tolist() == [0, -1, -1]
    assert removed.tolist() == [False, True]


lists_of_users = st.lists(
    st.tuples(
        *[
            st.lists(
                st.tuples(st.integers(0, 4), st.sampled_from([0.0, 1.0])), unique_by=lambda pair: pair[0], max_size=5
            )
        ]
        * 2,
        st.booleans(),
    ),
    max_size=6,
)


@given(users=lists_of_users)
def test_list_changes__equals_a_comparison_user_by_user(users):
    new, old = (as_pairs([user[side] for user in users]) for side in (0, 1))
    match, is_gone = np.empty(len(new.code), np.int64), np.empty(len(old.code), bool)
    match_pairs(new.start, new.code, old.start, old.code, np.full(5, -1), match, is_gone)
    is_forgotten = np.array([user[2] for user in users], bool)
    is_other, indptr = np.empty(len(new.code), bool), np.empty(len(users) + 1, np.int64)
    count_changes(new, old, match, is_gone, is_forgotten, is_other, indptr)
    n = indptr[-1]
    codes, change, row = np.empty(n, np.int32), np.empty(n, np.int8), np.empty(n, np.int64)
    list_changes(new, old, match, is_gone, is_forgotten, is_other, (0, 2, 1, 3), indptr, codes, change, row)
    expected = []
    for user, (now, before, forgotten) in enumerate(users):
        first, held = int(new.start[user]), {code: (rank, score) for rank, (code, score) in enumerate(before)}
        here = [(code, held.get(code), (rank, score), first + rank) for rank, (code, score) in enumerate(now)]
        expected += [(user, code, 0, at) for code, was, _, at in here if was is None]
        expected += [(user, code, 2, at) for code, was, now_is, at in here if was not in (None, now_is)]
        expected += [(user, code, 1, -1) for code, _ in before if code not in dict(now)]
        expected += [(user, -1, 3, -1)] * forgotten
    owner = np.repeat(np.arange(len(users)), np.diff(indptr))
    assert list(zip(owner.tolist(), codes.tolist(), change.tolist(), row.tolist(), strict=True)) == expected


def as_pairs(lists):
    """Return (code, score) of users, best first, as the kernels take them."""
    start = np.concatenate([[0], np.cumsum([len(pairs) for pairs in lists])]).astype(np.int64)
    rank = [rank for pairs in lists for rank in range(1, len(pairs) + 1)]
    code, score = ([pair[part] for pairs in lists for pair in pairs] for part in (0, 1))
    return Pairs(start, np.array(code, np.int32), np.array(rank, np.int16), np.array(score, np.float32))
