"""Scoring with AMM-rank-plus on a cluster: the same categories as the model names, from rows as stored."""

import numpy as np
import pytest
from distributed import Client

from ammrank_dask.features.write import write_features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.own_term import own_columns_of_names
from ammrank_dask.model.plane_panels import panel_arrays, panels_from
from ammrank_dask.model.saved import load_model
from ammrank_dask.scoring.learn_chances import fold_of, read_split
from ammrank_dask.scoring.score import score
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.models import save_model
from ammrank_dask.user_hash import split_of

CATEGORIES = ["a", "b", "c", "d"]
COLUMNS = [f"{group}:intensity:{name}" for group in ("pv", "adv") for name in CATEGORIES] + ["age:18-20"]


@pytest.fixture(scope="module")
def client():
    with Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None, memory_limit=0) as client:
        yield client


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    rng = np.random.default_rng(3)
    X = np.where(rng.random((260, 9)) < 0.6, 3 * rng.random((260, 9)), 0)
    X[:5] = 0
    rankings = np.argsort(-X[:, :4] - X[:, 4:8], axis=1)[:, :2]
    path = tmp_path_factory.mktemp("plus") / "features"
    return write_features(path, X, np.arange(260), COLUMNS, rankings, categories=CATEGORIES, n_partitions=3)


@pytest.fixture(scope="module")
def model(stored):
    parts = [stored.partition(i, normalize=False) for i in range(3)]
    columns, groups = own_columns_of_names(COLUMNS, CATEGORIES)
    ranker = AMMRankPlus(n_categories=4, own_columns=columns, own_groups=groups, n_centers=6)
    return ranker.fit_blocks([(part.X, part.rankings) for part in parts])


def test_score__writes_what_the_model_ranks_from_stored_rows(client, stored, model, tmp_path):
    model.save(tmp_path / "model")
    quals = score(tmp_path / "model", stored, tmp_path / "quals", client=client, k=3).to_pandas()
    by_user = quals.sort_values(["user_id", "rank"])
    for part in (stored.partition(i, normalize=False) for i in range(3)):
        codes, scores = model.predict_top_k(part.X, k=3)
        for user, user_codes, user_scores in zip(part.user_ids.to_pandas(), codes, scores, strict=True):
            rows = by_user[by_user.user_id == user]
            assert rows.category.tolist() == [CATEGORIES[code] for code in user_codes]
            np.testing.assert_array_equal(rows.score, user_scores)


def test_score__processes_write_the_same_bytes(client, two_processes, stored, model, tmp_path):
    model.save(tmp_path / "model")
    written = []
    for number, cluster in enumerate((client, two_processes)):
        score(tmp_path / "model", stored, tmp_path / f"quals-{number}", client=cluster, k=3)
        files = sorted((tmp_path / f"quals-{number}").rglob("*.parquet"))
        written.append({str(file.relative_to(tmp_path / f"quals-{number}")): file.read_bytes() for file in files})
    assert written[0] == written[1]
    assert len(written[0]) > 3


def test_score__category_top_n_takes_the_best_users(client, stored, model, tmp_path):
    quals = score(model, stored, tmp_path / "quals", client=client, k=2, policy="category_top_n", n=10).to_pandas()
    everything = [
        (score, user, code)
        for part in (stored.partition(i, normalize=False) for i in range(3))
        for user, row in zip(part.user_ids.to_pandas(), model.decision_function(part.X), strict=True)
        for code, score in enumerate(row)
    ]
    for code, name in enumerate(CATEGORIES):
        best = sorted((-score, user) for score, user, c in everything if c == code)[:10]
        assert set(quals[quals.category == name].user_id) == {user for _, user in best}


def test_score__refuses_a_model_of_another_taxonomy(client, stored, model, tmp_path):
    other = AMMRankPlus.load(_saved(model, tmp_path))
    other.categories_ = ["a", "b", "c", "x"]
    with pytest.raises(BadInput, match=r"must rank the categories of the features at .* found other ones"):
        score(other, stored, tmp_path / "quals", client=client, k=2)


def _saved(model, folder):
    model.save(folder / "model")
    return folder / "model"


def test_load_model__returns_the_class_that_was_saved(model, tmp_path):
    assert type(load_model(_saved(model, tmp_path))) is AMMRankPlus
    AMMRank(n_categories=2).fit(np.eye(2), np.array([[0], [1]])).save(tmp_path / "other")
    assert type(load_model(tmp_path / "other")) is AMMRank


def test_load_model__refuses_an_unknown_method(tmp_path):
    arrays = {
        "weights": np.zeros((2, 1), np.float32),
        "plane_category": np.zeros(1, np.int32),
        "popularity": np.ones(1, np.int64),
    }
    save_model(tmp_path / "model", arrays, {"model": "amm-sort"})
    with pytest.raises(BadInput, match="must be of amm-rank or amm-rank-plus, got amm-sort"):
        load_model(tmp_path / "model")


def test_panels_from__gives_back_what_panel_arrays_took(model, stored):
    again = panels_from(*panel_arrays(model.panels()))
    for one, other in zip(_leaves(again), _leaves(model.panels()), strict=True):
        np.testing.assert_array_equal(one, other)


def _leaves(parts):
    for part in parts:
        if isinstance(part, tuple):
            yield from _leaves(part)
        else:
            yield part


def test_read_split__scores_rows_as_stored(stored, model):
    for partition in range(3):
        part = stored.partition(partition, normalize=False)
        chosen = split_of(part.user_ids) == 0
        scores, clicked, activity, folds = read_split(stored.path, partition, model.panels(), None, "train", 1.0)
        np.testing.assert_array_equal(scores, model.decision_function(part.X[chosen]))
        assert clicked.sum(axis=1).tolist() == [2] * chosen.sum()
        assert activity.tolist() == part.n_event_features[chosen].tolist()
        assert folds.tolist() == fold_of(part.user_ids)[chosen].tolist()
