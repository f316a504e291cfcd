"""Validate the settings that decide, beside the scores, who gets which categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ammrank_dask.features.eligibility import Eligibility, eligibility_by_name
from ammrank_dask.scoring.exploration import MOST
from ammrank_dask.scoring.exposure_bounds import (
    FLOOR,
    ExposureBounds,
    check_bounds,
    exposure_bounds,
    exposure_floors,
)
from ammrank_dask.scoring.policies import POLICIES, Policy
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.numbers import finite_number, list_length, whole_number


@dataclass(frozen=True)
class ScoreSettings:
    """What decides who gets what, beside the scores.

    `policy` is the one that is written; `also` are policies that are counted beside it. `n` is for `category_top_n`,
    None for as many slots as `user_top_k` assigns. `min_chance` needs chances. `floor`, `cap`, `floors` and `caps`
    are for `balanced`, as `exposure_bounds` takes them. `explore` is the share of slots that is drawn, by `seed`.
    Categories and groups of users are named.
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
    floors: Mapping[str, float] = field(default_factory=dict)
    caps: Mapping[str, float] = field(default_factory=dict)
    explore: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that must be whole and are not; those of numpy become plain ones, as JSON takes them."""
        for name in ("k", "n", "seed"):
            value = getattr(self, name)
            if value is not None or name != "n":
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

    def eligibility(self, categories: Sequence[str]) -> Eligibility:
        """Return what users may hold, by category code."""
        return eligibility_by_name(
            categories, min_score=self.min_score, exclude=self.exclude, exclude_by_group=self.exclude_by_group
        )

    def bounds(
        self, categories: Sequence[str], clicks: np.ndarray, eligible: np.ndarray, slots: int, explored: int = 0
    ) -> ExposureBounds:
        """Return between which numbers of users every category must end under `balanced`, as `exposure_bounds` does."""
        return exposure_bounds(
            categories, clicks, eligible, slots, floor=self.floor, cap=self.cap, floors=self.floors, caps=self.caps,
            explored=explored,
        )  # fmt: skip

    def fewest(self, categories: Sequence[str], clicks: np.ndarray, eligible: np.ndarray, slots: int) -> np.ndarray:
        """Return the floors (L,), as `exposure_floors` does."""
        return exposure_floors(categories, clicks, eligible, slots, floor=self.floor, floors=self.floors)

    @property
    def chances_needed_by(self) -> str | None:
        """Which setting needs chances, None when they are not needed."""
        needing = [policy.name for policy in self.wanted if policy.needs_chances]
        return f"policy {needing[0]}" if needing else None if self.min_chance is None else "min_chance"

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
        return {name: value for name, value in content.items() if name not in unused}
