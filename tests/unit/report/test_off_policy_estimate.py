"""What a policy would have earned: by hand, and how often its interval has the truth in it."""

import numpy as np
import pytest

from ammrank_dask.report.outcomes import FEWEST_DRAWN, weigh_clicks
from ammrank_dask.scoring.policies import POLICIES
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.qualifications import QualificationRows
from ammrank_dask.storage.vocabulary import POLICY_NAMES
from benchmarks.exploration import explore_once, make_world, true_clicks


def test_policy_names__are_those_of_the_policies():
    assert tuple(POLICIES) == POLICY_NAMES


def test_weigh_clicks__by_hand():
    # Two users; the first holds 3 and 1, the second 3 and, drawn, 2.
    rows = QualificationRows(
        ids_from_values([4, 9]), np.array([0, 2, 4]), np.array([3, 1, 3, 2]), np.zeros(4),
        chance=np.array([0.5, 0.25, 0.5, 0.1]), propensity=np.array([1, 1, 1, 0.2]),
        inclusion=np.array([1, 0.8, 1, 0.2]), held_by=np.array([0b101, 0b001, 0b001, 0b100], np.uint8),
    )  # fmt: skip
    sums = weigh_clicks(rows, np.array([True, False, False, True]))
    first, second = 0.5 - 0.25 / 0.8, -0.5
    assert sums.total.tolist() == pytest.approx([first + second, 0, 0.5 + 0.9 / 0.2])
    assert sums.squares.tolist() == pytest.approx([first**2 + second**2, 0, 0.5**2 + (0.9 / 0.2) ** 2])
    assert (sums.n_users, sums.n_drawn.tolist(), sums.n_clicked.tolist()) == (2, [0, 0, 1], [1, 0, 2])
    both = sums + sums
    assert (both.n_users, both.total.tolist()) == (4, (2 * sums.total).tolist())
    support = {
        "user_top_k": {"slots": 4, "supported": 4, "expected_clicks": 1.5},
        "balanced": {"slots": 4, "supported": 3, "expected_clicks": 0.9},
    }
    found = sums.estimate(support, "user_top_k")
    mean = (first + second) / 2
    error = np.sqrt(2 * ((first - mean) ** 2 + (second - mean) ** 2))
    assert found["user_top_k"]["clicks"] == pytest.approx(1.5 + first + second)
    assert found["user_top_k"]["error"] == pytest.approx(error)
    assert found["user_top_k"]["high"] == pytest.approx(1.5 + first + second + 1.96 * error)
    assert found["user_top_k"]["low"] == 0.0
    assert found["balanced"]["clicks"] == pytest.approx(0.9 + 0.5 + 0.9 / 0.2)
    assert found["balanced"]["low"] is None  # one drawn slot says too little


@pytest.mark.parametrize("in_force", ["user_top_k", "balanced"])
def test_estimate__intervals_have_the_truth(in_force):
    world, share, n_draws = make_world(1000, 12, 3), 0.1, 40
    truth = true_clicks(world, in_force, share)
    outcomes = [explore_once(world, in_force, share, seed) for seed in range(n_draws)]
    for name in ("user_top_k", "balanced"):
        entries = [sums.estimate(support, in_force)[name] for sums, support in outcomes]
        given = [entry for entry in entries if entry["low"] is not None]
        covered = sum(entry["low"] <= truth[name] <= entry["high"] for entry in given)
        assert covered >= 0.87 * len(given)
        clicks, errors = (np.array([entry[key] for entry in entries]) for key in ("clicks", "error"))
        assert abs(clicks.mean() - truth[name]) < 4 * np.sqrt((errors**2).mean() / n_draws)
        if name == in_force:
            assert len(given) == n_draws
            assert entries[0]["supported"] == entries[0]["slots"] == 3000
        else:
            assert all((entry["low"] is None) == (entry["drawn"] < FEWEST_DRAWN) for entry in entries)
            assert entries[0]["supported"] < entries[0]["slots"]


def test_estimate__clicks_that_are_not_weighed_miss_the_truth():
    """What the weights are for: without them a policy that was not in force gets what it shares only."""
    world, share = make_world(1000, 12, 3), 0.1
    truth = true_clicks(world, "user_top_k", share)["balanced"]
    outcomes = [explore_once(world, "user_top_k", share, seed) for seed in range(10)]
    weighed = [sums.estimate(support, "user_top_k")["balanced"]["clicks"] for sums, support in outcomes]
    plain = [int(sums.n_clicked[POLICY_NAMES.index("balanced")]) for sums, _ in outcomes]
    assert max(plain) < 0.97 * truth
    assert abs(np.mean(weighed) - truth) < 0.03 * truth
