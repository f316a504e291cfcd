"""Keep categories from users: from all, from groups of them, or for a low score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ammrank_dask.kernels.scoring import Filter
from ammrank_dask.storage.errors import BadInput, suggest
from ammrank_dask.storage.vocabulary import AGE_BUCKETS, GENDERS

UNKNOWN_AGE, UNKNOWN_GENDER = "unknown-age", "unknown-gender"
USER_GROUPS = (*AGE_BUCKETS, UNKNOWN_AGE, *GENDERS, UNKNOWN_GENDER)
"""Groups of users that categories can be kept from; an age below the first bucket counts as unknown."""


@dataclass(frozen=True)
class Eligibility:
    """What users may hold.

    `min_score` is the lowest score that qualifies, None for no limit. `exclude` are category codes that nobody holds,
    and `exclude_by_group` those that users of one of USER_GROUPS do not hold.
    """

    min_score: float | None = None
    exclude: frozenset[int] = frozenset()
    exclude_by_group: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def allowed(self, n_categories: int) -> np.ndarray:
        """Return (n_groups, L) bool by `group_of`; no rows when everything is allowed."""
        if not self.exclude and not any(self.exclude_by_group.values()):
            return np.ones((0, n_categories), bool)
        n_genders = len(GENDERS) + 1
        table = np.ones((len(AGE_BUCKETS) + 1, n_genders, n_categories), bool)
        table[:, :, sorted(self.exclude)] = False
        for group, codes in self.exclude_by_group.items():
            if group in (*AGE_BUCKETS, UNKNOWN_AGE):
                table[(*AGE_BUCKETS, UNKNOWN_AGE).index(group), :, sorted(codes)] = False
            else:
                table[:, (*GENDERS, UNKNOWN_GENDER).index(group), sorted(codes)] = False
        return table.reshape(-1, n_categories)

    def filter(self, n_categories: int, age_bucket: np.ndarray, gender: np.ndarray) -> Filter:
        """Return the same as the kernel reads it."""
        lowest = -np.inf if self.min_score is None else float(self.min_score)
        return Filter(
            self.allowed(n_categories), group_of(age_bucket, gender), lowest, keep_bare=self.min_score is None
        )


def group_of(age_bucket: np.ndarray, gender: np.ndarray) -> np.ndarray:
    """Return the row of `Eligibility.allowed` of each user; -1 is unknown and stands last (uint8)."""
    n_genders = len(GENDERS) + 1
    age = np.where(age_bucket < 0, len(AGE_BUCKETS), age_bucket)
    return (age * n_genders + np.where(gender < 0, len(GENDERS), gender)).astype(np.uint8)


def eligibility_by_name(
    categories: Sequence[str],
    *,
    min_score: float | None = None,
    exclude: Iterable[str] = (),
    exclude_by_group: Mapping[str, Iterable[str]] | None = None,
) -> Eligibility:
    """Return who may hold what, from names of categories and groups of users; an unknown name is refused."""
    by_group = {}
    for group, names in (exclude_by_group or {}).items():
        if group not in USER_GROUPS:
            meant = suggest(group, USER_GROUPS, show=repr, limit=5)
            raise BadInput(f"exclude_by_group: there is no group of users {group!r}; {meant}")
        by_group[group] = _codes_of(names, categories, f"exclude_by_group.{group}")
    return Eligibility(min_score, _codes_of(exclude, categories, "exclude"), by_group)


def _codes_of(names: Iterable[str], categories: Sequence[str], where: str) -> frozenset[int]:
    known = {name: code for code, name in enumerate(categories)}
    for name in names:
        if name not in known:
            raise BadInput(
                f"{where}: there is no ranked category {name!r}; {suggest(name, categories, show=repr, limit=5)}"
            )
    return frozenset(known[name] for name in names)
