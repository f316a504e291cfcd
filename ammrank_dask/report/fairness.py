"""Measure what fairness costs: expected clicks against starved categories, by policy and by floor from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.report.exposure import gini
from ammrank_dask.report.thresholds import starved
from ammrank_dask.runtime.tasks import Progress, silent
from ammrank_dask.scoring.balanced import balance
from ammrank_dask.scoring.chance_table import ChanceTable, allowed_counts
from ammrank_dask.scoring.exposure_bounds import exposure_bounds
from ammrank_dask.scoring.policies import share_slots
from ammrank_dask.scoring.sampled_users import SampledUsers
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.ids import IntegerIds

STAGE = "fairness"
FLOORS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


def n_users_to_sample(n_categories: int) -> int:
    """Return how many users the picture is drawn from.

    Examples
    --------
    >>> n_users_to_sample(50), n_users_to_sample(340)
    (2000, 1000)
    """
    return max(1000, 100_000 // n_categories)


def price_fairness(
    client: Client,
    users: SampledUsers,
    categories: Sequence[str],
    clicks: np.ndarray,
    tie_order: np.ndarray,
    folder: Path,
    *,
    starved_ratio: float,
    floors: Sequence[float] = FLOORS,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Return expected clicks, starved categories and Gini of the sampled users by policy, and for `balanced` by floor.

    Parameters
    ----------
    clicks
        (L,) clicks on each category, of which floors are multiples.
    tie_order
        (L,) category codes, the one to prefer among equal values of a user first.
    folder
        A folder that all workers see, for what `balanced` keeps while it works.
    progress
        Told of every floor, not of the many short passes that each takes.
    """
    k = users.codes.shape[1]
    eligible, slots = allowed_counts(users.chances, k)

    def measures(n_users: np.ndarray, expected: float) -> dict[str, Any]:
        hungry = starved(n_users, clicks, starved_ratio, eligible)
        return {"expected_clicks": expected, "starved_categories": int(hungry.sum()), "gini": gini(n_users)}

    top = np.nonzero(users.codes >= 0)
    policies = {
        "user_top_k": measures(*_count(users, top[0], users.codes[top])),
        "category_top_n": measures(*_count(users, *_best_users(users.scores, slots, tie_order))),
    }
    table = ChanceTable(folder, 1)
    table.save(0, users.chances, IntegerIds(np.arange(len(users.chances))), 1.0)
    by_floor: list[dict[str, Any]] = []
    for number, floor in enumerate(floors):
        progress(STAGE, number, len(floors))
        entry: dict[str, Any] = {"floor": float(floor)}
        try:
            bounds = exposure_bounds(categories, clicks, eligible, slots, floor=floor)
            plan = balance(client, table, bounds, k, tie_order)
            entry |= {**measures(plan.n_users, plan.value), "gap": plan.gap}
        except BadInput as error:
            entry |= {"impossible": str(error)}
        by_floor.append(entry)
    progress(STAGE, len(floors), len(floors))
    return {"users": len(users.chances), "policies": policies, "floors": by_floor}


def _best_users(scores: np.ndarray, slots: int, tie_order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return users and categories when every category takes its best users, as many as make the same slots in all."""
    has_score = scores > -np.inf
    taken = share_slots(has_score.sum(axis=0), slots, tie_order)
    order = np.argsort(-scores, axis=0, kind="stable")
    users = [order[: taken[code], code] for code in range(scores.shape[1])]
    return np.concatenate(users), np.repeat(np.arange(scores.shape[1]), taken)


def _count(users: SampledUsers, row: np.ndarray, code: np.ndarray) -> tuple[np.ndarray, float]:
    """Return users by category (L,) and the sum of the chances of pairs of a user and a category."""
    n_users = np.bincount(code, minlength=users.chances.shape[1])
    return n_users, float(users.chances[row, code].sum(dtype=np.float64))
