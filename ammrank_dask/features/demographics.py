"""Describe users by age bucket and gender."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ammrank_dask.storage.store.ids import UserIds
from ammrank_dask.storage.vocabulary import AGE_BUCKET_STARTS


@dataclass(frozen=True)
class Demographics:
    """Users with their age in years and gender code, -1 where unknown; sorted by id."""

    user_ids: UserIds
    age: np.ndarray
    gender: np.ndarray


def age_buckets(age: np.ndarray) -> np.ndarray:
    """Return the bucket of every age, 0 to 8; -1 for unknown ages and for children below the first (int8).

    Examples
    --------
    >>> age_buckets(np.array([-1, 12, 13, 20, 65, 99])).tolist()
    [-1, -1, 0, 1, 8, 8]
    """
    return (np.searchsorted(AGE_BUCKET_STARTS, age, side="right") - 1).astype(np.int8)


def describe_users(users: UserIds, people: Demographics | None) -> tuple[np.ndarray, np.ndarray]:
    """Return age bucket and gender of users (int8), -1 where nothing is known of them."""
    bucket = np.full(len(users), -1, np.int8)
    gender = np.full(len(users), -1, np.int8)
    if people is not None and len(people.user_ids) and len(users):
        position = people.user_ids.positions_of(users)
        is_listed = position >= 0
        bucket[is_listed] = age_buckets(people.age[position[is_listed]])
        gender[is_listed] = people.gender[position[is_listed]]
    return bucket, gender
