"""Find what users have at prices and the cost of possible swaps, and make the cheapest ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ammrank_dask.kernels.balanced import COST_BINS, assign_priced, count_margins, list_movable
from ammrank_dask.kernels.repair import repair_counts
from ammrank_dask.scoring.exposure_bounds import ExposureBounds
from ammrank_dask.scoring.prices import slots_of
from ammrank_dask.storage.store.ids import UserIds, concat

SLACK = 1e-7
"""Share of the value that categories may lose together by standing between floor and cap in spite of a price."""


@dataclass(frozen=True)
class PricedCounts:
    """What users hold at some prices: users by category, Σ chance, Σ value, and how many are how near to a swap.

    `leave` and `enter` are (L, COST_BINS), as `count_margins` counts them.
    """

    n_users: np.ndarray
    chance: float
    value: float
    leave: np.ndarray
    enter: np.ndarray

    def __add__(self, other: PricedCounts) -> PricedCounts:
        """Return the counts of both sets of users."""
        return PricedCounts(
            self.n_users + other.n_users,
            self.chance + other.chance,
            self.value + other.value,
            self.leave + other.leave,
            self.enter + other.enter,
        )


def count_block(
    chances: np.ndarray, prices: np.ndarray, k: int | np.ndarray, tie_order: np.ndarray, margins: bool = True
) -> PricedCounts:
    """Return the counts of one block of users."""
    n_categories = chances.shape[1]
    codes, border, chance, value = assign_block(chances, prices, k, tie_order)
    leave, enter = (np.zeros((n_categories, COST_BINS), np.int64) for _ in range(2))
    if margins:
        count_margins(chances, prices, codes, border, leave, enter)
    n_users = np.bincount(codes[codes >= 0], minlength=n_categories).astype(np.int64)
    return PricedCounts(n_users, chance, value, leave, enter)


def assign_block(
    chances: np.ndarray, prices: np.ndarray, k: int | np.ndarray, tie_order: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Return codes (n, k), borders (n, 2), Σ chance and Σ value, as `assign_priced` writes them.

    `k` is a number for all, or one for each user (n,): then there are as many codes as for the largest, -1 after the
    last of a user.
    """
    slots = slots_of(k, len(chances))
    codes, border = np.empty((len(chances), int(slots.max(initial=1))), np.int32), np.empty((len(chances), 2))
    chance, value = assign_priced(chances, prices, slots, tie_order, codes, border)
    return codes, border, chance, value


@dataclass(frozen=True)
class Movable:
    """Users who could swap: what they could give up or take, from `indptr[u]` to `indptr[u + 1]`.

    `partition` and `row` say where each user stands, `holds` which of the categories in `codes` they hold.
    """

    user_ids: UserIds
    partition: np.ndarray
    row: np.ndarray
    indptr: np.ndarray
    codes: np.ndarray
    chance: np.ndarray
    holds: np.ndarray


def list_block(
    chances: np.ndarray,
    user_ids: UserIds,
    prices: np.ndarray,
    k: int | np.ndarray,
    tie_order: np.ndarray,
    last_leave: np.ndarray,
    last_enter: np.ndarray,
    partition: int = 0,
) -> Movable:
    """Return the users of a block for whom leaving or entering a category costs no more than its last bin."""
    codes, border, _, _ = assign_block(chances, prices, k, tie_order)
    indptr = np.empty(len(chances) + 1, np.int64)
    listed, holds = np.empty(0, np.int32), np.empty(0, bool)
    list_movable(chances, prices, codes, border, last_leave, last_enter, indptr, listed, holds)
    if indptr[-1]:
        listed, holds = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], bool)
        list_movable(chances, prices, codes, border, last_leave, last_enter, indptr, listed, holds)
    rows = np.flatnonzero(np.diff(indptr))
    chance = chances[np.repeat(np.arange(len(chances)), np.diff(indptr)), listed]
    return Movable(
        user_ids.take(rows), np.full(len(rows), partition), rows, np.append(indptr[rows], indptr[-1]), listed,
        chance, holds,
    )  # fmt: skip


def join_movable(parts: Sequence[Movable]) -> Movable:
    """Return the users of all parts by id."""
    user_ids = concat([part.user_ids for part in parts])
    order = np.argsort(user_ids.sort_unique().positions_of(user_ids))
    length = np.concatenate([np.diff(part.indptr) for part in parts])
    begin = np.concatenate([[0], np.cumsum(length)])
    indptr = np.concatenate([[0], np.cumsum(length[order])])
    items = np.repeat(begin[:-1][order] - indptr[:-1], length[order]) + np.arange(indptr[-1])

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    return Movable(
        user_ids.take(order), joined("partition")[order], joined("row")[order], indptr, joined("codes")[items],
        joined("chance")[items], joined("holds")[items],
    )  # fmt: skip


@dataclass(frozen=True)
class Repaired:
    """An assignment after swaps: users by category, chances gained, and the prices that fit it.

    Swap i is in `partition[i]`: user `row[i]` holds `code[i]` if `takes[i]`, and no longer does if not.
    """

    n_users: np.ndarray
    gained: float
    prices: np.ndarray
    partition: np.ndarray
    row: np.ndarray
    code: np.ndarray
    takes: np.ndarray

    @property
    def n_swaps(self) -> int:
        """How many categories were swapped."""
        return int(self.takes.sum())

    def swaps_of(self, partition: int) -> dict[str, np.ndarray]:
        """Return the swaps of one partition."""
        chosen = self.partition == partition
        return {"row": self.row[chosen], "code": self.code[chosen], "takes": self.takes[chosen]}


def swap_cheapest(
    movable: Movable, counted: PricedCounts, bounds: ExposureBounds, prices: np.ndarray
) -> Repaired | None:
    """Return the cheapest swaps after which every floor and cap is kept, None if these users cannot do it."""
    n_users, new_prices, holds = counted.n_users.copy(), prices.copy(), movable.holds.copy()
    chance = movable.chance.astype(np.float64)
    slack = SLACK * counted.chance / len(prices)
    left = repair_counts(
        movable.indptr, movable.codes, chance, holds, n_users, bounds.floor, bounds.cap, slack, new_prices
    )
    if left or bounds.n_outside(n_users):
        return None
    changed = np.flatnonzero(holds != movable.holds)
    owner = np.repeat(np.arange(len(movable.row)), np.diff(movable.indptr))[changed]
    takes = holds[changed]
    gained = float(np.where(takes, chance[changed], -chance[changed]).sum())
    return Repaired(
        n_users, gained, new_prices, movable.partition[owner], movable.row[owner], movable.codes[changed], takes
    )


def last_bins(counts: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return for each row of counts the bin in which their sum from the first reaches what is wanted, or the last one.

    Examples
    --------
    >>> last_bins(np.array([[1, 2, 5], [0, 0, 1]]), np.array([3, 2]))
    array([1, 2])
    """
    return np.minimum((np.cumsum(counts, axis=1) < wanted[:, None]).sum(axis=1), counts.shape[1] - 1)
