"""The models as scikit-learn, pandas and notebooks meet them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from ammrank_dask import AMMRank, AMMRankPlus, disagreement_error

KINDS = [AMMRank, AMMRankPlus]
# Why a check of scikit-learn does not hold; everything else does.
EXPECTED = {
    "check_fit_score_takes_y": "the labels are rankings and are named so",
    "check_requires_y_none": "the sentence names rankings and ranks",
    "check_estimators_nan_inf": "its labels are floats, and rankings are whole numbers",
    "check_dtype_object": "its labels are objects that are no codes, which are refused as such",
    "check_complex_data": "the sentence says which numbers are taken",
    "check_n_features_in_after_fitting": "the sentence says how many columns X must have",
    "check_fit2d_predict1d": "the sentence says that X must have two dimensions",
    "check_estimators_empty_data_messages": "rows without columns have a prior",
    "check_estimator_sparse_array": "predictions are (rows, categories), not a label",
    "check_estimator_sparse_matrix": "predictions are (rows, categories), not a label",
}


@pytest.fixture
def rows():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, 5))
    return X, np.argsort(-(X @ rng.normal(size=(5, 4))), axis=1)[:, :2]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_check_estimator__fails_only_where_there_is_a_reason(kind):
    results = check_estimator(kind(), on_fail=None, on_skip=None)
    failed = {result["check_name"] for result in results if result["status"] == "failed"}
    assert failed == set(EXPECTED)


@pytest.mark.parametrize("kind", KINDS)
def test_score__is_the_share_of_pairs_in_the_right_order(rows, kind):
    X, rankings = rows
    model = kind(epochs=2).fit(X, rankings)
    assert model.score(X, rankings) == 1 - disagreement_error(model.decision_function(X), rankings)


@pytest.mark.parametrize("kind", KINDS)
def test_models__are_searched_in_a_pipeline(rows, kind):
    X, rankings = rows
    step = kind.__name__.lower()
    search = GridSearchCV(make_pipeline(StandardScaler(), kind(epochs=1)), {f"{step}__max_planes": [1, 3]}, cv=2)
    search.fit(X, rankings)
    assert 0.5 < search.best_score_ <= 1
    assert search.predict(X[:3]).shape == (3, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_fit__keeps_the_names_of_a_table(rows, kind):
    X, rankings = rows
    table = pd.DataFrame(X, columns=list("abcde"))
    model = kind(epochs=1).fit(table, rankings)
    assert model.feature_names_in_.tolist() == list("abcde")
    np.testing.assert_array_equal(model.predict(table), model.predict(X))
    message = r"X must have the columns that were fitted, in their order; pass X\[model\.feature_names_in_\]$"
    with pytest.raises(ValueError, match=message):
        model.predict(table[list("edcba")])
    assert not hasattr(model.fit(X, rankings), "feature_names_in_")


@pytest.mark.parametrize("kind", KINDS)
def test_partial_fit__of_the_first_rows_is_an_epoch_of_fit(rows, kind):
    X, rankings = rows
    expected = kind(epochs=1, average=False, n_categories=4).fit(X, rankings)
    found = kind(n_categories=4).partial_fit(X, rankings)
    np.testing.assert_array_equal(found.weights_, expected.weights_)
    further = found.partial_fit(X[:100], rankings[:100])
    assert further.n_steps_ == 400
    assert not np.array_equal(further.weights_, expected.weights_)
    assert clone(further).n_categories == 4


@pytest.mark.parametrize("kind", KINDS)
def test_partial_fit__refuses_what_it_cannot_go_on_from(rows, kind):
    X, rankings = rows
    with pytest.raises(ValueError, match="n_categories must be given for partial_fit, whose first rows may not have"):
        kind().partial_fit(X, rankings)
    message = r"partial_fit must begin a model or follow partial_fit, this model was fitted or loaded; go on from it"
    with pytest.raises(ValueError, match=message):
        kind(n_categories=4).fit(X, rankings).partial_fit(X, rankings)
    model = kind(n_categories=4).partial_fit(X, rankings)
    with pytest.raises(ValueError, match="X must have 5 features, got 4"):
        model.partial_fit(X[:, :4], rankings)


@pytest.mark.parametrize("kind", KINDS)
def test_models__show_themselves_in_a_notebook(rows, kind):
    X, rankings = rows
    model = kind(epochs=1)
    assert "<td>no</td>" in model._repr_html_()
    model.fit(X, rankings)
    model.categories_, model.columns_ = ["<Hats>", "Shoes", "Bags", "Belts"], [f"pv:intensity:{i}" for i in range(5)]
    shown = model._repr_html_()
    assert "&lt;Hats&gt;" in shown
    assert "weight by group of columns" in shown
    assert "<td>planes</td>" in shown


def test_repr__of_long_parameters_is_short():
    assert len(repr(AMMRankPlus(own_columns=np.arange(4_000).reshape(2, -1)))) < 200


def test_features_and_qualifications__show_themselves(client, features, model, tmp_path):
    from ammrank_dask import score

    assert repr(features).startswith("Features('")
    assert "columns by group" in features._repr_html_()
    quals = score(model, features, tmp_path / "quals", client=client, k=2)
    assert repr(quals).endswith(f"policy user_top_k, k 2, {features.n_partitions} partitions)")
    assert "users by category" in quals._repr_html_()
    assert "<td>12,000</td>" in quals._repr_html_()
