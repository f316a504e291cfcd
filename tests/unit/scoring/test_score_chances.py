"""The column `chance` and `min_chance` under every policy, against all chances computed one by one."""

from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from chance_world import CATEGORIES, all_chances, make_features, make_model

from ammrank_dask.kernels.scoring import Filter
from ammrank_dask.scoring.barred_cells import take_barred
from ammrank_dask.scoring.learn_chances import learn_chances
from ammrank_dask.scoring.policies import POLICIES
from ammrank_dask.scoring.qualifications import open_qualifications
from ammrank_dask.scoring.score import score
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.qualifications import qualification_parts


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def features(tmp_path_factory, model):
    return make_features(tmp_path_factory.mktemp("features") / "run", model, 1200)


@pytest.fixture(scope="module")
def chances(client, model, features):
    return learn_chances(model, features, client=client)


@pytest.fixture(scope="module")
def truth(model, features, chances):
    """The chances of all users by id and name of the category."""
    ids, table = all_chances(model, features, chances)
    return pd.DataFrame(table, index=ids, columns=CATEGORIES)


def chance_of(truth, frame):
    """Return what `truth` says about the rows of a table."""
    codes = [CATEGORIES.index(name) for name in frame["category"]]
    return truth.to_numpy()[truth.index.get_indexer(frame["user_id"]), codes]


@pytest.mark.parametrize("policy", POLICIES)
def test_score__chance_stands_beside_the_score_under_every_policy(
    client, tmp_path, model, features, chances, truth, policy
):
    quals = score(model, features, tmp_path / "quals", client=client, k=2, policy=policy, chances=chances)
    frame = quals.to_pandas()
    assert list(frame.columns) == ["user_id", "rank", "category", "score", "chance", "cold"]
    np.testing.assert_array_equal(frame["chance"], chance_of(truth, frame))
    assert quals.counts.expected == pytest.approx(frame["chance"].sum(), rel=1e-6)
    by_score = frame.sort_values(["user_id", "score"], ascending=[True, False], kind="stable")
    assert (by_score["rank"].to_numpy() == frame["rank"].to_numpy()).all()  # rank follows score
    for folder in (quals.path / "by_category").iterdir():
        for part in folder.iterdir():
            table = pq.read_table(part, partitioning=None).to_pandas()
            table["category"] = unquote(folder.name.removeprefix("category="))
            np.testing.assert_array_equal(table["chance"], chance_of(truth, table))


def test_score__without_chances_there_is_no_column(client, tmp_path, model, features):
    quals = score(model, features, tmp_path / "quals", client=client, k=2)
    assert list(quals.to_pandas().columns) == ["user_id", "rank", "category", "score", "cold"]
    assert quals.counts.expected is None
    assert qualification_parts(quals.run)[0].read(CATEGORIES).chance is None


def test_score__min_chance_leaves_the_best_that_reach_it(client, tmp_path, model, features, chances, truth):
    low = float(np.quantile(truth.to_numpy(), 0.6))
    quals = score(model, features, tmp_path / "quals", client=client, k=2, chances=chances, min_chance=low)
    frame = quals.to_pandas()
    # By hand: of the categories whose chance reaches it, the two with the highest score; ties by popularity.
    expected = []
    for number in range(features.n_partitions):
        part = features.partition(number)
        for user, own in zip(part.user_ids.to_arrow().to_pylist(), model.decision_function(part.X), strict=True):
            kept = [code for code in np.argsort(-own, kind="stable") if truth.loc[user].iloc[code] >= np.float32(low)]
            expected += [(user, rank, CATEGORIES[code]) for rank, code in enumerate(kept[:2], start=1)]
    assert sorted(zip(frame["user_id"], frame["rank"], frame["category"], strict=True)) == sorted(expected)
    assert 0 < len(frame) < 2400
    assert len(set(frame["user_id"])) < 1200  # who reaches it nowhere gets nothing
    assert quals.run.manifest["config"]["min_chance"] == low


@pytest.mark.parametrize("policy", POLICIES)
def test_score__nobody_gets_what_they_opted_out_of(client, tmp_path, model, features, chances, policy):
    usual = score(model, features, tmp_path / "usual", client=client, k=2, policy=policy, chances=chances).to_pandas()
    first = usual[usual["rank"] == 1]
    opt_out = [*zip(first["user_id"][::2], first["category"][::2], strict=True), (-1, "news")]
    quals = score(
        model, features, tmp_path / "quals", client=client, k=2, policy=policy, chances=chances, opt_out=iter(opt_out)
    )
    frame = quals.to_pandas()
    assert not set(zip(frame["user_id"], frame["category"], strict=True)) & set(opt_out)
    assert quals.facts["unknown_opt_outs"] == 1
    n_out = first["category"][::2].value_counts().reindex(CATEGORIES, fill_value=0)
    assert quals.facts["may_hold"] == [1200 - n for n in n_out]
    if policy != "category_top_n":
        assert set(frame.groupby("user_id").size()) == {2}  # the next best comes instead
    if policy == "user_top_k":
        kept = set(first["user_id"][1::2]) - set(first["user_id"][::2])
        same = [table[table["user_id"].isin(kept)].reset_index(drop=True) for table in (usual, frame)]
        pd.testing.assert_frame_equal(*same)


@pytest.mark.parametrize("policy", ["category_top_n", "balanced"])
def test_score__min_chance_holds_under_other_policies(client, tmp_path, model, features, chances, policy):
    quals = score(
        model,
        features,
        tmp_path / "quals",
        client=client,
        k=2,
        chances=chances,
        min_chance=0.1,
        policy=policy,
        floor=0.0,
        cap=9,
    )
    frame = quals.to_pandas()
    assert len(frame)
    assert frame["chance"].min() >= 0.1


def test_score__a_run_of_before_chances_is_still_read(client, tmp_path, model, features):
    """What reads the files of a night takes the column as it comes."""
    quals = score(model, features, tmp_path / "quals", client=client, k=2)
    assert open_qualifications(quals.path).to_pandas(users=[0, 3])["user_id"].tolist() == [0, 0, 3, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_chance": 0.1}, "min_chance needs chances, got none; learn them with `learn_chances` on held-out users"),
        ({"policy": "balanced"}, "policy balanced needs chances, got none"),
        ({"min_chance": 1.5}, "min_chance must be between 0 and 1, got 1.5"),
        ({"min_score": np.nan}, "min_score must be finite, got nan"),
    ],
)
def test_score__what_needs_chances_is_refused_without(client, tmp_path, model, features, options, message):
    with pytest.raises(BadInput, match=message):
        score(model, features, tmp_path / "quals", client=client, k=2, **options)


def test_take_barred__equals_a_full_sort():
    rng = np.random.default_rng(5)
    n, n_categories, k = 300, 7, 3
    everything = rng.integers(-3, 3, (n_categories, n)).astype(np.float32)
    bare = np.array([False, False, True, False, False, False, False])
    allowed = np.ones((2, n_categories), bool)
    allowed[1, [2, 4]] = False
    group = rng.integers(0, 2, n).astype(np.uint8)
    everything[bare] = -np.inf
    everything[~allowed[group].T] = -np.inf
    tie_order = rng.permutation(n_categories)
    barred = rng.random((n, n_categories)) < 0.4

    def best(scores, may_hold):
        position = np.argsort(tie_order)
        order = [
            code for code in sorted(range(n_categories), key=lambda c: (-scores[c], position[c])) if may_hold[code]
        ]
        return (order + [-1] * k)[:k]

    limits = Filter(allowed, group, -np.inf, True)
    codes = np.array([best(everything[:, row], allowed[group[row]]) for row in range(n)], np.int32)
    scores = np.where(codes >= 0, np.take_along_axis(everything.T, np.maximum(codes, 0), 1), -np.inf).astype(np.float32)
    before = everything.copy()
    take_barred(barred, codes, scores, everything, tie_order=tie_order, bare=bare, limits=limits)
    for row in range(n):
        expected = best(before[:, row], allowed[group[row]] & ~barred[row])
        assert codes[row].tolist() == expected
        held = [code for code in expected if code >= 0]
        np.testing.assert_array_equal(scores[row, : len(held)], before[held, row])
    assert np.isneginf(everything.T[barred]).all()
    np.testing.assert_array_equal(everything.T[~barred], before.T[~barred])
