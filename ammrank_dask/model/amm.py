"""Learn the top category alone with multi-class AMM."""

from typing import ClassVar

from ammrank_dask.model.plane_model import PlaneModel


class AMM(PlaneModel):
    """Predict the top category by g(i, x) = max_j w_ij · x, learned from the first category of each ranking.

    At each step the top category is the one positive, and only the strongest of the others is pushed away where
    it comes within the margin. Calls, parameters and attributes are those of `AMMRank`, without `rank_weight`.

    Examples
    --------
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0]] * 20)
    >>> AMM(n_categories=2).fit(X, np.array([[0], [1]] * 20)).predict(X[:2])
    array([[0, 1],
           [1, 0]], dtype=int32)
    """

    method: ClassVar[str] = "amm"
    top_only: ClassVar[bool] = True

    def __init__(
        self,
        *,
        regularization: float = 1e-3,
        epochs: int = 5,
        max_planes: int = 50,
        bias: float = 1.0,
        average: bool = True,
        prune_every: int | None = 10_000,
        prune_c: float = 10.0,
        clone_probability: float = 0.0,
        clone_decay: float = 0.99,
        n_categories: int | None = None,
        seed: int = 0,
    ) -> None:
        self.regularization = regularization
        self.epochs = epochs
        self.max_planes = max_planes
        self.bias = bias
        self.average = average
        self.prune_every = prune_every
        self.prune_c = prune_c
        self.clone_probability = clone_probability
        self.clone_decay = clone_decay
        self.n_categories = n_categories
        self.seed = seed
