"""Measure how even exposure is, and which users get too much or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from distributed import Client

from ammrank_dask.features.demographics import Demographics, describe_users
from ammrank_dask.report.thresholds import Thresholds, share_of, starved
from ammrank_dask.runtime.tasks import Call, Progress, run_together, silent
from ammrank_dask.scoring.policies import PolicyCounts
from ammrank_dask.scoring.qualifications import NightPart, parts_in
from ammrank_dask.storage.store.ids import ids_from_arrays
from ammrank_dask.storage.store.parts import PartRef
from ammrank_dask.storage.store.qualifications import QualificationPart, QualificationRows
from ammrank_dask.storage.store.registry import USERS
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.storage.vocabulary import AGE_BUCKETS, CATEGORY, GENDERS

TOP = 10
MIN_GROUP_USERS = 20
"""Of a smaller group nothing is told: its list and its size would say something about a few people."""


def exposure_table(exposure: np.ndarray, categories: Sequence[str], clicks: np.ndarray | None = None) -> pd.DataFrame:
    """Return exposure per category as a table, beside the clicks when they are given.

    Parameters
    ----------
    exposure
        (L, k) users who hold the category at each rank.
    categories
        The names of the L categories.
    clicks
        (L,) clicks on the category; adds `click_share` and `ratio` (exposure share ÷ click share, missing
        where there are no clicks).
    """
    held = exposure.sum(axis=1)
    table = pd.DataFrame({CATEGORY: list(categories), "exposure": held, "exposure_share": share_of(held)})
    if clicks is not None:
        click_share = share_of(np.asarray(clicks))
        table["click_share"] = click_share
        table["ratio"] = np.divide(
            table["exposure_share"], click_share, out=np.full(len(held), np.nan), where=click_share > 0
        )
    ranks = pd.DataFrame(exposure, columns=[f"rank_{rank + 1}" for rank in range(exposure.shape[1])])
    return pd.concat([table, ranks], axis=1)  # at once: pandas warns of hundreds of columns that come one by one


def measure_policy(
    counts: PolicyCounts,
    clicks: np.ndarray,
    k: int,
    thresholds: Thresholds,
    n: int | None = None,
    may_hold: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return the measures of one policy, with the meanings of the design.

    Parameters
    ----------
    counts
        What the policy assigned.
    clicks
        (L,) clicks on the category.
    k
        Categories a user is meant to get.
    n
        Users per category, under a policy that has such a limit.
    may_hold
        (L,) users who may hold the category; one that nobody may hold is not starved.
    """
    held = counts.exposure.sum(axis=1)
    n_held = np.arange(len(counts.categories_per_user))
    return {
        "slots": counts.slots,
        "n": n,
        "starved_users": int(counts.categories_per_user[0]),
        "overexposed_users": int(counts.categories_per_user[n_held > thresholds.overexposed_factor * k].sum()),
        "starved_categories": int(starved(held, clicks, thresholds.starved_ratio, may_hold).sum()),
        "gini": gini(held),
        "rank_weighted_gini": gini(counts.exposure @ rank_weights(k)) if has_ranks(counts, k) else None,
        "entropy": entropy(held),
        "expected_clicks": counts.expected,
        **({} if counts.expected_value is None else {"expected_value": counts.expected_value}),
        "coverage": float((held > 0).mean()) if len(held) else 0.0,
        "lorenz": lorenz(held).tolist(),
        "categories_per_user": counts.categories_per_user.tolist(),
    }


def has_ranks(counts: PolicyCounts, k: int) -> bool:
    """Return whether a policy counts users by rank; one whose ranks say nothing has a single one."""
    return counts.exposure.shape[1] == k


def rank_weights(k: int) -> np.ndarray:
    """Return the weight of ranks 1 … k, 1/log2(1 + rank): what is shown first is seen most.

    Examples
    --------
    >>> rank_weights(3).round(3).tolist()
    [1.0, 0.631, 0.5]
    """
    return 1 / np.log2(np.arange(2, k + 2))


def gini(counts: np.ndarray) -> float:
    """Return the Gini coefficient: 0 when all counts are equal, 1 − 1/n when one has everything.

    Examples
    --------
    >>> gini(np.array([0, 0, 0, 8]))
    0.75
    """
    total = counts.sum()
    if total == 0:
        return 0.0
    n = len(counts)
    place = np.arange(1, n + 1)
    return float(((2 * place - n - 1) * np.sort(counts)).sum() / (n * total))


def lorenz(counts: np.ndarray) -> np.ndarray:
    """Return the Lorenz curve: the share of the sum that the 0, 1, … n smallest counts have; straight without any.

    Examples
    --------
    >>> lorenz(np.array([3, 0, 1])).tolist()
    [0.0, 0.0, 0.25, 1.0]
    """
    if counts.sum() == 0:
        return np.linspace(0, 1, len(counts) + 1)
    return np.concatenate([[0.0], np.cumsum(np.sort(counts)) / counts.sum()])


def entropy(counts: np.ndarray) -> float:
    """Return the entropy of the shares ÷ log n: 1 when all counts are equal, 0 when one has everything.

    Examples
    --------
    >>> round(entropy(np.array([3, 3, 3])), 9)
    1.0
    """
    share = share_of(counts)
    share = share[share > 0]
    if len(share) == 0:
        return 0.0
    if len(counts) == 1:
        return 1.0
    return float(-(share * np.log(share)).sum() / np.log(len(counts))) + 0.0


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
