"""A policy that is only shown: counted on a sample of users, and brought to all of them."""

import numpy as np
import pytest

from ammrank_dask.scoring.policies import PolicyCounts
from ammrank_dask.scoring.policy_sample import kept_share, scale_counts
from ammrank_dask.scoring.settings import ScoreSettings

BOTH = ScoreSettings(k=2, also=("category_top_n",))


@pytest.mark.parametrize(
    "settings",
    [
        ScoreSettings(policy="category_top_n", also=("user_top_k",)),
        ScoreSettings(also=("category_top_n", "balanced")),
        ScoreSettings(also=("category_top_n",), explore=0.1),
    ],
)
def test_shown_share__all_users_where_their_scores_are_needed_anyway(settings):
    assert kept_share(settings, 10**9, 1_000) == 1.0


def test_shown_share__a_small_site_is_exact():
    assert kept_share(BOTH, 600_000, 50) == 1.0


def test_scale_counts__large_numbers_do_not_wrap_around():
    counts = PolicyCounts(np.array([[2**33], [2**33]]), np.array([0, 2**34]))
    scaled = scale_counts(counts, 2**40, 2**40 + 1)
    assert scaled.exposure.ravel().tolist() == [2**39 + 1, 2**39]
    assert scaled.categories_per_user.tolist() == [0, 2**40]


def test_scale_counts__nothing_stays_nothing():
    scaled = scale_counts(PolicyCounts(np.zeros((2, 1), np.int64), np.zeros(3, np.int64)), 7)
    assert (scaled.exposure.tolist(), scaled.categories_per_user.tolist()) == ([[0], [0]], [0, 0, 0])
