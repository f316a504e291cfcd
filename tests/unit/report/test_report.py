"""The report on qualifications: the figures by hand or from plain twins, and the files."""

import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import reference_report

from ammrank_dask.features.eligibility import group_of
from ammrank_dask.report.charts import rank_bar
from ammrank_dask.report.checks import check_night
from ammrank_dask.report.drift import SHIFT_EDGES, align_exposure, binned_quantile, compare_held, population_stability
from ammrank_dask.report.exposure import (
    Thresholds,
    entropy,
    exposure_table,
    gini,
    lorenz,
    measure_policy,
    rank_weights,
)
from ammrank_dask.report.hit_rate import find_clicked, match_clicks, most_clicked
from ammrank_dask.report.outcomes import ChanceOutcome, count_outcome
from ammrank_dask.report.page import harmless, render_page, report_files
from ammrank_dask.report.summary import exposure_of, summarise
from ammrank_dask.report.svg import breakable, percent, round_up, tag
from ammrank_dask.scoring.demographic_counts import count_by_group, rank_by_group
from ammrank_dask.scoring.policies import PolicyCounts
from ammrank_dask.storage.site.reports import write_report
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.qualifications import QualificationRows, rows_from_table
from ammrank_dask.storage.vocabulary import AGE_BUCKETS, GENDERS
from ammrank_dask.workflows.session.sections import THRESHOLDS

CATEGORIES = ["autos", "games / <b>", "=garten & haus", "<script>alert(1)</script>"]


def test_gini__by_hand():
    assert gini(np.array([5, 5, 5, 5])) == 0.0
    assert gini(np.array([0, 0, 0, 8])) == 0.75
    # Half the mean absolute difference over the mean: |1−3| in two of four ordered pairs, mean 2.
    assert gini(np.array([3, 1])) == 0.25
    assert gini(np.zeros(3, int)) == 0.0


def test_entropy__by_hand():
    assert entropy(np.array([2, 2, 2, 2])) == pytest.approx(1.0)
    assert entropy(np.array([2, 2, 0, 0])) == pytest.approx(0.5)
    assert entropy(np.array([9, 0])) == 0.0
    assert entropy(np.array([9])) == 1.0
    assert entropy(np.zeros(3, int)) == 0.0


def test_lorenz__by_hand_and_half_the_area_is_gini():
    assert lorenz(np.array([3, 0, 1])).tolist() == [0.0, 0.0, 0.25, 1.0]
    assert lorenz(np.zeros(2, int)).tolist() == [0.0, 0.5, 1.0]
    counts = np.random.default_rng(3).integers(0, 50, 30)
    assert 1 - 2 * np.trapezoid(lorenz(counts), dx=1 / 30) == pytest.approx(gini(counts))


def test_measure_policy__ranks_weigh_when_there_are_ranks():
    np.testing.assert_allclose(rank_weights(3), [1, 1 / np.log2(3), 0.5])
    # Both categories have two users, one has both of its on rank 1.
    counts = PolicyCounts(np.array([[2, 0], [0, 2]]), np.array([0, 0, 2]))
    measured = measure_policy(counts, np.array([1, 1]), 2, Thresholds())
    assert measured["gini"] == 0.0
    first, second = 2.0, 2 / np.log2(3)
    assert measured["rank_weighted_gini"] == pytest.approx((first - second) / (2 * (first + second)))
    unranked = PolicyCounts(np.array([[2], [2]]), np.array([0, 0, 2]))
    measured = measure_policy(unranked, np.array([1, 1]), 2, Thresholds(), n=2)
    assert (measured["rank_weighted_gini"], measured["n"], measured["slots"]) == (None, 2, 4)


def test_thresholds__are_those_of_the_config():
    assert list(vars(Thresholds())) == list(THRESHOLDS)


def make_held(held, categories="abcdef", user_type=None):
    """Return {user: [(category, score), …]} as read from a by_user file."""
    rows = [
        (user, rank, name, score)
        for user in sorted(held)
        for rank, (name, score) in enumerate(held[user], start=1)
    ]  # fmt: skip
    table = pa.table(
        {
            "user_id": pa.array([row[0] for row in rows], user_type or pa.int64()),
            "rank": pa.array([row[1] for row in rows], pa.int16()),
            "category": pa.array([row[2] for row in rows], pa.string()).dictionary_encode(),
            "score": pa.array([row[3] for row in rows], pa.float32()),
        }
    )
    return rows_from_table(table, list(categories))


def random_held(rng, n_users, categories="abcdef"):
    held = {}
    for user in rng.choice(50, n_users, replace=False):
        names = rng.permutation(list(categories))[: rng.integers(1, 5)]
        held[int(user)] = [(str(name), float(np.float32(rng.normal()))) for name in names]
    return held


def test_rows_from_table__users_ranks_and_unknown_names():
    held = make_held({7: [("b", 1.0), ("zzz", 0.5)], 3: [("a", 2.0)]})
    assert held.user_ids.to_arrow().to_pylist() == [3, 7]
    assert held.indptr.tolist() == [0, 1, 3]
    assert held.category.tolist()[:2] == [0, 1]
    assert held.category[2] >= 6
    assert held.user.tolist() == [0, 1, 1]
    assert held.rank.tolist() == [1, 1, 2]
    nobody = make_held({})
    assert (len(nobody.user_ids), nobody.indptr.tolist()) == (0, [0])


@pytest.mark.parametrize("seed", range(5))
def test_compare_held__equals_the_plain_twin(seed):
    rng = np.random.default_rng(seed)
    before, now = random_held(rng, 30), random_held(rng, 35)
    now[99] = [("a", -np.inf)]
    before[99] = [("a", -np.inf)]
    found = compare_held(make_held(before), make_held(now))
    users, changed, first, jaccard, shifts = reference_report.drift(before, now)
    assert (found.users, found.changed, found.first_changed) == (users, changed, first)
    assert (found.new, found.gone) == (len(now) - users, len(before) - users)
    assert found.jaccard == pytest.approx(jaccard)
    assert found.shift == pytest.approx(sum(shifts), abs=1e-5)
    assert found.shift_counts.sum() == len(shifts)
    for share in (0.05, 0.5, 0.95):
        exact = sorted(shifts)[max(0, int(np.ceil(share * len(shifts))) - 1)]
        assert binned_quantile(found.shift_counts, share) == pytest.approx(exact, rel=0.015, abs=1e-6)


def test_compare_held__strings_and_nobody_in_common():
    kind = pa.string()
    found = compare_held(make_held({"x": [("a", 1.0)]}, user_type=kind), make_held({"y": [("a", 1.0)]}, user_type=kind))
    assert (found.users, found.new, found.gone) == (0, 1, 1)
    assert binned_quantile(found.shift_counts, 0.5) is None
    same = compare_held(make_held({1: [("a", 1.0)]}), make_held({1: [("a", 1.0)]}))
    assert (same.changed, same.jaccard, same.shift) == (0, 1.0, 0.0)
    assert binned_quantile(same.shift_counts, 0.5) == 0.0
    assert len(same.shift_counts) == len(SHIFT_EDGES) + 1


def test_population_stability__by_hand():
    # One category, one rank, ten users: held by 2 before and by 5 now; half a user is added to each count.
    before, now = np.array([[2]]), np.array([[5]])
    p, q = np.array([5.5, 5.5]) / 11, np.array([2.5, 8.5]) / 11
    assert population_stability(before, now, 10, 10)[0] == pytest.approx(((p - q) * np.log(p / q)).sum())
    assert population_stability(before, before, 10, 10).tolist() == [0.0]


def test_population_stability__another_number_of_ranks_compares_held_and_not_held():
    # QualificationRows by 4 of ten users at two ranks, and by 4 at one: nothing moved. Then by 7.
    before = np.array([[1, 3], [1, 3]])
    found = population_stability(before, np.array([[4], [7]]), 10, 10)
    p, q = np.array([7.5, 3.5]) / 11, np.array([4.5, 6.5]) / 11
    assert found.tolist() == pytest.approx([0.0, ((p - q) * np.log(p / q)).sum()])


def test_align_exposure__by_name():
    before = np.array([[1, 2], [3, 4]])
    assert align_exposure(before, ["b", "gone"], ["a", "b"]).tolist() == [[0, 0], [1, 2]]
    assert align_exposure(before, ["b", "a"], ["a", "b"]).tolist() == [[3, 4], [1, 2]]


def test_most_clicked__by_name_and_first_of_equals():
    assert most_clicked([1, 5, 5, 9], list("abcd"), 2, list("dcb")).tolist() == [0, 2]
    assert most_clicked([1, 5], list("ab"), 2, ["new"]).tolist() == []


@pytest.mark.parametrize("seed", range(5))
def test_match_clicks__equals_the_plain_twin(seed):
    rng = np.random.default_rng(seed)
    held = random_held(rng, 30)
    clicks = {
        int(user): [str(name) for name in rng.choice(list("abcdef"), rng.integers(1, 4), replace=False)]
        for user in rng.choice(50, 25, replace=False)
    }
    users = ids_from_values(sorted(clicks))
    pairs = [(place, "abcdef".index(name)) for place, user in enumerate(sorted(clicks)) for name in clicks[user]]
    user, category = np.array(pairs).T
    found = match_clicks(make_held(held), users, user, category, np.array([0, 4]), 2)
    served, others, sums = reference_report.realised(held, clicks, ["a", "e"], 2)
    assert (found.users, found.others) == (served, others)
    for hits, (any_hit, precision, recall) in zip((found.held, found.popular), sums, strict=True):
        assert hits.any_hit == any_hit
        assert (hits.precision, hits.recall) == pytest.approx((precision, recall))
    assert found.held.means(0) == {"hit_rate": None, "precision": None, "recall": None}


def test_rank_by_group__by_hand():
    two, one = [("a", 3.0), ("b", 2.0)], [("b", 1.0)]
    # Of 20 users in two partitions each is female and in the first bucket, or male and 65+; one holds nothing.
    users = {user: two if user < 20 else one for user in range(40)}
    bucket, gender = np.repeat([0, 8], 20), np.repeat([0, 1], 20)
    halves = [
        count_by_group(
            make_held({user: users[user] for user in rows}, "abc"), group_of(bucket[rows], gender[rows]), 3, 2
        )
        for rows in (np.arange(0, 40, 2), np.arange(1, 40, 2))
    ]
    # Of these no gender or no age is known, or they are too few.
    others = make_held({1: [("c", 1.0)], 2: [("c", 1.0)], 3: [("c", 1.0)]}, "abc")
    few = count_by_group(others, group_of(np.array([3, -1, 3]), np.array([-1, 0, 0])), 3, 2)
    nothing = replace(others, indptr=np.array([0, 0, 0, 3]))  # the third user has all three
    found = rank_by_group([*halves, few, count_by_group(nothing, np.zeros(3, np.uint8), 3, 1)], "abc")
    female, male = found
    assert female == {
        "gender": GENDERS[0], "age": AGE_BUCKETS[0], "users": 21,
        "top": [
            {"category": "a", "share": 20 / 21},
            {"category": "b", "share": 20 / 21},
            {"category": "c", "share": 1 / 21},
        ],
    }  # fmt: skip
    assert male == {
        "gender": GENDERS[1], "age": AGE_BUCKETS[8], "users": 20, "top": [{"category": "b", "share": 1.0}],
    }  # fmt: skip


def make_counts():
    # Six users, k = 1: three hold category 0, one holds category 1; one holds nothing, one three, more than 2k.
    by_user = PolicyCounts(np.array([[3], [1], [0], [0]]), np.array([1, 4, 0, 1, 0]))
    by_category = PolicyCounts(np.array([[1], [1], [1], [1]]), np.array([4, 1, 0, 1, 0]))
    return {"user_top_k": by_user, "category_top_n": by_category}


CLICKS = np.array([10, 80, 10, 0])
DRIFT = {
    "users": 5, "new_users": 1, "gone_users": 0, "changed_users": 0.4, "first_changed": 0.2, "jaccard": 0.8,
    "score_shift": {
        "pairs": 4, "mean": 0.01, "quantiles": {"0.05": -0.2, "0.25": -0.1, "0.5": 0.0, "0.75": 0.1, "0.95": 0.3}
    },
    "model_changed": False,
}  # fmt: skip
REALISED = [
    {
        "nights": 1,
        "date": "2024-04-30",
        "measures": {
            "users": 4, "users_without_qualification": 1, "hit_rate": 0.5, "precision": 0.25, "recall": 0.4,
            "popularity": {"hit_rate": 0.6, "precision": 0.2, "recall": 0.3},
        },
    },
    {"nights": 7, "date": "2024-04-24", "measures": None},
]  # fmt: skip
GROUPS = [
    {"gender": "female", "age": "21-24", "users": 40, "top": [{"category": CATEGORIES[3], "share": 0.5}]},
    {"gender": "male", "age": "21-24", "users": 3, "top": []},
]


def make_summary(**options):
    settings = {"date": "2024-05-01", "cold_users": 2, "k": 1, "n_of": {"category_top_n": 1}, **options}
    return summarise(make_counts(), "user_top_k", CLICKS, CATEGORIES, **settings)


def full_summary(**options):
    before = PolicyCounts(np.array([[1], [1], [1], [1]]), np.array([2, 4, 0, 0, 0]))
    settings = {"before": ("2024-04-30", before), "drift": DRIFT, "realised": REALISED, "groups": GROUPS, **options}
    return make_summary(**settings)


def test_summarise__by_hand():
    summary = make_summary()
    assert {key: summary[key] for key in ("date", "n_users", "cold_users", "k", "policy")} == {
        "date": "2024-05-01", "n_users": 6, "cold_users": 2, "k": 1, "policy": "user_top_k",
    }  # fmt: skip
    policy = summary["policies"]["user_top_k"]
    assert policy["starved_users"] == 1
    assert policy["overexposed_users"] == 1
    # 2 and 3 have no user; 1 has share .25, above a quarter of its click share .8.
    assert policy["starved_categories"] == 2
    assert policy["coverage"] == 0.5
    assert policy["gini"] == pytest.approx((3 * 3 + 1 * 1) / (4 * 4))
    other = summary["policies"]["category_top_n"]
    assert (other["starved_users"], other["overexposed_users"], other["starved_categories"]) == (4, 1, 0)
    assert (other["coverage"], other["gini"], other["n"]) == (1.0, 0.0, 1)
    first = summary["categories"][0]
    assert {key: first[key] for key in ("category", "exposure", "exposure_share", "click_share", "ratio")} == {
        "category": "autos", "exposure": 3, "exposure_share": 0.75, "click_share": 0.1, "ratio": pytest.approx(7.5),
    }  # fmt: skip
    assert (first["clicks"], first["ranks"], first["psi"]) == (10, [3], None)
    assert [row["ratio"] for row in summary["categories"][1:]] == [pytest.approx(0.3125), 0.0, None]
    starved = [row["policies"]["user_top_k"]["starved"] for row in summary["categories"]]
    assert starved == [False, False, True, True]
    assert (summary["drift"], summary["realised"], summary["groups"]) == (None, [], [])
    assert json.loads(json.dumps(summary)) == summary


def test_summarise__thresholds_and_no_clicks():
    strict = make_summary(thresholds=Thresholds(starved_ratio=0.5, overexposed_factor=0.5))["policies"]["user_top_k"]
    assert (strict["starved_categories"], strict["overexposed_users"]) == (3, 5)
    silent = summarise(make_counts(), "user_top_k", np.zeros(4, int), CATEGORIES, date=None, cold_users=0, k=1)
    assert [row["ratio"] for row in silent["categories"]] == [None] * 4


def test_summarise__drift_of_categories():
    summary = full_summary()
    index = [row["psi"] for row in summary["categories"]]
    assert index[1] == 0.0  # one of six users in both nights
    p, q = np.array([3.5, 3.5]) / 7, np.array([1.5, 5.5]) / 7
    assert index[0] == pytest.approx(((p - q) * np.log(p / q)).sum())
    assert summary["drift"]["psi"] == max(index)
    assert summary["drift"]["date"] == "2024-04-30"


def test_summarise__no_shift_of_categories_against_another_policy():
    summary = full_summary(before=("2024-04-30", None))
    assert (summary["drift"]["date"], summary["drift"]["psi"]) == ("2024-04-30", None)
    assert {row["psi"] for row in summary["categories"]} == {None}
    assert "psi" not in {check["name"] for check in summary["checks"]}
    assert "2024-04-30" in render_page(summary)


def test_check_night__warns_beyond_thresholds():
    found = {check["name"]: check["status"] for check in full_summary()["checks"]}
    assert found == {
        "starved_users": "warn",
        "overexposed_users": "warn",
        "starved_categories": "warn",
        "changed_users": "ok",
        "jaccard": "ok",
        "score_shift": "ok",
        "psi": "warn",
        "hit_rate_1": "warn",
    }
    lax = Thresholds(starved_users=0.5, overexposed_users=0.5, starved_categories=0.5, psi=9.0, changed_users=0.3)
    strict = Thresholds(jaccard=0.9, score_shift=0.001)
    assert [check["name"] for check in check_night(full_summary(), lax) if check["status"] == "warn"] == [
        "changed_users",
        "hit_rate_1",
    ]
    warned = {check["name"] for check in check_night(full_summary(), strict) if check["status"] == "warn"}
    assert {"jaccard", "score_shift"} <= warned
    other_model = full_summary(drift={**DRIFT, "model_changed": True}, thresholds=strict)["checks"]
    assert "score_shift" not in {check["name"] for check in other_model}
    nobody = {**DRIFT, "changed_users": None, "jaccard": None, "score_shift": {**DRIFT["score_shift"], "mean": None}}
    counts = make_counts()["user_top_k"]
    names = [check["name"] for check in make_summary(before=("2024-04-30", counts), drift=nobody)["checks"]]
    assert names == ["starved_users", "overexposed_users", "starved_categories", "psi"]


def test_write_report__same_bytes_and_escaped_names(tmp_path):
    summary = full_summary()
    about = {"links": {"summary.json": "summary.json"}, "facts": {"zarr": "3.1.6"}}
    for folder in ("a", "b", "b"):
        write_report(tmp_path / folder, report_files(summary, exposure_of(summary), about))
    names = ["checksums.json", "exposure.csv", "report.html", "summary.json"]
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == names
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    assert json.loads((tmp_path / "a" / "summary.json").read_text()) == summary
    lines = (tmp_path / "a" / "exposure.csv").read_text().splitlines()
    assert lines[0] == (
        "category,exposure,exposure_share,click_share,ratio,rank_1,clicks,"
        "user_top_k_exposure,user_top_k_starved,category_top_n_exposure,category_top_n_starved,psi"
    )
    assert lines[3].startswith("'=garten & haus,0,0.0,0.1,0.0,0,10,0,1,1,0,")
    assert lines[4].startswith("<script>alert(1)</script>,0,0.0,0.0,,0,0,")
    page = (tmp_path / "a" / "report.html").read_text()
    assert "games / &lt;b&gt;" in page
    assert "games / <b>" not in page
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "=garten &amp; haus" in page
    assert "http" not in page
    assert "margins of different users are\nnot probabilities" in page


def test_summarise__a_category_that_nobody_may_hold_is_not_starved():
    options = {"date": None, "cold_users": 0, "k": 1}
    usual = summarise(make_counts(), "user_top_k", CLICKS, CATEGORIES, **options)
    hungry = [code for code, row in enumerate(usual["categories"]) if row["policies"]["user_top_k"]["starved"]]
    may_hold = np.full(len(CATEGORIES), 9)
    may_hold[hungry[0]] = 0
    limited = summarise(make_counts(), "user_top_k", CLICKS, CATEGORIES, may_hold=may_hold, **options)
    measures = [summary["policies"]["user_top_k"]["starved_categories"] for summary in (usual, limited)]
    assert measures == [len(hungry), len(hungry) - 1]
    assert not limited["categories"][hungry[0]]["policies"]["user_top_k"]["starved"]


CHANCES = {
    "date": "2026-01-05", "users": 40, "gate_users": 50, "cells": 200, "brier": 0.02, "base_brier": 0.03,
    "log_loss": 0.1, "base_log_loss": 0.2, "unreliable_bins": 1,
    "reliability": [
        {"cells": 100, "chance": 0.01, "clicked": 0.0, "error": 0.01},
        {"cells": 100, "chance": 0.2, "clicked": 0.25, "error": 0.04},
        {"cells": 0, "chance": 0.0, "clicked": 0.0, "error": 0.0},
    ],
    "activity": [{"cells": 200, "chance": 0.105, "clicked": 0.125, "error": 0.02, "brier": 0.02, "log_loss": 0.1}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("clicked", "error", "status"),
    [(100, 5.0, "ok"), (125, 5.0, "ok"), (130, 5.0, "warn"), (130, 30.0, "ok"), (70, 2.0, "warn")],
)
def test_check_night__warns_when_chances_did_not_come_true(clicked, error, status):
    outcome = {"date": "2025-12-06", "nights": 30, "slots": 900, "expected": 100.0, "clicked": clicked, "error": error}
    summary = summarise(
        make_counts(), "user_top_k", CLICKS, CATEGORIES, date=None, cold_users=0, k=1, outcome=outcome, chances=CHANCES
    )
    (check,) = [check for check in summary["checks"] if check["name"] == "chance_error"]
    assert check["status"] == status
    assert check["value"] == pytest.approx(abs(100 - clicked) / clicked)
    page = render_page(summary)
    assert "predicted vs. actual clicks of 30 nights ago" in page
    assert f"{clicked} of 900 were clicked since" in page
    assert re.search(r'data-chart="reliability" data-points="2"', page)
    assert "1 of 20" in page
    assert "predicted ± 3 standard errors of independent cells" in page  # as earlier versions kept them
    errors = [{**row, "cell_error": row["error"] / 3} for row in CHANCES["reliability"]]
    newer = render_page({**summary, "chances": CHANCES | {"reliability": errors, "unreliable_bins_by_cells": 7}})
    assert "predicted ± 3 standard errors by user" in newer
    assert re.search(r"as if all pairs were independent 7\s+of 20 would be", newer)


def test_render_page__says_why_nothing_was_drawn():
    explored = {"share": 0.02, "slots": 0, "expected_clicks": 0.0, "targets": [], "users": [0] * len(CATEGORIES)}
    summary = summarise(
        make_counts(), "user_top_k", CLICKS, CATEGORIES, date=None, cold_users=0, k=1, explored=explored
    )
    assert summary["explored"]["what"] == "nothing drawn: no category is below its floor"
    page = render_page(summary)
    assert "Exploration: nothing drawn: no category is below its floor" in page
    assert "at the last" not in page


def test_count_outcome__counts_what_was_expected_and_clicked():
    rows = QualificationRows(
        ids_from_values(np.array([3, 5, 8])), np.array([0, 2, 3, 4]), np.array([0, 2, 1, 1]), np.zeros(4),
        np.array([0.5, 0.25, 0.125, 0.5]),
    )  # fmt: skip
    # User 5 clicked 1, which they held; user 3 clicked 0 and 1 and held 0; user 9 held nothing.
    users, user, category = ids_from_values(np.array([3, 5, 9])), np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1])
    is_clicked = find_clicked(rows, users, user, category)
    outcome = count_outcome(rows, is_clicked)
    assert (outcome.slots, outcome.clicked, outcome.expected) == (4, 2, 1.375)
    assert outcome.variance == 0.25 + 0.1875 + 0.109375 + 0.25
    assert (outcome + outcome).to_json()["error"] == pytest.approx((2 * 0.796875) ** 0.5)
    assert count_outcome(replace(rows, chance=None), is_clicked) == ChanceOutcome()


def test_exposure_table__of_hundreds_of_ranks_is_made_without_a_warning():
    exposure = np.arange(3 * 200).reshape(3, 200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = exposure_table(exposure, ["a", "b", "c"])
    assert table.columns[-1] == "rank_200"
    assert table["rank_200"].tolist() == [199, 399, 599]
    assert table["exposure"].tolist() == exposure.sum(axis=1).tolist()


def test_exposure_of__has_the_columns_of_the_table():
    table = exposure_table(make_counts()["user_top_k"].exposure, CATEGORIES, CLICKS)
    found = exposure_of(make_summary())
    for name in table.columns:
        np.testing.assert_array_equal(found[name], table[name])
    assert found["psi"].isna().all()


def test_harmless__formulas_are_text():
    names = ["=1+1", "+a", "-b", "@c", "\td", "plain", "a=b"]
    safe = harmless(pd.DataFrame({"category": names, "n": range(7)}))
    assert safe["category"].tolist() == ["'=1+1", "'+a", "'-b", "'@c", "'\td", "plain", "a=b"]
    assert safe["n"].tolist() == list(range(7))


@pytest.mark.parametrize("chosen", ["user_top_k", "category_top_n"])
def test_render_page__says_the_answer_first(chosen):
    options = {"date": "2024-05-01", "cold_users": 2, "k": 1, "n_of": {"category_top_n": 1}}
    summary = summarise(make_counts(), chosen, CLICKS, CATEGORIES, **options)
    page = " ".join(render_page(summary).split())
    answers = {
        "user_top_k": ("1 user (16.7 %) gets nothing", "2 of 4 categories are starved"),
        "category_top_n": ("4 users (66.7 %) get nothing", "no category is starved"),
    }
    users, categories = answers[chosen]
    assert f"{users}, 1 user (16.7 %) holds more than 2, and {categories}." in page
    assert "There is no earlier night with the same partitions" in page
    assert "Not known yet" in page


def test_render_page__tells_that_a_policy_was_counted_on_a_sample():
    summary = make_summary()
    assert "estimated" not in render_page(summary)
    summary["policies"]["category_top_n"]["sampled_users"] = 4_321
    page = " ".join(render_page(summary).split())
    assert "best 1 users, estimated from a sample of 4,321 users" in page


def test_render_page__starved_categories_come_first():
    page = " ".join(render_page(make_summary()).split())
    least = page[page.index("Shown least for their clicks") : page.index("Shown most for their clicks")]
    names = re.findall(r"<li><span>(.*?)(?: <b class=\"pill warn\">starved</b>)?</span><span>(.*?)</span>", least)
    assert names == [
        ("=garten &amp; haus", "0.00"),
        ("&lt;script&gt;alert(1)&lt;/<wbr>script&gt;", "no clicks"),
        ("games /<wbr> &lt;b&gt;", "0.31"),
        ("autos", "7.50"),
    ]
    assert least.count(">starved<") == 2


def test_render_page__without_users_or_date():
    nothing = {"user_top_k": PolicyCounts(np.zeros((4, 1), int), np.zeros(5, int))}
    summary = summarise(nothing, "user_top_k", np.zeros(4, int), CATEGORIES, date=None, cold_users=0, k=1)
    page = render_page(summary)
    assert "<title>Exposure</title>" in page
    assert "NaN" not in page


def test_render_page__many_categories_are_cut():
    n = 600
    counts = {"user_top_k": PolicyCounts(np.ones((n, 2), int), np.zeros(n + 1, int))}
    names = [f"category {i:03d}" for i in range(n)]
    page = render_page(summarise(counts, "user_top_k", np.arange(n), names, date=None, cold_users=0, k=2))
    assert "The 60 most clicked of 600 categories" in page
    assert 'data-chart="clicks" data-points="200"' in page
    assert "the 200 most clicked of 600" in page
    assert "the 500 most clicked of" in page
    assert "category 599" in page
    assert "<td>category 050</td>" not in page


def test_percent__nothing_and_all_are_exact():
    shown = [percent(share).replace("\u00a0", " ") for share in (0, 1e-6, 0.0002, 0.001, 0.25, 0.9996, 0.999999, 1)]
    assert shown == ["0 %", "<0.01 %", "0.02 %", "0.1 %", "25.0 %", "99.96 %", ">99.99 %", "100 %"]


def test_round_up__has_whole_quarters():
    assert [round_up(value) for value in (0, 4, 5, 9, 81, 1445, 99_999)] == [4, 4, 8, 20, 100, 2000, 100_000]


def test_rank_bar__widths_by_hand():
    bar = str(rank_bar([30, 0, 10], 50.0, 100.0))
    found = re.findall(r'x="([\d.]+)" y="\d" width="([\d.]+)"', bar)
    # Ranks 1 and 3 beside each other, then the mark, 0.8 wide, in the middle of the bar.
    assert found == [("0", "30"), ("30", "10"), ("49.6", "0.8")]
    assert "rank 3: 10 users" in bar


def test_tag__escapes_content_and_attributes():
    assert str(tag("text", "<b>", x=1.5, class_='"&')) == '<text x="1.5" class="&#34;&amp;">&lt;b&gt;</text>'
    assert str(breakable("a/<b>/c")) == "a/<wbr>&lt;b&gt;/<wbr>c"
