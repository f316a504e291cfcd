"""Arrange a model of AMM-rank-plus for its fused scoring kernel."""

import numpy as np

from ammrank_dask.kernels.scoring_plus import PlusPanels
from ammrank_dask.model.plane_panels import arrange_planes
from ammrank_dask.model.plus_basis import PlusBasis


def arrange_plus(
    basis: PlusBasis, weights: np.ndarray, plane_category: np.ndarray, tie_order: np.ndarray, bias: float
) -> PlusPanels:
    """Return a model of AMM-rank-plus as the kernel reads it; parameters are those of `arrange_planes`."""
    planes = arrange_planes(weights, plane_category, tie_order, bias)
    n_planes = np.bincount(plane_category, minlength=len(tie_order))
    place = np.empty(len(tie_order), np.int64)
    place[tie_order] = np.arange(len(tie_order))
    return PlusPanels(
        planes._replace(bare=np.zeros(0, np.int64)),
        basis.prior[tie_order],
        (n_planes < basis.limit)[tie_order],
        place,
        basis.own.weights,
        basis.own.cells(basis.n_columns),
        basis.memberships.kernel_form(),
    )
