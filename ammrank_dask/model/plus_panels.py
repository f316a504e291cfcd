"""Arrange a model of AMM-rank-plus for its fused scoring kernel."""

import numpy as np

from ammrank_dask.kernels.own_term import HAT_SCALE
from ammrank_dask.kernels.scoring_plus import OwnPieces, PlusPanels
from ammrank_dask.model.own_term import OwnTerm
from ammrank_dask.model.plane_panels import arrange_planes, cut_into_panels, order_planes
from ammrank_dask.model.plus_basis import PlusBasis


def arrange_plus(
    basis: PlusBasis, weights: np.ndarray, plane_category: np.ndarray, tie_order: np.ndarray, bias: float
) -> PlusPanels:
    """Return a model of AMM-rank-plus as the kernel reads it; parameters are those of `arrange_planes`."""
    n_features = basis.n_features
    of_store = np.concatenate([weights[:n_features], weights[-1:]])
    planes = arrange_planes(of_store, plane_category, tie_order, bias)
    order = order_planes(plane_category, len(tie_order))[1]
    n_planes = np.bincount(plane_category, minlength=len(tie_order))
    has_zero = (n_planes < basis.limit)[tie_order]
    return PlusPanels(
        planes._replace(bare=np.zeros(0, np.int64)),
        cut_into_panels(weights[n_features:-1][:, order]),
        basis.prior[tie_order],
        np.where(has_zero[planes.place_of_slot], 0.0, -np.inf).astype(np.float32),
        own_pieces(basis.own, basis.prior, n_features, tie_order),
        basis.memberships.kernel_form(),
    )


def own_pieces(own: OwnTerm, prior: np.ndarray, n_features: int, tie_order: np.ndarray) -> OwnPieces:
    """Return the own term as the kernel reads it: of each kind β, and the hats as straight lines between the knots."""
    cells = own.cells(n_features)
    place_of = np.empty(len(tie_order), np.int64)
    place_of[tie_order] = np.arange(len(tie_order))
    n_kinds, most = own.n_kinds, own.knots.shape[1]
    counts = np.arange(most) < own.n_knots[:n_kinds, None]
    knots = np.where(counts, own.knots[:n_kinds], np.inf).astype(np.float32)
    pieces = np.zeros((n_kinds, most + 1, 3), np.float32)
    for kind, n in enumerate(own.n_knots[:n_kinds]):
        if not n:
            continue
        heights = HAT_SCALE * own.weights[kind, 1 : n + 1].astype(np.float64)
        at = own.knots[kind, :n].astype(np.float64)
        # Below the first knot and from the last one on a hat is flat.
        pieces[kind, 0, 1] = heights[0]
        pieces[kind, 1 : n + 1, 0], pieces[kind, 1 : n + 1, 1] = at, heights
        pieces[kind, 1:n, 2] = np.diff(heights) / np.diff(at)
    place = np.where(cells.category >= 0, place_of[cells.category], -1)
    lift = np.where(cells.kind == 0, own.lifts(prior)[cells.category], 0.0).astype(np.float32)
    return OwnPieces(cells.kind, place, own.group, own.weights[:n_kinds, 0].copy(), knots, pieces, lift)
