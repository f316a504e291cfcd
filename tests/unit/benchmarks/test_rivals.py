"""The rivals as method files: EASE against scikit-learn's ridge, boosted trees on a world they can learn."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from nights import day
from sklearn.linear_model import Ridge

from ammrank_dask.methods.own import Popularity
from ammrank_dask.methods.registry import load_method, resolve_methods
from ammrank_dask.model.metrics import disagreement_error
from ammrank_dask.workflows.evaluate import command
from benchmarks import rivals

FOLDER = Path(rivals.__file__).parent
L = 6
OWN = (tuple(range(L)), (*range(L, 2 * L - 1), -1))
"""Two kinds of own columns; the last category has none of the second."""


def load(name):
    [path] = resolve_methods([str(FOLDER / f"{name}.py")])
    return load_method(path)


@pytest.fixture(scope="module")
def users():
    """Users who click what they did before, in columns of their own, and category 0 if the last column is 1."""
    rng = np.random.default_rng(5)
    X = (rng.random((600, 2 * L)) < 0.3).astype(np.float32)
    X[:, 2 * L - 1] = rng.random(600) < 0.5
    taste = 3 * X[:, :L] + rng.gumbel(size=(600, L)) * 0.5
    taste[:, 0] += 4 * X[:, 2 * L - 1]
    rankings = np.argsort(-taste, axis=1)[:, :2].astype(np.int32)
    return sp.csr_matrix(X), rankings


def errors_of(model, users):
    X, rankings = users
    model.fit_blocks([(X[:250], rankings[:250]), (X[250:400], rankings[250:400])])
    popular = Popularity(n_categories=L).fit(X[:400], rankings[:400])
    return tuple(disagreement_error(m.decision_function(X[400:]), rankings[400:]) for m in (model, popular))


def test_ease__equals_ridge_regression(users):
    X, rankings = users
    model = load("ease")(penalty=2.0, n_categories=L + 1)
    error, popular = errors_of(model, users)
    clicks = np.zeros((400, L + 1))
    for row, place in itertools.product(range(400), range(2)):
        clicks[row, rankings[row, place]] = 1
    expected = Ridge(alpha=2.0).fit(X[:400].toarray(), clicks).predict(X[400:].toarray())
    np.testing.assert_allclose(model.decision_function(X[400:]), expected, atol=1e-5)
    assert error < 0.6 * popular


def test_ease__refuses(users, monkeypatch):
    X, rankings = users
    with pytest.raises(ValueError, match="penalty must be above 0, got 0"):
        load("ease")(penalty=0).fit(X, rankings)
    monkeypatch.setitem(load("ease").learn.__globals__, "MAX_COLUMNS", 11)
    with pytest.raises(ValueError, match="takes 11 columns, got 12"):
        load("ease")().fit(X, rankings)


def test_lightgbm_per_category__learns_and_survives_categories_without_clicks(users):
    pytest.importorskip("lightgbm")
    model = load("lightgbm_per_category")(n_trees=30, n_categories=L + 1)
    error, popular = errors_of(model, users)
    assert error < 0.6 * popular
    scores = model.decision_function(users[0][:5])
    assert (scores[:, L] == scores[:, L].min()).all()
    assert model.models_[L] is None


def test_lightgbm_pooled__learns_from_own_columns(users):
    pytest.importorskip("lightgbm")
    model = load("lightgbm_pooled")(n_trees=30, own_columns=OWN, n_categories=L)
    error, popular = errors_of(model, users)
    assert error < 0.8 * popular
    X = users[0][:2]
    pairs = model.describe_pairs(X)
    assert pairs.shape == (2 * L, 6)
    row = X.toarray()[1]
    np.testing.assert_array_equal(pairs[L : 2 * L, 0], row[:L])
    np.testing.assert_array_equal(pairs[L : 2 * L, 1], [*row[L : 2 * L - 1], 0])
    assert (pairs[L : 2 * L, 2] == row[:L].sum()).all()
    np.testing.assert_array_equal(pairs[L : 2 * L, 5], np.arange(L))
    sampled = load("lightgbm_pooled")(n_trees=30, own_columns=OWN, max_pairs=1200, n_categories=L)
    assert errors_of(sampled, users)[0] < 0.9 * popular


def test_lightgbm_pooled__refuses_rows_without_own_columns(users):
    with pytest.raises(ValueError, match="own_columns must say which columns are a category's own interest"):
        load("lightgbm_pooled")().fit(*users)


@pytest.mark.parametrize("name", ["ease", "lightgbm_per_category", "lightgbm_pooled"])
def test_evaluate__takes_a_rival_from_its_file(published_world, cluster_file, tmp_path, name):
    if name != "ease":
        pytest.importorskip("lightgbm")
    label = load(name).method
    done = CliRunner().invoke(
        command,
        [
            str(published_world.path), "--date", str(day(5)), "--variant", "no-adv", "--folds", "2",
            "--methods", f"popularity,{FOLDER / f'{name}.py'}", "--out", str(tmp_path / "out"),
            "--cluster", str(cluster_file), "--quiet", "--json",
        ],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])["variants"]["no-adv"]
    assert set(found) == {"popularity", label}
    assert 0 < found[label]["disagreement"]["mean"] < 0.5
    assert found[label]["params"]
    assert label in (tmp_path / "out" / "evaluation.html").read_text()
