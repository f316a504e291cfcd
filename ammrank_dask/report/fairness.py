"""Measure what fairness costs: expected clicks against starved categories, by policy and by floor from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.kernels.balanced import Offers
from ammrank_dask.report.exposure import gini
from ammrank_dask.report.thresholds import starved
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.scoring.balanced import assign_partition, balance
from ammrank_dask.scoring.chance_table import ChanceTable, allowed_counts
from ammrank_dask.scoring.exposure_bounds import exposure_bounds
from ammrank_dask.scoring.policies import share_slots
from ammrank_dask.scoring.prices import worth_of
from ammrank_dask.scoring.score_partition import SampledUsers
from ammrank_dask.scoring.settings import ClickValues
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.ids import IntegerIds

STAGE = "fairness"
FLOORS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
MOST_CATEGORIES = 1000
"""A step of the prices grows with the square of the categories: 2,000 would take minutes of every night."""


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
    values: ClickValues | None = None,
    floors: Sequence[float] = FLOORS,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Return expected clicks, starved categories and Gini of the sampled users by policy, and for `balanced` by floor.

    With values, also expected value.

    Parameters
    ----------
    clicks
        (L,) clicks on each category, of which floors are multiples.
    tie_order
        (L,) category codes, the one to prefer among equal values of a user first.
    folder
        A folder that all workers see, for what `balanced` keeps while it works.
    values
        What a click is worth, and whether lists are made by it; None where nobody says.
    progress
        Told of every floor: each is a task.
    """
    eligible, slots = allowed_counts(users.chances, users.codes.shape[1])
    table = ChanceTable(folder, 1)
    table.save(0, users.chances, IntegerIds(np.arange(len(users.chances))), 1.0, group=users.group)
    sample = _FairnessSample(
        table, users.group, users.codes.shape[1], categories, clicks, tie_order, eligible, slots, starved_ratio, values
    )
    order = users.scores
    if sample.weights is not None:
        assert users.group is not None
        worth = worth_of(Offers(users.chances, sample.weights, users.group))
        order = np.where((worth >= 0) & np.isfinite(order), worth, -np.inf)
    top = np.nonzero(users.codes >= 0)
    policies = {
        "user_top_k": sample.measure(top[0], users.codes[top]),
        "category_top_n": sample.measure(*_best_users(order, slots, tie_order)),
    }
    tasks = [(sample, float(floor)) for floor in floors]
    by_floor = run_tasks(client, STAGE, price_floor, tasks, progress=progress)
    return {"users": len(users.chances), "policies": policies, "floors": by_floor}


@dataclass(frozen=True)
class _FairnessSample:
    """The sampled users as tasks know them: their chances are in the table."""

    table: ChanceTable
    group: np.ndarray | None
    k: int
    categories: Sequence[str]
    clicks: np.ndarray
    tie_order: np.ndarray
    eligible: np.ndarray
    slots: int
    starved_ratio: float
    values: ClickValues | None

    @property
    def weights(self) -> np.ndarray | None:
        """By what chances count, where lists are made by value."""
        return None if self.values is None or not self.values.decides else self.values.weights

    def measure(self, row: np.ndarray, code: np.ndarray) -> dict[str, Any]:
        """Return what lists come to that have these pairs of a user and a category."""
        n_users, chance = np.bincount(code, minlength=len(self.clicks)), self.table.chances(0)[row, code]
        hungry = starved(n_users, self.clicks, self.starved_ratio, self.eligible)
        expected = {"expected_clicks": float(chance.sum(dtype=np.float64))}
        if self.values is not None:
            assert self.group is not None
            expected["expected_value"] = float((chance * self.values.per_click[self.group[row], code]).sum())
        return {**expected, "starved_categories": int(hungry.sum()), "gini": gini(n_users)}


def price_floor(sample: _FairnessSample, floor: float) -> dict[str, Any]:
    """Return what `balanced` comes to with one floor for all categories, or why that cannot be."""
    try:
        bounds = exposure_bounds(sample.categories, sample.clicks, sample.eligible, sample.slots, floor=floor)
        plan = balance(None, sample.table, bounds, sample.k, sample.tie_order, weights=sample.weights)
    except BadInput as error:
        return {"floor": floor, "impossible": str(error)}
    codes = assign_partition(plan, 0, sample.tie_order)
    held = np.nonzero(codes >= 0)
    entry = {"floor": floor, **sample.measure(held[0], codes[held]), "gap": plan.gap}
    return entry if sample.weights is not None else {**entry, "expected_clicks": plan.worth}


def _best_users(scores: np.ndarray, slots: int, tie_order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return users and categories when every category takes its best users, as many as make the same slots in all."""
    has_score = scores > -np.inf
    taken = share_slots(has_score.sum(axis=0), slots, tie_order)
    order = np.argsort(-scores, axis=0, kind="stable")
    users = [order[: taken[code], code] for code in range(scores.shape[1])]
    return np.concatenate(users), np.repeat(np.arange(scores.shape[1]), taken)
