"""Sharded training of AMM-rank-plus: the plain loop, the same bits anywhere, resuming, warm starts, refusals."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client
from lost_worker import lose_a_worker
from stages import watch_stages

from ammrank_dask.features.write import write_features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.amm_rank_plus import PACE, AMMRankPlus
from ammrank_dask.model.metrics import disagreement_error
from ammrank_dask.model.own_term import own_columns_of_names
from ammrank_dask.model.plus_sums import PlusState, Rates
from ammrank_dask.runtime.tasks import silent
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.scratch_arrays import ArrayWriter
from ammrank_dask.training.plus_start import state_of_model
from ammrank_dask.training.prepared_rows import PreparedRows
from ammrank_dask.training.shards import cut_blocks
from ammrank_dask.training.train import train
from ammrank_dask.user_hash import split_of

CATEGORIES = [f"c{i}" for i in range(5)]
COLUMNS = [f"{g}:{k}:{c}" for g in ("pv", "adv") for k in ("intensity", "recency") for c in CATEGORIES] + ["age:18-20"]
PLUS = {"model": "amm-rank-plus", "n_centers": 8, "clickers_per_plane": 60, "max_planes": 3, "block_rows": 64}


@pytest.fixture(scope="module")
def client():
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0) as client:
        yield client


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    rng = np.random.default_rng(11)
    X = np.where(rng.random((700, 21)) < 0.5, 2 * rng.random((700, 21)), 0)
    taste = X[:, :5] + 2 * X[:, 10:15] + X[:, 20:] * np.arange(5) / 2 + 0.4 * rng.normal(size=(700, 5))
    rankings = np.argsort(-taste, axis=1)[:, :3]
    rankings[np.arange(3)[None, :] >= rng.integers(1, 4, 700)[:, None]] = -1
    path = tmp_path_factory.mktemp("plus") / "features"
    return write_features(path, X, np.arange(700), COLUMNS, rankings, categories=CATEGORIES, n_partitions=3)


def training_rows(features, split=0):
    parts = [features.partition(i, normalize=False) for i in range(features.n_partitions)]
    return [
        (part.X[split_of(part.user_ids) == split], part.rankings[split_of(part.user_ids) == split]) for part in parts
    ]


def error_of(model, features):
    parts = training_rows(features, 2)
    total = sum(disagreement_error(model.decision_function(X), rankings) * len(rankings) for X, rankings in parts)
    return total / sum(len(rankings) for _, rankings in parts)


@pytest.mark.parametrize("average", [False, True])
def test_train__one_shard_is_the_plain_loop(client, features, average):
    found = train(features, client=client, shards=1, average=average, epochs=3, **PLUS)
    parts = training_rows(features)
    blocks = cut_blocks([len(rankings) for _, rankings in parts], 64)
    rows = [(parts[b.partition][0][b.start : b.stop], parts[b.partition][1][b.start : b.stop]) for b in blocks]
    columns, groups = own_columns_of_names(COLUMNS, CATEGORIES)
    options = {name: PLUS[name] for name in ("n_centers", "clickers_per_plane", "max_planes")}
    plain = AMMRankPlus(
        n_categories=5, own_columns=columns, own_groups=groups, average=average, epochs=3, pace=PACE, **options,
    ).fit_blocks(rows)  # fmt: skip
    for name in ("weights_", "plane_category_", "squares_", "own_squares_"):
        assert getattr(found, name).tobytes() == getattr(plain, name).tobytes(), name
    assert found.basis_.own.weights.tobytes() == plain.basis_.own.weights.tobytes()
    assert found.basis_.memberships.centers.tobytes() == plain.basis_.memberships.centers.tobytes()
    X = parts[0][0]
    np.testing.assert_array_equal(found.decision_function(X), plain.decision_function(X))


def test_train__shards_give_the_same_bits_on_another_cluster(client, elsewhere, features, tmp_path):
    one = train(features, client=client, shards=3, epochs=2, **PLUS)
    again = train(features, client=elsewhere, shards=3, epochs=2, scratch=tmp_path, **PLUS)
    assert one.digest() == again.digest()
    assert one.training_ == again.training_


def test_train__a_killed_worker_changes_no_bit(client, features, tmp_path):
    options = {"shards": 6, "epochs": 3, "seed": 3, **PLUS}
    expected = train(features, client=client, **options)
    with lose_a_worker("train-e001-r00", 2) as (elsewhere, progress, killed):
        model = train(features, client=elsewhere, scratch=tmp_path, progress=progress, **options)
    assert len(killed) == 1
    assert model.digest() == expected.digest()
    assert model.training_ == expected.training_


def test_train__many_shards_rank_nearly_as_well_as_one(client, features):
    errors = {shards: error_of(train(features, client=client, shards=shards, **PLUS), features) for shards in (1, 4)}
    assert errors[4] < 1.1 * errors[1]


class Stop(Exception):
    pass


def test_train__goes_on_where_it_was_stopped(client, features, tmp_path, monkeypatch):
    whole = train(features, client=client, shards=2, epochs=2, scratch=tmp_path, **PLUS)
    with monkeypatch.context() as patch:
        watch_stages(patch, "train-e001-r00", Stop())
        with pytest.raises(Stop):
            train(features, client=client, shards=2, epochs=2, scratch=tmp_path, **PLUS)
    done = watch_stages(monkeypatch)
    resumed = train(features, client=client, shards=2, epochs=2, scratch=tmp_path, **PLUS)
    assert resumed.digest() == whole.digest()
    assert done["train-prepare"] == done["train-memberships"] == [0]
    assert "train-centres" not in done
    assert "train-e000-r00" not in done


def test_train__tells_validation_error_and_what_was_published(client, features):
    model = train(features, client=client, shards=2, epochs=2, **PLUS)
    assert model.training_["published"] in ("last", "average")
    assert [closed["epoch"] for closed in model.training_["epochs"]] == [1, 2]
    assert model.training_["validation_error"] < 0.35
    assert (model.categories_, model.columns_) == (CATEGORIES, COLUMNS)


def test_train__warm_start_begins_near_the_model(client, features):
    first = train(features, client=client, shards=2, epochs=4, **PLUS)
    cold = train(features, client=client, shards=2, epochs=1, **PLUS)
    warm = train(features, client=client, shards=2, epochs=1, start=first, **PLUS)
    losses = [model.training_["epochs"][-1]["loss"] for model in (first, warm, cold)]
    # Steps are larger again than at the end of the first training, but nothing has to be learned anew.
    assert losses[0] < losses[1] < 0.9 * losses[2]


def test_state_of_model__keeps_the_weights(client, features):
    model = train(features, client=client, shards=1, epochs=2, average=False, **PLUS)
    state = state_of_model(
        model, model.basis_, COLUMNS, CATEGORIES, regularization=1e-3, rates=Rates(1.0, 3.0), step=model.n_steps_ // 2
    )
    assert isinstance(state, PlusState)
    assert state.planes.step == model.n_steps_ // 2
    np.testing.assert_allclose(state.weights(1e-3, 1.0), model.weights_, rtol=1e-4, atol=1e-5)
    own = model.basis_.own
    np.testing.assert_allclose(state.own_weights(3.0), own.weights, rtol=1e-4, atol=1e-5)
    assert np.abs(own.weights[-1]).max() > 0
    # A model that was saved before the prior had hats has none to begin with.
    kinds = {name: getattr(own, name)[: own.n_kinds] for name in ("knots", "n_knots", "weights")}
    model.basis_ = replace(model.basis_, own=replace(own, **kinds))
    state = state_of_model(
        model, replace(model.basis_, own=own), COLUMNS, CATEGORIES, regularization=1e-3, rates=Rates(1.0, 3.0), step=9
    )
    np.testing.assert_allclose(state.own_weights(3.0)[:-1], own.weights[:-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(state.own_sums[-1], 0)


def test_train__refuses_a_start_of_another_kind(client, features):
    start = AMMRank(n_categories=5).fit(np.eye(21)[:5], np.arange(5)[:, None])
    with pytest.raises(BadInput, match="the model to start from must be of amm-rank-plus, got amm-rank; train without"):
        train(features, client=client, start=start, **PLUS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "amm-rank-plus", "regularization": 1e-3}, "regularization must not be given for amm-rank-plus"),
        ({"model": "amm-rank-plus", "rank_weight": "uniform"}, "rank_weight must not be given for amm-rank-plus"),
        (
            {"model": "amm-rank", "kappa": 0.1},
            "kappa must not be given for amm-rank, it is a parameter of amm-rank-plus",
        ),
        ({"model": "amm-sort"}, "model must be one of amm-rank, amm-rank-plus, got amm-sort"),
    ],
)
def test_train__refuses_parameters_of_another_kind(client, features, options, message):
    with pytest.raises(BadInput, match=message):
        train(features, client=client, **options)


def test_train__columns_that_are_no_category_have_no_own_term(client, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.random((120, 3))
    rankings = np.argsort(-X, axis=1)[:, :2]
    stored = write_features(tmp_path / "f", X, np.arange(120), ["x", "y", "z"], rankings)
    model = train(stored, client=client, shards=1, epochs=2, model="amm-rank-plus", progress=silent)
    assert model.basis_.own.n_kinds == 0
    named = train(stored, client=client, shards=1, epochs=2, model="amm-rank-plus", own_columns=[[0, 1, 2]])
    assert named.basis_.own.n_kinds == 1


def ids_of_split(split, n):
    """Return the first n ids of a split."""
    return np.flatnonzero(split_of(ids_from_values(np.arange(2_000))) == split)[:n]


def test_train__one_training_user(client, tmp_path):
    stored = write_features(
        tmp_path / "f", [[1.0, 0.0]], ids_of_split(0, 1), ["x", "y"], [[2, 0]], categories=list("abc")
    )
    model = train(stored, client=client, shards=1, epochs=2)
    assert set(model.predict([[1.0, 0.0]])[0, :2]) == {0, 2}  # which of them was clicked more is not learned
    assert model.training_["validation_error"] is model.training_["popularity_error"] is None
    with pytest.raises(TooFewUsers, match=r"shards must be at most the number of training users \(1\), got 8"):
        train(stored, client=client)


def test_train__no_training_user(client, tmp_path):
    stored = write_features(tmp_path / "f", np.eye(2), ids_of_split(1, 2), ["x", "y"], [[0], [1]])
    with pytest.raises(TooFewUsers, match="have no training user with a ranking; ingest more days"):
        train(stored, client=client)


def test_train__all_users_alike_in_shards(client, tmp_path):
    rankings = np.random.default_rng(4).permutation([[1, -1]] * 180 + [[2, -1]] * 120)
    X = np.tile([[1.0, 2.0]], (300, 1))
    stored = write_features(tmp_path / "f", X, np.arange(300), ["x", "y"], rankings, categories=list("abcd"))
    model = train(stored, client=client, shards=3, epochs=2, block_rows=16)
    scores = model.decision_function(X[:1])[0]
    assert np.isfinite(scores).all()
    assert np.argsort(-scores)[:2].tolist() == [1, 2]


def test_train__a_category_without_clicks_and_users_without_events_in_shards(client, tmp_path, caplog):
    rng = np.random.default_rng(3)
    X = rng.random((400, 4)) * (rng.random((400, 4)) < 0.7)
    X[::5] = 0
    rankings = np.argsort(-(X[:, :3] + 0.1 * rng.random((400, 3))), axis=1)[:, :2]
    columns = ["pv:intensity:a", "pv:intensity:b", "pv:intensity:c", "pv:intensity:nobody"]
    stored = write_features(
        tmp_path / "f", X, np.arange(400), columns, rankings, categories=["a", "b", "c", "nobody"], n_partitions=2
    )
    with caplog.at_level(logging.WARNING):
        model = train(stored, client=client, shards=2, epochs=2, block_rows=32)
    assert "1 of 4 categories have no clicks of training users and rank last: nobody" in caplog.text
    scores = model.decision_function(np.vstack([np.zeros(4), X[1:60]]))
    assert np.isfinite(scores).all()
    assert (scores.argmin(axis=1) == 3).mean() > 0.95


def test_train__refuses_a_start_of_another_taxonomy(client, features, tmp_path):
    rng = np.random.default_rng(1)
    X = rng.random((60, 21))
    stored = write_features(
        tmp_path / "f", X, np.arange(60), COLUMNS, np.argsort(-X[:, :5], axis=1), categories=list("vwxyz")
    )
    other = train(stored, client=client, shards=1, epochs=1)
    with pytest.raises(BadInput, match="must share categories with the features, found none in common; train without"):
        train(features, client=client, start=other, **PLUS)


def test_train__one_category_has_no_error_to_measure(client, tmp_path):
    rankings = np.zeros((80, 1), int)
    stored = write_features(tmp_path / "f", np.ones((80, 1)), np.arange(80), ["x"], rankings, categories=["only"])
    model = train(stored, client=client, shards=1, epochs=1)
    assert model.training_["validation_error"] is None
    assert model.predict([[1.0]]).tolist() == [[0]]


def test_write_features__refuses_nan(tmp_path):
    with pytest.raises(BadInput, match="X must be finite, found NaN or infinity"):
        write_features(tmp_path / "f", [[np.nan]], [1], ["x"], [[0]])


def test_train__popularity_error_by_hand(client, tmp_path):
    # Three of four training users click a, one b; both validation users prefer b over a and c: of the pairs b≻a and b≻c
    # popularity (a, b, c) has one wrong.
    ids = np.concatenate([ids_of_split(0, 4), ids_of_split(1, 2)])
    order = np.argsort(ids)
    rankings = np.array([[0], [0], [0], [1], [1], [1]])
    stored = write_features(
        tmp_path / "f", np.ones((6, 1))[order], ids[order], ["x"], rankings[order], categories=list("abc")
    )
    assert train(stored, client=client, shards=1, epochs=1).training_["popularity_error"] == pytest.approx(0.5)


@pytest.mark.parametrize("chosen", [[], [0], [2, 3, 4, 9], [39], list(range(40))])
def test_prepared_rows__some_of_them(tmp_path, chosen):
    X = sp.random(40, 7, 0.5, format="csr", dtype=np.float32, random_state=np.random.default_rng(0))
    with ArrayWriter(tmp_path / "rows") as writer:
        for part in ("data", "indices", "indptr"):
            writer.append(f"train-{part}", getattr(X, part))
        writer.finish({"train": 40, "columns": 7})
    found = PreparedRows(tmp_path / "rows", "train").read_some(np.array(chosen, np.int64))
    np.testing.assert_array_equal(found.toarray(), X[chosen].toarray())
    assert found.nnz == X[chosen].nnz
