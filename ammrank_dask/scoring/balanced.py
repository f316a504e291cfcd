"""Share the categories out: every user holds k, every category stays between floor and cap, at the most worth.

A category is worth the chance of a click times its weight: 1 where clicks count, the value of a click where money does.

Prices come first: on a sample of users, then by a few passes over all of them that send sums only. What users would
hold at the prices misses floors and caps by few users; those who lose least by a swap are gathered, and the cheapest
swaps mend the rest exactly. The duality gap bounds what any other assignment could gain.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.kernels.balanced import COST_BINS, Offers
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.scoring.chance_table import ChanceTable
from ammrank_dask.scoring.exposure_bounds import ExposureBounds, refuse_click_floors
from ammrank_dask.scoring.prices import (
    TEMPERATURES,
    PriceSearch,
    SmoothSums,
    descend,
    earnings,
    find_prices,
    slots_of,
    sum_block,
    worth_of,
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
_BOOST_STEPS, _FIRST_BOOST, _LAST_BOOST = 24, 0.25, 1e4
_CLICK_STEPS, _CLICK_REPAIRS = 4, 30
_CLICK_TOLERANCE = 1e-3
"""By what part floors in clicks may be missed before swaps mend them."""
_LISTED_USERS = 64
_WIDER = (1, 8, 64, None)
"""How many times as many users are gathered when some could not be moved; None for all there are."""


@dataclass(frozen=True)
class BalancedPlan:
    """What users hold: the k best of worth − price, but for the swaps kept beside the table under `swaps`.

    `worth` is the sum of chances times `weights` (groups, L), `bound` what no assignment exceeds (at `bound_prices`);
    `unit` is what a worth of 1 is, in money, None where clicks count. `boosts` (L,) are the shadow prices of floors in
    clicks, what one more click would cost, and in the weights already; `clicks` (L,) what is expected of each category.
    """

    table: ChanceTable
    bounds: ExposureBounds
    k: int
    prices: np.ndarray
    swaps: str
    worth: float
    bound: float
    bound_prices: np.ndarray
    n_users: np.ndarray
    n_swaps: int
    n_passes: int
    weights: np.ndarray | None = None
    unit: float | None = None
    boosts: np.ndarray | None = None
    clicks: np.ndarray | None = None

    @property
    def gap(self) -> float:
        """The duality gap as a share of the worth."""
        return (self.bound - self.worth) / max(self.worth, 1e-300)

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps."""
        unit = 1.0 if self.unit is None else self.unit
        return {
            "expected_clicks" if self.unit is None else "expected_value": unit * self.worth,
            "bound": unit * self.bound,
            "gap": self.gap,
            "prices": (unit * self.bound_prices).tolist(),
            "floor": self.bounds.floor.tolist(),
            "cap": self.bounds.cap.tolist(),
            "swaps": self.n_swaps,
            "passes": self.n_passes,
            **self._clicks_to_json(unit),
        }

    def _clicks_to_json(self, unit: float) -> dict[str, Any]:
        if self.bounds.clicks is None or self.boosts is None or self.clicks is None:
            return {}
        return {
            "click_floor": self.bounds.clicks.tolist(),
            "click_prices": (-unit * self.boosts).tolist(),
            "clicks": self.clicks.tolist(),
        }


def balance(
    client: Client | None,
    table: ChanceTable,
    bounds: ExposureBounds,
    k: int,
    tie_order: np.ndarray,
    *,
    weights: np.ndarray | None = None,
    unit: float | None = None,
    start: np.ndarray | None = None,
    progress: Progress = silent,
) -> BalancedPlan:
    """Return the assignment of the largest worth between floors and caps.

    Parameters
    ----------
    client
        The cluster; None to do all of it here.
    table
        The chances of all users.
    k
        Categories a user holds, or all they may if those are fewer; less where the table keeps numbers of their own.
    tie_order
        (L,) category codes, the one to prefer among equal values of a user first.
    weights
        (groups, L) by which chances are worth something, by the groups that the table keeps, or one row for all; None
        for 1. The largest should be about 1.
    unit
        What a worth of 1 is, in money: prices are told in it. None where clicks count.
    start
        (L,) prices to start from, as those of the night before, in that unit.
    """
    passes = _Passes(client, table, k, np.asarray(tie_order, np.int32), len(bounds.floor), progress, weights)
    start = start if start is None or unit is None else start / unit
    sampled = run_tasks(client, STAGE, price_sample, [(table, bounds, k, start, weights)], progress=progress)
    search, temperature, boosts, slope = sampled[0]
    passes.weights = add_boosts(weights, boosts)
    search = descend(
        passes.smooth, bounds.floor, bounds.cap, search, temperature, max_steps=_MAX_PASSES, tolerance=_PASS_TOLERANCE
    )
    counted = passes.count(search.prices)
    if bounds.clicks is not None:
        search, counted, boosts = _meet_clicks(passes, bounds, search, temperature, counted, boosts, slope, weights)
    if not is_possible(counted, bounds, search.prices):
        raise BadInput(_impossible(bounds.n_outside(counted.n_users)))
    repaired = _repair_all(passes, counted, bounds, search.prices)
    swaps = digest_of([search.prices.tolist(), bounds.floor.tolist(), bounds.cap.tolist()])
    for partition in range(table.n_partitions):
        save_arrays(_swaps_folder(table, swaps, partition), repaired.swaps_of(partition), {})
    clicks = counted.clicks + repaired.clicks
    worth = counted.worth + repaired.gained - float(boosts @ clicks)
    paid = 0.0 if bounds.clicks is None else float(boosts @ bounds.clicks)
    bound = counted.gain + earnings(search.prices, bounds.floor, bounds.cap) - paid
    bound_prices = search.prices
    if bound - worth > _SMALL_GAP * worth:  # the prices after the swaps may bound it more tightly
        after = passes.count(repaired.prices, margins=False).gain - paid
        after += earnings(repaired.prices, bounds.floor, bounds.cap)
        if after < bound:
            bound, bound_prices = after, repaired.prices
    plan = BalancedPlan(
        table, bounds, k, search.prices, swaps, worth, bound, bound_prices, repaired.n_users, repaired.n_swaps,
        passes.n_passes, passes.weights, unit, boosts, clicks,
    )  # fmt: skip
    logger.info("balanced %d slots, %d swaps, duality gap %.2g", bounds.slots, plan.n_swaps, plan.gap)
    return plan


def add_boosts(weights: np.ndarray | None, boosts: np.ndarray) -> np.ndarray | None:
    """Return weights (groups, L) with what floors in clicks add to them."""
    if not boosts.any():
        return weights
    return (np.ones((1, len(boosts))) if weights is None else weights) + boosts


def _meet_clicks(
    passes: _Passes,
    bounds: ExposureBounds,
    search: PriceSearch,
    temperature: float,
    counted: PricedCounts,
    boosts: np.ndarray,
    slope: np.ndarray,
    weights: np.ndarray | None,
) -> tuple[PriceSearch, PricedCounts, np.ndarray]:
    """Change the boosts of a sample so that all users nearly have their floors in clicks; swaps mend the rest.

    `slope` (L,) is how many more clicks a boost brings.
    """
    assert bounds.clicks is not None
    has_floor = bounds.clicks > 0
    for _ in range(_CLICK_STEPS):
        missed = np.where(
            has_floor & ((boosts > 0) | (counted.clicks < bounds.clicks)), bounds.clicks - counted.clicks, 0
        )
        if (np.abs(missed) <= _CLICK_TOLERANCE * bounds.clicks).all():
            break
        step = np.divide(missed, slope, out=np.zeros(len(slope)), where=slope > 0)
        boosts = np.maximum(0.0, boosts + step)
        passes.weights = add_boosts(weights, boosts)
        search = descend(
            passes.smooth, bounds.floor, bounds.cap, search, temperature, max_steps=_MAX_PASSES,
            tolerance=_PASS_TOLERANCE,
        )  # fmt: skip
        counted = passes.count(search.prices)
    return search, counted, boosts


def _repair_all(passes: _Passes, counted: PricedCounts, bounds: ExposureBounds, prices: np.ndarray) -> Repaired:
    """Return the cheapest swaps after which every floor and cap is kept, those in clicks too."""
    fewest, clicks = bounds.floor.copy(), counted.clicks
    for _ in range(_CLICK_REPAIRS):
        for wider in _WIDER:
            repaired = repair(passes, counted, replace(bounds, floor=fewest), prices, wider)
            if repaired is not None:
                break
        else:
            if (fewest > bounds.floor).any():
                break
            raise BadInput(_impossible(bounds.n_outside(counted.n_users)))
        if bounds.clicks is None:
            return repaired
        clicks = counted.clicks + repaired.clicks
        short = clicks < bounds.clicks
        if not short.any():
            return repaired
        if (short & (repaired.n_users >= bounds.cap)).any():
            break
        # As many users more as would do if each clicked as often as those who hold it.
        per_user = np.maximum(clicks, 1e-9) / np.maximum(1, repaired.n_users)
        more = np.maximum(1, np.ceil((bounds.clicks - clicks) / per_user)).astype(np.int64)
        fewest = np.where(short, np.minimum(repaired.n_users + more, bounds.cap), fewest)
    raise refuse_click_floors(bounds, clicks)


def _impossible(n_outside: int) -> str:
    return (
        f"floors and caps must leave every user something to hold, found none: {n_outside} users stay outside of them "
        "whatever is swapped; lower floor, raise cap or exclude fewer categories"
    )


def price_sample(
    table: ChanceTable, bounds: ExposureBounds, k: int, start: np.ndarray | None, weights: np.ndarray | None = None
) -> tuple[PriceSearch, float, np.ndarray, np.ndarray]:
    """Return prices found on the sample of users, the last temperature, and what `boost_users` returns beside them."""
    none = np.zeros(len(bounds.floor))
    offers = table.sample_offers(weights)
    n_users, n_categories = offers.chances.shape
    wanted = slots_of(table.sample_slots(k), n_users)
    worth = worth_of(offers)
    best = -np.partition(-worth, min(k, n_categories) - 1, axis=1)[:, :k] if n_users else worth
    scale = float(best[best > 0].mean()) if (best > 0).any() else 1.0
    temperatures = [scale * step for step in (TEMPERATURES if start is None else TEMPERATURES[-1:])]
    if not (np.minimum((offers.chances >= 0).sum(axis=1), wanted) > 0).any():
        return PriceSearch(none, temperatures[-1]), temperatures[-1], none, none
    if start is None and n_users >= _ROUGH_USERS:
        few = Offers(offers.chances[::_ROUGH].copy(), offers.weights, offers.group[::_ROUGH].copy())
        start = price_users(few, wanted[::_ROUGH].copy(), bounds, temperatures[:-1], None).prices
        temperatures = temperatures[-1:]
    search, boosts, slope = price_users(offers, wanted, bounds, temperatures, start), none, none
    if bounds.clicks is not None:
        search, boosts, slope = boost_users(offers, wanted, bounds, temperatures[-1], search.prices)
    return PriceSearch(search.prices, max(search.reach, 10 * temperatures[-1])), temperatures[-1], boosts, slope


def boost_users(
    offers: Offers, wanted: np.ndarray, bounds: ExposureBounds, temperature: float, prices: np.ndarray
) -> tuple[PriceSearch, np.ndarray, np.ndarray]:
    """Return prices and boosts at which some users have their share of floors in clicks, and clicks of all by boost.

    A floor in clicks has a shadow price by the click: it adds to what a click on the category is worth. Each is
    bracketed and halved, beside the others.
    """
    assert bounds.clicks is not None
    share = int(np.minimum((offers.chances >= 0).sum(axis=1), wanted).sum()) / max(1, bounds.slots)
    floor, n_categories = bounds.clicks, len(bounds.clicks)
    low, high, boosts = np.zeros(n_categories), np.full(n_categories, np.inf), np.zeros(n_categories)
    low_clicks, high_clicks = np.zeros(n_categories), np.zeros(n_categories)
    tie_order = np.arange(n_categories, dtype=np.int32)
    search = PriceSearch(prices, temperature)
    for _ in range(_BOOST_STEPS):
        boosted = offers._replace(weights=offers.weights + boosts)
        search = price_users(boosted, wanted, bounds, [temperature], search.prices)
        clicks = count_block(boosted, search.prices, wanted, tie_order, margins=False).clicks / share
        short = clicks < floor
        is_wanted = (floor > 0) & (short | (boosts > 0))
        low, low_clicks = np.where(is_wanted & short, boosts, low), np.where(is_wanted & short, clicks, low_clicks)
        is_high = is_wanted & ~short
        high, high_clicks = np.where(is_high, boosts, high), np.where(is_high, clicks, high_clicks)
        high = np.where(short & (boosts >= high), np.inf, high)  # the others have moved
        if (np.abs(clicks - floor)[is_wanted] <= _CLICK_TOLERANCE * floor[is_wanted]).all():
            break
        if (short & (boosts > _LAST_BOOST)).any():
            raise refuse_click_floors(bounds, clicks)
        middle = np.where(np.isinf(high), np.maximum(2 * boosts, _FIRST_BOOST), 0.5 * (low + high))
        boosts = np.where(is_wanted, middle, boosts)
    width = np.where(np.isinf(high), 0.0, high - low)
    slope = np.divide(high_clicks - low_clicks, width, out=np.zeros(n_categories), where=width > 0)
    return search, boosts, np.maximum(slope, 0.0)


def price_users(
    offers: Offers,
    wanted: np.ndarray,
    bounds: ExposureBounds,
    temperatures: Sequence[float],
    start: np.ndarray | None,
) -> PriceSearch:
    """Return prices found on some users, who hold their share of floors and caps; `wanted` (n,) are their slots."""
    allowed = offers.chances >= 0
    share = int(np.minimum(allowed.sum(axis=1), wanted).sum()) / max(1, bounds.slots)
    # No sample has more of a category than there are users who may hold it.
    most = np.minimum(bounds.cap * share, allowed.sum(axis=0))
    fewest = np.minimum(bounds.floor * share, most)
    return find_prices(offers, fewest, most, wanted, temperatures=temperatures, start=start)


def is_possible(counted: PricedCounts, bounds: ExposureBounds, prices: np.ndarray) -> bool:
    """Return whether the dual leaves room for an assignment: worths are not negative, so neither is their sum."""
    return counted.gain + earnings(prices, bounds.floor, bounds.cap) >= -1e-6


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
        self,
        client: Client | None,
        table: ChanceTable,
        k: int,
        tie_order: np.ndarray,
        n_categories: int,
        progress: Progress,
        weights: np.ndarray | None,
    ) -> None:
        self.client, self.table, self.k, self.tie_order, self.progress = client, table, k, tie_order, progress
        self.weights = weights
        self.n_passes = 0
        n_tasks = max(1, min(_TASKS, table.n_partitions, _HESSIAN_BYTES // (8 * n_categories**2)))
        self.groups = [part.tolist() for part in np.array_split(np.arange(table.n_partitions), n_tasks)]

    def _run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        self.n_passes += 1
        tasks = [(self.table, self.weights, group, *arguments) for group in self.groups]
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
    table: ChanceTable,
    weights: np.ndarray | None,
    partitions: Sequence[int],
    prices: np.ndarray,
    k: int,
    temperature: float,
) -> SmoothSums:
    """Return the smoothed sums of some partitions."""
    total: SmoothSums = _add(
        [
            sum_block(table.offers(partition, weights), prices, table.slots(partition, k), temperature)
            for partition in partitions
        ]
    )
    return total


def count_priced_group(
    table: ChanceTable,
    weights: np.ndarray | None,
    partitions: Sequence[int],
    prices: np.ndarray,
    k: int,
    tie_order: np.ndarray,
    margins: bool,
) -> PricedCounts:
    """Count what the users of some partitions hold at the prices."""
    total: PricedCounts = _add(
        [
            count_block(table.offers(partition, weights), prices, table.slots(partition, k), tie_order, margins)
            for partition in partitions
        ]
    )
    return total


def list_group(
    table: ChanceTable,
    weights: np.ndarray | None,
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
            table.offers(partition, weights),
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
    offers = plan.table.offers(partition, plan.weights)
    slots = plan.table.slots(partition, plan.k)
    codes, _ = assign_block(offers, plan.prices, slots, np.asarray(tie_order, np.int32))
    row, code, takes = (load_array(folder, name) for name in ("row", "code", "takes"))
    # Both lists are by row, and every user takes as many as they give up.
    give, take = np.flatnonzero(~takes), np.flatnonzero(takes)
    give, take = give[np.argsort(row[give], kind="stable")], take[np.argsort(row[take], kind="stable")]
    position = (codes[row[give]] == code[give][:, None]).argmax(axis=1)
    codes[row[give], position] = code[take]
    return codes
