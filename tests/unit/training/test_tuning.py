"""The search for parameters: by hand, and on a cluster."""

import json

import numpy as np
import pytest

from ammrank_dask.features.write import write_features
from ammrank_dask.model.search import (
    Tuning,
    count_pairs_by_row,
    make_grid,
    scale_to_pairs,
    search,
    value_beyond,
)
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.training.tune import tune


@pytest.fixture(scope="module")
def rows():
    """Users who like a at both ends of a line and b in the middle: one plane a category cannot say that."""
    rng = np.random.default_rng(1)
    place = rng.uniform(-1, 1, 900)
    ends = np.abs(place) > 0.5
    return np.column_stack([place, np.ones(900)]), np.where(ends[:, None], [0, 1], [1, 2])


def test_search__the_first_stays_unless_another_is_better_by_more_than_its_error():
    errors = {1: [0.25, 0.5], 2: [0.125, 0.53125], 3: [0.1875, 0.4375], 4: [0.375, 0.125]}

    def measure(settings):
        return [np.array(errors[setting["x"]]) for setting in settings]

    # 2 is better by 1/8 and -1/32: 3/64 on average, with the error 5/64; 3 by 1/16 and 1/16; 4 by -1/8 and 3/8.
    tuning = search(make_grid(x=[1, 2, 3, 4]), measure, popularity=0.375)
    assert [trial.error for trial in tuning.trials] == [0.375, 0.328125, 0.3125, 0.25]
    assert [trial.gain for trial in tuning.trials] == [0, 3 / 64, 1 / 16, 1 / 8]
    assert [trial.standard_error for trial in tuning.trials] == pytest.approx([0, 5 / 64, 0, 1 / 4])
    assert (tuning.best, tuning.users, tuning.beats_popularity) == ({"x": 3}, 2, True)
    assert search(make_grid(x=[1, 4]), measure).best == {"x": 1}
    assert search(make_grid(x=[1]), lambda _: [np.array([0.5])]).best == {"x": 1}  # one user has no deviation
    assert [line.split() for line in tuning.to_text().splitlines()] == [
        ["x", "ε_dis", "versus", "the", "first"],
        ["4", "0.2500", "+0.1250", "±", "0.2500"],
        ["3", "0.3125", "+0.0625", "±", "0.0000", "*"],
        ["2", "0.3281", "+0.0469", "±", "0.0781"],
        ["1", "0.3750", "+0.0000", "±", "0.0000"],
        ["popularity", "0.3750"],
    ]


def test_search__of_equal_errors_the_earlier_setting_stays():
    assert search(make_grid(x=[3, 1, 2]), lambda settings: [np.full(2, 0.5)] * len(settings)).best == {"x": 3}


def test_search__goes_on_beyond_an_edge_while_that_is_better():
    def measure(settings):
        return [np.full(2, abs(np.log10(setting["x"]) - 2.2)) for setting in settings]

    tuning = search(make_grid(x=[0.1, 1.0, 10.0]), measure, widens=["x"], popularity=0.1)
    assert tuning.best == {"x": 100.0}
    assert [trial.parameters["x"] for trial in tuning.trials] == [0.1, 1.0, 10.0, 100.0, 1000.0]
    assert tuning.beats_popularity is False
    assert tuning.to_text().splitlines()[-1] == "no setting is better than ranking everybody by popularity"
    downwards = search(make_grid(x=[1e4, 1e5]), measure, widens=["x"], popularity=0.5)
    assert downwards.best == {"x": 100.0}
    assert downwards.beats_popularity
    assert search(make_grid(x=[1e4, 1e5]), measure).best == {"x": 1e4}
    endless = search(
        make_grid(x=[1.0, 10.0]), lambda settings: [np.full(2, -each["x"]) for each in settings], widens=["x"]
    )
    assert endless.best == {"x": 1e5}  # four times, and no more


@pytest.mark.parametrize(("pairs", "factor"), [(0, 1), (500, 1), (880, 1), (900, 3), (5_000, 10), (9_700, 30)])
def test_scale_to_pairs__rounds_to_steps_of_1_3_10(pairs, factor):
    assert scale_to_pairs([1e-3, 0.5], pairs) == [pytest.approx(1e-3 * factor), pytest.approx(0.5 * factor)]


def test_value_beyond__continues_by_the_last_ratio():
    assert value_beyond([3.0, 1.0, 30.0], 30.0) == 300.0
    assert value_beyond([3.0, 1.0, 30.0], 1.0) == pytest.approx(0.333)
    assert value_beyond([3.0, 1.0, 30.0], 3.0) is None
    assert value_beyond([3.0, 3.0], 3.0) is None


def test_count_pairs_by_row__by_hand():
    # Of 4 categories: one clicked is above 3 others, two are above 3 and 2, all four have 6 pairs.
    np.testing.assert_array_equal(
        count_pairs_by_row(np.array([[1, -1, -1, -1], [2, 0, -1, -1], [0, 1, 2, 3]]), 4), [3, 5, 6]
    )


def test_make_grid__refuses_nothing_to_try():
    with pytest.raises(ValueError, match="there must be a value of max_planes to try, got none"):
        make_grid(regularization=[1.0], max_planes=[])


def test_tune__on_a_cluster_agrees_with_the_errors_of_the_plain_loop(client, two_processes, rows, tmp_path):
    X, rankings = rows
    features = write_features(
        tmp_path / "f", X, np.arange(900), ["place", "one"], rankings, categories=list("abc"), n_partitions=3
    )
    options = {"regularizations": [1e-4, 1e3], "plane_limits": [1, 5], "epochs": 10, "shards": 1, "block_rows": 64}
    tuning = tune(features, client=client, model="amm-rank", **options)
    assert tuning.best == {"regularization": 1e-4, "max_planes": 5}
    assert len(tuning.trials) == 4
    assert tuning.beats_popularity
    # Half of the rows like 0 best and 1 next, half 1 and then 2: popularity puts 1 before 0 before 2.
    ends = (rankings[:, 0] == 0).mean()
    assert tuning.popularity == pytest.approx(ends / 3 + (1 - ends) / 3, abs=0.03)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]
    assert tune(features, client=two_processes, model="amm-rank", **options) == tuning
    assert Tuning.from_json(json.loads(json.dumps(tuning.to_json(), allow_nan=False))) == tuning


def test_tune__refuses_features_without_rankings(client, tmp_path):
    features = write_features(tmp_path / "f", np.ones((20, 2)), np.arange(20), ["a", "b"])
    with pytest.raises(BadInput, match="must have rankings to tune on, found none"):
        tune(features, client=client, model="amm-rank")


def test_tune__refuses_a_bad_value_before_the_first_task(client, rows, tmp_path):
    X, rankings = rows
    features = write_features(tmp_path / "f", X, np.arange(900), ["place", "one"], rankings, categories=list("abc"))
    with pytest.raises(ValueError, match="regularization must be above 0, got -1"):
        tune(features, client=client, model="amm-rank", regularizations=[-1.0])


def test_tune__amm_rank_plus_by_kappa_and_clickers(client, rows, tmp_path):
    X, rankings = rows
    features = write_features(tmp_path / "features", X, np.arange(900), ["place", "one"], rankings, normalize=False)
    tuning = tune(features, client=client, kappas=[1e-3, 1e6], clickers_per_plane=[60], epochs=10, shards=1)
    # κ of a million leaves nothing but the prior, and that is popularity.
    assert tuning.best == {"kappa": 1e-3, "clickers_per_plane": 60}
    assert tuning.beats_popularity
    worst = [trial.error for trial in tuning.trials if trial.parameters["kappa"] == 1e6]
    assert worst[0] == pytest.approx(tuning.popularity, abs=0.02)
    with pytest.raises(BadInput, match="model must be one of amm-rank, amm-rank-plus, got lr"):
        tune(features, client=client, model="lr")


def test_tune__on_any_number_of_workers(client, two_processes, tmp_path):
    rng = np.random.default_rng(1)
    place = rng.uniform(-1, 1, 3_000)
    rankings = np.where(np.abs(place)[:, None] > 0.5, [0, 1], [1, 2])
    X = np.column_stack([place, np.ones(3_000)])
    features = write_features(
        tmp_path / "f", X, np.arange(3_000), ["place", "one"], rankings, categories=list("abc"), n_partitions=3
    )
    options = {"kappas": [5e-3, 1e6], "clickers_per_plane": [300], "sample_rows": 900}
    tuning = tune(features, client=client, **options)
    assert tuning.best == {"kappa": 5e-3, "clickers_per_plane": 300}
    assert 200 < tuning.users < 400
    assert [trial.parameters["kappa"] for trial in tuning.trials] == [5e-3, 1e6]
    assert tune(features, client=two_processes, **options) == tuning


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regularizations": [1.0]}, "regularizations must not be given for amm-rank-plus, it has kappas"),
        ({"model": "amm-rank", "kappas": [1.0]}, "kappas must not be given for amm-rank; leave it out"),
    ],
)
def test_tune__refuses_values_of_the_other_model(client, rows, tmp_path, options, message):
    X, rankings = rows
    features = write_features(tmp_path / "f", X, np.arange(900), ["place", "one"], rankings)
    with pytest.raises(BadInput, match=message):
        tune(features, client=client, **options)


def test_tune__one_category_has_nothing_to_choose_from(client, tmp_path):
    features = write_features(
        tmp_path / "f", np.ones((3_000, 1)), np.arange(3_000), ["one"], np.zeros((3_000, 1), int), categories=["a"]
    )
    with pytest.raises(TooFewUsers, match="no validation user prefers one category over another"):
        tune(features, client=client)
