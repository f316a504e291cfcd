"""Parameters of models: scikit-learn takes our models for estimators, and is not imported until it does."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from ammrank_dask import AMMRank, AMMRankPlus
from ammrank_dask.model.estimator import Parameters
from ammrank_dask.model.metrics import disagreement_error
from benchmarks.label_ranking.boosted_trees import BoostedTrees
from benchmarks.label_ranking.feature_maps import RandomBins
from benchmarks.label_ranking.tree_cells import TreeCells


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.random((60, 4))
    return X, np.argsort(-X, axis=1)[:, :2]


@pytest.mark.parametrize("kind", [AMMRank, AMMRankPlus, RandomBins, TreeCells, BoostedTrees])
def test_get_params__are_the_arguments_in_their_order_by_name(kind):
    params = kind().get_params(deep=False)
    assert list(params) == sorted(params)
    assert kind(**params).get_params(deep=False).keys() == params.keys()
    assert clone(kind(seed=7)).seed == 7
    assert repr(kind(seed=7)) == f"{kind.__name__}(seed=7)"
    assert repr(kind()) == f"{kind.__name__}()"


class Outer(Parameters):
    def __init__(self, *, inner=None, seed=0):
        self.inner, self.seed = inner, seed


def test_set_params__also_those_of_a_parameter():
    outer = Outer(inner=AMMRank(epochs=2))
    assert outer.get_params()["inner__epochs"] == 2
    assert list(outer.get_params(deep=False)) == ["inner", "seed"]
    assert outer.set_params(inner__epochs=3, seed=5) is outer
    assert (outer.inner.epochs, outer.seed) == (3, 5)
    copy = clone(outer)
    assert copy.inner is not outer.inner
    assert copy.inner.epochs == 3
    assert repr(outer) == "Outer(inner=AMMRank(epochs=3), seed=5)"


def test_set_params__refuses_a_name_that_is_none():
    with pytest.raises(
        ValueError, match=r"Invalid parameter 'epoch' for estimator AMMRank\(\)\. Valid parameters are: \['average', "
    ):
        AMMRank().set_params(epoch=3)


def test_estimator__in_a_pipeline_and_a_search(table):
    X, rankings = table
    assert get_tags(AMMRank()).requires_fit
    pipeline = make_pipeline(MaxAbsScaler(), AMMRank(epochs=1))
    predicted = cross_val_predict(pipeline, X, rankings, cv=3)
    np.testing.assert_array_equal(np.sort(predicted, axis=1), np.tile(np.arange(4), (60, 1)))

    def score(model, X, rankings):
        return -disagreement_error(model.decision_function(X), rankings)

    search = GridSearchCV(AMMRank(), {"epochs": [1, 4]}, scoring=score, cv=3).fit(X, rankings)
    check_is_fitted(search.best_estimator_)
    assert search.best_params_["epochs"] in (1, 4)
    expected = [AMMRank(epochs=n).fit(X[20:], rankings[20:]) for n in (1, 4)]
    np.testing.assert_allclose(
        search.cv_results_["split0_test_score"], [score(model, X[:20], rankings[:20]) for model in expected]
    )


@pytest.mark.parametrize("module", ["workflows.nightly", "workflows.stages.nightly", "training.driver"])
def test_imports__a_night_does_not_load_scikit_learn(module):
    command = [sys.executable, "-c", f"import sys, ammrank_dask.{module}; sys.exit('sklearn' in sys.modules)"]
    assert subprocess.run(command, check=False).returncode == 0
