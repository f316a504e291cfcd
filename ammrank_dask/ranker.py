"""Learn to rank categories with AMM-rank: a convex piecewise-linear score per category."""

import inspect
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
import scipy.sparse as sp

from ammrank_dask.kernels.ammrank import score_rows, train_rows
from ammrank_dask.kernels.topk import top_k_rows
from storage.errors import BadInput
from storage.models import load_model, save_model

logger = logging.getLogger(__name__)

RANK_WEIGHTS = ("uniform", "reciprocal")
Rows: TypeAlias = np.ndarray | sp.csr_matrix | sp.csr_array
_SCORE_ROWS = 8192


class NotFittedError(ValueError, AttributeError):
    """The ranker is asked for scores before it was fitted."""


class Blocks(Protocol):
    """Blocks of training rows that can be read again in every epoch, in any order."""

    def __len__(self) -> int: ...

    def __getitem__(self, block: int, /) -> tuple[Rows, np.ndarray]: ...


class AMMRank:
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
        ν of a pair, by the rank of the preferred category: `uniform` (1) or `reciprocal` (1 / rank).
    bias
        The value of a constant feature added to every row; 0 for none.
    average
        Keep the mean of the models at the ends of the last half of the epochs instead of the last model.
    n_categories
        L; by default one more than the highest code in the rankings.
    seed
        Decides the order of the rows.

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
    categories_, columns_digest_, variant_
        What codes and columns mean, when `ammrank_dask.training` knew it; otherwise None.

    Examples
    --------
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0]] * 20)
    >>> rankings = np.array([[0, 1], [1, 2]] * 20)
    >>> ranker = AMMRank(n_categories=3).fit(X, rankings)
    >>> ranker.predict(X[:2])
    array([[0, 1, 2],
           [1, 2, 0]], dtype=int32)
    """

    weights_: np.ndarray
    plane_category_: np.ndarray
    popularity_: np.ndarray
    n_steps_: int
    categories_: list[str] | None
    columns_digest_: str | None
    variant_: str | None

    def __init__(
        self,
        *,
        regularization: float = 1e-3,
        epochs: int = 5,
        max_planes: int = 50,
        rank_weight: str = "uniform",
        bias: float = 1.0,
        average: bool = True,
        n_categories: int | None = None,
        seed: int = 0,
    ) -> None:
        self.regularization = regularization
        self.epochs = epochs
        self.max_planes = max_planes
        self.rank_weight = rank_weight
        self.bias = bias
        self.average = average
        self.n_categories = n_categories
        self.seed = seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; `deep` changes nothing, as no parameter is an estimator."""
        return {name: getattr(self, name) for name in _parameter_names(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name."""
        names = _parameter_names(type(self))
        for name, value in params.items():
            if name not in names:
                raise ValueError(f"parameters of {type(self).__name__} are {', '.join(names)}, got {name}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({inside})"

    def fit(self, X: Rows, rankings: np.ndarray) -> Self:
        """Learn from rows and their rankings.

        Parameters
        ----------
        X
            (n, d) dense or CSR, finite.
        rankings
            (n, m) category codes, best first, padded with -1 at the end. Rows without a code teach nothing.
        """
        return self.fit_blocks([(X, rankings)])

    def fit_blocks(self, blocks: Blocks) -> Self:
        """Learn from blocks of rows, of which one is in memory at a time.

        Every epoch visits the blocks in an order drawn from (seed, epoch) and the rows of a block in an order
        drawn from (seed, epoch, block).

        Parameters
        ----------
        blocks
            A sequence of (X, rankings) as in `fit`; reading an item again must give the same rows.
        """
        self._check_parameters()
        n_categories = self._count_categories(blocks)
        planes: PlaneSums | None = None
        popularity = np.zeros(n_categories, np.int64)
        mean, n_models = np.zeros((0, 0), np.float32), 0
        for epoch in range(self.epochs):
            started = time.perf_counter()
            n_rows = 0
            for block in np.random.default_rng([self.seed, epoch]).permutation(len(blocks)):
                X, rankings = blocks[int(block)]
                X = _as_csr(X)
                if epoch == 0:
                    check_rankings(rankings, n_rows=X.shape[0], n_categories=n_categories)
                    popularity += np.bincount(rankings[rankings >= 0], minlength=n_categories)
                if planes is None:
                    planes = PlaneSums.empty(X.shape[1], n_categories)
                _check_n_features(X, planes.sums.shape[0] - 1)
                order = np.random.default_rng([self.seed, epoch, int(block)]).permutation(X.shape[0])
                train_block(
                    planes,
                    X,
                    rankings,
                    order,
                    rank_weight=self.rank_weight,
                    regularization=self.regularization,
                    bias=self.bias,
                    max_planes=self.max_planes,
                )
                n_rows += X.shape[0]
            if planes is None or not popularity.any():
                raise ValueError("rankings must hold at least one category, found only -1; give labelled rows")
            if self.average and epoch >= self.epochs // 2:
                # A plane that an earlier model did not have was one of the zero planes there.
                mean = _pad_columns(mean, planes.weights(self.regularization))
                n_models += 1
            seconds = time.perf_counter() - started
            logger.info(
                "epoch %d of %d: %d rows, %d planes, %.1f s", epoch + 1, self.epochs, n_rows,
                planes.n_planes.sum(), seconds,
            )  # fmt: skip
        assert planes is not None
        weights = mean / np.float32(n_models) if self.average else planes.weights(self.regularization)
        plane_category = planes.plane_category[: weights.shape[1]]
        by_category = np.argsort(plane_category, kind="stable")
        self.weights_ = np.ascontiguousarray(weights[:, by_category])
        self.plane_category_ = plane_category[by_category]
        self.popularity_ = popularity
        self.n_steps_ = planes.step - 1
        self.categories_, self.columns_digest_, self.variant_ = None, None, None
        return self

    def decision_function(self, X: Rows) -> np.ndarray:
        """Return the scores, (n, n_categories) float32; a category without planes is -inf."""
        self._check_fitted()
        X = _as_csr(X)
        _check_n_features(X, self.n_features_in_)
        scores = np.empty((X.shape[0], self.n_categories_), np.float32)
        score_rows(X.data, X.indices, X.indptr, self.weights_, self._plane_start, float(self.bias), scores)
        return scores

    def predict(self, X: Rows) -> np.ndarray:
        """Return all codes per row, best first; equal scores by training popularity, then lower code."""
        scores = self.decision_function(X)
        order = np.argsort(-scores[:, self.tie_order_], axis=1, kind="stable")
        return self.tie_order_[order]

    def predict_top_k(self, X: Rows, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best category codes and their scores, both (n, k), best first."""
        self._check_fitted()
        if not 1 <= k <= self.n_categories_:
            raise ValueError(f"k must be between 1 and n_categories ({self.n_categories_}), got {k}")
        X = _as_csr(X)
        codes = np.empty((X.shape[0], k), np.int32)
        scores = np.empty((X.shape[0], k), np.float32)
        # Few rows at a time, so that rows × categories never stand in memory.
        for start in range(0, X.shape[0], _SCORE_ROWS):
            rows = slice(start, start + _SCORE_ROWS)
            top_k_rows(self.decision_function(X[rows]), self.tie_order_, codes[rows], scores[rows])
        return codes, scores

    @property
    def n_planes_(self) -> np.ndarray:
        """Planes of each category."""
        self._check_fitted()
        return np.bincount(self.plane_category_, minlength=self.n_categories_)

    @property
    def n_categories_(self) -> int:
        """Number of categories ranked."""
        self._check_fitted()
        return len(self.popularity_)

    @property
    def n_features_in_(self) -> int:
        """Number of features, without the bias."""
        self._check_fitted()
        return self.weights_.shape[0] - 1

    @property
    def tie_order_(self) -> np.ndarray:
        """Category codes by training popularity, then lower code."""
        self._check_fitted()
        return np.argsort(-self.popularity_, kind="stable").astype(np.int32)

    def save(self, path: str | Path) -> None:
        """Write the fitted model to a folder."""
        self._check_fitted()
        arrays = {
            "weights": self.weights_,
            "plane_category": self.plane_category_,
            "popularity": self.popularity_,
        }
        attributes = {
            "method": "amm-rank",
            "parameters": self.get_params(),
            "n_steps": self.n_steps_,
            "categories": self.categories_,
            "columns_digest": self.columns_digest_,
            "variant": self.variant_,
        }
        save_model(path, arrays, attributes)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model that `save` wrote."""
        arrays, attributes = load_model(path)
        if attributes.get("method") != "amm-rank":
            raise BadInput(f"model at {path} must be of amm-rank, got {attributes.get('method')}")
        ranker = cls(**attributes["parameters"])
        ranker.weights_ = arrays["weights"]
        ranker.plane_category_ = arrays["plane_category"]
        ranker.popularity_ = arrays["popularity"]
        ranker.n_steps_ = attributes["n_steps"]
        ranker.categories_ = attributes["categories"]
        ranker.columns_digest_ = attributes["columns_digest"]
        ranker.variant_ = attributes["variant"]
        return ranker

    @property
    def _plane_start(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.n_planes_)])

    def _check_fitted(self) -> None:
        if "weights_" not in vars(self):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")

    def _check_parameters(self) -> None:
        if not (np.isfinite(self.regularization) and self.regularization > 0):
            raise ValueError(f"regularization must be above 0, got {self.regularization}")
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}")
        if self.max_planes < 1:
            raise ValueError(f"max_planes must be at least 1, got {self.max_planes}")
        if self.rank_weight not in RANK_WEIGHTS:
            raise ValueError(f"rank_weight must be one of {', '.join(RANK_WEIGHTS)}, got {self.rank_weight}")
        if not np.isfinite(self.bias):
            raise ValueError(f"bias must be finite, got {self.bias}")
        if self.n_categories is not None and self.n_categories < 1:
            raise ValueError(f"n_categories must be at least 1, got {self.n_categories}")
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or above, got {self.seed}")

    def _count_categories(self, blocks: Blocks) -> int:
        if self.n_categories is not None:
            return self.n_categories
        highest = max((int(np.max(blocks[i][1], initial=-1)) for i in range(len(blocks))), default=-1)
        if highest < 0:
            raise ValueError("rankings must hold at least one category, found only -1; give labelled rows")
        return highest + 1


@dataclass
class PlaneSums:
    """The state of training: sums of pushed rows S, with w = S / (λ · step).

    `sums` is (d + 1, capacity) float32 feature-major, planes in the order of their birth; `plane_category`
    (capacity,), `n_planes` (L,), and `step` the t of the next row.
    """

    sums: np.ndarray
    plane_category: np.ndarray
    n_planes: np.ndarray
    step: int = 1

    @classmethod
    def empty(cls, n_features: int, n_categories: int) -> Self:
        """Return the state before the first step: no planes."""
        return cls(
            sums=np.zeros((n_features + 1, 0), np.float32),
            plane_category=np.zeros(0, np.int32),
            n_planes=np.zeros(n_categories, np.int64),
        )

    def weights(self, regularization: float) -> np.ndarray:
        """Return w, (d + 1, n_planes) float32, planes in the order of their birth."""
        return self.sums[:, : self.n_planes.sum()] / np.float32(regularization * self.step)

    def reserve(self, capacity: int) -> None:
        """Make room for at least `capacity` planes."""
        if capacity <= self.sums.shape[1]:
            return
        # Whole cache lines of 16 floats, in an odd number: rows a power of two apart would share cache sets.
        capacity = 16 * (-(-capacity // 16) | 1)
        sums = np.zeros((self.sums.shape[0], capacity), np.float32)
        sums[:, : self.sums.shape[1]] = self.sums
        plane_category = np.zeros(capacity, np.int32)
        plane_category[: len(self.plane_category)] = self.plane_category
        self.sums, self.plane_category = sums, plane_category


def train_block(
    planes: PlaneSums,
    X: sp.csr_matrix | sp.csr_array,
    rankings: np.ndarray,
    order: np.ndarray,
    *,
    rank_weight: str,
    regularization: float,
    bias: float,
    max_planes: int,
) -> None:
    """Make one AMM-rank step per row of `order`; `planes` is changed in place."""
    rankings = np.ascontiguousarray(rankings, np.int32)
    length = rankings.shape[1]
    weights = rank_weights(rank_weight, length)
    n_categories = len(planes.n_planes)
    most = n_categories * max_planes + length
    planes.reserve(min(2 * n_categories + length, most))
    while len(order):
        n_done, planes.step = train_rows(
            X.data, X.indices, X.indptr, rankings, order, weights, float(regularization), float(bias),
            max_planes, planes.step, planes.sums, planes.plane_category, planes.n_planes,
        )  # fmt: skip
        order = order[n_done:]
        if len(order):
            planes.reserve(min(2 * int(planes.n_planes.sum()) + length, most))


def rank_weights(rank_weight: str, length: int) -> np.ndarray:
    """Return ν of the ranks 1 … length, float32."""
    if rank_weight == "reciprocal":
        return (1.0 / np.arange(1, length + 1)).astype(np.float32)
    return np.ones(length, np.float32)


def check_rankings(rankings: np.ndarray, *, n_rows: int, n_categories: int) -> None:
    """Refuse rankings that are not (n, m) distinct codes per row, padded with -1 at the end."""
    if rankings.ndim != 2 or rankings.shape[0] != n_rows or not np.issubdtype(rankings.dtype, np.integer):
        raise ValueError(
            f"rankings must be whole numbers of shape ({n_rows}, m), got {rankings.dtype} of {rankings.shape}"
        )
    if rankings.size == 0:
        return
    low, high = int(rankings.min()), int(rankings.max())
    if low < -1 or high >= n_categories:
        wrong = low if low < -1 else high
        raise ValueError(f"rankings must hold codes from 0 to {n_categories - 1}, or -1, got {wrong}")
    if ((rankings[:, :-1] < 0) & (rankings[:, 1:] >= 0)).any():
        raise ValueError("rankings must be padded with -1 only at the end, found a category after -1")
    by_code = np.sort(rankings, axis=1)
    twice = (by_code[:, 1:] == by_code[:, :-1]) & (by_code[:, 1:] >= 0)
    if twice.any():
        row = int(np.flatnonzero(twice.any(axis=1))[0])
        raise ValueError(f"rankings must name a category once per row, found one twice in row {row}")


def _as_csr(X: Rows) -> sp.csr_matrix | sp.csr_array:
    """Return finite float32 CSR rows."""
    if not sp.issparse(X):
        X = np.asarray(X)
        if X.ndim != 2:
            raise ValueError(f"X must have two dimensions, got {X.ndim}")
    # A value too large for float32 becomes inf, which is refused just below.
    with np.errstate(over="ignore"):
        rows = sp.csr_matrix(X, dtype=np.float32)
    if not np.isfinite(rows.data).all():
        raise ValueError("X must be finite in float32, found NaN or infinity; fill or drop those values")
    return rows


def _check_n_features(X: sp.csr_matrix | sp.csr_array, n_features: int) -> None:
    if X.shape[1] != n_features:
        raise ValueError(f"X must have {n_features} features, got {X.shape[1]}")


def _pad_columns(total: np.ndarray, addend: np.ndarray) -> np.ndarray:
    """Return the sum of two arrays, the first one with zeros for the columns it lacks."""
    if total.size:
        addend[:, : total.shape[1]] += total
    return addend


def _parameter_names(cls: type) -> Sequence[str]:
    return sorted(name for name in inspect.signature(cls).parameters)
