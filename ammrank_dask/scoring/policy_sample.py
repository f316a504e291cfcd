"""Count a policy that is only shown beside the active one, on a sample of users: only their scores are all kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ammrank_dask.scoring.policies import PolicyCounts
from ammrank_dask.scoring.settings import ScoreSettings
from ammrank_dask.storage.store.ids import UserIds
from ammrank_dask.user_hash import hash_ids

POLICY_SALT = 0x73686F776E6F6E65
SAMPLE_CELLS = 1 << 25
"""Scores (users × categories) that are kept for a policy that is only shown: 128 MiB, whatever the number of users."""


def kept_share(settings: ScoreSettings, n_users: int, n_categories: int) -> float:
    """Return the share of users whose scores in all categories are kept.

    All, where what is written depends on them, where another policy needs them anyway, or where none does.

    Examples
    --------
    >>> kept_share(ScoreSettings(also=("category_top_n",)), 20_000_000, 300)
    0.0055924
    >>> kept_share(ScoreSettings(policy="category_top_n"), 20_000_000, 300)
    1.0
    >>> kept_share(ScoreSettings(also=()), 20_000_000, 300)
    1.0
    """
    needing = [policy for policy in settings.wanted if policy.needs_all_scores]
    is_needed = any(policy.needs_chances or policy.name == settings.policy for policy in needing)
    if settings.explore or is_needed or not needing:
        return 1.0
    return min(1.0, SAMPLE_CELLS // n_categories / max(1, n_users))


def sampled_rows(user_ids: UserIds, share: float) -> np.ndarray:
    """Return the positions of the users in the sample, chosen by a hash of their ids."""
    return np.flatnonzero(hash_ids(user_ids, POLICY_SALT) / 2.0**64 < share)


def move_to_front(scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the scores (L, len(rows)) of some users in the memory of those of all (L, n), which are gone then.

    Examples
    --------
    >>> move_to_front(np.arange(8.0).reshape(2, 4), np.array([1, 3])).tolist()
    [[1.0, 3.0], [5.0, 7.0]]
    """
    flat = scores.reshape(-1)
    assert np.shares_memory(flat, scores)
    for category, of_all in enumerate(scores):
        # A category moves to the front of where it was: the next one's scores are still in their place.
        flat[category * len(rows) : (category + 1) * len(rows)] = of_all[rows]
    return flat[: len(scores) * len(rows)].reshape(len(scores), len(rows))


@dataclass(frozen=True)
class PolicySample:
    """How many users are in the sample, and what all users would share out: `n` a category (or None), and `slots`."""

    n_sampled: int
    n_users: int
    n: int | None
    slots: int

    @property
    def n_of_sample(self) -> int | None:
        """Users that a category takes from the sample; None where that follows from the slots."""
        return None if self.n is None else max(1, self._bring_down(self.n))

    @property
    def slots_of_sample(self) -> int:
        """Slots that the users of the sample share out."""
        return self._bring_down(self.slots)

    def _bring_down(self, count: int) -> int:
        return round(count * self.n_sampled / max(1, self.n_users))

    def scale(self, counts: PolicyCounts, limits: Mapping[str, int]) -> tuple[PolicyCounts, dict[str, int]]:
        """Return the counts of the sample, and the limits of its plan, as those of all users; with its size."""
        is_all = self.n is None and counts.slots == self.slots_of_sample
        scaled = {name: round(limit * self.n_users / max(1, self.n_sampled)) for name, limit in limits.items()}
        in_all = scale_counts(counts, self.n_users, self.slots if is_all else None)
        return in_all, {**scaled, "sampled_users": self.n_sampled}


def scale_counts(counts: PolicyCounts, n_users: int, slots: int | None = None) -> PolicyCounts:
    """Return the counts of a sample as those of `n_users`, whole numbers that add up to `slots` (None: in proportion).

    Examples
    --------
    >>> sample = PolicyCounts(np.array([[3], [1]]), np.array([0, 2, 1]), 0.5)
    >>> scaled = scale_counts(sample, 10)
    >>> scaled.exposure.tolist(), scaled.categories_per_user.tolist(), scaled.expected
    ([[10], [3]], [0, 7, 3], 1.6666666666666667)
    """
    factor = n_users / max(1, int(counts.categories_per_user.sum()))
    total = round(counts.slots * factor) if slots is None else slots
    return PolicyCounts(
        _share_out(counts.exposure, total),
        _share_out(counts.categories_per_user, n_users),
        None if counts.expected is None else counts.expected * factor,
        None if counts.expected_value is None else counts.expected_value * factor,
    )


def _share_out(counts: np.ndarray, total: int) -> np.ndarray:
    """Return whole numbers in proportion to counts that add up to a total; the largest remainders are rounded up."""
    of_all = max(1, int(counts.sum()))
    # Python's integers: products of users are beyond int64.
    shares = [divmod(count * total, of_all) for count in counts.ravel().tolist()]
    scaled = np.array([whole for whole, _ in shares], np.int64)
    if counts.any():
        by_rest = sorted(range(len(shares)), key=lambda place: -shares[place][1])
        scaled[by_rest[: total - int(scaled.sum())]] += 1
    return scaled.reshape(counts.shape)
