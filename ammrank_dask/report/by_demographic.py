"""Rank categories by age and gender group, as figure 2 of the paper does, from what the users hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.features.demographics import Demographics, describe_users
from ammrank_dask.runtime.tasks import Call, Progress, run_together, silent
from ammrank_dask.scoring.qualifications import NightPart, parts_in
from ammrank_dask.storage.store.ids import ids_from_arrays
from ammrank_dask.storage.store.parts import PartRef
from ammrank_dask.storage.store.qualifications import QualificationPart, QualificationRows
from ammrank_dask.storage.store.registry import USERS
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.storage.vocabulary import AGE_BUCKETS, GENDERS

TOP = 10
MIN_GROUP_USERS = 20
"""Of a smaller group nothing is told: its list and its size would say something about a few people."""


def rank_by_group(
    client: Client,
    parts: Sequence[QualificationPart],
    users: Run,
    categories: Sequence[str],
    k: int,
    *,
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """Return the ten first categories of every group of `MIN_GROUP_USERS` users or more.

    A category gets k points for a user who holds it on rank 1, k − 1 for rank 2 and so on; most points first, then
    the lower code. `share` is the share of the group's users who hold it.

    Parameters
    ----------
    parts
        The by_user files of the night.
    users
        The demographics; in other partitions than the night, when the site was placed anew since.
    """
    placed = parts_in(parts, users.n_parts)
    calls: list[Call] = [
        (count_part_by_group, (part, users.part(number), list(categories), k)) for number, part in enumerate(placed)
    ]
    found = run_together(client, "groups", calls, progress=progress)
    n_groups = len(GENDERS) * len(AGE_BUCKETS)
    points = sum((part[0] for part in found), start=np.zeros((n_groups, len(categories)), np.int64))
    holders = sum((part[1] for part in found), start=np.zeros((n_groups, len(categories)), np.int64))
    n_users = sum((part[2] for part in found), start=np.zeros(n_groups, np.int64))
    groups = []
    for group in np.flatnonzero(n_users >= MIN_GROUP_USERS).tolist():
        gender, bucket = divmod(group, len(AGE_BUCKETS))
        best = np.argsort(-points[group], kind="stable")[:TOP]
        top = [
            {"category": categories[code], "share": float(holders[group, code] / n_users[group])}
            for code in best
            if points[group, code]
        ]
        groups.append({"gender": GENDERS[gender], "age": AGE_BUCKETS[bucket], "users": int(n_users[group]), "top": top})
    return groups


def count_part_by_group(
    part: NightPart, people: PartRef, categories: list[str], k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count one partition: points (groups, L), holders (groups, L) and users (groups,)."""
    held = part.read(categories)
    arrays = people.read(USERS)
    demographics = Demographics(ids_from_arrays(arrays), arrays["age"], arrays["gender"])
    bucket, gender = describe_users(held.user_ids, demographics)
    return count_by_group(held, bucket, gender, len(categories), k)


def count_by_group(
    rows: QualificationRows, age_bucket: np.ndarray, gender: np.ndarray, n_categories: int, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points, holders and users by group of users with known age bucket and gender (-1 is unknown)."""
    n_groups = len(GENDERS) * len(AGE_BUCKETS)
    is_known = (age_bucket >= 0) & (gender >= 0)
    group = np.where(is_known, gender.astype(np.int64) * len(AGE_BUCKETS) + age_bucket, -1)
    counted = (group[rows.user] >= 0) & (rows.rank <= k) & (rows.category < n_categories)
    cell = group[rows.user][counted] * n_categories + rows.category[counted]
    size = n_groups * n_categories
    weights = k + 1 - rows.rank[counted]
    points = np.bincount(cell, weights, minlength=size).astype(np.int64).reshape(n_groups, n_categories)
    holders = np.bincount(cell, minlength=size).reshape(n_groups, n_categories)
    return points, holders, np.bincount(group[is_known], minlength=n_groups)
