"""Learn the top category alone with multi-class AMM."""

from typing import ClassVar

from ammrank_dask.model.plane_model import PlaneModel


class AMM(PlaneModel):
    """Predict the top category by g(i, x) = max_j w_ij · x, learned from the first category of each ranking.

    At each step the top category is the one positive, and only the strongest of the others is pushed away where
    it comes within the margin. Calls, parameters and attributes are those of `AMMRank`, without `rank_weight`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0]] * 20)
    >>> AMM(n_categories=2).fit(X, np.array([[0], [1]] * 20)).predict(X[:2])
    array([[0, 1],
           [1, 0]], dtype=int32)
    """

    method: ClassVar[str] = "amm"
    top_only: ClassVar[bool] = True
