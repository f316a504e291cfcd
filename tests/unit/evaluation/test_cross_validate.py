"""The comparison of methods as a call of the library."""

import re

import numpy as np
import pytest

from ammrank_dask import cross_validate, write_features
from ammrank_dask.evaluation.compare import compare_methods, prepare_features
from ammrank_dask.methods.base import Method


class Backwards(Method):
    """Rank the least popular categories first."""

    method = "backwards"
    grid = ({"power": 1.0}, {"power": 2.0})

    def __init__(self, *, power=1.0, n_categories=None):
        self.power, self.n_categories = power, n_categories

    def learn(self, blocks, n_categories):
        self.score_ = -((self.popularity_ / self.popularity_.max()) ** self.power)

    def score(self, X):
        return np.tile(self.score_, (X.shape[0], 1))


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    rng = np.random.default_rng(4)
    X = rng.random((600, 5))
    rankings = np.argsort(-(X @ rng.normal(size=(5, 4)) + rng.normal(size=4)), axis=1)[:, :2]
    names = [f"pv:intensity:{name}" for name in "abcde"]
    path = tmp_path_factory.mktemp("rows") / "f"
    return write_features(path, X, np.arange(600), names, rankings, categories=list("abcd"), n_partitions=2)


def test_cross_validate__is_the_comparison_of_evaluate(client, features, tmp_path):
    table = cross_validate(features, ["popularity", "amm-rank-plus", Backwards], folds=2, client=client)
    rows = prepare_features(client, features, None, tmp_path / "rows", n_folds=2)
    expected = compare_methods(client, rows, ["popularity", "amm-rank-plus"], count_exposure=False)
    assert table.index.tolist() == ["amm-rank-plus", "popularity", "backwards"]
    for name, result in expected.items():
        assert table.loc[name, "error"] == result.measures.disagreement
        assert table.loc[name, "low"] < table.loc[name, "error"] < table.loc[name, "high"]
    assert table.loc["backwards", "error"] == pytest.approx(1 - table.loc["popularity", "error"])
    assert table.loc["backwards", "params"]["power"] == 1.0
    assert table.loc["amm-rank-plus", "minus_best_other"] < 0 < table.loc["popularity", "minus_best_other"]
    assert [path.name for path in features.path.parent.iterdir()] == ["f"]


class Unnamed(Backwards):
    """A method whose name is no text."""

    method = None


WRONG = {
    "a name alone": (lambda f: cross_validate(f, "lr"), "methods must be a list, got 'lr'; pass methods=[…]"),
    "unknown": (lambda f: cross_validate(f, ["lrr"]), "there is no method 'lrr' or FILE.py; "),
    "an object": (lambda f: cross_validate(f, [Backwards()]), "got Backwards; pass the class, not an object of it"),
    "another class": (lambda f: cross_validate(f, [dict]), "subclasses of ammrank_dask.methods.base.Method, got dict;"),
    "without a name": (lambda f: cross_validate(f, [Unnamed]), "Unnamed in methods must say its name as `method ="),
    "twice": (lambda f: cross_validate(f, [Backwards, Backwards]), "every method must be named once, found backwards"),
    "one fold": (lambda f: cross_validate(f, folds=1), "folds must be at least 2, got 1"),
    "a variant that is none": (lambda f: cross_validate(f, variant="adv"), "the store has no columns of group 'adv'"),
}


@pytest.mark.parametrize("call", WRONG)
def test_cross_validate__says_what_to_pass(client, features, call):
    wrong, message = WRONG[call]
    with client.as_current(), pytest.raises(ValueError, match=re.escape(message)):
        wrong(features)


def test_cross_validate__wants_rankings(client, tmp_path):
    bare = write_features(tmp_path / "f", np.eye(3), [1, 2, 3], list("abc"))
    with pytest.raises(ValueError, match="must have rankings to compare methods with, found none"):
        cross_validate(bare, client=client)
    with pytest.raises(TypeError, match="features must be Features, got str; pass open_features"):
        cross_validate("rows", client=client)
