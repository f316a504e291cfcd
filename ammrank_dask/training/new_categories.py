"""Match a fitted model to other categories by name, and score those that nobody has clicked yet by their siblings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.own_term import OwnTerm
from ammrank_dask.model.plus_basis import PlusBasis
from ammrank_dask.model.saved import RankModel, make_model
from ammrank_dask.training.basis import match_centers
from ammrank_dask.training.warm_start import match_names, rename_column, rename_once

Siblings = Mapping[str, Sequence[str]]
"""By name of a new category the categories beside it."""


def bring_model(
    model: RankModel, columns: Sequence[str], categories: Sequence[str], siblings: Siblings
) -> tuple[RankModel, list[str]]:
    """Return a fitted model over other columns and categories, and the categories that are new to it.

    What both have scores as before. A new column has weight 0. A new category has the lowest prior of its siblings and
    the own term, or, in a model without a prior, no plane: then it comes last.

    Parameters
    ----------
    model
        A fitted model that names its columns and categories, as `rename_model` left them.
    """
    new_category, old_category = match_names("categories", model.categories_, model.n_categories_, categories)
    new_column, old_column = match_names("columns", model.columns_, model.n_features_in_, columns)
    code_of = np.full(model.n_categories_, -1)
    code_of[old_category] = new_category
    kept = np.flatnonzero(code_of[model.plane_category_] >= 0)
    plane_category = code_of[model.plane_category_[kept]].astype(model.plane_category_.dtype)
    popularity = np.zeros(len(categories), np.int64)
    popularity[new_category] = model.popularity_[old_category]
    n_centers = model.basis_.memberships.n_centers if isinstance(model, AMMRankPlus) else 0
    new_row = np.concatenate([new_column, len(columns) + np.arange(n_centers + 1)])
    old_row = np.concatenate([old_column, model.n_features_in_ + np.arange(n_centers + 1)])
    weights = np.zeros((len(columns) + n_centers + 1, len(kept)), np.float32)
    weights[new_row] = model.weights_[np.ix_(old_row, kept)]
    parameters = dict(model.get_params())
    if parameters.get("n_categories") is not None:
        parameters["n_categories"] = len(categories)
    if isinstance(model, AMMRankPlus):
        basis = _bring_basis(model, columns, categories, popularity, (new_category, old_category))
        if model.own_columns is not None:
            parameters["own_columns"] = basis.own.columns.tolist()
        squares = np.zeros(len(weights))
        squares[new_row] = model.squares_[old_row]
        brought: RankModel = AMMRankPlus(**parameters)
        assert isinstance(brought, AMMRankPlus)
        brought.set_planes(
            basis, weights, plane_category, model.basis_.own.weights, n_steps=model.n_steps_, squares=squares,
            own_squares=model.own_squares_,
        )  # fmt: skip
    else:
        brought = make_model(model.method, **parameters)
        assert not isinstance(brought, AMMRankPlus)
        brought.set_planes(weights, plane_category, popularity, n_steps=model.n_steps_)
    brought.categories_, brought.columns_ = list(categories), list(columns)
    brought.variant_, brought.training_ = model.variant_, model.training_
    new = [name for code, name in enumerate(categories) if code not in set(new_category.tolist())]
    return score_by_siblings(brought, new, siblings), new


def score_by_siblings(model: RankModel, names: Collection[str], siblings: Siblings) -> RankModel:
    """Return a model that scores some categories by the lowest prior of their siblings and the own term, no planes.

    Siblings that are among them, too, tell nothing; where there is no other, the lowest prior of all counts.
    """
    if not names or not isinstance(model, AMMRankPlus):
        return model
    categories = list(model.categories_ or ())
    others = [name for name in categories if name not in names] or categories
    prior_of = dict(zip(categories, model.basis_.prior.tolist(), strict=True))
    prior = model.basis_.prior.copy()
    for name in names:
        beside = [one for one in siblings.get(name, ()) if one in others] or others
        prior[categories.index(name)] = min(prior_of[one] for one in beside)
    kept = ~np.isin(model.plane_category_, [categories.index(name) for name in names])
    lifted = AMMRankPlus(**model.get_params())
    lifted.set_planes(
        replace(model.basis_, prior=prior), model.weights_[:, kept], model.plane_category_[kept],
        model.basis_.own.weights, n_steps=model.n_steps_, squares=model.squares_, own_squares=model.own_squares_,
    )  # fmt: skip
    lifted.categories_, lifted.columns_ = model.categories_, model.columns_
    lifted.variant_, lifted.training_ = model.variant_, model.training_
    return lifted


def rename_model(model: RankModel, name_now: Callable[[str], str]) -> None:
    """Give the categories and columns of a model the names of now, as `rename_once` does."""
    renamed = rename_once(model.categories_ or (), name_now)
    if model.columns_ is not None:
        model.columns_ = [rename_column(column, renamed) for column in model.columns_]
    model.categories_ = list(renamed.values()) or None


def kind_of_column(column: str) -> str:
    """Return what a column is of, without its category.

    Examples
    --------
    >>> kind_of_column("pv:intensity:Shoes: red"), kind_of_column("age:13-17")
    ('pv:intensity', 'age:13-17')
    """
    return ":".join(column.split(":", 2)[:2])


def _bring_basis(
    model: AMMRankPlus,
    columns: Sequence[str],
    categories: Sequence[str],
    clicks: np.ndarray,
    matched: tuple[np.ndarray, np.ndarray],
) -> PlusBasis:
    """Return the basis of a model over other columns and categories; a new category has no prior yet and no planes."""
    new, old = matched
    basis = model.basis_
    prior = np.full(len(categories), basis.prior.min(initial=0), np.float32)
    prior[new] = basis.prior[old]
    limit = np.ones(len(categories), basis.limit.dtype)
    limit[new] = basis.limit[old]
    return replace(
        basis,
        n_features=len(columns),
        clicks=clicks,
        prior=prior,
        limit=limit,
        memberships=match_centers(model, columns),
        own=replace(basis.own, columns=_bring_own(basis.own, model.columns_ or columns, columns, categories)),
    )


def _bring_own(own: OwnTerm, before: Sequence[str], columns: Sequence[str], categories: Sequence[str]) -> np.ndarray:
    """Return the own columns by kind and category: those whose names differ from the model's only in the category."""
    number_of = {name: number for number, name in enumerate(columns)}
    table = np.full((own.n_kinds, len(categories)), -1, np.int64)
    for kind, numbers in enumerate(own.columns):
        own_kind = kind_of_column(next(before[number] for number in numbers if number >= 0))
        table[kind] = [number_of.get(f"{own_kind}:{name}", -1) for name in categories]
    return table
