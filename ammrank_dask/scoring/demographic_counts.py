"""Count what users of each age and gender hold, and rank the categories of each group, as in figure 2 of the paper."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ammrank_dask.storage.store.qualifications import QualificationRows
from ammrank_dask.storage.vocabulary import AGE_BUCKETS, GENDERS

TOP = 10
MIN_GROUP_USERS = 20
"""Of a smaller group nothing is told: its list and its size would say something about a few people."""


def count_by_group(rows: QualificationRows, group: np.ndarray, n_categories: int, k: int) -> dict[str, str]:
    """Return `points` and `holders` (groups, L) and `users` (groups,) of one partition, encoded for JSON.

    Groups are those of known age bucket and gender. A user who holds a category gives it k points on rank 1, k − 1 on
    rank 2 and so on, and who holds none does not count.

    Parameters
    ----------
    group
        The `group_of` each user (n,).
    """
    age, gender = np.divmod(group.astype(np.int64), len(GENDERS) + 1)
    is_known = (age < len(AGE_BUCKETS)) & (gender < len(GENDERS))
    n_groups = len(GENDERS) * len(AGE_BUCKETS)
    of_user = np.where(is_known, gender * len(AGE_BUCKETS) + age, -1)
    holds = of_user[(np.diff(rows.indptr) > 0) & is_known]
    of_row = of_user[rows.user]
    counted = (of_row >= 0) & (rows.rank <= k)
    cell = of_row[counted] * n_categories + rows.category[counted]
    size = n_groups * n_categories
    counts = {
        "points": np.bincount(cell, k + 1 - rows.rank[counted], minlength=size),
        "holders": np.bincount(cell, minlength=size),
        "users": np.bincount(holds, minlength=n_groups),
    }
    # Numbers of 5,000 categories as a list would be megabytes of a driver for every partition.
    return {name: base64.b64encode(array.astype("<u4").tobytes()).decode() for name, array in counts.items()}


def rank_by_group(parts: Sequence[Mapping[str, str]], categories: Sequence[str]) -> list[dict[str, Any]]:
    """Return the ten first categories of every group of `MIN_GROUP_USERS` users or more, from what partitions count.

    Most points come first, then the lower code. `share` is the share of the group's users who hold the category.
    """
    n_users = _sum(parts, "users")
    points, holders = (_sum(parts, name).reshape(len(n_users), -1) for name in ("points", "holders"))
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


def _sum(parts: Sequence[Mapping[str, str]], name: str) -> np.ndarray:
    return sum((np.frombuffer(base64.b64decode(part[name]), "<u4") for part in parts), start=np.zeros(1, np.int64))
