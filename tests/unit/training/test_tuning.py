"""Successive halving: by hand, in memory, on a cluster and through the command."""

import json

import numpy as np
import pytest

from ammrank_dask.features.write import write_features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.halving import (
    Tuning,
    count_pairs_by_row,
    halve,
    make_grid,
    scale_to_pairs,
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


def test_halve__keeps_a_third_and_gives_three_times_the_rows():
    asked = []

    def measure(settings, n_rows):
        asked.append(([setting["x"] for setting in settings], n_rows))
        # With few rows 5 looks best, with all of them 2.
        wanted = 5 if n_rows < 900 else 2
        return [abs(setting["x"] - wanted) for setting in settings]

    tuning = halve(make_grid(x=[0, 1, 2, 3, 4, 5, 6]), 900, measure)
    assert asked == [([0, 1, 2, 3, 4, 5, 6], 100), ([4, 5, 6], 300), ([5], 900)]
    assert tuning.best == {"x": 5}
    assert [(t.rung, t.rows, t.parameters["x"], t.error, t.kept) for t in tuning.trials if t.rung] == [
        (1, 300, 4, 1, False), (1, 300, 5, 0, True), (1, 300, 6, 1, False), (2, 900, 5, 3, True),
    ]  # fmt: skip
    lines = tuning.to_text().splitlines()
    assert lines[0].split() == ["rung", "rows", "x", "error"]
    assert lines[1].split() == ["1", "100", "5", "0.0000", "*"]
    assert lines[-1].split() == ["3", "900", "5", "3.0000", "*"]


def test_halve__of_equal_errors_the_earlier_setting_stays():
    assert halve(make_grid(x=[3, 1, 2]), 10, lambda settings, rows: [0.5] * len(settings)).best == {"x": 3}


def test_halve__goes_on_beyond_an_edge_while_that_is_better():
    def measure(settings, n_rows):
        return [abs(np.log10(setting["x"]) - 2.2) for setting in settings]

    tuning = halve(make_grid(x=[0.1, 1.0, 10.0]), 90, measure, widens=["x"], popularity=0.1)
    assert tuning.best == {"x": 100.0}
    last = [(t.parameters["x"], t.rows, t.kept) for t in tuning.trials if t.rung == 2]
    assert last == [(10.0, 90, False), (100.0, 90, True), (1000.0, 90, False)]
    assert tuning.beats_popularity is False
    assert tuning.to_text().splitlines()[-2:] == [
        "                  popularity  0.1000",
        "no setting is better than ranking everybody by popularity",
    ]
    downwards = halve(make_grid(x=[1e4, 1e5]), 90, measure, widens=["x"], popularity=0.5)
    assert downwards.best == {"x": 100.0}
    assert downwards.beats_popularity
    assert halve(make_grid(x=[1e4, 1e5]), 90, measure).best == {"x": 1e4}
    endless = halve(
        make_grid(x=[1.0, 10.0]), 90, lambda settings, _: [-setting["x"] for setting in settings], widens="x"
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


def test_tune__estimator_finds_a_setting_that_works(rows):
    X, rankings = rows
    ranker = AMMRank(epochs=10, n_categories=3, max_planes=1)
    assert (ranker.fit(X, rankings).predict(X)[:, 0] == rankings[:, 0]).mean() < 0.9
    ranker.tune(X, rankings, regularizations=[1e-4, 1e3], plane_limits=[1, 5])
    assert ranker.tuning_.best == {"regularization": 1e-4, "max_planes": 5}
    assert (ranker.regularization, ranker.max_planes) == (1e-4, 5)
    assert (ranker.fit(X, rankings).predict(X)[:, 0] == rankings[:, 0]).mean() > 0.95
    again = AMMRank(epochs=10, n_categories=3).tune(X, rankings, regularizations=[1e-4, 1e3], plane_limits=[1, 5])
    assert again.tuning_ == ranker.tuning_


@pytest.mark.parametrize(
    ("rankings", "held_out", "message"),
    [
        ([[0], [1]], 1.5, "held_out must be between 0 and 1, got 1.5"),
        ([[0], [-1]], 0.2, r"there must be labelled rows on both sides of held_out 0.2, got 1"),
    ],
)
def test_tune__estimator_refuses(rankings, held_out, message):
    with pytest.raises(ValueError, match=message):
        AMMRank().tune(np.ones((2, 1)), np.array(rankings), held_out=held_out)


def test_tune__on_a_cluster_agrees_with_the_errors_of_the_plain_loop(client, two_processes, rows, tmp_path):
    X, rankings = rows
    features = write_features(
        tmp_path / "f", X, np.arange(900), ["place", "one"], rankings, categories=list("abc"), n_partitions=3
    )
    options = {"regularizations": [1e-4, 1e3], "plane_limits": [1, 5], "epochs": 10, "shards": 1, "block_rows": 64}
    tuning = tune(features, client=client, model="amm-rank", **options)
    assert tuning.best == {"regularization": 1e-4, "max_planes": 5}
    assert len([trial for trial in tuning.trials if trial.rung == 0]) == 4
    assert tuning.beats_popularity
    # Half of the rows like 0 best and 1 next, half 1 and then 2: popularity puts 1 before 0 before 2.
    ends = (rankings[:, 0] == 0).mean()
    assert tuning.popularity == pytest.approx(ends / 3 + (1 - ends) / 3, abs=0.03)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]
    assert tune(features, client=two_processes, model="amm-rank", **options) == tuning
    kept = json.loads(json.dumps(tuning.to_json(), allow_nan=False))
    assert Tuning.from_json(tuning.best, kept, tuning.popularity, tuning.users) == tuning


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
    assert [(t.rows, t.parameters["kappa"]) for t in tuning.trials] == [
        (100, 5e-3), (100, 1e6), (300, 5e-3), (900, 5e-3),
    ]  # fmt: skip
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
