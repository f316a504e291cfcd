"""Keep categories from users: from all, from groups of them, or for a low score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
        everybody = np.ones(n_categories, bool)
        everybody[sorted(self.exclude)] = False
        return table_of_groups(everybody, {g: dict.fromkeys(c, False) for g, c in self.exclude_by_group.items()})

    def filter(self, n_categories: int, age_bucket: np.ndarray, gender: np.ndarray) -> Filter:
        """Return the same as the kernel reads it."""
        lowest = -np.inf if self.min_score is None else float(self.min_score)
        return Filter(
            self.allowed(n_categories), group_of(age_bucket, gender), lowest, keep_bare=self.min_score is None
        )


def table_of_groups(everybody: np.ndarray, by_group: Mapping[str, Mapping[int, Any]]) -> np.ndarray:
    """Return values by category code (L,) for all users, and others for some of USER_GROUPS; (groups, L).

    What is of an age counts before what is of a gender.

    Examples
    --------
    >>> table = table_of_groups(np.zeros(2), {"65+": {1: 3.0}, "male": {0: 2.0, 1: 1.0}})
    >>> table[group_of(np.array([8, 8, -1]), np.array([0, 1, 1]))].tolist()
    [[0.0, 3.0], [2.0, 3.0], [2.0, 1.0]]
    """
    ages, genders = (*AGE_BUCKETS, UNKNOWN_AGE), (*GENDERS, UNKNOWN_GENDER)
    table = np.broadcast_to(everybody, (len(ages), len(genders), len(everybody))).copy()
    for group, own in sorted(by_group.items(), key=lambda item: item[0] in ages):
        at = (ages.index(group), slice(None)) if group in ages else (slice(None), genders.index(group))
        for code, value in own.items():
            table[(*at, code)] = value
    return table.reshape(-1, len(everybody))


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
