"""Compute the fewest and most users of every category: its floor and its cap."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ammrank_dask.storage.errors import BadInput, suggest

FLOOR, CAP = 0.25, 4.0
"""Multiples of the click share: at this floor no category is starved as reports count it. The cap is the usual one."""


@dataclass(frozen=True)
class NamedFloor:
    """A floor that is set by name: a number of users, or a share of all slots below 1, or expected clicks.

    It holds on the days from `first` to `last`; None for no limit.
    """

    number: float
    in_clicks: bool = False
    first: dt.date | None = None
    last: dt.date | None = None

    def holds_on(self, date: dt.date) -> bool:
        """Return whether the floor holds on a day."""
        return (self.first is None or self.first <= date) and (self.last is None or date <= self.last)

    @property
    def given(self) -> float | str:
        """The floor without its days, as settings have it."""
        return f"{self.number:g} clicks" if self.in_clicks else self.number


_FLOOR_TEXT = re.compile(
    r"(?P<number>[0-9][0-9_]*(\.[0-9]+)?) (?P<unit>users|clicks)( from (?P<first>\S+))?( to (?P<last>\S+))?"
)


def parse_floor(name: str, given: float | str) -> NamedFloor:
    """Return a floor of a category by name.

    Examples
    --------
    >>> parse_floor("Hats", "1000 clicks from 2026-01-01 to 2026-01-31").in_clicks
    True
    >>> parse_floor("Hats", 0.25)
    NamedFloor(number=0.25, in_clicks=False, first=None, last=None)
    """
    if not isinstance(given, str):
        _n_users_of("floors", name, given, 1)
        return NamedFloor(float(given))
    found = _FLOOR_TEXT.fullmatch(" ".join(given.split()))
    try:
        if found is None:
            raise ValueError
        first, last = (None if found[end] is None else dt.date.fromisoformat(found[end]) for end in ("first", "last"))
    except ValueError:
        raise BadInput(
            f"floors: {name!r} must be a number of users, a share of all slots below 1, or a text like"
            f" '1000 clicks from 2026-01-01 to 2026-01-31', got {given!r}"
        ) from None
    if first is not None and last is not None and last < first:
        raise BadInput(f"floors: {name!r} must not end before it begins, got from {first} to {last}")
    number, in_clicks = float(found["number"]), found["unit"] == "clicks"
    if not in_clicks:
        return NamedFloor(_n_users_of("floors", name, number, 1) if number >= 1 else number, False, first, last)
    return NamedFloor(number, True, first, last)


@dataclass(frozen=True)
class ExposureBounds:
    """The fewest (`floor`) and the most users (`cap`) of every category, (L,) int64; `slots` are assigned in all.

    `clicks` (L,) are the fewest expected clicks, 0 for no such floor; None where no category has one. `names` are those
    of the categories, for messages.
    """

    floor: np.ndarray
    cap: np.ndarray
    slots: int
    clicks: np.ndarray | None = None
    names: tuple[str, ...] = ()

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
    floors: Mapping[str, float | str] | None = None,
    caps: Mapping[str, float] | None = None,
    explored: int = 0,
    most_clicks: np.ndarray | None = None,
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
        By name of the category, instead: a whole number of users, or a share of all slots below 1; a floor may also be
        a number of expected clicks, `1000 clicks`.
    most_clicks
        (L,) the clicks that are expected if all who may hold a category do; None where that is not known yet.
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
    in_clicks = np.zeros(len(categories))
    for name, given in (floors or {}).items():
        floor_of = parse_floor(name, given)
        if floor_of.in_clicks:
            in_clicks[codes[name]] = floor_of.number
            if name not in (caps or {}):
                most[codes[name]] = eligible[codes[name]]
    _refuse_impossible(categories, fewest, most, eligible, slots)
    if most_clicks is not None:
        _refuse_clicks(categories, in_clicks, most_clicks)
    return ExposureBounds(
        fewest, np.minimum(most, eligible), slots, in_clicks if in_clicks.any() else None, tuple(categories)
    )


def exposure_floors(
    categories: Sequence[str],
    clicks: np.ndarray,
    eligible: np.ndarray,
    slots: int,
    *,
    floor: float = FLOOR,
    floors: Mapping[str, float | str] | None = None,
) -> np.ndarray:
    """Return the fewest users of every category, (L,) int64, whether they can be met or not.

    A category whose floor is in clicks has one user.

    Parameters are those of `exposure_bounds`.

    Examples
    --------
    >>> exposure_floors(["a", "b", "c"], np.array([9, 1, 0]), np.array([20, 20, 0]), 20, floors={"b": 4}).tolist()
    [5, 4, 0]
    """
    clicks = np.asarray(clicks, np.float64)
    fewest = _floors_by_share(floor, clicks / max(1.0, clicks.sum()), eligible, slots)
    for name, given in (floors or {}).items():
        code, named = list(categories).index(name), parse_floor(name, given)
        fewest[code] = min(1, eligible[code]) if named.in_clicks else _n_users_of("floors", name, named.number, slots)
    return fewest


def check_bounds(
    categories: Sequence[str],
    *,
    floor: float,
    cap: float | None,
    floors: Mapping[str, float | str] | None = None,
    caps: Mapping[str, float] | None = None,
) -> None:
    """Refuse what no number of users could make sense of; parameters are those of `exposure_bounds`."""
    for name, value in (("floor", floor), ("cap", cap)):
        if value is not None and not math.isfinite(value):
            raise BadInput(f"{name} must be a finite multiple of the click share, got {value}")
    if floor < 0 or (cap is not None and cap < floor):
        limit = "" if cap is None else f" and cap {cap:g}"
        raise BadInput(f"floor must be at least 0 and at most cap, got floor {floor:g}{limit}")
    by_name: tuple[tuple[str, Mapping[str, float | str]], ...] = (("floors", floors or {}), ("caps", caps or {}))
    for what, given in by_name:
        for name, number in given.items():
            if name not in categories:
                meant = suggest(name, categories, show=repr, limit=5)
                raise BadInput(f"{what}: there is no ranked category {name!r}; {meant}")
            if what == "floors":
                parse_floor(name, number)
            else:
                _n_users_of(what, name, number, 1)
    for name in set(floors or {}) & set(caps or {}):
        named, high = parse_floor(name, (floors or {})[name]), (caps or {})[name]
        low = named.number
        if not named.in_clicks and (low < 1) == (high < 1) and low > high:
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


def _n_users_of(what: str, name: str, number: float | str, slots: int) -> int:
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
            f"the floor of {categories[code]!r} is {floor[code]} users and only {eligible[code]} may hold it,"
            f" {floor[code] - eligible[code]} too few; lower it to {eligible[code]}"
        )
    for code in np.flatnonzero(floor > cap)[:1]:
        raise BadInput(_crossed(categories[code], floor[code], cap[code]))
    if floor.sum() > slots:
        raise BadInput(
            f"the floors sum to {floor.sum()} users and there are {slots} slots for all; lower floor or raise k,"
            f" so that they sum to {floor.sum() - slots} less"
        )
    most = np.minimum(cap, eligible).sum()
    if most < slots:
        raise BadInput(f"the caps sum to {most} users and there are {slots} slots to fill; raise cap or lower k")


def _refuse_clicks(categories: Sequence[str], floor: np.ndarray, most: np.ndarray) -> None:
    """Refuse floors in clicks above what is expected if everybody who may holds the category."""
    for code in np.flatnonzero(floor > most * (1 + 1e-9))[:1]:
        raise BadInput(
            f"the floor of {categories[code]!r} is {floor[code]:g} clicks and {most[code]:.1f} are expected if all who"
            f" may hold it do, {floor[code] - most[code]:.1f} too few; lower it to {math.floor(most[code])} clicks"
        )


def refuse_click_floors(bounds: ExposureBounds, clicks: np.ndarray) -> BadInput:
    """Return what is said of floors in clicks that stand against each other; `clicks` (L,) is what could be had."""
    assert bounds.clicks is not None
    missed = bounds.clicks - clicks
    code = int(np.argmax(missed))
    name = repr(bounds.names[code]) if bounds.names else f"category {code}"
    return BadInput(
        f"the floors in clicks cannot all be met: beside the others {name} misses {missed[code]:.1f} of"
        f" {bounds.clicks[code]:g} clicks; lower it to {max(0, math.floor(clicks[code]))}, lower others or raise k"
    )
