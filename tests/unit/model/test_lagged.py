"""What a moment knew of popularity: the prior of its rows, and the columns whose weights are learned, by hand."""

import math

import numpy as np
import pytest

from ammrank_dask.model.lagged import N_TRENDS, lagged_popularity

PERIODS = [[10, 4, 2], [20, 10, 4], [40, 10, 30]]
"""Of the last window, of three, and of twelve: the users who clicked, and those who clicked each of two categories."""


def odds(clicked, users):
    return math.log((clicked + 0.5) / (users - clicked + 0.5))


def centred(first, second, weight):
    return [weight * (first - second) / 2, weight * (second - first) / 2]


def test_lagged_popularity__prior_level_and_trends_by_hand():
    known = lagged_popularity([np.array(PERIODS), np.array(PERIODS)])
    assert known.clicks.tolist() == [4, 2]
    assert known.scores.shape == (2, 1 + N_TRENDS, 2)
    prior, level, quarter, year, *last_year = known.scores[1]
    now = odds(4, 10), odds(2, 10)
    assert prior == pytest.approx(now, rel=1e-6)
    assert level == pytest.approx(centred(*now, 0.1), rel=1e-6)
    assert quarter == pytest.approx(centred(odds(10, 20) - now[0], odds(4, 20) - now[1], 0.3), rel=1e-6)
    assert year == pytest.approx(centred(odds(10, 40) - now[0], odds(30, 40) - now[1], 0.3), rel=1e-6)
    assert not np.any(last_year)


def test_lagged_popularity__the_days_of_last_year_by_hand():
    known = lagged_popularity([np.array([*PERIODS, [0, 8, 3], [0, 2, 9]])])
    *_, change, level = known.scores[0]
    ago = math.log(2.5), math.log(9.5)
    assert change == pytest.approx(centred(ago[0] - math.log(8.5), ago[1] - math.log(3.5), 0.3), rel=1e-6)
    assert level == pytest.approx(centred(*ago, 0.3), rel=1e-6)


def test_lagged_popularity__a_log_younger_than_a_year_knows_nothing_of_the_last_one():
    young = lagged_popularity([np.array([*PERIODS, [0, 0, 0], [0, 0, 0]])])
    assert young.scores.tolist() == lagged_popularity([np.array(PERIODS)]).scores.tolist()


def test_prior__adds_the_columns_by_their_weights():
    known = lagged_popularity([np.array([*PERIODS, [0, 8, 3], [0, 2, 9]])])
    weights = np.array([1, 0, -2, 0.5, 3, 0, 0, 0], np.float32)
    expected = known.scores[0, 0] + weights[:N_TRENDS] @ known.scores[0, 1:]
    assert known.prior(0, weights) == pytest.approx(expected, rel=1e-6)
