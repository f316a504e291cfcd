"""Validate the settings that decide, beside the scores, who gets which categories."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from ammrank_dask.features.eligibility import USER_GROUPS, Eligibility, eligibility_by_name, table_of_groups
from ammrank_dask.scoring.exploration import MOST
from ammrank_dask.scoring.exposure_bounds import (
    FLOOR,
    ExposureBounds,
    check_bounds,
    exposure_bounds,
    exposure_floors,
    parse_floor,
)
from ammrank_dask.scoring.policies import POLICIES, Policy
from ammrank_dask.storage.errors import BadInput, suggest
from ammrank_dask.storage.lake.values import MOST as MOST_VALUE
from ammrank_dask.storage.numbers import finite_number, list_length, whole_number
from ammrank_dask.storage.store.manifests import QualificationsManifest

OBJECTIVES = CLICKS, MONEY = "clicks", "value"
"""What lists are made for: the most expected clicks, or the most expected value."""
_UNVALUED = 1e-6
"""The weight of a category without a value, as a share of the lowest one: such categories come last, by chance."""


@dataclass(frozen=True)
class ClickValues:
    """What a click is worth: `per_click` (groups, L) by `group_of` the user; `decides` whether lists are made by it."""

    per_click: np.ndarray
    decides: bool

    @property
    def unit(self) -> float:
        """The largest value: the money that a weight of 1 is."""
        return float(self.per_click.max())

    @property
    def weights(self) -> np.ndarray:
        """Values as shares of the largest, (groups, L); a category without a value has next to none.

        Examples
        --------
        >>> ClickValues(np.array([[4.0, 1.0, 0.0]]), True).weights.tolist()
        [[1.0, 0.25, 2.5e-07]]
        """
        share = self.per_click / self.unit
        return np.where(share > 0, share, _UNVALUED * share[share > 0].min())


@dataclass(frozen=True)
class ScoreSettings:
    """What decides who gets what, beside the scores; categories and groups of users are named.

    Parameters
    ----------
    k
        Categories per user.
    policy
        `user_top_k`: every user gets the k best; `category_top_n`: every category takes its n best users; `balanced`:
        every user gets k, every category stays between floor and cap, and the sum of chances, or of values, is the
        largest.
    also
        Policies that are counted beside the one that is written.
    n
        Users per category under `category_top_n`; None for as many as make the slots of `user_top_k`.
    min_score, min_chance
        The lowest score, and the lowest chance, that qualifies.
    exclude
        Categories that nobody gets.
    exclude_by_group
        Categories by the group of users who do not get them: age buckets (`13-17`), `female`, `male`, `unknown-age`,
        `unknown-gender`.
    floor, cap
        The fewest and the most users of a category under `balanced`, as multiples of its share of clicks. Without
        `cap`, 4 or as much as it takes to have room for everybody's k.
    floors, caps
        The same by name: a whole number of users, or a share of all slots below 1; a floor may also be a number of
        expected clicks, `"1000 clicks"`.
    explore
        The share of slots, up to a half, that is drawn from the categories which the users' own k best leave below
        `floor`: at the last ranks, taken off k, with the probability of each draw in the column `propensity`. Floors
        and caps hold for the rest.
    seed
        Of the draw: another one draws others.
    min_audience
        A category that fewer users have goes to nobody, and the next best comes instead.
    objective
        What lists are made for, `clicks` or `value`: then a category counts by the chance of a click times its value.
    values
        What a click on a category is worth, 0 for those that are not named: adds the column `value`.
    values_by_group
        The same by group of users, as in `exclude_by_group`. A value by age comes before one by gender, and both before
        the one for all.
    """

    k: int = 10
    policy: str = "user_top_k"
    also: tuple[str, ...] = ()
    n: int | None = None
    min_score: float | None = None
    min_chance: float | None = None
    exclude: tuple[str, ...] = ()
    exclude_by_group: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    floor: float = FLOOR
    cap: float | None = None
    floors: Mapping[str, float | str] = field(default_factory=dict)
    caps: Mapping[str, float] = field(default_factory=dict)
    explore: float = 0.0
    seed: int = 0
    min_audience: int | None = None
    objective: str = CLICKS
    values: Mapping[str, float] = field(default_factory=dict)
    values_by_group: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse numbers that must be whole and are not, and make values plain ones, as JSON takes them."""
        object.__setattr__(self, "exclude", tuple(self.exclude))
        for name in ("floors", "caps", "values"):
            object.__setattr__(self, name, dict(getattr(self, name) or {}))
        by_group = {group: tuple(names) for group, names in (self.exclude_by_group or {}).items()}
        object.__setattr__(self, "exclude_by_group", by_group)
        values_by_group = {group: dict(own) for group, own in (self.values_by_group or {}).items()}
        object.__setattr__(self, "values_by_group", values_by_group)
        for name in ("k", "n", "seed", "min_audience"):
            value = getattr(self, name)
            if value is not None or name in ("k", "seed"):
                object.__setattr__(self, name, whole_number(name, value))

    def check(self, categories: Sequence[str]) -> None:
        """Refuse settings that do not fit the categories."""
        list_length(self.k, len(categories))
        for name in (self.policy, *self.also):
            if name not in POLICIES:
                raise BadInput(f"policies are {', '.join(POLICIES)}, got {name}")
        if self.n is not None and self.n < 1:
            raise BadInput(f"n must be at least 1, got {self.n}")
        check_bounds(categories, floor=self.floor, cap=self.cap, floors=self.floors, caps=self.caps)
        if self.min_score is not None:
            finite_number("min_score", self.min_score)
        if self.min_chance is not None:
            finite_number("min_chance", self.min_chance, least=0, most=1)
        finite_number("explore", self.explore, least=0, most=MOST, kind="a share of all slots ")
        self.eligibility(categories)
        if self.min_audience is not None and self.min_audience < 1:
            raise BadInput(f"min_audience must be at least 1, got {self.min_audience}")
        self._check_values(categories)

    def _check_values(self, categories: Sequence[str]) -> None:
        if self.objective not in OBJECTIVES:
            raise BadInput(f"objective must be one of {', '.join(OBJECTIVES)}, got {self.objective!r}")
        for group in self.values_by_group:
            if group not in USER_GROUPS:
                meant = suggest(group, USER_GROUPS, show=repr, limit=5)
                raise BadInput(f"values_by_group: there is no group of users {group!r}; {meant}")
        own_values = {"values": self.values}
        own_values |= {f"values_by_group.{group}": own for group, own in self.values_by_group.items()}
        for where, own in own_values.items():
            for name, value in own.items():
                if name not in categories:
                    meant = suggest(name, categories, show=repr, limit=5)
                    raise BadInput(f"{where}: there is no ranked category {name!r}; {meant}")
                finite_number(f"{where}.{name}", value, least=0, most=MOST_VALUE)
        if any(own_values.values()) and not any(value > 0 for own in own_values.values() for value in own.values()):
            raise BadInput("values: no category has a value above 0; give at least one")
        if self.objective == MONEY and not any(own_values.values()):
            raise BadInput("objective value needs values, found none; give what a click on each category is worth")

    def click_values(self, categories: Sequence[str]) -> ClickValues | None:
        """Return what a click is worth, None without values.

        A category without a value is worth nothing. A value by age is taken before one by gender, and both before the
        one for all.
        """
        if not self.values and not self.values_by_group:
            return None
        codes = {name: code for code, name in enumerate(categories)}
        table = np.zeros(len(categories))
        table[[codes[name] for name in self.values]] = list(self.values.values())
        by_group = {
            group: {codes[name]: float(value) for name, value in own.items()}
            for group, own in self.values_by_group.items()
        }
        return ClickValues(table_of_groups(table, by_group), self.objective == MONEY)

    def eligibility(self, categories: Sequence[str]) -> Eligibility:
        """Return what users may hold, by category code."""
        return eligibility_by_name(
            categories, min_score=self.min_score, exclude=self.exclude, exclude_by_group=self.exclude_by_group
        )

    def bounds(
        self,
        categories: Sequence[str],
        clicks: np.ndarray,
        eligible: np.ndarray,
        slots: int,
        explored: int = 0,
        most_clicks: np.ndarray | None = None,
    ) -> ExposureBounds:
        """Return between which numbers of users every category must end under `balanced`, as `exposure_bounds` does."""
        return exposure_bounds(
            categories, clicks, eligible, slots, floor=self.floor, cap=self.cap, floors=self.floors, caps=self.caps,
            explored=explored, most_clicks=most_clicks,
        )  # fmt: skip

    def fewest(self, categories: Sequence[str], clicks: np.ndarray, eligible: np.ndarray, slots: int) -> np.ndarray:
        """Return the floors (L,), as `exposure_floors` does."""
        return exposure_floors(categories, clicks, eligible, slots, floor=self.floor, floors=self.floors)

    def without(self, names: Collection[str]) -> ScoreSettings:
        """Return settings by which some categories go to nobody, whatever floors they have."""
        floors = {name: floor for name, floor in self.floors.items() if name not in names}
        return replace(self, exclude=tuple(sorted({*self.exclude, *names})), floors=floors) if names else self

    @property
    def has_click_floors(self) -> bool:
        """Whether a floor by name is in expected clicks."""
        return any(parse_floor(name, given).in_clicks for name, given in self.floors.items())

    @property
    def chances_needed_by(self) -> str | None:
        """Which setting needs chances, None when they are not needed."""
        needing = [policy.name for policy in self.wanted if policy.needs_chances]
        if needing:
            return f"policy {needing[0]}"
        if self.objective == MONEY:
            return "objective value"
        return None if self.min_chance is None else "min_chance"

    @property
    def wanted(self) -> list[Policy]:
        """The policies that are written or counted."""
        return [policy for name, policy in POLICIES.items() if name in (self.policy, *self.also)]

    def to_json(self) -> dict[str, Any]:
        """Return the settings as digests and manifests have them."""
        content = {**asdict(self), "also": sorted(set(self.also) - {self.policy}), "exclude": sorted(set(self.exclude))}
        # What decides nothing is not in digests, so that runs of before there were bounds keep theirs.
        unused = []
        if not any(policy.needs_chances for policy in self.wanted):
            unused = ["cap", "caps"] if self.explore else ["floor", "cap", "floors", "caps"]
        if self.min_chance is None:
            unused.append("min_chance")
        if not self.explore:
            unused += ["explore", "seed"]
        if self.min_audience is None:
            unused.append("min_audience")
        if self.objective == CLICKS:
            unused.append("objective")
        if not self.values and not self.values_by_group:
            unused += ["values", "values_by_group"]
        return {name: value for name, value in content.items() if name not in unused}


def choose_settings(settings: ScoreSettings | None, options: Mapping[str, Any]) -> ScoreSettings:
    """Return settings, by default the usual ones, with some of their fields replaced by name.

    Examples
    --------
    >>> choose_settings(ScoreSettings(k=5), {"policy": "balanced"}).k
    5
    """
    names = [one.name for one in fields(ScoreSettings)]
    for name in options:
        if name not in names:
            raise TypeError(f"score() has no argument {name!r}; {suggest(name, names, 'settings are')}")
    return replace(settings or ScoreSettings(), **options)


def values_of(manifest: QualificationsManifest) -> np.ndarray | None:
    """Return what a click was worth on a past night, (groups, L) by its categories; None where nobody said."""
    if not manifest.has_values:
        return None
    given = {name: manifest.settings[name] for name in ("values", "values_by_group")}
    values = ScoreSettings(**given).click_values(manifest.categories)
    return None if values is None else values.per_click
