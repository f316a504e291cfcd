"""Share the categories out: every user holds k, every category stays between floor and cap, at the most clicks.

Prices come first: on a sample of users, then by a few passes over all of them that send sums only. What users would
hold at the prices misses floors and caps by few users; those who lose least by a swap are gathered, and the cheapest
swaps mend the rest exactly. The duality gap bounds what any other assignment could gain.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.kernels.balanced import COST_BINS
from ammrank_dask.monitor.events import LivePrices
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.scoring.chance_table import ChanceTable
from ammrank_dask.scoring.exposure_bounds import ExposureBounds
from ammrank_dask.scoring.prices import (
    TEMPERATURES,
    PriceSearch,
    SmoothSums,
    descend,
    earnings,
    find_prices,
    slots_of,
    sum_block,
)
from ammrank_dask.scoring.swaps import (
    Movable,
    PricedCounts,
    Repaired,
    assign_block,
    count_block,
    join_movable,
    last_bins,
    list_block,
    swap_cheapest,
)
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.store.scratch_arrays import load_array, save_arrays

logger = logging.getLogger(__name__)

STAGE = "balance"
_TASKS = 32
_HESSIAN_BYTES = 256 * 1024 * 1024
_PASS_TOLERANCE, _MAX_PASSES = 1e-6, 6
_SMALL_GAP = 1e-7
"""A duality gap that needs no pass for a tighter bound: a ten-thousandth of what a night may have."""
_ROUGH, _ROUGH_USERS = 4, 4000
"""One of so many users finds the prices of all temperatures but the last, in samples of so many users or more."""
_LISTED_USERS = 64
_WIDER = (1, 8, 64, None)
"""How many times as many users are gathered when some could not be moved; None for all there are."""


@dataclass(frozen=True)
class BalancedPlan:
    """What users hold: the k best of chance − price, but for the swaps kept beside the table under `swaps`.

    `value` is the sum of chances, `bound` what no assignment exceeds (at `bound_prices`).
    """

    table: ChanceTable
    bounds: ExposureBounds
    k: int
    prices: np.ndarray
    swaps: str
    value: float
    bound: float
    bound_prices: np.ndarray
    n_users: np.ndarray
    n_swaps: int
    n_passes: int

    @property
    def gap(self) -> float:
        """The duality gap as a share of the value."""
        return (self.bound - self.value) / max(self.value, 1e-300)

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps."""
        return {
            "expected_clicks": self.value,
            "bound": self.bound,
            "gap": self.gap,
            "prices": self.bound_prices.tolist(),
            "floor": self.bounds.floor.tolist(),
            "cap": self.bounds.cap.tolist(),
            "swaps": self.n_swaps,
            "passes": self.n_passes,
        }


def balance(
    client: Client,
    table: ChanceTable,
    bounds: ExposureBounds,
    k: int,
    tie_order: np.ndarray,
    *,
    start: np.ndarray | None = None,
    live: LivePrices | None = None,
    progress: Progress = silent,
) -> BalancedPlan:
    """Return the assignment of the largest sum of chances between floors and caps.

    Parameters
    ----------
    table
        The chances of all users.
    k
        Categories a user holds, or all they may if those are fewer; less where the table keeps numbers of their own.
    tie_order
        (L,) category codes, the one to prefer among equal values of a user first.
    start
        (L,) prices to start from, as those of the night before.
    live
        Told of prices and of the duality gap as they are found.
    """
    passes = _Passes(client, table, k, np.asarray(tie_order, np.int32), len(bounds.floor), progress)
    search, temperature = run_tasks(client, STAGE, price_sample, [(table, bounds, k, start)], progress=progress)[0]
    if live is not None:
        live.show(search.prices, None, passes.n_passes)
    search = descend(
        passes.smooth, bounds.floor, bounds.cap, search, temperature, max_steps=_MAX_PASSES, tolerance=_PASS_TOLERANCE
    )
    counted = passes.count(search.prices)
    if live is not None:
        bound = counted.value + earnings(search.prices, bounds.floor, bounds.cap)
        live.show(search.prices, (bound - counted.chance) / max(counted.chance, 1e-300), passes.n_passes)
    if not is_possible(counted, bounds, search.prices):
        raise BadInput(_impossible(bounds.n_outside(counted.n_users)))
    for wider in _WIDER:
        repaired = repair(passes, counted, bounds, search.prices, wider)
        if repaired is not None:
            break
    else:
        raise BadInput(_impossible(bounds.n_outside(counted.n_users)))
    swaps = digest_of([search.prices.tolist(), bounds.floor.tolist(), bounds.cap.tolist()])
    for partition in range(table.n_partitions):
        save_arrays(_swaps_folder(table, swaps, partition), repaired.swaps_of(partition), {})
    value = counted.chance + repaired.gained
    bound, bound_prices = counted.value + earnings(search.prices, bounds.floor, bounds.cap), search.prices
    if bound - value > _SMALL_GAP * value:  # the prices after the swaps may bound it more tightly
        after = passes.count(repaired.prices, margins=False).value + earnings(repaired.prices, bounds.floor, bounds.cap)
        if after < bound:
            bound, bound_prices = after, repaired.prices
    plan = BalancedPlan(
        table, bounds, k, search.prices, swaps, value, bound, bound_prices, repaired.n_users, repaired.n_swaps,
        passes.n_passes,
    )  # fmt: skip
    if live is not None:
        live.show(plan.bound_prices, plan.gap, plan.n_passes)
    logger.info("balanced %d slots, %d swaps, duality gap %.2g", bounds.slots, plan.n_swaps, plan.gap)
    return plan


def _impossible(n_outside: int) -> str:
    return (
        f"floors and caps must leave every user something to hold, found none: {n_outside} users stay outside of them "
        "whatever is swapped; lower floor, raise cap or exclude fewer categories"
    )


def price_sample(
    table: ChanceTable, bounds: ExposureBounds, k: int, start: np.ndarray | None
) -> tuple[PriceSearch, float]:
    """Return prices found on the sample of users, and the last temperature."""
    chances = table.sample()
    wanted = slots_of(table.sample_slots(k), len(chances))
    best = -np.partition(-chances, min(k, chances.shape[1]) - 1, axis=1)[:, :k] if len(chances) else chances
    scale = float(best[best > 0].mean()) if (best > 0).any() else 1.0
    temperatures = [scale * step for step in (TEMPERATURES if start is None else TEMPERATURES[-1:])]
    if not (np.minimum((chances >= 0).sum(axis=1), wanted) > 0).any():
        return PriceSearch(np.zeros(len(bounds.floor)), temperatures[-1]), temperatures[-1]
    if start is None and len(chances) >= _ROUGH_USERS:
        few, slots = chances[::_ROUGH].copy(), wanted[::_ROUGH].copy()
        start = price_users(few, slots, bounds, temperatures[:-1], None).prices
        temperatures = temperatures[-1:]
    search = price_users(chances, wanted, bounds, temperatures, start)
    return PriceSearch(search.prices, max(search.reach, 10 * temperatures[-1])), temperatures[-1]


def price_users(
    chances: np.ndarray,
    wanted: np.ndarray,
    bounds: ExposureBounds,
    temperatures: Sequence[float],
    start: np.ndarray | None,
) -> PriceSearch:
    """Return prices found on some users, who hold their share of floors and caps; `wanted` (n,) are their slots."""
    allowed = chances >= 0
    share = int(np.minimum(allowed.sum(axis=1), wanted).sum()) / max(1, bounds.slots)
    # No sample has more of a category than there are users who may hold it.
    most = np.minimum(bounds.cap * share, allowed.sum(axis=0))
    fewest = np.minimum(bounds.floor * share, most)
    return find_prices(chances, fewest, most, wanted, temperatures=temperatures, start=start)


def is_possible(counted: PricedCounts, bounds: ExposureBounds, prices: np.ndarray) -> bool:
    """Return whether the dual leaves room for an assignment: chances are not negative, so neither is their sum."""
    return counted.value + earnings(prices, bounds.floor, bounds.cap) >= -1e-6


def repair(
    passes: _Passes, counted: PricedCounts, bounds: ExposureBounds, prices: np.ndarray, wider: int | None
) -> Repaired | None:
    """Gather the users nearest to a swap, `wider` times the usual number, and make the cheapest swaps."""
    outside = np.maximum(counted.n_users - bounds.cap, 0) + np.maximum(bounds.floor - counted.n_users, 0)
    wanted = _LISTED_USERS + 4 * outside + int(outside.sum()) // len(outside)
    last_leave, last_enter = (
        np.full(len(outside), COST_BINS - 1) if wider is None else last_bins(counts, wider * wanted)
        for counts in (counted.leave, counted.enter)
    )
    return swap_cheapest(passes.list_movable(prices, last_leave, last_enter), counted, bounds, prices)


class _Passes:
    """Passes over all users: the tasks go over fixed groups of partitions, and results are added in their order."""

    def __init__(
        self, client: Client, table: ChanceTable, k: int, tie_order: np.ndarray, n_categories: int, progress: Progress
    ) -> None:
        self.client, self.table, self.k, self.tie_order, self.progress = client, table, k, tie_order, progress
        self.n_passes = 0
        n_tasks = max(1, min(_TASKS, table.n_partitions, _HESSIAN_BYTES // (8 * n_categories**2)))
        self.groups = [part.tolist() for part in np.array_split(np.arange(table.n_partitions), n_tasks)]

    def _run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        self.n_passes += 1
        tasks = [(self.table, group, *arguments) for group in self.groups]
        return run_tasks(self.client, STAGE, function, tasks, progress=self.progress)

    def smooth(self, prices: np.ndarray, temperature: float) -> SmoothSums:
        """Return the smoothed sums of all users."""
        return _add(self._run(smooth_group, prices, self.k, temperature))

    def count(self, prices: np.ndarray, margins: bool = True) -> PricedCounts:
        """Count what all users hold at the prices."""
        return _add(self._run(count_priced_group, prices, self.k, self.tie_order, margins))

    def list_movable(self, prices: np.ndarray, last_leave: np.ndarray, last_enter: np.ndarray) -> Movable:
        """Return the users who could swap, by id."""
        lists = self._run(list_group, prices, self.k, self.tie_order, last_leave, last_enter)
        return join_movable([part for group in lists for part in group])


def _add(results: Sequence[Any]) -> Any:
    return sum(results[1:], start=results[0])


def smooth_group(
    table: ChanceTable, partitions: Sequence[int], prices: np.ndarray, k: int, temperature: float
) -> SmoothSums:
    """Return the smoothed sums of some partitions."""
    total: SmoothSums = _add(
        [
            sum_block(table.chances(partition), prices, table.slots(partition, k), temperature)
            for partition in partitions
        ]
    )
    return total


def count_priced_group(
    table: ChanceTable, partitions: Sequence[int], prices: np.ndarray, k: int, tie_order: np.ndarray, margins: bool
) -> PricedCounts:
    """Count what the users of some partitions hold at the prices."""
    total: PricedCounts = _add(
        [
            count_block(table.chances(partition), prices, table.slots(partition, k), tie_order, margins)
            for partition in partitions
        ]
    )
    return total


def list_group(
    table: ChanceTable,
    partitions: Sequence[int],
    prices: np.ndarray,
    k: int,
    tie_order: np.ndarray,
    last_leave: np.ndarray,
    last_enter: np.ndarray,
) -> list[Movable]:
    """Return the users of some partitions who could swap."""
    return [
        list_block(
            table.chances(partition),
            table.user_ids(partition),
            prices,
            table.slots(partition, k),
            tie_order,
            last_leave,
            last_enter,
            partition,
        )
        for partition in partitions
    ]


def _swaps_folder(table: ChanceTable, swaps: str, partition: int) -> Path:
    return table.folder / f"swaps-{swaps}-{partition:05d}"


def assign_partition(plan: BalancedPlan, partition: int, tie_order: np.ndarray) -> np.ndarray:
    """Return the codes (n, k) that the users of a partition hold, in no order; -1 where they may hold fewer."""
    folder = _swaps_folder(plan.table, plan.swaps, partition)
    chances = plan.table.chances(partition)
    slots = plan.table.slots(partition, plan.k)
    codes, _, _, _ = assign_block(chances, plan.prices, slots, np.asarray(tie_order, np.int32))
    row, code, takes = (load_array(folder, name) for name in ("row", "code", "takes"))
    # Both lists are by row, and every user takes as many as they give up.
    give, take = np.flatnonzero(~takes), np.flatnonzero(takes)
    give, take = give[np.argsort(row[give], kind="stable")], take[np.argsort(row[take], kind="stable")]
    position = (codes[row[give]] == code[give][:, None]).argmax(axis=1)
    codes[row[give], position] = code[take]
    return codes
