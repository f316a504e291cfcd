"""Learn to rank categories with AMM-rank, a convex piecewise-linear score per category, and the top one with AMM."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ammrank_dask.model.plane_model import PlaneModel
from ammrank_dask.model.plane_sums import StepSettings, check_rank_weight


@dataclass(kw_only=True, eq=False, repr=False)
class AMMRank(PlaneModel):
    """Rank categories by g(i, x) = max_j w_ij · x, learned from partial rankings.

    Every category of a ranking is preferred over the later ones and over all categories that are not in it.

    Parameters
    ----------
    regularization
        λ, above 0.
    epochs
        Passes over the rows.
    max_planes
        Limit of planes in one category.
    rank_weight
        ν of a pair, by the rank of the preferred category: `uniform` (1), `reciprocal` (1 / rank), or one
        number for each rank.
    bias
        The value of a constant feature added to every row; 0 for none.
    average
        Keep the mean of the models at the ends of the last half of the epochs instead of the last model.
    prune_every, prune_c
        After every so many steps remove the planes of smallest ‖S‖² (S = λt·w), as long as their sum is at most
        prune_c² and never the last one of a category; None never prunes.
    clone_probability, clone_decay
        A winning plane that is pushed up is doubled with this probability × decay ^ planes of its category.
    n_categories
        L; by default one more than the highest code in the rankings, or the columns of the ranks.
    seed
        Decides the order of the rows and the clones.

    Attributes
    ----------
    weights_
        (n_features + 1, n_planes) float32, the bias as last row, planes sorted by category.
    plane_category_
        (n_planes,) the category of each plane.
    n_planes_
        (n_categories,) planes of each category.
    popularity_
        (n_categories,) training rows that rank the category.
    n_features_in_, n_categories_, n_steps_
        Sizes, and the number of training steps made.
    categories_, columns_, variant_
        What codes and columns mean, when `ammrank_dask.training.train` knew it; otherwise None.
    training_
        Loss and validation error by epoch, and which model was chosen, when `ammrank_dask.training.train` made it.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0]] * 20)
    >>> rankings = np.array([[0, 1], [1, 2]] * 20)
    >>> ranker = AMMRank(n_categories=3).fit(X, rankings)
    >>> ranker.predict(X[:2])
    array([[0, 1, 2],
           [1, 2, 0]], dtype=int32)
    """

    method: ClassVar[str] = "amm-rank"

    rank_weight: str | Sequence[float] = "uniform"

    def step_settings(self) -> StepSettings:
        """Return how a step is made with these parameters."""
        return replace(super().step_settings(), rank_weight=self.rank_weight)

    def check_parameters(self) -> None:
        """Refuse parameters that no training can have."""
        check_rank_weight(self.rank_weight)
        super().check_parameters()


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
