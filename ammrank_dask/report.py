"""Say who is over-exposed and who is starved."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from distributed import Client

from ammrank_dask.scoring import Qualifications
from ammrank_dask.tasks import Progress, run_tasks, silent
from storage.vocabulary import CATEGORY, RANK

STARVED_RATIO = 0.25
OVEREXPOSED_FACTOR = 2.0


def exposure_report(client: Client, quals: Qualifications, *, progress: Progress = silent) -> pd.DataFrame:
    """Count in the files of `quals` how many users hold each category, and at which rank.

    Parameters
    ----------
    client
        The cluster to count on, one task per partition.
    quals
        The qualifications to count.

    Returns
    -------
    pandas.DataFrame
        One row per category, in the order of their codes: `category`, `exposure` (users who hold it),
        `exposure_share` (of all qualifications), and `rank_1` … `rank_k` (users who hold it at that rank).
    """
    tasks = [(str(part), quals.categories, quals.k) for part in quals.parts]
    counts = run_tasks(client, "report", count_part, tasks, progress=progress)
    exposure = sum(counts, start=np.zeros((len(quals.categories), quals.k), np.int64))
    return exposure_table(exposure, quals.categories)


def count_part(part: str, categories: list[str], k: int) -> np.ndarray:
    """Return how many users of one file hold each category at each rank, (L, k) int64."""
    table = pq.read_table(part, columns=[CATEGORY, RANK])
    names = table[CATEGORY].to_pandas().astype(pd.CategoricalDtype(categories))
    cell = names.cat.codes.to_numpy(np.int64) * k + table[RANK].to_numpy() - 1
    return np.bincount(cell, minlength=len(categories) * k).reshape(len(categories), k).astype(np.int64)


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
    table = pd.DataFrame({CATEGORY: list(categories), "exposure": held, "exposure_share": _share(held)})
    if clicks is not None:
        click_share = _share(np.asarray(clicks))
        table["click_share"] = click_share
        table["ratio"] = np.divide(
            table["exposure_share"], click_share, out=np.full(len(held), np.nan), where=click_share > 0
        )
    for rank in range(exposure.shape[1]):
        table[f"rank_{rank + 1}"] = exposure[:, rank]
    return table


def summarise(
    exposure: np.ndarray,
    clicks: np.ndarray,
    categories: Sequence[str],
    categories_per_user: np.ndarray,
    *,
    date: str | None,
    cold_users: int,
    k: int,
    policy: str = "user_top_k",
    starved_ratio: float = STARVED_RATIO,
    overexposed_factor: float = OVEREXPOSED_FACTOR,
) -> dict[str, Any]:
    """Return the content of `summary.json`: numbers only, no user, clock or host.

    Parameters
    ----------
    exposure
        (L, k) users who hold the category at each rank.
    clicks
        (L,) clicks on the category.
    categories
        The names of the L categories.
    categories_per_user
        (L + 1,) users who hold 0 … L categories.
    date
        The night, YYYY-MM-DD.
    cold_users
        Users without an event.
    k
        Categories a user is meant to get.
    policy
        The policy that handed out the qualifications.
    starved_ratio
        A category is starved below this share of its click share, or when no user holds it.
    overexposed_factor
        A user is over-exposed with more than this many times k categories.
    """
    table = exposure_table(exposure, categories, clicks)
    rows = table[[CATEGORY, "exposure", "exposure_share", "click_share", "ratio"]].to_dict("records")
    for row in rows:
        row["ratio"] = None if np.isnan(row["ratio"]) else row["ratio"]
    held = table["exposure"].to_numpy()
    starved = (held == 0) | (table["exposure_share"] < starved_ratio * table["click_share"]).to_numpy()
    n_held = np.arange(len(categories_per_user))
    return {
        "date": date,
        "n_users": int(categories_per_user.sum()),
        "cold_users": int(cold_users),
        "k": int(k),
        "policies": {
            policy: {
                "starved_users": int(categories_per_user[0]),
                "overexposed_users": int(categories_per_user[n_held > overexposed_factor * k].sum()),
                "starved_categories": int(starved.sum()),
                "gini": gini(held),
                "entropy": entropy(held),
                "coverage": float((held > 0).mean()),
            }
        },
        "categories": rows,
    }


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


def entropy(counts: np.ndarray) -> float:
    """Return the entropy of the shares ÷ log n: 1 when all counts are equal, 0 when one has everything.

    Examples
    --------
    >>> entropy(np.array([3, 3, 3]))
    1.0
    """
    share = _share(counts)
    share = share[share > 0]
    if len(share) == 0:
        return 0.0
    if len(counts) == 1:
        return 1.0
    return float(-(share * np.log(share)).sum() / np.log(len(counts))) + 0.0


def _share(counts: np.ndarray) -> np.ndarray:
    return counts / max(1, counts.sum())
