"""Compute the fewest and most users of every category: its floor and its cap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ammrank_dask.storage.errors import BadInput, suggest

FLOOR, CAP = 0.25, 4.0
"""Multiples of the click share: at this floor no category is starved as reports count it. The cap is the usual one."""


@dataclass(frozen=True)
class ExposureBounds:
    """The fewest (`floor`) and the most users (`cap`) of every category, (L,) int64; `slots` are assigned in all."""

    floor: np.ndarray
    cap: np.ndarray
    slots: int

    def n_outside(self, n_users: np.ndarray) -> int:
        """Return by how many users the categories are above their caps and below their floors, together.

        Examples
        --------
        >>> ExposureBounds(np.array([1, 2]), np.array([3, 3]), 6).n_outside(np.array([5, 1]))
        3
        """
        return int((np.maximum(n_users - self.cap, 0) + np.maximum(self.floor - n_users, 0)).sum())


def exposure_bounds(
    categories: Sequence[str],
    clicks: np.ndarray,
    eligible: np.ndarray,
    slots: int,
    *,
    floor: float = FLOOR,
    cap: float | None = None,
    floors: Mapping[str, float] | None = None,
    caps: Mapping[str, float] | None = None,
    explored: int = 0,
) -> ExposureBounds:
    """Return the bounds of every category, or refuse those that no assignment can keep.

    A category nobody may hold has none. Any other has a floor of one user or more.

    Parameters
    ----------
    clicks
        (L,) clicks on each category.
    eligible
        (L,) users who may hold it.
    slots
        Slots assigned in all, without those that are drawn.
    floor, cap
        Multiples of the click share: `floor` × click share × slots users at least, `cap` × that at most, and nowhere
        more than may hold the category. Without `cap` it is 4, doubled as often as it takes to have room for all slots.
    floors, caps
        By name of the category, instead: a whole number of users, or a share of all slots below 1.
    explored
        Slots that are drawn beside. Shares are of these, too, and the bounds hold for the others alone: so no category
        is starved for want of them.
    """
    clicks = np.asarray(clicks, np.float64)
    share = clicks / max(1.0, clicks.sum())
    check_bounds(categories, floor=floor, cap=cap, floors=floors, caps=caps)
    everything = slots + explored
    fewest = exposure_floors(categories, clicks, eligible, everything, floor=floor, floors=floors)
    unnamed = _floors_by_share(floor, share, eligible, everything)
    most = _caps_by_share(cap, share, unnamed, eligible, everything, floor)
    codes = {name: code for code, name in enumerate(categories)}
    for name, number in (caps or {}).items():
        most[codes[name]] = _n_users_of("caps", name, number, everything)
    for name in floors or {}:
        if name not in (caps or {}):  # a floor by name lifts a cap that was not set by name
            most[codes[name]] = max(most[codes[name]], fewest[codes[name]])
    for name in caps or {}:
        if name not in (floors or {}):
            fewest[codes[name]] = min(fewest[codes[name]], most[codes[name]])
    _refuse_impossible(categories, fewest, most, eligible, slots)
    return ExposureBounds(fewest, np.minimum(most, eligible), slots)


def exposure_floors(
    categories: Sequence[str],
    clicks: np.ndarray,
    eligible: np.ndarray,
    slots: int,
    *,
    floor: float = FLOOR,
    floors: Mapping[str, float] | None = None,
) -> np.ndarray:
    """Return the fewest users of every category, (L,) int64, whether they can be met or not.

    Parameters are those of `exposure_bounds`.

    Examples
    --------
    >>> exposure_floors(["a", "b", "c"], np.array([9, 1, 0]), np.array([20, 20, 0]), 20, floors={"b": 4}).tolist()
    [5, 4, 0]
    """
    clicks = np.asarray(clicks, np.float64)
    fewest = _floors_by_share(floor, clicks / max(1.0, clicks.sum()), eligible, slots)
    for name, number in (floors or {}).items():
        fewest[list(categories).index(name)] = _n_users_of("floors", name, number, slots)
    return fewest


def check_bounds(
    categories: Sequence[str],
    *,
    floor: float,
    cap: float | None,
    floors: Mapping[str, float] | None = None,
    caps: Mapping[str, float] | None = None,
) -> None:
    """Refuse what no number of users could make sense of; parameters are those of `exposure_bounds`."""
    for name, value in (("floor", floor), ("cap", cap)):
        if value is not None and not math.isfinite(value):
            raise BadInput(f"{name} must be a finite multiple of the click share, got {value}")
    if floor < 0 or (cap is not None and cap < floor):
        limit = "" if cap is None else f" and cap {cap:g}"
        raise BadInput(f"floor must be at least 0 and at most cap, got floor {floor:g}{limit}")
    for what, named in (("floors", floors), ("caps", caps)):
        for name, number in (named or {}).items():
            if name not in categories:
                meant = suggest(name, categories, show=repr, limit=5)
                raise BadInput(f"{what}: there is no ranked category {name!r}; {meant}")
            _n_users_of(what, name, number, 1)
    for name in set(floors or {}) & set(caps or {}):
        low, high = (floors or {})[name], (caps or {})[name]
        if (low < 1) == (high < 1) and low > high:
            raise BadInput(_crossed(name, low, high))


def _caps_by_share(
    cap: float | None, share: np.ndarray, fewest: np.ndarray, eligible: np.ndarray, slots: int, floor: float
) -> np.ndarray:
    """Return the users at which each category has `cap` times its click share, (L,) int64."""
    multiple = max(CAP, floor) if cap is None else cap
    while True:
        most = np.clip(np.floor(multiple * share * slots + 1e-9).astype(np.int64), fewest, eligible)
        if cap is not None or most.sum() >= slots or (most[share > 0] == eligible[share > 0]).all():
            break
        multiple *= 2
    # What nobody clicked has no share to multiply: it fills what is left over.
    return eligible.copy() if cap is None and most.sum() < slots else most


def _floors_by_share(floor: float, share: np.ndarray, eligible: np.ndarray, slots: int) -> np.ndarray:
    """Return the users at which each category has `floor` times its click share, (L,) int64; one at least."""
    exact = floor * share * slots
    fewest = np.ceil(exact - 1e-9).astype(np.int64)
    fewest += fewest / max(1, slots) < floor * share  # as reports compare the shares
    fewest = np.clip(fewest, np.minimum(1, eligible), eligible)
    too_many = int(fewest.sum()) - slots
    # Floors of at most the click shares fit but for rounding up: that is given up where it adds most.
    while floor <= 1 and too_many > 0 and (fewest > 1).any():
        order = np.argsort(np.where(fewest > 1, exact - fewest, np.inf), kind="stable")
        chosen = order[: min(too_many, int((fewest > 1).sum()))]
        fewest[chosen] -= 1
        too_many -= len(chosen)
    return fewest


def _n_users_of(what: str, name: str, number: float, slots: int) -> int:
    """Return a bound that is set by name as users."""
    if not isinstance(number, int | float | np.integer | np.floating) or number < 0 or not np.isfinite(number):
        raise BadInput(f"{what}: {name!r} must be a number of users or a share of all slots below 1, got {number!r}")
    if number < 1:
        return int(np.ceil(number * slots - 1e-9) if what == "floors" else np.floor(number * slots + 1e-9))
    if number != int(number):
        raise BadInput(f"{what}: {name!r} must be a whole number of users or a share below 1, got {number!r}")
    return int(number)


def _crossed(name: str, floor: float, cap: float) -> str:
    return f"the floor of {name!r} is {floor:g} users, above its cap of {cap:g}; lower the floor or raise the cap"


def _refuse_impossible(
    categories: Sequence[str], floor: np.ndarray, cap: np.ndarray, eligible: np.ndarray, slots: int
) -> None:
    """Refuse bounds that no assignment can keep, with the numbers."""
    for code in np.flatnonzero(floor > eligible)[:1]:
        raise BadInput(
            f"the floor of {categories[code]!r} is {floor[code]} users and only {eligible[code]} may hold it; lower it"
        )
    for code in np.flatnonzero(floor > cap)[:1]:
        raise BadInput(_crossed(categories[code], floor[code], cap[code]))
    if floor.sum() > slots:
        raise BadInput(
            f"the floors sum to {floor.sum()} users and there are {slots} slots for all; lower floor or raise k"
        )
    most = np.minimum(cap, eligible).sum()
    if most < slots:
        raise BadInput(f"the caps sum to {most} users and there are {slots} slots to fill; raise cap or lower k")
