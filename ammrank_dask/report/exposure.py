"""Measure how even exposure is, and which users get too much or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ammrank_dask.report.thresholds import Thresholds, share_of, starved
from ammrank_dask.scoring.policies import PolicyCounts
from ammrank_dask.storage.vocabulary import CATEGORY


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
