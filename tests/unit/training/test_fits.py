"""How closely a night follows its rows, tried on validation users."""

import numpy as np
import pytest
from noisy_rows import N_CATEGORIES, draw_rows

from ammrank_dask.features.write import write_features
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.held_out_fit import MOST_ROWS
from ammrank_dask.model.metrics import disagreement_error
from ammrank_dask.storage.errors import TooFewUsers
from ammrank_dask.training.fits import try_fits
from ammrank_dask.user_hash import split_of


def write_rows(folder, n_rows, noise, n_partitions=3):
    X, rankings = draw_rows(n_rows, noise)
    columns, categories = [f"x{i}" for i in range(X.shape[1])], [f"c{i}" for i in range(N_CATEGORIES)]
    return write_features(
        folder, X, np.arange(n_rows), columns, rankings, categories=categories, n_partitions=n_partitions
    )


@pytest.mark.parametrize(("noise", "fit"), [(0.0, "closer"), (2.0, "usual"), (8.0, "looser")])
def test_try_fits__by_how_much_of_the_clicks_is_chance(client, two_processes, tmp_path, noise, fit):
    features = write_rows(tmp_path / "f", 1_500, noise)
    trial = try_fits(client, features, parameters={})
    assert trial.fit == fit
    assert 100 < trial.users < 200
    assert try_fits(two_processes, features, parameters={}) == trial
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_try_fits__errors_are_those_of_models_trained_alone(client, tmp_path):
    features = write_rows(tmp_path / "f", 800, 1.0, n_partitions=1)
    part = features.partition(0, normalize=False)
    split = split_of(part.user_ids)
    trial = try_fits(client, features, parameters={"epochs": 2, "seed": 4}, block_rows=100)
    changes = {"usual": {}, "closer": {"kappa": 0.001, "epochs": 8}, "looser": {"pace": 1 / 3}}
    assert set(trial.errors) == set(changes)
    X, rankings = part.X[split == 0], part.rankings[split == 0]
    blocks = [(X[i : i + 100], rankings[i : i + 100]) for i in range(0, len(rankings), 100)]
    for fit, changed in changes.items():
        options = {"epochs": 2, "seed": 4, "hold_out": False, "n_categories": N_CATEGORIES, **changed}
        model = AMMRankPlus(**options).fit_blocks(blocks)
        error = disagreement_error(model.decision_function(part.X[split == 1]), part.rankings[split == 1])
        assert trial.errors[fit] == pytest.approx(error, rel=1e-12)


def test_try_fits__what_is_fixed_is_not_tried(client, tmp_path):
    features = write_rows(tmp_path / "f", 1_000, 0.0)
    free = try_fits(client, features, parameters={})
    epochs = try_fits(client, features, parameters={}, fixed=["epochs"])
    assert free.errors["closer"] < epochs.errors["closer"]
    assert free.errors["usual"] == epochs.errors["usual"]
    both = try_fits(client, features, parameters={}, fixed=["epochs", "kappa"])
    assert set(both.errors) == {"usual", "looser"}
    assert both.fit == "usual"


def test_try_fits__nothing_with_few_users_or_many_rows(client, tmp_path):
    with pytest.raises(TooFewUsers, match=r"^\d\d validation users are fewer than 50$"):
        try_fits(client, write_rows(tmp_path / "few", 300, 0.0), parameters={})
    one = np.zeros((1_000, 1), int)
    alike = write_features(tmp_path / "one", np.ones((1_000, 1)), np.arange(1_000), ["x"], one, categories=["a"])
    with pytest.raises(TooFewUsers, match="no validation user prefers one category over another"):
        try_fits(client, alike, parameters={})
    many = try_fits(client, write_rows(tmp_path / "many", MOST_ROWS * 2, 0.0), parameters={})
    assert (many.fit, many.errors) == ("usual", {})
