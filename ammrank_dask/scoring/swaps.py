"""Find what users have at prices and the cost of possible swaps, and make the cheapest ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ammrank_dask.kernels.balanced import COST_BINS, Offers, assign_priced, count_margins, list_movable
from ammrank_dask.kernels.repair import repair_counts
from ammrank_dask.scoring.exposure_bounds import ExposureBounds
from ammrank_dask.scoring.prices import offers_of, slots_of
from ammrank_dask.storage.store.ids import UserIds, concat

SLACK = 1e-7
"""Share of the worth that categories may lose together by standing between floor and cap in spite of a price."""


@dataclass(frozen=True)
class PricedCounts:
    """What users hold at some prices: users by category, Σ worth, Σ gain, and how many are how near to a swap.

    `leave` and `enter` are (L, COST_BINS), as `count_margins` counts them. `clicks` (L,) are the chances of what is
    held.
    """

    n_users: np.ndarray
    worth: float
    gain: float
    leave: np.ndarray
    enter: np.ndarray
    clicks: np.ndarray

    def __add__(self, other: PricedCounts) -> PricedCounts:
        """Return the counts of both sets of users."""
        return PricedCounts(
            self.n_users + other.n_users,
            self.worth + other.worth,
            self.gain + other.gain,
            self.leave + other.leave,
            self.enter + other.enter,
            self.clicks + other.clicks,
        )


def count_block(
    chances: np.ndarray | Offers, prices: np.ndarray, k: int | np.ndarray, tie_order: np.ndarray, margins: bool = True
) -> PricedCounts:
    """Return the counts of one block of users."""
    offers = offers_of(chances)
    n_categories = offers.chances.shape[1]
    codes, border, worth, gain, clicks = _assign(offers, prices, k, tie_order)
    leave, enter = (np.zeros((n_categories, COST_BINS), np.int64) for _ in range(2))
    if margins:
        count_margins(offers, prices, codes, border, leave, enter)
    n_users = np.bincount(codes[codes >= 0], minlength=n_categories).astype(np.int64)
    return PricedCounts(n_users, worth, gain, leave, enter, clicks)


def assign_block(
    chances: np.ndarray | Offers, prices: np.ndarray, k: int | np.ndarray, tie_order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (n, k) and borders (n, 2), as `assign_priced` writes them.

    `k` is a number for all, or one for each user (n,): then there are as many codes as for the largest, -1 after the
    last of a user.
    """
    return _assign(offers_of(chances), prices, k, tie_order)[:2]


def _assign(
    offers: Offers, prices: np.ndarray, k: int | np.ndarray, tie_order: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float, float, np.ndarray]:
    """Return codes and borders, Σ worth, Σ gain, and Σ chance by category (L,)."""
    n_users, n_categories = offers.chances.shape
    slots, clicks = slots_of(k, n_users), np.zeros(n_categories)
    codes, border = np.empty((n_users, int(slots.max(initial=1))), np.int32), np.empty((n_users, 2))
    worth, gain = assign_priced(offers, prices, slots, tie_order, codes, border, clicks)
    return codes, border, worth, gain, clicks


@dataclass(frozen=True)
class Movable:
    """Users who could swap: what they could give up or take, from `indptr[u]` to `indptr[u + 1]`.

    `partition` and `row` say where each user stands, `holds` which of the categories in `codes` they hold; `worth`
    and `chance` are those of the categories.
    """

    user_ids: UserIds
    partition: np.ndarray
    row: np.ndarray
    indptr: np.ndarray
    codes: np.ndarray
    worth: np.ndarray
    chance: np.ndarray
    holds: np.ndarray


def list_block(
    chances: np.ndarray | Offers,
    user_ids: UserIds,
    prices: np.ndarray,
    k: int | np.ndarray,
    tie_order: np.ndarray,
    last_leave: np.ndarray,
    last_enter: np.ndarray,
    partition: int = 0,
) -> Movable:
    """Return the users of a block for whom leaving or entering a category costs no more than its last bin."""
    offers = offers_of(chances)
    codes, border = assign_block(offers, prices, k, tie_order)
    indptr = np.empty(len(codes) + 1, np.int64)
    listed, holds = np.empty(0, np.int32), np.empty(0, bool)
    list_movable(offers, prices, codes, border, last_leave, last_enter, indptr, listed, holds)
    if indptr[-1]:
        listed, holds = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], bool)
        list_movable(offers, prices, codes, border, last_leave, last_enter, indptr, listed, holds)
    rows = np.flatnonzero(np.diff(indptr))
    owner = np.repeat(np.arange(len(codes)), np.diff(indptr))
    chance = offers.chances[owner, listed].astype(np.float64)
    return Movable(
        user_ids.take(rows), np.full(len(rows), partition), rows, np.append(indptr[rows], indptr[-1]), listed,
        chance * offers.weights[offers.group[owner], listed], chance, holds,
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
        joined("worth")[items], joined("chance")[items], joined("holds")[items],
    )  # fmt: skip


@dataclass(frozen=True)
class Repaired:
    """An assignment after swaps: users by category, worth and clicks (L,) gained, and the prices that fit it.

    Swap i is in `partition[i]`: user `row[i]` holds `code[i]` if `takes[i]`, and no longer does if not.
    """

    n_users: np.ndarray
    gained: float
    clicks: np.ndarray
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
    slack = SLACK * counted.worth / len(prices)
    left = repair_counts(
        movable.indptr, movable.codes, movable.worth, holds, n_users, bounds.floor, bounds.cap, slack, new_prices
    )
    if left or bounds.n_outside(n_users):
        return None
    changed = np.flatnonzero(holds != movable.holds)
    owner = np.repeat(np.arange(len(movable.row)), np.diff(movable.indptr))[changed]
    takes = holds[changed]
    sign = np.where(takes, 1.0, -1.0)
    gained = float((sign * movable.worth[changed]).sum())
    clicks = np.bincount(movable.codes[changed], sign * movable.chance[changed], len(prices))
    return Repaired(
        n_users, gained, clicks, new_prices, movable.partition[owner], movable.row[owner], movable.codes[changed], takes
    )


def last_bins(counts: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return for each row of counts the bin in which their sum from the first reaches what is wanted, or the last one.

    Examples
    --------
    >>> last_bins(np.array([[1, 2, 5], [0, 0, 1]]), np.array([3, 2]))
    array([1, 2])
    """
    return np.minimum((np.cumsum(counts, axis=1) < wanted[:, None]).sum(axis=1), counts.shape[1] - 1)
