"""Find the columns of a feature store that are a category's own."""

from __future__ import annotations

from typing import Any

from ammrank_dask.features.store import Features
from ammrank_dask.model.own_term import own_columns_of_names


def own_parameters(features: Features, variant: str | None) -> dict[str, Any]:
    """Return `own_columns` and `own_groups` of AMMRankPlus by the names of the columns; nothing where none is own."""
    own = own_columns_of_names(features.columns_of(variant), features.categories)
    return {} if own is None else {"own_columns": own[0].tolist(), "own_groups": own[1]}
