"""The scorer in numpy alone: the scores of the kernels and of a night, and what it imports."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from ammrank_dask import serve
from ammrank_dask.features.store import open_features
from ammrank_dask.model.amm_rank import AMM, AMMRank
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.saved import load_model
from ammrank_dask.scoring.qualifications import open_qualifications
from ammrank_dask.storage.errors import BadInput, DamagedStore

L, D = 6, 14
OWN = [list(range(L)), [6, 7, -1, 9, 10, 11]]


def draw(n=400, seed=0):
    """Return sparse rows, the last one empty, and rankings in which category 5 is never ranked."""
    rng = np.random.default_rng(seed)
    X = 3 * rng.random((n, D)) * (rng.random((n, D)) < 0.5)
    X[-1] = 0
    taste = X[:, : L - 1] + X[:, L : 2 * L - 1] + 2 * X[:, 12:13] * np.arange(L - 1) / L
    return sp.csr_matrix(X, dtype=np.float32), np.argsort(-taste, axis=1)[:, :3].astype(np.int32)


def assert_same(scores, expected):
    """Compare to 1e-6 of the largest score: kernels add in float32."""
    largest = max(1.0, np.abs(expected[np.isfinite(expected)]).max())
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6 * largest)


MODELS = {
    "amm-rank": AMMRank(n_categories=L, max_planes=4),
    "without bias": AMMRank(n_categories=L, bias=0.0, epochs=1),
    "plus": AMMRankPlus(n_categories=L, own_columns=OWN, own_groups=[0, 1], clickers_per_plane=50, max_planes=3),
    "plus, two kinds a group": AMMRankPlus(n_categories=L, own_columns=OWN, own_groups=[0, 0], clickers_per_plane=20),
    "plus, euclidean": AMMRankPlus(n_categories=L, geometry="euclidean", clickers_per_plane=50),
    "plus, no clusterings": AMMRankPlus(n_categories=L, own_columns=OWN, n_clusterings=0, bias=2.0),
}


@pytest.mark.parametrize("name", MODELS)
def test_top_k__is_that_of_the_kernels(name, tmp_path):
    X, rankings = draw()
    model = MODELS[name].fit(X, rankings)
    model.save(tmp_path / "model")
    served = serve.load(tmp_path / "model")
    rows = draw(seed=1)[0]
    assert_same(served.scores(rows), model.decision_function(rows))
    codes, scores = served.top_k(rows, k=3)
    expected_codes, expected_scores = model.predict_top_k(rows, k=3)
    np.testing.assert_array_equal(codes, expected_codes)
    assert_same(scores, expected_scores)
    assert codes.dtype == np.int32
    assert scores.dtype == np.float32


@pytest.mark.parametrize("name", ["amm-rank", "plus"])
def test_top_k__of_dense_rows_and_of_one_row_is_the_same(name, tmp_path):
    X, rankings = draw()
    MODELS[name].fit(X, rankings).save(tmp_path / "model")
    served = serve.load(tmp_path / "model")
    np.testing.assert_array_equal(served.top_k(X.toarray(), L)[0], served.top_k(X, L)[0])
    np.testing.assert_allclose(served.scores(X[7]), served.scores(X)[7:8], rtol=1e-12)
    assert served.scores(X[:0]).shape == (0, L)


def published(site, role):
    return site.path / site.current().runs[role]


def test_top_k__is_what_a_night_published(published_world):
    served = serve.load(published(published_world, "model"))
    features = open_features(published(published_world, "features"))
    quals = open_qualifications(published(published_world, "qualifications")).to_pandas()
    n_compared = 0
    for partition in range(features.n_partitions):
        part = features.partition(
            partition, variant=load_model(published(published_world, "model")).variant_, normalize=False
        )
        codes, scores = served.top_k(part.X, 5)
        for row, user in enumerate(part.user_ids.to_pandas()):
            own = quals[quals.user_id == user]
            assert [served.categories[code] for code in codes[row]] == own.category.head(5).tolist()
            np.testing.assert_allclose(scores[row], own.score.head(5), rtol=1e-6, atol=1e-6)
            n_compared += 1
    assert n_compared == 300


def test_top_k__of_names_is_that_of_arrays(published_world):
    served = serve.load(published(published_world, "model"))
    row = open_features(published(published_world, "features")).partition(0, variant="adv", normalize=False).X[0]
    names = {served.columns[column]: value for column, value in zip(row.indices, row.data, strict=True)}
    np.testing.assert_array_equal(served.top_k(names, 4)[0], served.top_k(row, 4)[0])
    np.testing.assert_array_equal(served.top_k([names, {}], 4)[0][:1], served.top_k(row, 4)[0])
    with pytest.raises(ValueError, match="the model has no column 'age:13-18'; did you mean age:13-17"):
        served.top_k({"age:13-18": 1.0})


@pytest.mark.parametrize("normalize", [None, True, False])
def test_load__normalizes_rows_of_models_that_were_trained_on_a_store(normalize, tmp_path):
    X, rankings = draw()
    model = AMMRank(n_categories=L).fit(X, rankings)
    model.training_ = {"epochs": []}
    model.save(tmp_path / "model")
    rows = X if normalize is False else X.multiply(1 / np.maximum(sp.linalg.norm(X, axis=1), 1e-9)[:, None]).tocsr()
    served = serve.load(tmp_path / "model", normalize=normalize)
    np.testing.assert_allclose(served.scores(X), model.decision_function(rows), rtol=1e-5, atol=1e-6)


def test_top_k__refuses_what_it_cannot_score(tmp_path):
    X, rankings = draw()
    MODELS["amm-rank"].fit(X, rankings).save(tmp_path / "model")
    served = serve.load(tmp_path / "model")
    with pytest.raises(ValueError, match=r"k must be between 1 and n_categories \(6\), got 10"):
        served.top_k(X)
    with pytest.raises(ValueError, match="rows must have 14 columns, got 3"):
        served.top_k(np.ones((2, 3)), 1)
    with pytest.raises(ValueError, match="rows must have two dimensions, got 1"):
        served.top_k(np.ones(14), 1)
    with pytest.raises(ValueError, match="rows must be finite in float32"):
        served.top_k(np.full((1, 14), np.nan), 1)
    with pytest.raises(ValueError, match="this model was fitted on arrays"):
        served.top_k({"pv:intensity:a": 1.0}, 1)


def test_load__refuses_what_is_no_such_model(tmp_path):
    with pytest.raises(BadInput, match="there must be a model at"):
        serve.load(tmp_path)
    X, rankings = draw()
    AMM(n_categories=L).fit(X, rankings).save(tmp_path / "amm")
    with pytest.raises(BadInput, match="must be of amm-rank or amm-rank-plus, got amm"):
        serve.load(tmp_path / "amm")


def test_load__of_a_damaged_model_is_refused(published_world, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(published(published_world, "model"), model)
    largest = max((path for path in model.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    with pytest.raises(DamagedStore, match="is not what was written"):
        serve.load(model)


def test_import__needs_neither_cluster_nor_compiler(published_world):
    program = (
        "import sys, json; from ammrank_dask import serve;"
        f"served = serve.load({str(published(published_world, 'model'))!r});"
        "served.top_k([{}], 3); print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(json.loads(done.stdout))
    heavy = {"dask", "distributed", "numba", "zarr", "numcodecs", "sklearn", "scipy", "pandas", "pyarrow"}
    # Of the standard library, what took a third of the time of our own modules.
    assert imported & (heavy | {"importlib.metadata", "concurrent.futures", "logging"}) == set()
    assert "numpy" in imported
