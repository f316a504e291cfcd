"""The columns of features: their names, the group of each, and which of them a variant has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.vocabulary import AD_VIEW_GROUP, AGE, AGE_BUCKETS, GENDER, GENDERS, INTENSITY, RECENCY

DEMOGRAPHIC_GROUPS = (AGE, GENDER)
OWN_GROUP = "own"
"""Group of columns that did not come from a log."""


@dataclass(frozen=True)
class FeatureColumns:
    """The columns of a store: their names, and as (group, number of columns) runs the group of each."""

    names: tuple[str, ...]
    groups: tuple[tuple[str, int], ...]

    @cached_property
    def group_of(self) -> np.ndarray:
        """Index into `groups` of every column."""
        return np.repeat(np.arange(len(self.groups)), [size for _, size in self.groups])

    def to_json(self) -> dict[str, Any]:
        """Return the columns as they are stored."""
        return {"columns": list(self.names), "groups": [list(group) for group in self.groups]}

    @property
    def digest(self) -> str:
        """Hash of the names, by which a model knows its features."""
        return digest_of(self.to_json())

    def chosen(self, variant: str | None) -> np.ndarray:
        """Return the columns of a variant: `no-G` is all but group G; `adv`, a group that is there, or None is all."""
        present = [name for name, _ in self.groups]
        if variant is None or variant in (AD_VIEW_GROUP, *present):
            return np.arange(len(self.names))
        left_out = variant.removeprefix("no-")
        if left_out == variant:
            raise BadInput(f"the store has no columns of group {variant!r}; it has {', '.join(present)}")
        if left_out not in present:
            return np.arange(len(self.names))
        dropped = [number for number, name in enumerate(present) if name == left_out]
        return np.flatnonzero(~np.isin(self.group_of, dropped))


def interest_columns(
    groups: Sequence[str], categories: Sequence[str], *, recency: bool, demographics: bool
) -> FeatureColumns:
    """Return the columns of features made from a log: group by group intensity and recency, then age and gender."""
    kinds = (INTENSITY, RECENCY) if recency else (INTENSITY,)
    names = [f"{group}:{kind}:{category}" for group in groups for kind in kinds for category in categories]
    sizes = [(group, len(kinds) * len(categories)) for group in groups]
    if demographics:
        names += [f"{AGE}:{bucket}" for bucket in AGE_BUCKETS] + [f"{GENDER}:{gender}" for gender in GENDERS]
        sizes += [(AGE, len(AGE_BUCKETS)), (GENDER, len(GENDERS))]
    return FeatureColumns(tuple(names), tuple(sizes))


def groups_of_names(columns: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Take the group of a column from the names `interest_columns` gives; other columns are the user's own."""
    runs: list[tuple[str, int]] = []
    for name in columns:
        parts = name.split(":")
        is_event = len(parts) >= 3 and parts[1] in (INTENSITY, RECENCY)
        group = parts[0] if is_event or parts[0] in DEMOGRAPHIC_GROUPS else OWN_GROUP
        if runs and runs[-1][0] == group:
            runs[-1] = (group, runs[-1][1] + 1)
        else:
            runs.append((group, 1))
    return tuple(runs)
