"""Define what counts as starved and over-exposed. Imports little: config and dashboard need it too."""

from dataclasses import dataclass

import numpy as np

CHECK_LABELS = {
    "used_share": "rows that are used",
    "events_by_group": "events by group vs. usual",
    "active_users": "active users vs. usual",
    "quarantined": "quarantined rows",
    "late": "late events",
    "heaviest_ids": "events of the heaviest ids",
    "click_shares": "clicks on unusual categories",
    "similar_categories": "category names that look alike",
    "starved_users": "users without a category",
    "overexposed_users": "over-exposed users",
    "starved_categories": "starved categories",
    "changed_users": "users whose list changed",
    "jaccard": "overlap with the night before",
    "score_shift": "mean change of a score",
    "psi": "largest shift of a category",
    "hit_rate_1": "hit rate after 1 night vs. popularity",
    "hit_rate_7": "hit rate after 7 nights vs. popularity",
    "hit_rate_30": "hit rate after 30 nights vs. popularity",
    "short_history": "history behind click probabilities",
    "chance_error": "predicted vs. actual clicks",
    "interest_drift": "hits gained by forgetting faster",
}
"""All checks of a night in words: those of what came in first, then those of what was made of it."""
CHECKS = tuple(CHECK_LABELS)
INPUT_CHECKS = CHECKS[: CHECKS.index("starved_users")]


@dataclass(frozen=True)
class Thresholds:
    """What counts as starved and over-exposed, and from where on a measure of a night is a warning."""

    starved_ratio: float = 0.25
    overexposed_factor: float = 2.0
    starved_users: float = 0.01
    overexposed_users: float = 0.01
    starved_categories: float = 0.2
    changed_users: float = 0.95
    jaccard: float = 0.5
    score_shift: float = 0.5
    psi: float = 0.25
    short_history: float = 0.6
    chance_error: float = 0.2
    used_share: float = 0.5
    events_by_group: float = 1.8
    active_users: float = 2.0
    quarantined: float = 0.005
    late: float = 0.1
    heaviest_ids: float = 0.05
    click_shares: float = 0.25


def starved(n_users: np.ndarray, clicks: np.ndarray, ratio: float, may_hold: np.ndarray | None = None) -> np.ndarray:
    """Return of each category whether its exposure share is below `ratio` of its click share, or nobody holds it.

    A category that nobody may hold (`may_hold`, as counts or bool, is 0) is not starved.

    Examples
    --------
    >>> starved(np.array([0, 0, 5]), np.array([5, 5, 5]), 0.25, np.array([9, 0, 9])).tolist()
    [True, False, False]
    """
    is_starved = (n_users == 0) | (share_of(n_users) < ratio * share_of(np.asarray(clicks)))
    return is_starved if may_hold is None else is_starved & (np.asarray(may_hold) > 0)


def share_of(counts: np.ndarray) -> np.ndarray:
    """Return the counts as shares of their sum, zeros when there is nothing."""
    return counts / max(1, counts.sum())
