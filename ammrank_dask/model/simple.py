"""Models that score when a trained one does not rank better than popularity: no planes, nothing to go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from ammrank_dask.kernels.own_term import HAT_SCALE, N_KNOTS
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.own_term import OwnTerm, own_columns_of_names
from ammrank_dask.model.plus_basis import PlusBasis, RankingCounts, make_basis
from ammrank_dask.model.saved import RankModel

_TIE_WEIGHT, _POPULARITY_WEIGHT, _OWN_LIFT = 0.05, 0.2, 20.0
"""Of own history: how much the log odds of popularity count beside the logarithm of a user's own events, so that they
decide between equal counts, and between similar ones; and how far every category with an event of the user stands
above those without."""
_OWN_KNOTS, _OWN_VALUES = (0.0, 1.0, 4.0, 12.0, 100.0, 10_000.0), (0.0, 1.0, 4.0, 12.0, 14.0, 16.0)
"""Intensities and what they count: logarithms as they are; counts, if those are stored, more and more slowly."""
_HALF_LIFE = 7.0
"""Days, of own history that forgets."""


def popularity_model(model: RankModel, n_rows: int, clicks: Sequence[int] | None = None) -> AMMRankPlus:
    """Return the model that ranks by the clicks of the training rows of another: the prior alone.

    Parameters
    ----------
    n_rows
        Training rows; only their number, for the log odds, not for the order.
    clicks
        (L,) clicks to rank by instead.
    """
    n_categories = model.n_categories_
    known = np.asarray(model.popularity_ if clicks is None else clicks, np.int64)
    counts = RankingCounts(max(n_rows, int(known.max(initial=0))), known, np.zeros(n_categories), 0)
    none = AMMRankPlus(n_clusterings=0, n_categories=n_categories)
    sample = sp.csr_matrix((0, model.n_features_in_), dtype=np.float32)
    return _without_planes(
        none, make_basis(counts, sample, OwnTerm.nothing(n_categories), **none.basis_options()), model
    )


def own_model(model: AMMRankPlus) -> AMMRankPlus:
    """Return prior and own term of a model, without its planes and clusterings."""
    parameters = {**model.get_params(), "n_clusterings": 0}
    empty = sp.csr_matrix((0, model.n_features_in_), dtype=np.float32)
    counts = RankingCounts(model.basis_.n_rows, model.basis_.clicks, np.zeros(model.n_categories_), 0)
    none = AMMRankPlus(**parameters)
    basis = make_basis(counts, empty, OwnTerm.nothing(model.n_categories_), **none.basis_options())
    return _without_planes(none, replace(basis, prior=model.basis_.prior, own=model.basis_.own), model)


def own_history_model(
    model: RankModel, n_rows: int, clicks: Sequence[int] | None = None, *, with_popularity: bool = False
) -> AMMRankPlus | None:
    """Return the model that ranks the categories of a user's own events first, then the rest by popularity.

    The more events, the better, and of equal ones the more popular category comes first. The first event group with a
    column of intensity counts, page views where they are logged. None without own columns.

    Parameters
    ----------
    n_rows, clicks
        As in `popularity_model`.
    with_popularity
        Whether a popular category also comes before one with twice as many events, or less.
    """
    own = own_columns_of_names(model.columns_ or (), model.categories_ or ())
    if own is None:
        return None
    popular, weight = popularity_model(model, n_rows, clicks), _POPULARITY_WEIGHT if with_popularity else _TIE_WEIGHT
    return _own_term_model(model, popular, weight, own[0][:1], [_OWN_KNOTS], [_OWN_VALUES])


def own_recent_model(
    model: RankModel, n_rows: int, alpha: float, clicks: Sequence[int] | None = None
) -> AMMRankPlus | None:
    """Return own history that forgets within weeks: events count half for each 7 days since the last one.

    It tells whether interests drift: where they do, it ranks better than `own_history_model` with popularity. None
    without columns of intensity and recency of one event group.

    Parameters
    ----------
    n_rows, clicks
        As in `popularity_model`.
    alpha
        Decay per day of the recency columns.
    """
    own = own_columns_of_names(model.columns_ or (), model.categories_ or ())
    if own is None or len(own[0]) < 2 or own[1][0] != own[1][1]:
        return None
    # Intensities are logarithms of counts, so a half-life takes a constant per day from them; recency tells the days.
    days = np.array([120.0, 60.0, 30.0, 14.0, 7.0, 0.0])
    knots, values = [_OWN_KNOTS, alpha**days], [_OWN_VALUES, np.log(2) / _HALF_LIFE * (days[0] - days)]
    popular = popularity_model(model, n_rows, clicks)
    return _own_term_model(model, popular, _POPULARITY_WEIGHT, own[0][:2], knots, values)


def _own_term_model(
    model: RankModel,
    popular: AMMRankPlus,
    weight: float,
    columns: np.ndarray,
    knots: Sequence[Any],
    values: Sequence[Any],
) -> AMMRankPlus:
    """Return the model that adds up values of own columns, with `values` at `knots` of each kind, and popularity."""
    basis, kinds = popular.basis_, len(columns)
    term = OwnTerm.of_columns(columns, np.arange(kinds))
    # The last row is of the prior. It has one knot, whose hat is a constant, the lift of what a user has at all.
    term.knots[:kinds], term.n_knots[:] = knots, [N_KNOTS] * kinds + [1]
    term.weights[:kinds, 1:-1], term.weights[-1, 1] = np.divide(values, HAT_SCALE), _OWN_LIFT / HAT_SCALE
    parameters = {**popular.get_params(), "own_columns": term.columns.tolist(), "own_groups": term.group.tolist()}
    prior = (weight * basis.prior).astype(np.float32)
    return _without_planes(AMMRankPlus(**parameters), replace(basis, prior=prior, own=term), model)


def _without_planes(none: AMMRankPlus, basis: PlusBasis, like: RankModel) -> AMMRankPlus:
    """Fit a model with a basis alone; categories, columns and variant are those of another model."""
    n_rows = basis.n_columns + 1
    none.set_planes(
        basis,
        np.zeros((n_rows, 0), np.float32),
        np.zeros(0, np.asarray(like.plane_category_).dtype),
        basis.own.weights,
        n_steps=0,
        squares=np.zeros(n_rows),
        own_squares=np.zeros(basis.own.weights.shape),
    )
    none.categories_, none.columns_, none.variant_ = like.categories_, like.columns_, like.variant_
    return none
