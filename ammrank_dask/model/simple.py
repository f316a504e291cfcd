"""Models that score when a trained one does not rank better than popularity: no planes, nothing to go wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.own_term import OwnTerm
from ammrank_dask.model.plus_basis import PlusBasis, RankingCounts, make_basis
from ammrank_dask.model.saved import RankModel


def popularity_model(model: RankModel, n_rows: int) -> AMMRankPlus:
    """Return the model that ranks by the clicks of the training rows of another: the prior alone.

    Parameters
    ----------
    n_rows
        Training rows; only their number, for the log odds, not for the order.
    """
    n_categories = model.n_categories_
    clicks = np.asarray(model.popularity_, np.int64)
    counts = RankingCounts(max(n_rows, int(clicks.max(initial=0))), clicks, np.zeros(n_categories), 0)
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
